"""Standard normals, bit for bit those of ``jax.random.normal``: in float32 faster, in float64 wherever one compiles.

Noise is the largest part of a pCN step. JAX's threefry generator is a loop over rounds that each pass over the whole
array; written out, the rounds and whatever uses the noise become one pass, about twice as fast on a CPU.

JAX generates 64 random bits only where ``jax.enable_x64`` is on while a program is *compiled*; inside a caller's
``jax.jit`` it is on while the program is traced only (precision.py), so float64 normals are made of two words of 32
bits here. Both hold for JAX's default generator; anything else goes to JAX.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p

WORTH_IT = 2**14
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def standard_normal(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """The same numbers as ``jax.random.normal(key, shape, dtype)``."""
    size = math.prod(shape)
    partitionable = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    default_generator = partitionable and str(jax.random.key_impl(key)) == "threefry2x32"
    words = jax.random.key_data(key)
    if default_generator and dtype == jnp.float64 and size < 2**32:
        counters = jax.lax.iota(jnp.uint32, size)
        high, low = threefry2x32_p.bind(words[0], words[1], jnp.zeros_like(counters), counters)
        bits = (high.astype(jnp.uint64) << np.uint64(32)) | low.astype(jnp.uint64)
    elif default_generator and dtype == jnp.float32 and WORTH_IT <= size < 2**32:
        bits = _threefry_bits(words, size)
    else:
        return jax.random.normal(key, shape, dtype)
    return jnp.asarray(math.sqrt(2), dtype) * jax.lax.erf_inv(_uniform(bits, np.dtype(dtype)).reshape(shape))


def _threefry_bits(key: jax.Array, size: int) -> jax.Array:
    """32 random bits for each counter below ``size`` (Salmon et al. 2011), the two output words combined."""
    words = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    a, b = words[0], jax.lax.iota(jnp.uint32, size) + words[1]
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            a = a + b
            b = a ^ ((b << np.uint32(rotation)) | (b >> np.uint32(32 - rotation)))
        a = a + words[(group + 1) % 3]
        b = b + words[(group + 2) % 3] + np.uint32(group + 1)
    return a ^ b


def _uniform(bits: jax.Array, dtype: Any) -> jax.Array:
    """Uniform on (-1, 1): the highest bits become the mantissa of a number in [1, 2)."""
    one, low = np.ones((), dtype), np.nextafter(np.array(-1, dtype), np.zeros((), dtype))
    unused = np.array(jnp.finfo(dtype).bits - jnp.finfo(dtype).nmant, bits.dtype)
    unit = jax.lax.bitcast_convert_type((bits >> unused) | one.view(bits.dtype), dtype) - one
    return jnp.maximum(low, unit * (one - low) + low)
