"""Coordinates ``function``: the network at the inputs, instead of its weights (docs/mathematics.md, section 9).

The likelihood sees the first layer only through X~ W, X~ = [sw X / sqrt(m), sb 1]. With X~ = F V' (V has
orthonormal columns, one per dimension of the row space) the pre-activations are F A, A = V' W, and the rest
of W never reaches the data. A deeper layer given the one before has independent columns N(0, K), so that
f = chol(K) A with A standard normal, K = G~ G~', G~ = [sw g / sqrt(d), sb 1]. The readout is integrated out.
All A are N(0, I) a priori: the same posterior over functions in a fraction of the coordinates, exactly.

What the likelihood ignores is drawn from its exact conditional whenever weights or new inputs are asked for,
or, for ``space="full"``, is part of the chain (full_space.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax.linalg import cholesky, triangular_solve

from widebnn.networks.dense import DenseNetwork, Layer
from widebnn.networks.network import Weights
from widebnn.posteriors.readout import condition, log_evidence
from widebnn.posteriors.target import NetworkTarget
from widebnn.precision import double_precision, in_double_precision


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """a @ b, never in less than the precision of its operands."""
    return jnp.matmul(a, b, precision="highest")


class FunctionSpace(NamedTuple):
    """The map from coordinates (A_1, ..., A_L) to function values, and back to weights."""

    shapes: tuple[tuple[int, int], ...]
    """Shapes of the coordinates, one array per hidden layer."""
    basis: np.ndarray
    """V: an orthonormal basis of the row space of X~ in R^(m+1)."""
    psi: Callable[[Any], jax.Array]
    """Coordinates -> Psi at the training inputs."""
    at_new_inputs: Callable[[Any, Any, Any], jax.Array]
    """(coordinates, inputs, standard normals per layer) -> Psi at the inputs, from its exact conditional."""
    hidden_weights: Callable[[jax.Array, Any], tuple[Layer, ...]]
    """(key, coordinates) -> hidden weights, from their exact conditional."""
    from_hidden: Callable[[Any], tuple[jax.Array, ...]]
    """Hidden weights -> coordinates."""


def function_space(network: DenseNetwork, x: jax.Array) -> FunctionSpace:
    """Reduce the hidden layers of a dense network to their values at the inputs x."""
    dtype = x.dtype
    # Equal inputs have equal function values: one row each, or the kernel of a deeper layer is singular.
    rows = np.asarray(x, np.float64)
    distinct, inverse = np.unique(rows, axis=0, return_inverse=True)
    repeated = len(distinct) < len(rows)
    rows = distinct if repeated else rows
    with double_precision(), jax.ensure_compile_time_eval():
        f_factor, v = _row_space(np.asarray(network.hidden_inputs(jnp.asarray(rows))))
        factor, basis = jnp.asarray(f_factor, dtype), jnp.asarray(v, dtype)
    shapes = [(factor.shape[1], network.widths[0])]
    shapes += [(min(len(rows), before + 1), width) for before, width in itertools.pairwise(network.widths)]

    def next_inputs(f):
        return network.hidden_inputs(network.activate(f))

    def forward(layers):
        """Pre-activations of every layer at the distinct inputs."""
        f = [product(factor, layers[0])]
        for a in layers[1:]:
            f.append(product(_layer_root(next_inputs(f[-1])), a))
        return f

    def psi(layers):
        values = network.readout_inputs(network.activate(forward(layers)[-1]))
        return values[inverse.reshape(-1)] if repeated else values

    def at_new_inputs(layers, x_new, normals):
        f = forward(layers)
        new = network.hidden_inputs(jnp.asarray(x_new, jnp.float64))
        f_new = _extend(new, jnp.asarray(v), layers[0], normals[0])
        for before, a, z in zip(f, layers[1:], normals[1:], strict=False):
            train, new = next_inputs(before), next_inputs(f_new)
            if _is_its_own_root(train):
                f_new = product(new, a)
            else:
                f_new = _extend(new.astype(jnp.float64), _orthonormal_rows(train)[0].T, a, z)
        return network.readout_inputs(network.activate(f_new))

    def hidden_weights(key, layers):
        f = [None, *forward(layers)]
        weights = []
        for i, (a, layer_key) in enumerate(zip(layers, jax.random.split(key, len(layers)), strict=True)):
            fan_in = network.input_dim if i == 0 else network.widths[i - 1]
            z = jax.random.normal(layer_key, (fan_in + 1, a.shape[1]), dtype)
            if i > 0 and _is_its_own_root(next_inputs(f[i])):
                w = a
            else:
                # W = V A + (I - V V') Z with V the row space of what the layer sees.
                rows = basis if i == 0 else _orthonormal_rows(next_inputs(f[i]))[0].T.astype(dtype)
                w = z + product(rows, a - product(rows.T, z))
            weights.append(Layer(w[:-1], w[-1]))
        return tuple(weights)

    def from_hidden(hidden):
        stacked = [jnp.concatenate([layer.w, layer.b[None]]) for layer in hidden]
        layers = [product(basis.T, stacked[0])]
        f = product(factor, layers[0])
        for w in stacked[1:]:
            inputs = next_inputs(f)
            f = product(inputs, w)
            layers.append(w if _is_its_own_root(inputs) else product(_orthonormal_rows(inputs)[0].astype(dtype), w))
        return tuple(layers)

    return FunctionSpace(tuple(shapes), v, psi, at_new_inputs, hidden_weights, from_hidden)


def _row_space(inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(F, V) with inputs = F V': singular directions above rounding; dependent inputs reduce the rank."""
    u, s, vt = np.linalg.svd(inputs, full_matrices=False)
    rank = max(1, int(np.sum(s > s[0] * max(inputs.shape) * np.finfo(np.float64).eps)))
    return u[:, :rank] * s[:rank], vt[:rank].T


def _is_its_own_root(inputs: jax.Array) -> bool:
    """True if G~ has no more columns than rows: then the coordinates of the layer are its weights."""
    return inputs.shape[1] <= inputs.shape[0]


def _layer_root(inputs: jax.Array) -> jax.Array:
    """R with R R' = G~ G~' and as few columns as possible: G~ itself, or the Cholesky factor of the kernel.

    The Gram matrix is formed in the dtype of the features and factored in float64.
    """
    if _is_its_own_root(inputs):
        return inputs
    return cholesky(product(inputs, inputs.T).astype(jnp.float64), symmetrize_input=False).astype(inputs.dtype)


def _orthonormal_rows(inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(Q, L) with G~ = L Q, Q Q' = I and L the Cholesky factor of the kernel: A = Q W."""
    wide = inputs.astype(jnp.float64)
    factor = cholesky(wide @ wide.T, symmetrize_input=False)
    return triangular_solve(factor, wide, left_side=True, lower=True), factor


def _extend(new: jax.Array, basis: jax.Array, a: jax.Array, z: jax.Array) -> jax.Array:
    """Pre-activations at new rows of layer inputs, given A = V' W and standard normals z (new rows x units).

    W = V A + (I - V V') Z, so a new row n gives (n V) A + n (I - V V') Z: a known part and a Gaussian with
    covariance across across', across = new - (new V) V'.
    """
    along = new @ basis
    across = new - along @ basis.T
    lam, vectors = jnp.linalg.eigh(across @ across.T)
    root = (vectors * jnp.sqrt(jnp.maximum(lam, 0.0))) @ vectors.T
    return product(along.astype(a.dtype), a) + product(root.astype(a.dtype), z)


def function_target(network: DenseNetwork, x: jax.Array, y: jax.Array, noise: float) -> NetworkTarget:
    """The posterior of a dense network over function values at the training inputs; u = (A_1, ..., A_L)."""
    space = function_space(network, x)
    dtype = x.dtype

    def normals(key, shapes):
        keys = jax.random.split(key, len(shapes))
        return tuple(jax.random.normal(k, shape, dtype) for k, shape in zip(keys, shapes, strict=True))

    @in_double_precision
    def log_likelihood(u):
        return log_evidence(space.psi(u), y, noise)

    def sample_reference(key):
        with double_precision():
            return normals(key, space.shapes)

    def to_weights(key, u):
        with double_precision():
            hidden_key, readout_key = jax.random.split(key)
            readout = condition(space.psi(u), y, noise).draw(readout_key).astype(dtype)
            return Weights(space.hidden_weights(hidden_key, u), readout)

    def from_weights(weights):
        with double_precision():
            return space.from_hidden(weights.hidden)

    def predict(key, u, x_new):
        with double_precision():
            hidden_key, readout_key = jax.random.split(key)
            free = normals(hidden_key, [(len(x_new), width) for width in network.widths])
            psi_new = space.at_new_inputs(u, x_new, free)
            return condition(space.psi(u), y, noise).predict(readout_key, psi_new)

    return NetworkTarget(
        log_likelihood=log_likelihood,
        sample_reference=sample_reference,
        coordinates="function",
        network=network,
        x=x,
        y=y,
        noise=noise,
        to_weights=to_weights,
        from_weights=from_weights,
        predict=predict,
    )
