"""The same target in coordinates that are scaled by its curvature.

In function space the units of a layer are exchangeable, and the data may bend the log-likelihood much more along some
rows of A (an input that matters, the bias) than along others; the step size then follows the stiffest. With P the
precision of a unit's column, I minus the mean Hessian of l, the coordinates v = P^{1/2} u have it at the identity:

    log-likelihood of v:  l(u) - |u|^2 / 2 + |v|^2 / 2,   u = P^{-1/2} v.

P is estimated where a chain is: at stationarity E[(grad l - u)(grad l - u)'] = E[P], and a layer of many units is its
own average. Any fixed P is exact. As the width grows P tends to the identity, so nothing is lost there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widebnn.precision import double_precision, in_double_precision, one_blas_thread
from widebnn.samplers.target import Target

UNITS_PER_ROW = 8
"""P of a layer with r rows is only estimated from at least this many times r units."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """A linear change of coordinates v = P^{1/2} u, one P (or None for the identity) for every array of a position."""

    precisions: tuple[np.ndarray | None, ...]
    """In the order of the arrays; empty for no change at all."""

    @classmethod
    def by_curvature(cls, target: Target, position: Any) -> Scaling:
        """P estimated at a position, with eigenvalues of at least 1; None for arrays with too few columns."""
        with double_precision(), one_blas_thread():
            slope = jax.jit(jax.grad(target.log_likelihood))(position)
            pairs = zip(jax.tree.leaves(slope), jax.tree.leaves(position), strict=True)
            leaves = [np.asarray(g, np.float64) - np.asarray(u, np.float64) for g, u in pairs]
        return cls(
            tuple(
                _at_least_one(leaf @ leaf.T / leaf.shape[1])
                if leaf.ndim == 2 and leaf.shape[1] >= UNITS_PER_ROW * leaf.shape[0]
                else None
                for leaf in leaves
            )
        )

    def to_v(self, u: Any) -> Any:
        """v = P^{1/2} u."""
        return self._times(0.5, u)

    def to_u(self, v: Any) -> Any:
        """u = P^{-1/2} v."""
        return self._times(-0.5, v)

    def apply(self, target: Target) -> Target:
        """``target`` in the coordinates v."""

        def half_square(tree: Any) -> Any:
            leaves = zip(self.precisions, jax.tree.leaves(tree), strict=True)
            return sum(0.5 * jnp.sum(leaf.astype(jnp.float64) ** 2) for p, leaf in leaves if p is not None)

        @in_double_precision
        def log_likelihood(v: Any) -> jax.Array:
            u = self.to_u(v)
            return target.log_likelihood(u) + (half_square(v) - half_square(u))

        return Target(log_likelihood, target.sample_reference)

    def _times(self, exponent: float, position: Any) -> Any:
        if not self.precisions:
            return position
        leaves, structure = jax.tree.flatten(position)
        with double_precision():
            changed = [
                leaf if p is None else (jnp.asarray(_power(p, exponent)) @ leaf.astype(jnp.float64)).astype(leaf.dtype)
                for p, leaf in zip(self.precisions, leaves, strict=True)
            ]
        return jax.tree.unflatten(structure, changed)


def _at_least_one(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(values, 1.0)) @ vectors.T


def _power(matrix: np.ndarray, exponent: float) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * values**exponent) @ vectors.T
