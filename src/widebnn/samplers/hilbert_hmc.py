"""Hilbert-space Hamiltonian Monte Carlo (Beskos, Pinski, Sanz-Serna and Stuart 2011)."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from widebnn.errors import check_integer
from widebnn.samplers.algorithm import (
    LogLikelihood,
    Proposal,
    SamplingAlgorithm,
    gradient_init,
    metropolis_algorithm,
    step_size_in,
)
from widebnn.samplers.tree import combine, inner


def hilbert_hmc(log_likelihood: LogLikelihood, step_size: float, num_steps: int | None = None) -> SamplingAlgorithm:
    """Kick by (e/2) g(u), rotate (u, p) by the angle e, kick by (e/2) g(u); ``num_steps`` times.

    The rotation is the exact flow of the Gaussian part and leaves |u|^2 + |p|^2 alone, so the energy changes by
    the likelihood and the kicks only, and the acceptance rate does not suffer from the dimension:

        log ratio = l(v) - l(u) - sum over kicks of (e/2) <p, g> + (e^2/8) |g|^2,  p before the kick.

    By default the rotations add up to a quarter turn, after which a Gaussian has forgotten where it was. With
    one step, the noise enters with the coefficient sin(e).
    """
    e = step_size_in(step_size, at_most=math.pi, advice="It is an angle.")
    quarter_turn = jnp.maximum(1, jnp.round(math.pi / 2 / e)).astype(int)
    steps = quarter_turn if num_steps is None else check_integer("num_steps", num_steps, 1)
    init = gradient_init(log_likelihood)

    def kick(state, momentum):
        work = (e / 2) * inner(momentum, state.gradient) + (e * e / 8) * inner(state.gradient, state.gradient)
        return combine((1.0, momentum), (e / 2, state.gradient)), work

    def one_step(_, carry):
        state, momentum, work = carry
        momentum, first = kick(state, momentum)
        moved = combine((jnp.cos(e), state.position), (jnp.sin(e), momentum))
        momentum = combine((jnp.cos(e), momentum), (-jnp.sin(e), state.position))
        state = init(moved)
        momentum, second = kick(state, momentum)
        return state, momentum, work + first + second

    def propose(state, noise):
        zero = jnp.zeros_like(inner(noise, noise))
        end, _, work = jax.lax.fori_loop(0, steps, one_step, (state, noise, zero))
        return Proposal(end, state, end.log_likelihood - state.log_likelihood - work)

    return metropolis_algorithm(init, propose, gradients=steps)
