"""Preconditioned Crank-Nicolson (Neal 1999; Cotter, Roberts, Stuart and White 2013)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from widebnn.samplers.algorithm import (
    LogLikelihood,
    Proposal,
    SamplingAlgorithm,
    State,
    metropolis_algorithm,
    plain_init,
    step_size_in,
)
from widebnn.samplers.tree import combine


def pcn(log_likelihood: LogLikelihood, step_size: float) -> SamplingAlgorithm:
    """Preconditioned Crank-Nicolson:  v = sqrt(1 - b^2) u + b w,  log ratio = l(v) - l(u).

    The proposal leaves N(0, I) invariant, so only the log-likelihood enters the ratio, in any dimension.

    Args:
        log_likelihood: l(u), the log-density against N(0, I) up to a constant; u is any pytree of arrays.
        step_size: b, the coefficient of the noise, at most 1.

    Returns:
        The kernel: ``init(position)`` and ``step(key, state)``.

    Raises:
        WidebnnError: If an option is out of range.

    Examples:
        >>> kernel = pcn(lambda u: -jnp.sum((u - 1) ** 2), step_size=0.2)
        >>> state = kernel.init(jnp.zeros(3))
        >>> state, info = kernel.step(jax.random.key(0), state)  # doctest: +SKIP
    """
    b = step_size_in(step_size, at_most=1)
    a = jnp.sqrt(1 - b * b)

    def propose(state: State, noise: Any) -> Proposal:
        v = combine((a, state.position), (b, noise))
        new = State(v, log_likelihood(v))
        return Proposal(new, state, new.log_likelihood - state.log_likelihood)

    return metropolis_algorithm(plain_init(log_likelihood), propose, gradients=0)
