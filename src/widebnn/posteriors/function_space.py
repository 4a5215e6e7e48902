"""Coordinates ``function``: the network at the inputs, instead of its weights (docs/mathematics.md, section 9).

The likelihood sees the first layer only through X~ W, X~ = [sw X / sqrt(m), sb 1]. With X~ = F V' (V has
orthonormal columns, one per dimension of the row space) the pre-activations are F A, A = V' W, and the rest
of W never reaches the data. A deeper layer given the one before has independent columns N(0, K), so that
f = chol(K) A with A standard normal, K = G~ G~', G~ = [sw g / sqrt(d), sb 1]. The readout is integrated out.
All A are N(0, I) a priori: the same posterior over functions in a fraction of the coordinates, exactly.

What the likelihood ignores is drawn from its exact conditional whenever weights or new inputs are asked for.
Instead the chain can carry it: the function at inputs known in advance (``carry``), or everything the paper's
chain on all weights has (``space="full"``, see full_space.py).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax.linalg import cholesky

from widebnn.errors import WidebnnError
from widebnn.networks.dense import DenseNetwork, Layer
from widebnn.networks.network import Weights
from widebnn.noise import standard_normal
from widebnn.posteriors import full_space
from widebnn.posteriors.products import lower_product, product
from widebnn.posteriors.readout import condition, log_evidence, square_root
from widebnn.posteriors.target import NetworkTarget, Prediction
from widebnn.precision import double_precision, in_double_precision


class FunctionPosition(NamedTuple):
    """Coordinates, all N(0, I) a priori; only ``layers`` enters the likelihood (softmax: ``readout`` too)."""

    layers: tuple[jax.Array, ...]
    """(A_1, ..., A_L)."""
    carried: tuple[jax.Array, ...] = ()
    """What the carried inputs add to each layer."""
    readout: Any = ()
    """The whitened readout, features x outputs (full space); softmax: the reduced readout (softmax.py)."""
    tracked: Any = ()
    """Linear functionals of the remaining hidden weights (full space)."""
    ignored: Any = ()
    """The remaining hidden weights, lumped (full space)."""


def unit_axes(u: FunctionPosition) -> FunctionPosition:
    """Hidden units are the columns of ``layers`` and ``carried``."""
    axes = jax.tree.map(lambda _: -1, u)
    return axes._replace(layers=(1,) * len(u.layers), carried=(1,) * len(u.carried))


class Extension(NamedTuple):
    """New inputs in terms of the training inputs: X~ = along V' + root Q', Q orthonormal, V'Q = 0."""

    along: jax.Array
    root: jax.Array


class FunctionSpace(NamedTuple):
    """The map from coordinates (A_1, ..., A_L) to function values, and back to weights."""

    shapes: tuple[tuple[int, int], ...]
    """Shapes of the coordinates, one array per hidden layer."""
    basis: np.ndarray
    """V: an orthonormal basis of the row space of X~ in R^(m+1)."""
    psi: Callable[[Any], jax.Array]
    """Coordinates -> Psi at the training inputs."""
    without_constant: Callable[[Any], jax.Array]
    """Coordinates -> Psi at the training inputs but for its last column, the constant."""
    extend: Callable[[Any], Extension]
    """New inputs -> their extension, also while traced."""
    at_new_inputs: Callable[[Any, Extension, Any], jax.Array]
    """(coordinates, extension, standard normals per layer) -> Psi at the inputs, from its exact conditional."""
    hidden_weights: Callable[[jax.Array, Any], tuple[Layer, ...]]
    """(key, coordinates) -> hidden weights, from their exact conditional."""
    from_hidden: Callable[[Any], tuple[jax.Array, ...]]
    """Hidden weights -> coordinates."""


def function_space(network: DenseNetwork, x: jax.Array) -> FunctionSpace:
    """Reduce the hidden layers of a dense network to their values at the inputs x."""
    dtype = x.dtype
    # Equal inputs have equal function values: one row each, where the kernel of a deeper layer would be singular.
    rows = np.asarray(x, np.float64)
    distinct, inverse = np.unique(rows, axis=0, return_inverse=True)
    repeated = len(distinct) < len(rows) and any(width >= len(distinct) for width in network.widths[:-1])
    rows = distinct if repeated else rows
    with double_precision(), jax.ensure_compile_time_eval():
        f_factor, v = row_space(np.asarray(network.hidden_inputs(jnp.asarray(rows))))
        factor, basis = jnp.asarray(f_factor, dtype), jnp.asarray(v, dtype)
    shapes = [(factor.shape[1], network.widths[0])]
    shapes += [(min(len(rows), before + 1), width) for before, width in itertools.pairwise(network.widths)]

    def next_inputs(f):
        return network.hidden_inputs(network.activate(f))

    def root_of(h):
        """A root of the kernel of a layer that sees h; None if h has fewer columns than rows, and G~ is as good."""
        return None if h.shape[1] < len(h) else _kernel_root(network.scaled(h), jnp.asarray(network.bias_std, dtype))

    def forward(layers):
        """Pre-activations of every layer at the distinct inputs, and the roots of the kernels that they come from."""
        f, roots = [lower_product(factor, layers[0])], [None]
        for a in layers[1:]:
            h = network.activate(f[-1])
            roots.append(root_of(h))
            f.append(product(network.hidden_inputs(h), a) if roots[-1] is None else lower_product(roots[-1], a))
        return f, roots

    def last(layers):
        h = network.activate(forward(layers)[0][-1])
        return h[inverse.reshape(-1)] if repeated else h

    def psi(layers):
        return network.readout_inputs(last(layers))

    def without_constant(layers):
        return network.scaled_readout(last(layers))

    def extend(x_new):
        # Inputs that are known now are constants of whatever is being compiled, and extended once.
        known = not isinstance(x_new, jax.core.Tracer)
        with jax.ensure_compile_time_eval() if known else contextlib.nullcontext():
            new = network.hidden_inputs(jnp.asarray(x_new, jnp.float64))
            along, root = _conditional_root(new, jnp.asarray(v), jnp.asarray(v.T))
            return Extension(along.astype(dtype), root.astype(dtype))

    def at_new_inputs(layers, extension, normals):
        f, roots = forward(layers)
        f_new = product(extension.along, layers[0]) + product(extension.root, normals[0])
        for before, root, a, z in zip(f, roots[1:], layers[1:], normals[1:], strict=False):
            new = next_inputs(f_new)
            if root is None:
                f_new = product(new, a)
            else:
                m, q = _isometry(next_inputs(before), root)
                along, across = _conditional_root(new.astype(jnp.float64), m, q)
                f_new = product(along.astype(dtype), a) + product(across.astype(dtype), z)
        return network.readout_inputs(network.activate(f_new))

    def hidden_weights(key, layers):
        f, roots = forward(layers)
        weights = []
        for i, (a, layer_key) in enumerate(zip(layers, jax.random.split(key, len(layers)), strict=True)):
            fan_in = network.input_dim if i == 0 else network.widths[i - 1]
            z = standard_normal(layer_key, (fan_in + 1, a.shape[1]), dtype)
            if i > 0 and roots[i] is None:
                w = a
            else:
                # W = M A + (I - Q'Q) Z, with Q the row space of what the layer sees.
                wide = (basis, basis.T) if i == 0 else _isometry(next_inputs(f[i - 1]), roots[i])
                m, q = (part.astype(dtype) for part in wide)
                w = product(m, a) + z - product(q.T, product(q, z))
            weights.append(Layer(w[:-1], w[-1]))
        return tuple(weights)

    def from_hidden(hidden):
        stacked = [jnp.concatenate([layer.w, layer.b[None]]) for layer in hidden]
        layers = [product(basis.T, stacked[0])]
        f = lower_product(factor, layers[0])
        for w in stacked[1:]:
            inputs, root = next_inputs(f), root_of(network.activate(f))
            layers.append(w if root is None else product(_isometry(inputs, root)[0].T.astype(dtype), w))
            # As forward() has it, bit for bit: the root of a nearly singular kernel is that of its rounding.
            f = product(inputs, w) if root is None else lower_product(root, layers[-1])
        return tuple(layers)

    return FunctionSpace(tuple(shapes), v, psi, without_constant, extend, at_new_inputs, hidden_weights, from_hidden)


def row_space(inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(F, V) with inputs = F V': singular directions above rounding; dependent inputs reduce the rank.

    Of all such bases the one that makes F lower triangular with a positive diagonal: input i is a combination of
    the first i directions. Independent inputs have F = chol(inputs inputs').
    """
    u, s, vt = np.linalg.svd(inputs, full_matrices=False)
    rank = max(1, int(np.sum(s > s[0] * max(inputs.shape) * np.finfo(np.float64).eps)))
    rotation, upper = np.linalg.qr((u[:, :rank] * s[:rank]).T)
    signs = np.where(np.diagonal(upper) < 0, -1.0, 1.0)
    return upper.T * signs, vt[:rank].T @ (rotation * signs)


def _kernel_root(scaled: jax.Array, constant: jax.Array) -> jax.Array:
    """A lower triangular root of G~ G~', G~ = [scaled, constant 1]; G~ is not formed, its columns stay where they are.

    The Gram matrix is formed in the dtype of the features and factored in float64. Any root that is a function of
    the layers before is exact: the Cholesky factor, or, where the kernel is singular, one made of its eigenvectors
    (units of a narrow ReLU layer can be dead at several inputs at once). The gradient ignores the latter; samplers
    are exact for any force.
    """
    kernel = product(scaled, scaled.T).astype(jnp.float64) + constant.astype(jnp.float64) ** 2
    regular = jnp.all(jnp.isfinite(cholesky(jax.lax.stop_gradient(kernel), symmetrize_input=False)))
    factor = cholesky(jnp.where(regular, kernel, jnp.eye(len(kernel))), symmetrize_input=False)
    singular = jax.lax.cond(regular, jnp.zeros_like, _triangular_root, jax.lax.stop_gradient(kernel))
    return jnp.where(regular, factor, singular).astype(scaled.dtype)


def _symmetric_root(kernel: jax.Array) -> jax.Array:
    lam, vectors = jnp.linalg.eigh(kernel)
    return (vectors * jnp.sqrt(jnp.maximum(lam, 0.0))) @ vectors.T


def _triangular_root(kernel: jax.Array) -> jax.Array:
    return jnp.linalg.qr(_symmetric_root(kernel), mode="r").T


def _isometry(inputs: jax.Array, root: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(M, Q): the weights are W = M A + (I - Q'Q) Z, where Q has orthonormal rows that span those of G~.

    M is the isometry with G~ M nearest to the root R: with G~' R = P S T' it is P T', and Q = P'. If R R' = G~ G~'
    then G~ M = R. Rounding in the kernel of the features makes R another, by up to sqrt(n eps), in directions that G~
    hardly has. Those are left out, and Z fills them: W is standard normal if A is, whatever the rounding.
    """
    p, s, t = jnp.linalg.svd(inputs.astype(jnp.float64).T @ root.astype(jnp.float64), full_matrices=False)
    kept = s > s[0] * s.size * jnp.finfo(inputs.dtype).eps
    rows = jnp.where(kept[:, None], p.T, 0.0)
    return rows.T @ t, rows


def _conditional_root(new: jax.Array, to_weights: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Pre-activations at new rows N of layer inputs are along A + root z, z standard normal.

    W = M A + (I - Q'Q) Z, so they are (N M) A + N (I - Q'Q) Z: a known part and a Gaussian with covariance
    across across', across = N (I - Q'Q). The symmetric root depends smoothly on it.
    """
    across = new - (new @ rows.T) @ rows
    return new @ to_weights, _symmetric_root(across @ across.T)


def function_target(
    network: DenseNetwork, x: jax.Array, y: jax.Array, noise: float, carry: Any = None, full: bool = False
) -> NetworkTarget:
    """The posterior of a dense network over function values at the training inputs, and what else is carried."""
    space = function_space(network, x)
    dtype, widths, outputs = x.dtype, network.widths, y.shape[1]
    carried = None if carry is None else carry_inputs(network, space, carry, dtype)
    remainder = full_space.remainder(network, space.basis, carried, outputs, dtype) if full else None

    def normals(key, shapes):
        keys = jax.random.split(key, len(shapes))
        return tuple(standard_normal(k, shape, dtype) for k, shape in zip(keys, shapes, strict=True))

    @in_double_precision
    def log_likelihood(u):
        return log_evidence(space.without_constant(u.layers), y, noise, constant=network.readout_bias_std)

    def sample_reference(key):
        with double_precision():
            layers_key, carried_key, readout_key, rest_key = jax.random.split(key, 4)
            u = FunctionPosition(normals(layers_key, space.shapes))
            if carried is not None:
                u = u._replace(carried=normals(carried_key, carried.shapes))
            if remainder is not None:
                (readout,) = normals(readout_key, [(network.feature_dim, outputs)])
                tracked, ignored = remainder.sample(rest_key)
                u = u._replace(readout=readout, tracked=tracked, ignored=ignored)
            return u

    def own_readout(u, psi):
        """The readout weights of the chain in full space."""
        mean = condition(psi, y, noise).gain(y.astype(jnp.float64))
        return (mean + square_root(psi, noise).multiply(u.readout.astype(jnp.float64))).astype(dtype)

    def to_weights(key, u):
        with double_precision():
            hidden_key, readout_key = jax.random.split(key)
            hidden = space.hidden_weights(hidden_key, u.layers)
            if full:
                return Weights(hidden, own_readout(u, space.psi(u.layers)))
            # The readout is conditioned on the features of these weights, which are the chain's but for rounding.
            return Weights(hidden, condition(network.features(hidden, x), y, noise).draw(readout_key).astype(dtype))

    def from_weights(weights):
        if full or carry is not None:
            raise WidebnnError("weights do not determine what is carried; use space='reduced' without carry.")
        with double_precision():
            return FunctionPosition(space.from_hidden(weights.hidden))

    def predict(key, u, x_new=None):
        if x_new is None and carried is None:
            raise WidebnnError("predict needs inputs: pass x, or carry them with posterior(..., carry=x_test).")
        with double_precision():
            hidden_key, readout_key = jax.random.split(key)
            if x_new is None:
                extension, free = carried.extension, u.carried
            else:
                extension = space.extend(x_new)
                free = normals(hidden_key, [(len(x_new), width) for width in widths])
            psi, psi_new = space.psi(u.layers), space.at_new_inputs(u.layers, extension, free)
            if full:
                f = product(psi_new, own_readout(u, psi))
                return Prediction(f, f, jnp.zeros(f.shape[0], dtype))
            return condition(psi, y, noise).predict(readout_key, psi_new)

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
        carry=carry,
        projections=None if remainder is None else remainder.project,
        unit_axes=unit_axes,
    )


class CarriedInputs(NamedTuple):
    """Inputs whose function values the chain carries along."""

    extension: Extension
    shapes: tuple[tuple[int, int], ...]
    basis: np.ndarray
    """Q: the directions of R^(m+1) that they add to the training inputs."""


def carry_inputs(network: DenseNetwork, space: FunctionSpace, x_carry: Any, dtype: Any) -> CarriedInputs:
    """Prepare inputs known in advance; ones that depend linearly on others add no coordinates to the first layer."""
    with double_precision(), jax.ensure_compile_time_eval():
        new = np.asarray(network.hidden_inputs(jnp.asarray(x_carry, jnp.float64)))
        along = new @ space.basis
        across = new - along @ space.basis.T
        scale = np.linalg.norm(new)
        root, basis = row_space(across) if np.linalg.norm(across) > 1e-10 * scale else (across[:, :0], across.T[:, :0])
        extension = Extension(jnp.asarray(along, dtype), jnp.asarray(root, dtype))
    rows = [root.shape[1]] + [len(new)] * (len(network.widths) - 1)
    return CarriedInputs(extension, tuple(zip(rows, network.widths, strict=True)), basis)
