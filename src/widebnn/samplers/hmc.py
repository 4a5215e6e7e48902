"""Hamiltonian Monte Carlo with the leapfrog integrator (Duane et al. 1987; Neal 2011)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from widebnn.errors import check_integer
from widebnn.samplers.algorithm import (
    GradientState,
    LogLikelihood,
    Proposal,
    SamplingAlgorithm,
    gradient_init,
    metropolis_algorithm,
    step_size_in,
)
from widebnn.samplers.tree import combine, squared_norm_change


def leapfrog(
    init: Callable[[Any], GradientState], step_size: float, state: GradientState, momentum: Any
) -> tuple[GradientState, Any]:
    """Half a kick, a drift, half a kick; the force is g(u) - u, the gradient of log pi."""
    half = step_size / 2
    momentum = combine((1.0, momentum), (half, state.gradient), (-half, state.position))
    state = init(combine((1.0, state.position), (step_size, momentum)))
    momentum = combine((1.0, momentum), (half, state.gradient), (-half, state.position))
    return state, momentum


def energy_change(start: GradientState, p_start: Any, end: GradientState, p_end: Any) -> jax.Array:
    """The change of H(u, p) = -l(u) + |u|^2/2 + |p|^2/2."""
    kinetic = 0.5 * squared_norm_change(p_end, p_start)
    prior = 0.5 * squared_norm_change(end.position, start.position)
    return kinetic + prior - (end.log_likelihood - start.log_likelihood)


def hmc(log_likelihood: LogLikelihood, step_size: float, num_steps: int = 10) -> SamplingAlgorithm:
    """Fresh momentum w, ``num_steps`` leapfrog steps of size e,  log ratio = -(change of energy).

    Args:
        log_likelihood: l(u), the log-density against N(0, I) up to a constant; u is any pytree of arrays.
        step_size: e, the size of a leapfrog step.
        num_steps: Leapfrog steps, and gradients, of one proposal.

    Returns:
        The kernel: ``init(position)`` and ``step(key, state)``.

    Raises:
        WidebnnError: If an option is out of range.
    """
    e = step_size_in(step_size)
    num_steps = check_integer("num_steps", num_steps, 1)
    init = gradient_init(log_likelihood)

    def propose(state: GradientState, noise: Any) -> Proposal:
        end, momentum = jax.lax.fori_loop(0, num_steps, lambda _, carry: leapfrog(init, e, *carry), (state, noise))
        return Proposal(end, state, -energy_change(state, noise, end, momentum))

    return metropolis_algorithm(init, propose, gradients=num_steps)
