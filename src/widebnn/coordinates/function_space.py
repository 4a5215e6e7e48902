"""The hidden layers of a dense network as their values at the inputs (docs/mathematics.md, section 9).

The likelihood sees the first layer only through X~ W, X~ = [sw X / sqrt(m), sb 1]. With X~ = F V' (V has
orthonormal columns, one per dimension of the row space) the pre-activations are F A, A = V' W, and the rest
of W never reaches the data. A deeper layer given the one before has independent columns N(0, K), so that
f = chol(K) A with A standard normal, K = G~ G~', G~ = [sw g / sqrt(d), sb 1]. All A are N(0, I) a priori.
What the likelihood ignores is drawn from its exact conditional whenever weights or new inputs are asked for.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widebnn.linalg import lower_factor, lower_product, product, symmetric_root
from widebnn.networks.dense import DenseNetwork, Layer
from widebnn.noise import standard_normal
from widebnn.precision import double_precision


class Extension(NamedTuple):
    """New inputs in terms of the training inputs: X~ = along V' + root Q', Q orthonormal, V'Q = 0."""

    along: jax.Array
    root: jax.Array


class FunctionSpace:
    """The map from coordinates (A_1, ..., A_L) to function values at the inputs x, and back to weights.

    ``basis`` is V in float64, ``factor`` F in the dtype of x, ``shapes`` are those of the coordinates, and ``repeats``
    says which distinct input every row is, where equal inputs are merged.
    """

    def __init__(self, network: DenseNetwork, x: jax.Array):
        self.network, self.x = network, x
        rows, widths = np.asarray(x, np.float64), network.widths
        # Equal inputs have equal function values: one row each, where the kernel of a deeper layer would be singular.
        distinct, inverse = np.unique(rows, axis=0, return_inverse=True)
        repeated = len(distinct) < len(rows) and any(width >= len(distinct) for width in widths[:-1])
        rows = distinct if repeated else rows
        with double_precision(), jax.ensure_compile_time_eval():
            inputs = np.asarray(network.hidden_inputs(jnp.asarray(rows)))
            factor, self.basis = row_space(inputs, np.linalg.norm(inputs, axis=1).max())
            if not self.basis.size:  # all inputs are zero, and there is no bias: a direction that nothing depends on
                factor, self.basis = np.zeros((len(rows), 1)), np.eye(inputs.shape[1], 1)
            self.factor = jnp.asarray(factor, x.dtype)
        deeper = [(min(len(rows), before + 1), width) for before, width in itertools.pairwise(widths)]
        self.shapes = ((factor.shape[1], widths[0]), *deeper)
        self.repeats = inverse.reshape(-1) if repeated else None

    def normals(self, key: jax.Array, shapes: Any) -> tuple[jax.Array, ...]:
        """Standard normal arrays of these shapes."""
        keys = jax.random.split(key, len(shapes))
        return tuple(standard_normal(k, shape, self.x.dtype) for k, shape in zip(keys, shapes, strict=True))

    def last_layer(self, layers: Any) -> jax.Array:
        """g(f_L), the activations of the last hidden layer at the inputs."""
        h = self.network.activate(self._forward(layers)[0][-1])
        return h if self.repeats is None else h[self.repeats]

    def psi(self, layers: Any) -> jax.Array:
        """Psi at the inputs."""
        return self.network.readout_inputs(self.last_layer(layers))

    def extend(self, x_new: Any) -> Extension:
        """The extension of new inputs, also while traced."""
        # Inputs that are known now are constants of whatever is being compiled, and extended once.
        known = not isinstance(x_new, jax.core.Tracer)
        with jax.ensure_compile_time_eval() if known else contextlib.nullcontext():
            new = self.network.hidden_inputs(jnp.asarray(x_new, jnp.float64))
            along, root = _conditional_root(new, jnp.asarray(self.basis), jnp.asarray(self.basis.T))
            return Extension(along.astype(self.x.dtype), root.astype(self.x.dtype))

    def at_new_inputs(self, layers: Any, extension: Extension, normals: Any) -> jax.Array:
        """Psi at the inputs of an extension, from its exact conditional; ``normals``: standard normals per layer."""
        dtype = self.x.dtype
        f_new = product(extension.along, layers[0]) + product(extension.root, normals[0])
        for maps, a, z in zip(self._isometries(layers)[1:], layers[1:], normals[1:], strict=True):
            new = self._next_inputs(f_new)
            if maps is None:
                f_new = product(new, a)
            else:
                along, across = _conditional_root(new.astype(jnp.float64), *maps)
                f_new = product(along.astype(dtype), a) + product(across.astype(dtype), z)
        return self.network.readout_inputs(self.network.activate(f_new))

    def hidden_weights(self, key: jax.Array, layers: Any) -> tuple[Layer, ...]:
        """Hidden weights from their exact conditional: W = M A + (I - Q'Q) Z, Q the row space of what a layer sees."""
        weights = []
        keys = jax.random.split(key, len(layers))
        for w, layer_key, maps in zip(layers, keys, self._isometries(layers), strict=True):
            if maps is not None:
                m, q = (jnp.asarray(part, self.x.dtype) for part in maps)
                z = standard_normal(layer_key, (len(m), w.shape[1]), self.x.dtype)
                w = product(m, w) + z - product(q.T, product(q, z))
            weights.append(Layer(w[:-1], w[-1]))
        return tuple(weights)

    def from_hidden(self, hidden: Any) -> tuple[jax.Array, ...]:
        """Hidden weights -> coordinates."""
        stacked = [jnp.concatenate([layer.w, layer.b[None]]) for layer in hidden]
        layers = [product(jnp.asarray(self.basis.T, self.x.dtype), stacked[0])]
        f = lower_product(self.factor, layers[0])
        for w in stacked[1:]:
            inputs, root = self._next_inputs(f), self._root_of(self.network.activate(f))
            layers.append(w if root is None else product(_isometry(inputs, root)[0].T.astype(self.x.dtype), w))
            # As _forward() has it, bit for bit: the root of a nearly singular kernel is that of its rounding.
            f = product(inputs, w) if root is None else lower_product(root, layers[-1])
        return tuple(layers)

    def _next_inputs(self, f: Any) -> jax.Array:
        return self.network.hidden_inputs(self.network.activate(f))

    def _root_of(self, h: jax.Array) -> jax.Array | None:
        """A root of the kernel of a layer that sees h; None if h has fewer columns than rows, and G~ is as good."""
        if h.shape[1] < len(h):
            return None
        return _kernel_root(self.network.scaled(h), jnp.asarray(self.network.bias_std, self.x.dtype))

    def _isometries(self, layers: Any) -> list[Any]:
        """(M, Q) of every layer, see ``_isometry``; None where coordinates are the weights."""
        f, roots = self._forward(layers)
        pairs = zip(f, roots, strict=False)
        deeper = [None if root is None else _isometry(self._next_inputs(before), root) for before, root in pairs]
        return [(self.basis, self.basis.T), *deeper]

    def _forward(self, layers: Any) -> tuple[list[jax.Array], list[jax.Array | None]]:
        """Pre-activations of every layer at the distinct inputs, and the roots of the kernels of all but the first."""
        f: list[jax.Array] = [lower_product(self.factor, layers[0])]
        roots: list[jax.Array | None] = []
        for a in layers[1:]:
            h = self.network.activate(f[-1])
            root = self._root_of(h)
            f.append(product(self.network.hidden_inputs(h), a) if root is None else lower_product(root, a))
            roots.append(root)
        return f, roots


def row_space(inputs: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """(F, V) with inputs = F V' and V orthonormal: Gram-Schmidt on the rows, in their order.

    Independent inputs have F = chol(inputs inputs'). Rows that depend on earlier ones add no direction, and rows that
    nearly do come last, so that F and V do not depend on rounding: the same coordinates must mean the same function
    on another machine and with another number of threads. ``scale``: norm of a row that is not small.
    """
    basis, rank = np.zeros((min(inputs.shape), inputs.shape[1])), 0
    for least in (1e-5 * scale, 1e-12 * scale):
        for start in range(0, len(inputs), 64):
            if rank == len(basis):
                break
            known = rank
            rest = _outside(inputs[start : start + 64], basis[:known])
            for row in rest[np.linalg.norm(rest, axis=1) > least]:
                row = _outside(row, basis[known:rank])
                if rank < len(basis) and (size := np.linalg.norm(row)) > least:
                    basis[rank] = row / size
                    rank += 1
    return inputs @ basis[:rank].T, basis[:rank].T


def _outside(rows: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """What an orthonormal basis leaves of some rows; projected twice, because the first time leaves rounding."""
    for _ in range(2):
        rows = rows - (rows @ basis.T) @ basis
    return rows


def _kernel_root(scaled: jax.Array, constant: jax.Array) -> jax.Array:
    """A lower triangular root of G~ G~', G~ = [scaled, constant 1]; G~ is not formed, its columns stay where they are.

    Any root that is a function of the layers before is exact: the Cholesky factor, or, where the kernel is singular
    (ReLU units can be dead), one made of its eigenvectors. The gradient ignores it; samplers are exact for any force.
    """
    kernel = product(scaled, scaled.T).astype(jnp.float64) + constant.astype(jnp.float64) ** 2
    regular = jnp.all(jnp.isfinite(lower_factor(jax.lax.stop_gradient(kernel))))
    factor = lower_factor(jnp.where(regular, kernel, jnp.eye(len(kernel))))
    by_eigenvectors = lambda kernel: jnp.linalg.qr(symmetric_root(kernel), mode="r").T  # noqa: E731
    singular = jax.lax.cond(regular, jnp.zeros_like, by_eigenvectors, jax.lax.stop_gradient(kernel))
    return jnp.where(regular, factor, singular).astype(scaled.dtype)


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
    """(along, root): pre-activations at new rows N are N W = N M A + N (I - Q'Q) Z = along A + root z, z ~ N(0, I)."""
    across = new - (new @ rows.T) @ rows
    return new @ to_weights, symmetric_root(across @ across.T)  # a root that depends smoothly on the kernel
