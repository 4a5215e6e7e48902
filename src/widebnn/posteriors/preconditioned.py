"""The same posterior in coordinates that are scaled by its curvature.

In function space the units of a layer are exchangeable, and the data may bend the log-likelihood much more along some
rows of A (an input that matters, the bias) than along others; the step size then follows the stiffest. With P the
precision of a unit's column, I minus the mean Hessian of l, the coordinates v = P^{1/2} u have it at the identity:

    log-likelihood of v:  l(u) - |u|^2 / 2 + |v|^2 / 2,   u = P^{-1/2} v.

P is estimated where a chain is: at stationarity E[(grad l - u)(grad l - u)'] = E[P], and a layer of many units is its
own average. Any fixed P is exact. As the width grows P tends to the identity, so nothing is lost there.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widebnn.posteriors.target import NetworkTarget
from widebnn.precision import double_precision, in_double_precision, one_blas_thread

UNITS_PER_ROW = 8
"""P of a layer with r rows is only estimated from at least this many times r units."""


def row_precision(target: NetworkTarget, position: Any) -> list[np.ndarray | None]:
    """P for every array of a position, r x r, with eigenvalues of at least 1; None for arrays that are left alone."""
    with double_precision(), one_blas_thread():
        slope = jax.jit(jax.grad(target.log_likelihood))(position)
        leaves = [np.asarray(g, np.float64) - np.asarray(u, np.float64) for g, u in _pairs(slope, position)]
    return [
        _at_least_one(leaf @ leaf.T / leaf.shape[1])
        if leaf.ndim == 2 and leaf.shape[1] >= UNITS_PER_ROW * leaf.shape[0]
        else None
        for leaf in leaves
    ]


def rescale(precisions: list[np.ndarray | None], exponent: float, position: Any) -> Any:
    """P^exponent times a position: u -> v with exponent 1/2, v -> u with -1/2."""
    leaves, structure = jax.tree.flatten(position)
    with double_precision():
        changed = [
            leaf if p is None else (jnp.asarray(_power(p, exponent)) @ leaf.astype(jnp.float64)).astype(leaf.dtype)
            for p, leaf in zip(precisions, leaves, strict=True)
        ]
    return jax.tree.unflatten(structure, changed)


def preconditioned(target: NetworkTarget, precisions: list[np.ndarray | None]) -> NetworkTarget:
    """``target`` in the coordinates v = P^{1/2} u, given P for every array of a position (None: the identity)."""

    def to_u(v):
        return rescale(precisions, -0.5, v)

    def to_v(u):
        return rescale(precisions, 0.5, u)

    def half_square(tree):
        leaves = zip(precisions, jax.tree.leaves(tree), strict=True)
        return sum(0.5 * jnp.sum(leaf.astype(jnp.float64) ** 2) for p, leaf in leaves if p is not None)

    @in_double_precision
    def log_likelihood(v):
        u = to_u(v)
        return target.log_likelihood(u) + (half_square(v) - half_square(u))

    in_double, unknown_at = target.in_double, target.unknown_at
    return dataclasses.replace(
        target,
        log_likelihood=log_likelihood,
        to_weights=lambda key, v: target.to_weights(key, to_u(v)),
        from_weights=lambda *weights: to_v(target.from_weights(*weights)),
        predict=lambda key, v, *x: target.predict(key, to_u(v), *x),
        in_double=None if in_double is None else lambda: preconditioned(in_double(), precisions),
        unknown_at=None if unknown_at is None else lambda v: unknown_at(to_u(v)),
    )


def _pairs(first: Any, second: Any) -> Any:
    return zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)


def _at_least_one(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(values, 1.0)) @ vectors.T


def _power(matrix: np.ndarray, exponent: float) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * values**exponent) @ vectors.T
