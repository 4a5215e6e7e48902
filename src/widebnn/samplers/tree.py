"""Vector-space operations on pytrees."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from widebnn.lumped import is_lumped, noise_draw
from widebnn.noise import standard_normal
from widebnn.precision import widest_float


def normal_like(key: jax.Array, tree: Any) -> Any:
    """Independent standard normals in the shapes and dtypes of ``tree``; lumped blocks in their frames."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_lumped)
    keys = jax.random.split(key, len(leaves))
    draws = [
        noise_draw(k, leaf) if is_lumped(leaf) else standard_normal(k, leaf.shape, leaf.dtype)
        for k, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, draws)


def combine(*terms: tuple[Any, Any]) -> Any:
    """The linear combination of (coefficient, tree) pairs, each leaf in its own dtype."""
    coefficients = [c for c, _ in terms]

    def leafwise(*leaves):
        total = sum(jnp.asarray(c, leaves[0].dtype) * leaf for c, leaf in zip(coefficients, leaves, strict=True))
        return total.astype(leaves[0].dtype)

    return jax.tree.map(leafwise, *(tree for _, tree in terms))


def inner(a: Any, b: Any) -> jax.Array:
    """The inner product <a, b>, summed in the widest float the context allows."""
    wide = widest_float()
    products = jax.tree.map(lambda p, q: jnp.sum(p * q, dtype=wide), a, b)
    return sum(jax.tree.leaves(products), start=jnp.zeros((), wide))


def squared_norm_change(new: Any, old: Any) -> jax.Array:
    """|new|^2 - |old|^2 as <new - old, new + old>: two large sums are never subtracted."""
    return inner(combine((1.0, new), (-1.0, old)), combine((1.0, new), (1.0, old)))
