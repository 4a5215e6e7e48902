"""Preconditioned Crank-Nicolson Langevin (Cotter, Roberts, Stuart and White 2013)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from widebnn.samplers.algorithm import (
    GradientState,
    LogLikelihood,
    Proposal,
    SamplingAlgorithm,
    gradient_init,
    metropolis_algorithm,
    step_size_in,
)
from widebnn.samplers.tree import combine, inner


def delta_from_step_size(step_size: float) -> Any:
    """The root in (0, 2] of b^2 = 8 D / (2 + D)^2, for a step size b in (0, 1]."""
    b = step_size_in(step_size, at_most=1)
    # D^2 + (4 - 8/b^2) D + 4 = 0; the roots have product 4, so the small one is 4 / the large one.
    half = 4 / b**2 - 2
    return 4 / (half + jnp.sqrt(half**2 - 4))


def pcnl(log_likelihood: LogLikelihood, step_size: float) -> SamplingAlgorithm:
    """Langevin pCN:  v = [(2 - D) u + 2 D g(u) + sqrt(8 D) w] / (2 + D),  log ratio = rho(u, v) - rho(v, u).

    rho(u, v) = -l(u) - <v - u, g(u)>/2 - (D/4) <u + v, g(u)> + (D/4) |g(u)|^2,  g = grad l.

    Args:
        log_likelihood: l(u), the log-density against N(0, I) up to a constant; u is any pytree of arrays.
        step_size: b = sqrt(8 D) / (2 + D), the coefficient of the noise, at most 1.

    Returns:
        The kernel: ``init(position)`` and ``step(key, state)``.

    Raises:
        WidebnnError: If an option is out of range.
    """
    d = delta_from_step_size(step_size)
    init = gradient_init(log_likelihood)

    def rho(at: GradientState, to: GradientState) -> jax.Array:
        u, v, g = at.position, to.position, at.gradient
        along = combine((0.5 + d / 4, v), (-0.5 + d / 4, u), (-d / 4, g))
        return -at.log_likelihood - inner(along, g)

    def propose(state: GradientState, noise: Any) -> Proposal:
        v = combine(
            ((2 - d) / (2 + d), state.position),
            (2 * d / (2 + d), state.gradient),
            (jnp.sqrt(8 * d) / (2 + d), noise),
        )
        new = init(v)
        return Proposal(new, state, rho(state, new) - rho(new, state))

    return metropolis_algorithm(init, propose, gradients=1)
