"""Langevin Monte Carlo: MALA (overdamped) and the underdamped chain with partial momentum refresh."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from widebnn.errors import check_real
from widebnn.samplers.algorithm import (
    GradientState,
    LogLikelihood,
    Proposal,
    SamplingAlgorithm,
    gradient_init,
    metropolis_algorithm,
    step_size_in,
)
from widebnn.samplers.hmc import energy_change, leapfrog
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
    e = step_size_in(step_size)
    a = 1 - e * e / 2
    init = gradient_init(log_likelihood)

    def propose(state: GradientState, noise: Any) -> Proposal:
        u, g = state.position, state.gradient
        v = combine((a, u), (e * e / 2, g), (e, noise))
        new = init(v)
        backward = inner(combine((1.0, u), (-a, v)), new.gradient)
        forward = inner(combine((1.0, v), (-a, u)), g)
        log_ratio = (
            new.log_likelihood
            - state.log_likelihood
            + 0.5 * (backward - forward)
            - (e * e / 8) * (squared_norm_change(v, u) + squared_norm_change(new.gradient, g))
        )
        return Proposal(new, state, log_ratio)

    return metropolis_algorithm(init, propose, gradients=1)


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
    e = step_size_in(step_size)
    persistence = jnp.exp(-e * check_real("friction", friction, above=0, at_most=math.inf))
    plain = gradient_init(log_likelihood)

    def init(position: Any) -> UnderdampedState:
        return UnderdampedState(*plain(position), jax.tree.map(jnp.zeros_like, position), jnp.asarray(False))

    def propose(state: UnderdampedState, noise: Any) -> Proposal:
        start = GradientState(state.position, state.log_likelihood, state.gradient)
        keep = jnp.where(state.has_momentum, persistence, 0.0)
        momentum = combine((keep, state.momentum), (jnp.sqrt(1 - keep * keep), noise))
        end, end_momentum = leapfrog(plain, e, start, momentum)
        log_ratio = -energy_change(start, momentum, end, end_momentum)
        flipped = combine((-1.0, momentum))
        return Proposal(
            UnderdampedState(*end, end_momentum, jnp.asarray(True)),
            UnderdampedState(*start, flipped, jnp.asarray(True)),
            log_ratio,
        )

    return metropolis_algorithm(init, propose, gradients=1)
