"""Preconditioned Crank-Nicolson (Neal 1999; Cotter, Roberts, Stuart and White 2013)."""

from __future__ import annotations

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
    """v = sqrt(1 - b^2) u + b w;   log ratio = l(v) - l(u).

    The proposal leaves N(0, I) invariant, so only the log-likelihood enters the ratio, in any dimension.
    """
    b = step_size_in(step_size, at_most=1)
    a = jnp.sqrt(1 - b * b)

    def propose(state, noise):
        v = combine((a, state.position), (b, noise))
        new = State(v, log_likelihood(v))
        return Proposal(new, state, new.log_likelihood - state.log_likelihood)

    return metropolis_algorithm(plain_init(log_likelihood), propose, gradients=0)
