"""Hilbert-space Hamiltonian Monte Carlo (Beskos, Pinski, Sanz-Serna and Stuart 2011)."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from widebnn.errors import check_integer
from widebnn.samplers.algorithm import (
    LogLikelihood,
    Proposal,
    SamplingAlgorithm,
    State,
    check_step_size,
    gradient_init,
    metropolis_algorithm,
)
from widebnn.samplers.tree import combine, inner

MOST_STEPS = 256
"""Gradients of one proposal, unless asked for."""
SEARCH_STEPS = 48
"""The same while the step size is tuned: one that is tiny is not waited for."""
TWO_STAGE = (3 - math.sqrt(3)) / 6
"""The first kick of the two-stage splitting (Blanes, Casas and Sanz-Serna 2014), as a part of two steps."""


def hilbert_hmc(
    log_likelihood: LogLikelihood, step_size: float, num_steps: int | None = None, *, most_steps: Any = MOST_STEPS
) -> SamplingAlgorithm:
    """Hilbert-space HMC: kick the momentum p by the gradient g(u), rotate (u, p) by the angle e, kick, ..., kick.

    The rotation is the exact flow of the Gaussian part and leaves |u|^2 + |p|^2 alone, so the energy changes by
    the likelihood and the kicks only, and the acceptance rate does not suffer from the dimension:

        log ratio = l(v) - l(u) - sum over kicks p -> p + c g of c <p, g> + (c^2 / 2) |g|^2.

    For an even number of rotations the kicks alternate in strength, which makes the energy error smaller than the
    leapfrog's: with b = (3 - sqrt 3) / 6 they are 2b, 2 - 4b, 4b, 2 - 4b, ..., 2b times e; else 1/2, 1, ..., 1, 1/2.
    By default they add up to a quarter turn on average, after which a Gaussian has forgotten where it was, and every
    proposal draws its own turn, between half and one and a half of that: with a fixed one, directions that the data
    make turn twice as fast would come back to where they were every time.

    Args:
        log_likelihood: l(u), the log-density against N(0, I) up to a constant; u is any pytree of arrays.
        step_size: e, the angle of a rotation; without ``num_steps`` the largest one.
        num_steps: Rotations, and gradients, of one proposal; by default as many as a random turn takes.
        most_steps: The most that a random turn takes.

    Returns:
        The kernel: ``init(position)`` and ``step(key, state)``.

    Raises:
        WidebnnError: If an option is out of range.
    """
    e = check_step_size(step_size, at_most=math.pi, advice="It is an angle.")
    if num_steps is not None:
        num_steps = check_integer("num_steps", num_steps, 1)
    if not isinstance(most_steps, jax.Array):
        most_steps = check_integer("most_steps", most_steps, 1)
    init = gradient_init(log_likelihood)
    gradient_at = jax.grad(log_likelihood)

    def propose(state: State, noise: Any, steps: Any = None, e: Any = e) -> Proposal:
        if steps is None:
            steps, e = (num_steps, e) if num_steps else _turn(1.0, e, most_steps).values()
        cost, steps = steps, jnp.asarray(steps)
        b = jnp.where(steps % 2 == 0, TWO_STAGE, 0.25)

        def one_step(i: jax.Array, carry: Any) -> Any:
            position, momentum, work = carry
            position, momentum = _rotate(e, position, momentum)
            strength = e * jnp.where(i % 2 == 0, 2 - 4 * b, 4 * b)
            momentum, more = _kick(gradient_at(position), momentum, strength)
            return position, momentum, work + more

        momentum, work = _kick(state.gradient, noise, 2 * b * e)
        carry = state.position, momentum, work
        position, momentum, work = jax.lax.fori_loop(0, steps - 1, one_step, carry)
        position, momentum = _rotate(e, position, momentum)
        end = init(position)
        _, more = _kick(end.gradient, momentum, 2 * b * e)
        return Proposal(end, state, end.log_likelihood - state.log_likelihood - work - more, cost)

    if num_steps is not None:
        return metropolis_algorithm(init, propose)

    def draw_turn(key: jax.Array) -> dict[str, jax.Array]:
        return _turn(jax.random.uniform(key, (), minval=0.5, maxval=1.5), e, most_steps)

    return metropolis_algorithm(init, propose, draw_turn)


def _rotate(e: Any, position: Any, momentum: Any) -> tuple[Any, Any]:
    moved = combine((jnp.cos(e), position), (jnp.sin(e), momentum))
    return moved, combine((jnp.cos(e), momentum), (-jnp.sin(e), position))


def _kick(gradient: Any, momentum: Any, strength: Any) -> tuple[Any, jax.Array]:
    """p + c g, and the change of |p|^2 / 2."""
    work = strength * inner(momentum, gradient) + strength**2 / 2 * inner(gradient, gradient)
    return combine((1.0, momentum), (strength, gradient)), work


def _turn(share: Any, e: Any, most_steps: Any) -> dict[str, jax.Array]:
    """The number of rotations by at most e that make this share of a quarter turn, and their angle."""
    turn = share * jnp.minimum(math.pi / 2, most_steps / 1.5 * e)
    steps = jnp.where(turn <= 1.25 * e, 1, 2 * jnp.ceil(turn / e / 2 - 1e-3)).astype(int)
    return {"steps": steps, "e": turn / steps}
