"""A block of coordinates that enters only through its norm, simulated exactly in three numbers.

Suppose a target ignores N of its N(0, I) coordinates. A random walk, MALA or HMC still sees them, through
squared norms and inner products of vectors in R^N. All vectors of a step lie in the span of the position, the
momentum and the fresh noise; inner products do not depend on the frame, so three coordinates in an orthonormal
frame whose first axis is the position and whose first two contain the momentum say everything. Fresh noise
w ~ N(0, I_N) has coordinates (z_1, z_2, chi_{N-2}): two normals and the length of what is left. After the
step the frame is turned to the new position. The law of all accept decisions is exactly that of the N
coordinates.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from widebnn.precision import widest_float


@functools.partial(jax.tree_util.register_dataclass, data_fields=["values"], meta_fields=["dimension"])
@dataclass(frozen=True)
class Lumped:
    """Coordinates in the adaptive frame of a vector in R^dimension (at least 3)."""

    values: jax.Array
    dimension: int


def is_lumped(node: Any) -> bool:
    """True for the leaves that this file is about."""
    return isinstance(node, Lumped)


def _chi(key: jax.Array, degrees: int, dtype: Any) -> jax.Array:
    return jnp.sqrt(2 * jax.random.gamma(key, jnp.asarray(degrees / 2, dtype), dtype=dtype))


def reference_draw(key: jax.Array, dimension: int) -> Lumped:
    """A position N(0, I): its length on the first axis, in the widest float there is.

    The norms are large and their differences small, so they are kept in float64 even for float32 weights.
    """
    dtype = widest_float()
    length = _chi(key, dimension, dtype)
    return Lumped(jnp.zeros(3, dtype).at[0].set(length), dimension)


def noise_draw(key: jax.Array, like: Lumped) -> Lumped:
    """Fresh noise in the frame of the current position and momentum."""
    normal_key, rest_key = jax.random.split(key)
    dtype = like.values.dtype
    rest = _chi(rest_key, like.dimension - 2, dtype)
    return Lumped(jnp.append(jax.random.normal(normal_key, (2,), dtype), rest), like.dimension)


def reframe(position: Any, momentum: Any = None) -> tuple[Any, Any]:
    """Turn the frame of every lumped block so that position and momentum lie in its first axes."""

    def turned(u: Lumped, p: Lumped | None):
        length = jnp.sqrt(jnp.sum(u.values**2))
        new = Lumped(jnp.zeros_like(u.values).at[0].set(length), u.dimension)
        if p is None:
            return new, None
        along = jnp.sum(u.values * p.values) / jnp.where(length > 0, length, 1.0)
        across = jnp.sqrt(jnp.maximum(jnp.sum(p.values**2) - along**2, 0.0))
        return new, Lumped(jnp.zeros_like(p.values).at[0].set(along).at[1].set(across), p.dimension)

    blocks, structure = jax.tree.flatten(position, is_leaf=is_lumped)
    if not any(map(is_lumped, blocks)):
        return position, momentum
    partners = [None] * len(blocks) if momentum is None else jax.tree.leaves(momentum, is_leaf=is_lumped)
    pairs = [turned(u, p) if is_lumped(u) else (u, p) for u, p in zip(blocks, partners, strict=True)]
    position = jax.tree.unflatten(structure, [u for u, _ in pairs])
    if momentum is not None:
        momentum = jax.tree.unflatten(structure, [p for _, p in pairs])
    return position, momentum
