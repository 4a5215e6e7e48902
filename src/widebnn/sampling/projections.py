"""Fixed random directions, cheap at any width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from widebnn.precision import double_precision


def random_projections(
    sample_reference: Callable[[jax.Array], Any], count: int, seed: int = 0
) -> Callable[[Any], jax.Array]:
    """``count`` linear functionals of a position, each N(0, 1) when the position is N(0, I).

    A direction is a random vector for each vector of the pytree and a random rank-one matrix a b' for each
    matrix (so the directions for a d x e weight matrix take d + e numbers each, not d e), scaled to unit
    length as a whole.

    Args:
        sample_reference: Of the target; its shapes are those of a position.
        count: Number of directions.
        seed: Of the directions.

    Returns:
        Position -> ``count`` projections.
    """
    shapes = jax.eval_shape(sample_reference, jax.random.key(0))
    leaves = jax.tree.leaves(shapes)
    with double_precision():
        keys = jax.random.split(jax.random.key(seed), len(leaves))
        factors = []
        squared_length = jnp.zeros(count, jnp.float64)
        for key, leaf in zip(keys, leaves, strict=True):
            rows = leaf.shape[0] if leaf.ndim > 1 and leaf.size else 1
            columns = leaf.size // rows
            row_key, column_key = jax.random.split(key)
            left = jax.random.normal(row_key, (count, rows), jnp.float64) if rows > 1 else jnp.ones((count, 1))
            right = jax.random.normal(column_key, (count, columns), jnp.float64)
            squared_length += jnp.sum(left**2, axis=1) * jnp.sum(right**2, axis=1)
            factors.append((left.astype(leaf.dtype), right.astype(leaf.dtype)))
        scale = (1 / jnp.sqrt(squared_length)).astype(leaves[0].dtype)

    def project(position: Any) -> jax.Array:
        total = jnp.zeros(count, scale.dtype)
        for (left, right), leaf in zip(factors, jax.tree.leaves(position), strict=True):
            matrix = leaf.reshape(left.shape[1], right.shape[1])
            total = total + jnp.sum(jnp.matmul(left, matrix, precision="highest") * right, axis=1)
        return total * scale

    return project
