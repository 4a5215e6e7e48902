"""Random walks without gradients: random-walk Metropolis-Hastings, and preconditioned Crank-Nicolson."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from widebnn.samplers.algorithm import (
    LogLikelihood,
    Proposal,
    SamplingAlgorithm,
    State,
    check_step_size,
    metropolis_algorithm,
    plain_init,
)
from widebnn.samplers.tree import combine, squared_norm_change


def rwmh(log_likelihood: LogLikelihood, step_size: float) -> SamplingAlgorithm:
    """Random walk:  v = u + b w,  log ratio = l(v) - l(u) - (|v|^2 - |u|^2)/2.

    Not robust in high dimension: the baseline that pCN improves on.

    Args:
        log_likelihood: l(u), the log-density against N(0, I) up to a constant; u is any pytree of arrays.
        step_size: b, the coefficient of the noise.

    Returns:
        The kernel: ``init(position)`` and ``step(key, state)``.

    Raises:
        WidebnnError: If an option is out of range.
    """
    b = check_step_size(step_size)
    init = plain_init(log_likelihood)

    def propose(state: State, noise: Any) -> Proposal:
        new = init(combine((1.0, state.position), (b, noise)))
        prior = 0.5 * squared_norm_change(new.position, state.position)
        return Proposal(new, state, new.log_likelihood - state.log_likelihood - prior)

    return metropolis_algorithm(init, propose)


def pcn(log_likelihood: LogLikelihood, step_size: float) -> SamplingAlgorithm:
    """Preconditioned Crank-Nicolson (Cotter et al. 2013):  v = sqrt(1 - b^2) u + b w,  log ratio = l(v) - l(u).

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
    b = check_step_size(step_size, at_most=1)
    a, init = jnp.sqrt(1 - b * b), plain_init(log_likelihood)

    def propose(state: State, noise: Any) -> Proposal:
        new = init(combine((a, state.position), (b, noise)))
        return Proposal(new, state, new.log_likelihood - state.log_likelihood)

    return metropolis_algorithm(init, propose)
