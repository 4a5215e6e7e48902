"""Leapfrog samplers: Hamiltonian Monte Carlo (Duane et al. 1987; Neal 2011) and underdamped Langevin."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from widebnn.errors import check_integer, check_real
from widebnn.samplers.algorithm import (
    LogLikelihood,
    Proposal,
    SamplingAlgorithm,
    State,
    check_step_size,
    gradient_init,
    metropolis_algorithm,
)
from widebnn.samplers.tree import combine, squared_norm_change


def leapfrog(init: Callable[[Any], State], step_size: float, state: State, momentum: Any) -> tuple[State, Any]:
    """Half a kick, a drift, half a kick; the force is g(u) - u, the gradient of log pi."""
    half = step_size / 2
    momentum = combine((1.0, momentum), (half, state.gradient), (-half, state.position))
    state = init(combine((1.0, state.position), (step_size, momentum)))
    momentum = combine((1.0, momentum), (half, state.gradient), (-half, state.position))
    return state, momentum


def energy_change(start: State, p_start: Any, end: State, p_end: Any) -> jax.Array:
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
    e = check_step_size(step_size)
    num_steps = check_integer("num_steps", num_steps, 1)
    init = gradient_init(log_likelihood)

    def propose(state: State, noise: Any) -> Proposal:
        end, momentum = jax.lax.fori_loop(0, num_steps, lambda _, carry: leapfrog(init, e, *carry), (state, noise))
        return Proposal(end, state, -energy_change(state, noise, end, momentum), num_steps)

    return metropolis_algorithm(init, propose)


class UnderdampedState(NamedTuple):
    """Position, its log-likelihood and gradient, and the momentum that persists between steps."""

    position: Any
    log_likelihood: jax.Array
    gradient: Any
    momentum: Any
    has_momentum: jax.Array
    """False before the first step, which draws all of the momentum."""


def underdamped(log_likelihood: LogLikelihood, step_size: float, friction: float = 1.0) -> SamplingAlgorithm:
    """Underdamped Langevin (Horowitz 1991): refresh part of the momentum, take one leapfrog step.

    p' = exp(-friction e) p + sqrt(1 - exp(-2 friction e)) w, then leapfrog of size e; accept by the change
    of energy, and on rejection flip the momentum, without which the chain would not be exact.
    The first step of a chain draws all of its momentum: zero momentum would be so untypical in high dimension that a
    chain may never get away from it.

    Args:
        log_likelihood: l(u), the log-density against N(0, I) up to a constant; u is any pytree of arrays.
        step_size: e, the size of the leapfrog step.
        friction: Rate at which momentum is forgotten; ``math.inf`` refreshes all of it, which is MALA.

    Returns:
        The kernel: ``init(position)`` and ``step(key, state)``.

    Raises:
        WidebnnError: If an option is out of range.
    """
    e = check_step_size(step_size)
    persistence = jnp.exp(-e * check_real("friction", friction, above=0, at_most=math.inf))
    plain = gradient_init(log_likelihood)

    def init(position: Any) -> UnderdampedState:
        return UnderdampedState(*plain(position), jax.tree.map(jnp.zeros_like, position), jnp.asarray(False))

    def propose(state: UnderdampedState, noise: Any) -> Proposal:
        start = State(*state[:3])
        keep = jnp.where(state.has_momentum, persistence, 0.0)
        momentum = combine((keep, state.momentum), (jnp.sqrt(1 - keep * keep), noise))
        end, end_momentum = leapfrog(plain, e, start, momentum)
        new = UnderdampedState(*end, end_momentum, jnp.asarray(True))
        flipped = UnderdampedState(*start, combine((-1.0, momentum)), jnp.asarray(True))
        return Proposal(new, flipped, -energy_change(start, momentum, end, end_momentum), 1)

    return metropolis_algorithm(init, propose)
