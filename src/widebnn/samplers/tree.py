"""Vector-space operations on pytrees.

A *block* is a node of a position, itself a pytree, that draws its own noise and has a standard frame: it has
``dimension``, ``sample_noise(key)`` and ``reframe(momentum)`` (``widebnn.coordinates.lumped``).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from widebnn.noise import standard_normal
from widebnn.precision import widest_float


def _is_block(node: Any) -> bool:
    return hasattr(node, "sample_noise")


def dimension(position: Any) -> int:
    """Number of coordinates of a position, or of its shapes."""
    leaves = jax.tree.leaves(position, is_leaf=_is_block)
    return sum(leaf.dimension if _is_block(leaf) else leaf.size for leaf in leaves)


def normal_like(key: jax.Array, tree: Any) -> Any:
    """Independent standard normals in the shapes and dtypes of ``tree``; blocks draw their own."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=_is_block)
    keys = jax.random.split(key, len(leaves))
    draws = [
        leaf.sample_noise(k) if _is_block(leaf) else standard_normal(k, leaf.shape, leaf.dtype)
        for k, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, draws)


def reframe(position: Any, momentum: Any = None) -> tuple[Any, Any]:
    """Blocks of position and momentum in their standard frames; all else is returned as it is."""
    blocks, structure = jax.tree.flatten(position, is_leaf=_is_block)
    if not any(map(_is_block, blocks)):
        return position, momentum
    partners = [None] * len(blocks) if momentum is None else jax.tree.leaves(momentum, is_leaf=_is_block)
    pairs = [u.reframe(p) if _is_block(u) else (u, p) for u, p in zip(blocks, partners, strict=True)]
    position = jax.tree.unflatten(structure, [u for u, _ in pairs])
    if momentum is not None:
        momentum = jax.tree.unflatten(structure, [p for _, p in pairs])
    return position, momentum


def named_leaves(tree: Any, alone: str) -> dict[str, jax.Array]:
    """The arrays of a pytree by their path; a single one is called ``alone``."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="_") or alone: leaf for path, leaf in leaves}


def combine(*terms: tuple[Any, Any]) -> Any:
    """The linear combination of (coefficient, tree) pairs, each leaf in its own dtype."""
    coefficients = [c for c, _ in terms]

    def leafwise(*leaves: jax.Array) -> jax.Array:
        scaled = [jnp.asarray(c, leaves[0].dtype) * leaf for c, leaf in zip(coefficients, leaves, strict=True)]
        total = sum(scaled[1:], start=scaled[0])
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
