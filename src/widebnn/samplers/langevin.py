"""Langevin proposals: MALA, and preconditioned Crank-Nicolson Langevin (Cotter, Roberts, Stuart and White 2013)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from widebnn.samplers.algorithm import (
    LogLikelihood,
    Proposal,
    SamplingAlgorithm,
    State,
    check_step_size,
    gradient_init,
    metropolis_algorithm,
)
from widebnn.samplers.tree import combine, inner, squared_norm_change


def mala(log_likelihood: LogLikelihood, step_size: float) -> SamplingAlgorithm:
    """MALA, the paper's LMC:  v = u + (e^2/2) (g(u) - u) + e w,  g = grad l, with the full MH ratio.

    The quadratic terms cancel on paper, which leaves, with a = 1 - e^2/2,

        log ratio = l(v) - l(u) - (e^2/8) (|v|^2 - |u|^2)
                    + <u - a v, g(v)>/2 - <v - a u, g(u)>/2 - (e^2/8) (|g(v)|^2 - |g(u)|^2).

    Args:
        log_likelihood: l(u), the log-density against N(0, I) up to a constant; u is any pytree of arrays.
        step_size: e, the coefficient of the noise.

    Returns:
        The kernel: ``init(position)`` and ``step(key, state)``.

    Raises:
        WidebnnError: If an option is out of range.
    """
    e = check_step_size(step_size)
    a = 1 - e * e / 2
    init = gradient_init(log_likelihood)

    def propose(state: State, noise: Any) -> Proposal:
        u, g = state.position, state.gradient
        v = combine((a, u), (e * e / 2, g), (e, noise))
        new = init(v)
        backward = inner(combine((1.0, u), (-a, v)), new.gradient)
        forward = inner(combine((1.0, v), (-a, u)), g)
        norms = (e * e / 8) * (squared_norm_change(v, u) + squared_norm_change(new.gradient, g))
        return Proposal(new, state, new.log_likelihood - state.log_likelihood + 0.5 * (backward - forward) - norms, 1)

    return metropolis_algorithm(init, propose)


def delta_from_step_size(step_size: float) -> Any:
    """The root in (0, 2] of b^2 = 8 D / (2 + D)^2, for a step size b in (0, 1]."""
    b = check_step_size(step_size, at_most=1)
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

    def rho(at: State, to: State) -> jax.Array:
        u, v, g = at.position, to.position, at.gradient
        along = combine((0.5 + d / 4, v), (-0.5 + d / 4, u), (-d / 4, g))
        return -at.log_likelihood - inner(along, g)

    def propose(state: State, noise: Any) -> Proposal:
        keep, push, scale = (2 - d) / (2 + d), 2 * d / (2 + d), jnp.sqrt(8 * d) / (2 + d)
        new = init(combine((keep, state.position), (push, state.gradient), (scale, noise)))
        return Proposal(new, state, rho(state, new) - rho(new, state), 1)

    return metropolis_algorithm(init, propose)
