"""Products and factorisations of a step, without the half that is zero or known by symmetry.

A function-space step is little more than F A with a triangular F and Psi Psi'. In blocks of rows, each against
what is not above it, they take three quarters of the operations (two blocks) to five eighths (four); small matrices
stay whole.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.lax.linalg import cholesky, triangular_solve

LEAST_ROWS = 128
MOST_BLOCKS = 4
FLAT = 8
"""From this many columns per row on, a Gram matrix is computed whole: its blocks would be read too often."""
FEW = 8
"""Products with at most this many columns are sums, which read a matrix once, in any precision."""


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """a @ b, never in less than the precision of its operands."""
    return jnp.matmul(a, b, precision="highest")


def double_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """a @ b in float64, where b has few columns or a may be copied."""
    b = b.astype(jnp.float64)
    if b.shape[1] > FEW:
        return a.astype(jnp.float64) @ b
    return jnp.stack([jnp.sum(a.astype(jnp.float64) * column, axis=1) for column in b.T], axis=1)


def _row_blocks(rows: int) -> list[tuple[int, int]]:
    """(first, last + 1) of the blocks."""
    count = min(MOST_BLOCKS, max(1, rows // LEAST_ROWS))
    return [(rows * i // count, rows * (i + 1) // count) for i in range(count)]


def lower_product(factor: jax.Array, a: jax.Array) -> jax.Array:
    """factor @ a for a factor with zeros above its diagonal."""
    if factor.shape[0] >= 2 * factor.shape[1]:
        return product(factor, a)  # mostly below the triangle
    blocks = [product(factor[first:end, :end], a[:end]) for first, end in _row_blocks(factor.shape[0])]
    return jnp.concatenate(blocks) if len(blocks) > 1 else blocks[0]


def lower_gram(a: jax.Array) -> jax.Array:
    """a a' on and below the diagonal, which is what a Cholesky factorisation reads; above it some entries are zero."""
    if a.shape[1] >= FLAT * a.shape[0]:
        return product(a, a.T)
    return _stack_rows([product(a[first:end], a[:end].T) for first, end in _row_blocks(a.shape[0])])


def lower_gram_of_columns(a: jax.Array) -> jax.Array:
    """The same for a' a, where a has many rows: a' is never formed."""
    return _stack_rows([product(a[:, first:end].T, a[:, :end]) for first, end in _row_blocks(a.shape[1])])


def _stack_rows(blocks: list[jax.Array]) -> jax.Array:
    """Blocks of rows, zero where they are shorter than the last."""
    longest = blocks[-1].shape[1]
    padded = [jnp.pad(block, ((0, 0), (0, longest - block.shape[1]))) for block in blocks]
    return jnp.concatenate(padded) if len(padded) > 1 else padded[0]


def lower_factor(matrix: jax.Array) -> jax.Array:
    """Cholesky factor from the lower triangle; NaN if not positive definite, which a sampler then rejects."""
    return cholesky(matrix, symmetrize_input=False)


def solve_lower(factor: jax.Array, b: jax.Array, *, transpose: bool = False) -> jax.Array:
    """L^-1 b, or L'^-1 b, for a lower triangular L."""
    return triangular_solve(factor, b, left_side=True, lower=True, transpose_a=transpose)


def inverse_of_lower(factor: jax.Array) -> jax.Array:
    """The inverse of a lower triangular matrix, mostly by products: faster than one triangular solve."""
    n = factor.shape[0]
    if n <= 128:
        return solve_lower(factor, jnp.eye(n, dtype=factor.dtype))
    h = n // 2
    first, last = inverse_of_lower(factor[:h, :h]), inverse_of_lower(factor[h:, h:])
    below = -product(last, product(factor[h:, :h], first))
    return jnp.block([[first, jnp.zeros((h, n - h), factor.dtype)], [below, last]])


def symmetric_root(kernel: jax.Array) -> jax.Array:
    """The symmetric R with R R = kernel; eigenvalues that rounding made negative count as zero."""
    lam, vectors = jnp.linalg.eigh(kernel)
    return (vectors * jnp.sqrt(jnp.maximum(lam, 0.0))) @ vectors.T
