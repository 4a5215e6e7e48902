"""Step sizes found during burn-in, then frozen.

A tuned sampler is an ordinary ``SamplingAlgorithm`` whose state carries the tuner: after ``burn_in`` steps
nothing changes any more, so the kept part of the chain is a Markov chain with one fixed kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from widebnn.samplers.algorithm import Info, SamplingAlgorithm


class TunedState(NamedTuple):
    """State of the sampler, of the tuner, the number of steps taken, and the step size found so far."""

    inner: Any
    tuner: Any
    steps: jax.Array
    step_size: jax.Array

    def __getattr__(self, name: str) -> Any:
        """Position, log-likelihood and gradient are those of the sampler."""
        return getattr(self.inner, name)


class Tuner(NamedTuple):
    """How a step size is found."""

    init: Callable[[], Any]
    exploring: Callable[[Any, jax.Array], jax.Array]
    """(state, count) -> the step size to try next."""
    update: Callable[[Any, jax.Array, Info], Any]
    """(state, step size that was tried, what happened) -> state."""
    final: Callable[[Any], jax.Array]
    """The step size to keep."""


def tuned(build: Callable[..., SamplingAlgorithm], tuner: Tuner, burn_in: int) -> SamplingAlgorithm:
    """``build(step_size, is_tuning)`` with the step size tuned over the first ``burn_in`` steps."""

    def init(position: Any) -> TunedState:
        start = tuner.init()
        return TunedState(
            build(jnp.asarray(0.1), True).init(position), start, jnp.zeros((), jnp.int32), tuner.final(start)
        )

    def step(key: jax.Array, state: TunedState) -> tuple[TunedState, Info]:
        adapting = state.steps < burn_in
        step_size = jnp.where(adapting, tuner.exploring(state.tuner, state.steps), state.step_size)
        inner, info = build(step_size, adapting).step(key, state.inner)
        updated = tuner.update(state.tuner, step_size, info)
        memory = jax.tree.map(lambda new, old: jnp.where(adapting, new, old), updated, state.tuner)
        return TunedState(inner, memory, state.steps + 1, tuner.final(memory)), info

    return SamplingAlgorithm(init, step)


RESTARTS = (0.1, 0.25, 0.5)
"""When the search for a step size begins anew, in parts of the burn-in."""


def acceptance_rate(aim: float, first: float, most: float, burn_in: int) -> Tuner:
    """Drive the mean acceptance rate to ``aim`` by stochastic approximation (Robbins and Monro; Polyak's averages).

    First the order of magnitude: the step size grows by factors of e until a proposal is likelier to be rejected, or
    shrinks until one is likelier to be accepted, and goes half of the last factor back. From there its log moves by
    2 t^-0.6 (rate - aim), and its average, of recent iterates mostly, is kept: dual averaging swings too far where the
    rate falls from one to nothing within a factor of two in the step size, as it does in high dimension. At each of
    ``RESTARTS`` the search begins anew from where it is: a chain on its way to the bulk may need steps a hundred times
    smaller than later, and the gain would have become too small to follow.
    """
    restarts = jnp.array([round(part * burn_in) for part in RESTARTS])

    def init() -> dict[str, jax.Array]:
        log = jnp.log(jnp.asarray(first))
        return {"log": log, "mean": log, "t": jnp.zeros(()), "direction": jnp.zeros(()), "count": jnp.zeros((), int)}

    def update(state: Any, step_size: jax.Array, info: Info) -> dict[str, jax.Array]:
        direction = jnp.where(info.acceptance_rate > 0.5, 1.0, -1.0)
        again = jnp.any(state["count"] == restarts)
        turned = (direction == -state["direction"]) & ~again
        t = jnp.where(((state["t"] > 0) & ~again) | turned, state["t"] + 1, 0.0)
        move = jnp.where(
            t == 0,
            direction,
            jnp.where(t == 1, 0.5 * direction, 2 * jnp.maximum(t, 1.0) ** -0.6 * (info.acceptance_rate - aim)),
        )
        log = jnp.minimum(state["log"] + move, jnp.log(most))
        weight = jnp.where(t <= 1, 1.0, jnp.minimum(1.0, 4 / (t + 3)))
        mean = state["mean"] + weight * (log - state["mean"])
        return {"log": log, "mean": mean, "t": t, "direction": direction, "count": state["count"] + 1}

    return Tuner(init, lambda state, count: jnp.exp(state["log"]), update, lambda state: jnp.exp(state["mean"]))


def squared_jump(jump: Callable[[jax.Array], jax.Array], least: float = 1e-3, most: float = 1.0) -> Tuner:
    """Maximise acceptance x squared jump over a geometric grid, climbing from neighbour to neighbour.

    The best acceptance rate depends on the problem, and tends to 1 with the width; the squared jump is what matters.
    """
    grid = jnp.geomspace(least, most, 25)
    jumps = jump(grid)
    memory = 40.0

    def init() -> dict[str, jax.Array]:
        # Optimistic at first: every point is tried before it is trusted to be worse.
        return {"rate": jnp.ones(25), "visits": jnp.zeros(25), "best": jnp.asarray(12)}

    def exploring(state: Any, count: jax.Array) -> jax.Array:
        return grid[jnp.clip(state["best"] + (count % 3) - 1, 0, 24)]

    def update(state: Any, step_size: jax.Array, info: Info) -> dict[str, jax.Array]:
        tried = jnp.argmin(jnp.abs(jnp.log(grid) - jnp.log(step_size)))
        visits = state["visits"].at[tried].add(1)
        weight = 1 / jnp.minimum(visits[tried], memory)
        rate = state["rate"].at[tried].add(weight * (info.acceptance_rate - state["rate"][tried]))
        near = jnp.abs(jnp.arange(25) - state["best"]) <= 1
        score = jnp.where(near & (visits >= 5), rate * jumps, -1.0)
        best = jnp.where(jnp.max(score) > 0, jnp.argmax(score), jnp.maximum(state["best"] - 1, 0))
        best = jnp.where(jnp.min(jnp.where(near, visits, jnp.inf)) >= 5, best, state["best"])
        return {"rate": rate, "visits": visits, "best": best}

    return Tuner(init, exploring, update, lambda state: grid[state["best"]])
