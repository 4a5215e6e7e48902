"""Elliptical slice sampling (Murray, Adams and MacKay 2010). No step size, never rejects."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from widebnn.samplers.algorithm import Info, LogLikelihood, SamplingAlgorithm, State, plain_init, with_turned_frames
from widebnn.samplers.tree import combine, normal_like

SHRINKS = 100
"""Brackets shrink geometrically; a slice not found after this many is empty or NaN, and the chain stays."""


def elliptical_slice(log_likelihood: LogLikelihood) -> SamplingAlgorithm:
    """On the ellipse u cos(t) + w sin(t), draw t uniformly from {l > l(u) + log(uniform)} by shrinking a bracket.

    A point where l is NaN or +inf is outside of the slice, and its step is counted as not finite even though it moves.

    Args:
        log_likelihood: l(u), the log-density against N(0, I) up to a constant; u is any pytree of arrays.

    Returns:
        The kernel: ``init(position)`` and ``step(key, state)``.
    """

    init = plain_init(log_likelihood)

    def step(key: jax.Array, state: State) -> tuple[Any, Info]:
        noise_key, level_key, angle_key = jax.random.split(key, 3)
        noise = normal_like(noise_key, state.position)
        dtype = state.log_likelihood.dtype
        level = state.log_likelihood + jnp.log(jax.random.uniform(level_key, (), dtype))
        first = jax.random.uniform(jax.random.fold_in(angle_key, 0), (), dtype, 0.0, 2 * math.pi)

        def at(angle: jax.Array) -> State:
            return init(combine((jnp.cos(angle), state.position), (jnp.sin(angle), noise)))

        def inside(candidate: State) -> jax.Array:
            return (candidate.log_likelihood > level) & (candidate.log_likelihood < jnp.inf)

        def is_bad(candidate: State) -> jax.Array:
            return ~(candidate.log_likelihood < jnp.inf)

        def shrink(carry: Any) -> Any:
            angle, low, high, count, _, bad = carry
            low, high = jnp.where(angle < 0, angle, low), jnp.where(angle < 0, high, angle)
            angle = jax.random.uniform(jax.random.fold_in(angle_key, count), (), dtype, low, high)
            candidate = at(angle)
            return angle, low, high, count + 1, candidate, bad | is_bad(candidate)

        start = at(first)
        carry = first, first - 2 * math.pi, first, 1, start, is_bad(start)
        search = jax.lax.while_loop(lambda c: ~inside(c[4]) & (c[3] < SHRINKS), shrink, carry)
        candidate, bad = search[4:]
        found = inside(candidate)
        new = jax.tree.map(lambda a, b: jnp.where(found, a, b), candidate, State(*state))
        return with_turned_frames(new), Info(found.astype(dtype), found, ~bad, 0)

    return SamplingAlgorithm(init, step)
