"""A block of coordinates that enters only through its norm, simulated exactly in three numbers.

Suppose a target ignores N of its N(0, I) coordinates. A random walk, MALA or HMC still sees them, through
squared norms and inner products of vectors in R^N. All vectors of a step lie in the span of the position, the
momentum and the fresh noise; inner products do not depend on the frame, so three coordinates in an orthonormal
frame whose first axis is the position and whose first two contain the momentum say everything. Fresh noise
w ~ N(0, I_N) has coordinates (z_1, z_2, chi_{N-2}): two normals and the length of what is left. After the
step the frame is turned to the new position. The joint distribution of all accept decisions is exactly that of the N
coordinates. Samplers know such a block as one that draws its own noise (samplers/tree.py).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from widebnn.precision import widest_float


@functools.partial(jax.tree_util.register_dataclass, data_fields=["values"], meta_fields=["dimension"])
@dataclass(frozen=True)
class Lumped:
    """Coordinates in the adaptive frame of a vector in R^dimension (at least 3)."""

    values: jax.Array
    dimension: int

    @classmethod
    def sample(cls, key: jax.Array, dimension: int) -> Lumped:
        """A position N(0, I): its length on the first axis, in the widest float there is.

        The norms are large and their differences small, so they are kept in float64 even for float32 weights.
        """
        dtype = widest_float()
        return cls(jnp.zeros(3, dtype).at[0].set(_chi(key, dimension, dtype)), dimension)

    def sample_noise(self, key: jax.Array) -> Lumped:
        """Fresh noise in the frame of the current position and momentum."""
        normal_key, rest_key = jax.random.split(key)
        dtype = self.values.dtype
        rest = _chi(rest_key, self.dimension - 2, dtype)
        return Lumped(jnp.append(jax.random.normal(normal_key, (2,), dtype), rest), self.dimension)

    def reframe(self, momentum: Lumped | None) -> tuple[Lumped, Lumped | None]:
        """Turn the frame so that this position and its momentum lie in its first axes."""
        u = self.values
        length = jnp.sqrt(jnp.sum(u**2))
        position = Lumped(jnp.zeros_like(u).at[0].set(length), self.dimension)
        if momentum is None:
            return position, None
        p = momentum.values
        along = jnp.sum(u * p) / jnp.where(length > 0, length, 1.0)
        across = jnp.sqrt(jnp.maximum(jnp.sum(p**2) - along**2, 0.0))
        return position, Lumped(jnp.zeros_like(p).at[0].set(along).at[1].set(across), self.dimension)


def _chi(key: jax.Array, degrees: int, dtype: jnp.dtype) -> jax.Array:
    return jnp.sqrt(2 * jax.random.gamma(key, jnp.asarray(degrees / 2, dtype), dtype=dtype))
