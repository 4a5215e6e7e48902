"""The chains of a fit: where they start, in which precision, and one run that ends when there are enough draws.

Ending as soon as the draws show enough effective draws would be optional stopping: runs that happen to vary little, or
whose autocorrelation happens to be estimated too low, would end earlier, and intervals would cover too little. Draws of
a trial, which are discarded, say how long the run is; it is judged at its end, and only where it falls short is it made
longer by half. ``tests/estimators/test_length.py`` measures what is left of the effect on autoregressive chains.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from widebnn.diagnostics.convergence import ess
from widebnn.errors import WidebnnError, check_real
from widebnn.estimators.ascent import ascend
from widebnn.estimators.convergence import diagnose, monitored, shortcomings
from widebnn.estimators.ensemble import bytes_per_draw, collect_networks
from widebnn.posteriors import Position, Posterior
from widebnn.precision import double_precision, one_blas_thread
from widebnn.samplers.target import Target, gaussian_target
from widebnn.samplers.tree import inner
from widebnn.sampling import Result, sample
from widebnn.sampling.placement import position_shapes
from widebnn.sampling.rounding import START_STEPS, precision_error
from widebnn.sampling.sample import EVERY

STORE_BYTES = 2**30
"""How much the stored networks may take; beyond it fewer draws are kept."""
TRIAL = 40
"""Draws per chain of a trial."""
MARGIN = 1.3
"""How much longer the run is than the trial says."""
LONGER = 1.5
"""How much longer a run becomes that falls short."""
SLOW = 0.1
"""The trial goes by the ESS that this part of the statistics falls below: the least of many short ones is too small."""
ATTEMPTS = 4
"""How often step sizes are tuned, at most: a chain that has gone on to where the posterior is narrower stands still."""
LEAST_ACCEPTANCE = 0.35
"""Mean acceptance of a chain below which its step size has been missed; 0.8 is aimed at."""
SETTLE_SHARE = 0.5
"""Of all draws: the run begins after them, whether the chains have settled or not."""
FORCE_ERROR = 0.02
"""How wrong gradients of float32 may be, relatively, where the climb ends: beyond this a chain may stand still."""


Change = Callable[[Any], Any]
"""Of the coordinates of a position."""


class Clock:
    """The time that a fit may still take."""

    def __init__(self, minutes: float | None):
        self._began = time.perf_counter()
        self.seconds = math.inf
        if minutes is not None:
            self.seconds = 60 * check_real("max_minutes", minutes, above=0, at_most=math.inf)

    def left(self) -> float:
        """Seconds until the time is over; 0 afterwards."""
        return max(0.0, self.seconds - (time.perf_counter() - self._began))


@dataclass(frozen=True)
class Plan:
    """How the chains of a fit are run; everything is checked."""

    sampler: str
    step_size: float | None
    chains: int
    burn_in: int
    wanted: int
    """Effective draws."""
    most: int
    """Steps of a chain after the burn-in."""
    clock: Clock
    progress: bool | None
    store: str | None

    def folder(self, dtype: str, attempt: int) -> Path | None:
        """Where a run is stored."""
        return None if self.store is None else Path(self.store) / f"{dtype}-{attempt + 1}"

    @property
    def has_begun(self) -> bool:
        """Whether chains of this fit are stored already."""
        return self.store is not None and any(path.is_dir() for path in Path(self.store).glob("*"))


@dataclass
class Length:
    """How long a run must be, given its draws so far: a trial once the chains have settled, then the run itself.

    Decisions are taken after every ``EVERY`` draws, by the draws until then: a resumed run ends where another would.
    """

    wanted: int
    most: int
    """Draws per chain."""
    effective: Callable[[dict[str, np.ndarray], dict[str, np.ndarray]], float]
    """Effective draws of a trial, given its statistics and draws."""
    is_enough: Callable[[dict[str, np.ndarray], dict[str, np.ndarray]], bool]
    """Whether these draws are enough."""
    may_miss: bool = False
    """Whether chains that hardly move before the run begins are to be ended, to be tuned anew from where they are."""
    first: int | None = field(default=None, init=False)
    """The first draw of the run."""
    missed: bool = field(default=False, init=False)
    """Whether they were."""
    _end: int = field(default=0, init=False)
    _asked: int = field(default=0, init=False)

    def __call__(self, stats: dict[str, np.ndarray], draws: dict[str, np.ndarray]) -> int:
        """The number of draws per chain to end with, as far as is known."""
        for done in range(self._asked + EVERY, stats["lp"].shape[1] + 1, EVERY):
            self._decide(done, lambda start, end: (part(stats, start, end), part(draws, start, end)))
            self._asked = done
        return self.most if self.first is None else min(self._end, self.most)

    def _decide(self, done: int, between: Callable[[int, int], Any]) -> None:
        if self.first is None:
            if self.may_miss and hardly_move(between(done - EVERY, done)[0]["acceptance_rate"]):
                self.missed, self.first, self._end = True, done, done
            elif done >= TRIAL:
                self._judge_trial(done, *between(done - TRIAL, done))
        elif self._end <= done < self.most and not self.missed and not self.is_enough(*between(self.first, done)):
            self._end = self.first + math.ceil(LONGER * (done - self.first))

    def _judge_trial(self, done: int, stats: dict[str, np.ndarray], draws: dict[str, np.ndarray]) -> None:
        """Begin the run, unless the chains are still on their way."""
        lp = stats["lp"]
        if drifts(lp) and done + TRIAL <= SETTLE_SHARE * self.most:
            return
        self.first = done
        per_draw = min(max(self.effective(stats, draws), 1.0) / lp.size, 1.0)
        self._end = done + math.ceil(MARGIN * self.wanted / per_draw / len(lp))


def hardly_move(rates: np.ndarray) -> bool:
    """Whether the acceptance rates of some chain (chains x draws) are far below the aim of the tuning."""
    return bool(rates.mean(axis=1).min() < LEAST_ACCEPTANCE)


def drifts(lp: np.ndarray) -> bool:
    """Whether the log-likelihood of some chain (chains x draws) is still on its way: its second half is elsewhere."""
    half = lp.shape[1] // 2
    before, after = lp[:, :half], lp[:, half:]
    return bool(np.any(np.abs(after.mean(axis=1) - before.mean(axis=1)) > 1.5 * after.std(axis=1) + 1.0))


def sample_posterior(build: Callable[[str], Posterior], plan: Plan, seed: int) -> tuple[Result, dict[str, Any], str]:
    """Chains with enough effective draws, or as many as the limits allow.

    ``build`` is the target in a precision. Returns the draws to keep, their diagnostics, and the name of the limit that
    would have to be raised for more. After Ctrl-C there is a KeyboardInterrupt where there is nothing to predict with,
    or a store to resume from.
    """
    posterior, positions = _start(build, plan, seed)
    room = max(2 * TRIAL, STORE_BYTES // (bytes_per_draw(posterior) * plan.chains))
    thin = math.ceil(plan.most / room)
    most = plan.most // thin

    def effective(stats: Any, draws: Any) -> float:
        sizes = np.concatenate([ess(values).ravel() for values in monitored(stats, draws, posterior.y).values()])
        return float(np.nanquantile(sizes, SLOW)) if np.isfinite(sizes).any() else 0.0

    def is_enough(stats: Any, draws: Any) -> bool:
        return not shortcomings(diagnose(stats, draws, posterior.y), plan.wanted)

    target, unwhiten, whiten = _with_scaled_latent(posterior) if plan.sampler == "auto" else (posterior, _same, _same)
    networks, initial = collect_networks(posterior), whiten(positions)
    before = None
    is_tuned = plan.sampler == "auto" and plan.step_size is None
    for attempt in range(ATTEMPTS):
        length = Length(plan.wanted, most, effective, is_enough, may_miss=is_tuned and attempt + 1 < ATTEMPTS)
        result = sample(
            target,
            plan.sampler,
            steps=most * thin,
            step_size=plan.step_size,
            burn_in=plan.burn_in,
            thin=thin,
            chains=plan.chains,
            seed=seed + attempt,
            collect=lambda key, u: networks(key, unwhiten(u)),
            initial=initial,
            progress=plan.progress,
            store=plan.folder(posterior.dtype, attempt),
            max_seconds=plan.clock.left(),
            until=length,
        )
        if before is not None and result.stats["lp"].shape[1] < 4 and not result.interrupted:
            result, length = before  # the time was over while step sizes were tuned again
            break
        if not length.missed or result.interrupted:
            break
        before, initial = (result, length), result.last
    done = result.stats["lp"].shape[1]
    if result.interrupted and (plan.store is not None or done < 4):
        raise KeyboardInterrupt  # something to resume from, or nothing to predict with
    if done < 4:
        raise WidebnnError("max_minutes ended the burn-in, so that there are no draws; raise it, or lower burn_in.")
    first = done // 2 if length.first is None or done - length.first < TRIAL / 2 else length.first
    stats, draws = part(result.stats, first, done), part(result.draws, first, done)
    result = replace(result, target=posterior, stats=stats, draws=draws)
    found = diagnose(result.stats, result.draws, posterior.y)
    found |= {"steps": result.steps, "seconds": result.seconds, "thin": thin}
    return result, found, "max_steps" if done == most else "max_minutes"


def _with_scaled_latent(posterior: Posterior) -> tuple[Target, Change, Change]:
    """The posterior with a latent of size 1, to and from its positions; without what sample() says of precision.

    Thousands of rows know their noise a hundred times better than the prior does. In the coordinates of the prior that
    one number would decide the step size of all.
    """
    shapes = position_shapes(posterior)
    if not isinstance(shapes, Position):
        return Target(posterior.log_likelihood, posterior.sample_reference), _same, _same
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    start = posterior.likelihood.start(zeros.z, posterior.y.size)
    scale = Position(jax.tree.map(lambda _: 1.0, shapes.network), start.width)
    target = gaussian_target(
        lambda u: posterior.log_likelihood(u) - 0.5 * inner(u, u),
        zeros,
        scale,
        includes_prior=True,
    )
    return target, target.unwhiten, lambda u: jax.tree.map(lambda leaf, s: leaf / s, u, scale)


def _same(u: Any) -> Any:
    return u


def part(arrays: dict[str, np.ndarray], start: int, end: int) -> dict[str, np.ndarray]:
    """Some of the draws of all chains."""
    return {name: array[:, start:end] for name, array in arrays.items()}


def _start(build: Callable[[str], Posterior], plan: Plan, seed: int) -> tuple[Posterior, Any]:
    """The target in the cheaper of the two exact precisions whose forces are good enough, and stacked positions.

    ``mixed`` has the forces of float32, which tables with little noise and nearly equal rows make useless.
    """
    for dtype in ("mixed", "float64"):
        posterior = build(dtype)
        positions = first_positions(posterior, plan, seed)
        if rounding_error(posterior, positions, seed) < FORCE_ERROR:
            break
    return posterior, positions


def first_positions(target: Posterior, plan: Plan, seed: int) -> Any:
    """One for every chain, stacked: the end of a climb, or a draw of the prior where a sampler was asked for."""
    if plan.sampler == "auto":
        return ascend(target, plan.chains, seed)
    with double_precision():
        draw = jax.jit(target.sample_reference)
        positions = [draw(key) for key in jax.random.split(jax.random.key(seed), plan.chains)]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *positions)


def rounding_error(target: Posterior, positions: Any, seed: int) -> float:
    """How wrong float32 features make the log acceptance ratio (mixed: the gradient, relatively) at these positions.

    Args:
        target: In any precision; float64 has no error.
        positions: One for every chain, stacked.
        seed: Of the proposals that are compared.

    Returns:
        The largest over chains; infinite where it is not a number.
    """
    error_at = precision_error(target)
    if error_at is None:
        return 0.0
    chains = len(jax.tree.leaves(positions)[0])
    with double_precision(), one_blas_thread():
        compare = jax.jit(lambda key, u: error_at(u, target.sample_reference(key), *START_STEPS))
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1), chains)
        each = [jax.tree.map(lambda leaf: leaf[i], positions) for i in range(chains)]  # noqa: B023
        errors = [float(compare(key, position)) for key, position in zip(keys, each, strict=True)]
    return max(errors) if np.all(np.isfinite(errors)) else math.inf
