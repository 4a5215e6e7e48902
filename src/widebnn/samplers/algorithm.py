"""What every sampler is made of: states, proposals, and the only accept/reject in the package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from widebnn.errors import check_real
from widebnn.samplers.tree import normal_like, reframe

LogLikelihood = Callable[[Any], jax.Array]


class State(NamedTuple):
    """State of a sampler: log-likelihood and gradient at the position are cached."""

    position: Any
    log_likelihood: jax.Array
    gradient: Any = ()
    """Empty where the sampler needs none."""


class Proposal(NamedTuple):
    """Where a step may go (``state``), where it stays if rejected (``otherwise``), log of the MH ratio, and cost."""

    state: Any
    otherwise: Any
    log_ratio: jax.Array
    gradients: jax.Array | int = 0
    """Gradients of the log-likelihood that were evaluated."""


class Info(NamedTuple):
    """What happened in one step."""

    acceptance_rate: jax.Array
    """min(1, ratio), the probability with which the proposal was accepted."""
    is_accepted: jax.Array
    is_finite: jax.Array
    """False if the log ratio was not finite and the likelihood not zero: the step counts as a rejection."""
    gradients: jax.Array | int


class SamplingAlgorithm(NamedTuple):
    """A Markov kernel. ``init(position)`` and ``step(key, state)`` are what BlackJAX users expect.

    ``propose(state, noise)`` is the deterministic part of the step for given standard normal noise shaped
    like the position; it is what tests check against brute-force densities, and what couples two chains.
    """

    init: Callable[[Any], Any]
    step: Callable[[jax.Array, Any], tuple[Any, Info]]
    propose: Callable[[Any, Any], Proposal] | None = None


def metropolis(key: jax.Array, proposal: Proposal) -> tuple[Any, Info]:
    """Accept with probability min(1, exp(log_ratio)); a log ratio that is not finite is a rejection and is counted.

    A likelihood of zero is a plain rejection; another ratio of zero comes from a gradient whose square is infinite.
    """
    is_zero = (proposal.log_ratio == -jnp.inf) & (proposal.state.log_likelihood == -jnp.inf)
    is_finite = jnp.isfinite(proposal.log_ratio) | is_zero
    log_ratio = jnp.where(is_finite, proposal.log_ratio, -jnp.inf)
    accept = jnp.log(jax.random.uniform(key, (), log_ratio.dtype)) < log_ratio
    state = jax.tree.map(lambda new, old: jnp.where(accept, new, old), proposal.state, proposal.otherwise)
    return state, Info(jnp.exp(jnp.minimum(log_ratio, 0.0)), accept, is_finite, proposal.gradients)


def metropolis_algorithm(
    init: Callable[[Any], Any],
    propose: Callable[..., Proposal],
    draw_options: Callable[[jax.Array], dict[str, jax.Array]] = lambda key: {},
) -> SamplingAlgorithm:
    """The kernel that draws noise, proposes, and accepts or rejects.

    ``draw_options(key)`` draws further arguments of ``propose`` that do not depend on the state.
    """

    def step(key: jax.Array, state: Any) -> tuple[Any, Info]:
        noise_key, accept_key = jax.random.split(key)
        options = draw_options(jax.random.fold_in(key, 2))
        state, info = metropolis(accept_key, propose(state, normal_like(noise_key, state.position), **options))
        return with_turned_frames(state), info

    return SamplingAlgorithm(init, step, propose)


def with_turned_frames(state: Any) -> Any:
    """Blocks put back into their standard frames; any other state is returned as it is."""
    position, momentum = reframe(state.position, getattr(state, "momentum", None))
    return state._replace(position=position, **({} if momentum is None else {"momentum": momentum}))


def check_step_size(step_size: Any, at_most: float | None = None, advice: str = "") -> Any:
    """Check a step size that is known; one that is being tuned is traced and passes."""
    if isinstance(step_size, jax.Array):
        return step_size
    return check_real("step_size", step_size, above=0, at_most=at_most, advice=advice)


def plain_init(log_likelihood: LogLikelihood) -> Callable[[Any], State]:
    """init of the samplers without gradient."""
    return lambda position: State(position, log_likelihood(position))


def gradient_init(log_likelihood: LogLikelihood) -> Callable[[Any], State]:
    """init of the gradient samplers."""
    value_and_grad = jax.value_and_grad(log_likelihood)
    return lambda position: State(position, *value_and_grad(position))
