"""The chains of a fit: a precision that suffices, a start in the bulk, and runs until there are enough draws."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from widebnn.diagnostics.convergence import ess, rhat
from widebnn.diagnostics.summary import project_predictions
from widebnn.errors import PrecisionWarning, check_real
from widebnn.estimators.ascent import ascend
from widebnn.estimators.cost import PILOT_GRADIENTS
from widebnn.estimators.ensemble import bytes_per_draw, collect_networks
from widebnn.estimators.length import ENOUGH, run_long_enough
from widebnn.posteriors import Posterior
from widebnn.precision import double_precision, one_blas_thread
from widebnn.samplers.preconditioning import Scaling
from widebnn.samplers.target import Target
from widebnn.sampling import Result, sample
from widebnn.sampling.rounding import BULK_TOLERANCE, START_STEPS, START_TOLERANCE, precision_error

STORE_BYTES = 2**30
"""How much the stored networks may take; beyond it fewer draws are kept."""
RHAT_LIMIT = 1.05
MISFIT_LIMIT = 2.0
"""Squared distance of the targets from the function, in units of the noise, above which the two contradict."""
MOST_PILOTS = 6
"""How often the way to the bulk may be as long as the burn-in."""
PILOT_SHARE = 0.5
"""Of the time of a fit: no further pilot is begun after it."""
NO_SCALING = Scaling(())
SAFELY = 0.5
"""The part of what sample() tolerates that float32 may be wrong by where the chains start."""


class Clock:
    """The time that a fit may still take."""

    def __init__(self, minutes: float | None):
        self._began = time.perf_counter()
        self.seconds = math.inf
        if minutes is not None:
            self.seconds = 60 * check_real("max_minutes", minutes, above=0, at_most=math.inf)

    def left(self, share: float = 1.0) -> float:
        """Seconds until this share of the time is over; 0 afterwards."""
        return max(0.0, share * self.seconds - (time.perf_counter() - self._began))


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
    """Steps of a chain."""
    clock: Clock
    progress: bool | None
    store: str | None

    def folder(self, target: Posterior, name: str) -> Path | None:
        """Where a part of the fit is stored."""
        return None if self.store is None else Path(self.store) / f"{target.dtype}-{name}"

    @property
    def has_begun(self) -> bool:
        """Whether chains of this fit are stored already."""
        return (
            self.store is not None and Path(self.store).is_dir() and any(map(Path.is_dir, Path(self.store).iterdir()))
        )


@dataclass(frozen=True)
class Start:
    """A posterior, the coordinates its chains move in, and where they start."""

    posterior: Posterior
    positions: Any
    """One for every chain, stacked, in the coordinates of the posterior."""
    scaling: Scaling = NO_SCALING

    @property
    def target(self) -> Target:
        """What the sampler sees."""
        return self.scaling.apply(self.posterior) if self.scaling.precisions else self.posterior

    @property
    def initial(self) -> Any:
        """The positions in the coordinates of the target."""
        return _stacked([self.scaling.to_v(position) for position in _unstacked(self.positions)])

    def collect(self, key: jax.Array, v: Any) -> dict[str, jax.Array]:
        """The networks of a draw."""
        return collect_networks(self.posterior)(key, self.scaling.to_u(v))


@dataclass(frozen=True)
class Attempt:
    """One run, and what it says of itself."""

    result: Result
    diagnostics: dict[str, Any]
    plan: Plan
    is_whole: bool

    @property
    def ess(self) -> float:
        """The smallest effective sample size."""
        return self.diagnostics["ess"]

    @property
    def is_enough(self) -> bool:
        """Whether there is nothing to complain about."""
        return not shortcomings(self.diagnostics, self.plan.wanted)


def sample_posterior(build: Callable[[str], Posterior], plan: Plan, seed: int) -> tuple[Attempt, str]:
    """Chains with enough effective draws (:mod:`widebnn.estimators.length`), or as many as the limits allow.

    Args:
        build: the target in a precision.
        plan: how to run them.
        seed: of everything random.

    Returns:
        The run to keep, and the name of the limit that would have to be raised for a better one.

    Raises:
        KeyboardInterrupt: after Ctrl-C, where there is nothing to predict with or a store to resume from.
    """
    start = start_precisely(build, plan, seed)
    posterior, target, initial = start.posterior, start.target, start.initial
    burn_in = max(plan.burn_in // 2, 1) if plan.sampler == "auto" else plan.burn_in
    room = max(4, STORE_BYTES // (bytes_per_draw(posterior) * plan.chains))
    most_draws = min(max(4, math.ceil(2 * plan.wanted / plan.chains)), plan.most, room)
    options: dict[str, Any] = {} if plan.step_size is None else {"step_size": plan.step_size}
    limit = "max_steps"

    def run(steps: int, before: Attempt | None) -> Attempt:
        nonlocal seed, limit
        seed += 1
        draws = min(steps, most_draws)
        thin = steps // draws
        result = sample(
            target,
            plan.sampler,
            steps=thin * draws,
            burn_in=burn_in if before is None else max(burn_in // 2, 1),
            thin=thin,
            chains=plan.chains,
            seed=seed,
            collect=start.collect,
            initial=initial if before is None else before.result.last,
            progress=plan.progress,
            store=plan.folder(posterior, f"run-{seed}"),
            max_seconds=plan.clock.left(),
            **options,
        )
        if (result.steps < 4 and before is None) or (result.interrupted and plan.store is not None):
            raise KeyboardInterrupt  # nothing to predict with, or something to resume from
        if result.steps < 4 and before is not None:
            return replace(before, diagnostics=before.diagnostics | {"ess": 0.0}, is_whole=False)
        is_whole = result.stats["lp"].shape[1] == draws
        if not is_whole and not result.interrupted:
            limit = "max_minutes"
        return Attempt(replace(result, target=posterior), diagnose(result, posterior.y), plan, is_whole)

    def has_time(attempt: Attempt) -> bool:
        nonlocal limit
        if attempt.result.interrupted:
            return False
        if not attempt.is_whole or plan.clock.left() < attempt.result.seconds:
            limit = "max_minutes"
            return False
        return True

    kept = run_long_enough(run, wanted=plan.wanted, chains=plan.chains, most=plan.most, has_time=has_time)
    _warn_of_rounding(start, kept.result.last, seed)
    return kept, limit


# --- where chains start, and in which precision


def start_precisely(build: Callable[[str], Posterior], plan: Plan, seed: int) -> Start:
    """A position for every chain, in the first of float32, mixed and float64 that is exact enough.

    Tables often have little noise and nearly equal rows, where float32 is not. Its error is measured where the chains
    are: at the end of the climb, and again after the burn-in of short turns.
    """
    for dtype in ("float32", "mixed"):
        posterior = build(dtype)
        start = Start(posterior, first_positions(posterior, plan, seed))
        if rounding_error(posterior, start.positions, seed) < SAFELY * START_TOLERANCE:
            if plan.sampler != "auto":
                return start
            start = _scaled_by_curvature(start, plan, seed)
            if rounding_error(posterior, start.positions, seed) < SAFELY * START_TOLERANCE:
                return start
    posterior = build("float64")
    start = Start(posterior, first_positions(posterior, plan, seed))
    return _scaled_by_curvature(start, plan, seed) if plan.sampler == "auto" else start


def first_positions(target: Posterior, plan: Plan, seed: int) -> Any:
    """One for every chain, stacked: the end of a climb, or a draw of the prior where a sampler was asked for."""
    if plan.sampler == "auto":
        return ascend(target, plan.chains, seed)
    with double_precision():
        draw = jax.jit(target.sample_reference)
        starts = [draw(key) for key in jax.random.split(jax.random.key(seed), plan.chains)]
        return _stacked(starts)


def rounding_error(target: Posterior, positions: Any, seed: int) -> float:
    """How wrong float32 features make the log acceptance ratio (mixed: the gradient, relatively) at these positions.

    Args:
        target: in any precision; float64 has no error.
        positions: one for every chain, stacked.
        seed: of the proposals that are compared.

    Returns:
        The largest over chains; infinite where it is not a number.
    """
    error_at = precision_error(target)
    if error_at is None:
        return 0.0
    chains = _unstacked(positions)
    with double_precision(), one_blas_thread():
        compare = jax.jit(lambda key, u: error_at(u, target.sample_reference(key), *START_STEPS))
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1), len(chains))
        errors = [float(compare(key, position)) for key, position in zip(keys, chains, strict=True)]
    return max(errors) if np.all(np.isfinite(errors)) else math.inf


def _warn_of_rounding(start: Start, last: Any, seed: int) -> None:
    """Say so where float32 turns out not to be exact enough at the end of the chains."""
    ends = [start.scaling.to_u(position) for position in _unstacked(last)]
    error = rounding_error(start.posterior, _stacked(ends), seed)
    if error >= BULK_TOLERANCE:
        warnings.warn(
            f"float32 features change what the chains follow by about {error:.2g} where they end: use more noise, or "
            "remove rows that are nearly equal",
            PrecisionWarning,
            stacklevel=5,
        )


def _stacked(positions: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *positions)


def _unstacked(positions: Any) -> list[Any]:
    chains = len(jax.tree.leaves(positions)[0])
    return [jax.tree.map(lambda leaf: leaf[i], positions) for i in range(chains)]  # noqa: B023


def _scaled_by_curvature(start: Start, plan: Plan, seed: int) -> Start:
    """Coordinates scaled by the curvature where chains are after a burn-in of short turns."""
    posterior, last = start.posterior, start.positions
    # Without what sample() says of precision: it is measured again where the pilot ends.
    target = Target(posterior.log_likelihood, posterior.sample_reference)
    for attempt in range(MOST_PILOTS):
        pilot = sample(
            target,
            "hilbert_hmc",
            num_steps=PILOT_GRADIENTS,
            steps=max(plan.burn_in - plan.burn_in // 2, 2),
            burn_in=plan.burn_in // 2,
            chains=plan.chains,
            seed=seed + 7919 * attempt,
            collect=lambda key, u: {},
            initial=last,
            progress=plan.progress,
            store=plan.folder(posterior, f"pilot-{attempt}"),
        )
        if pilot.interrupted:
            raise KeyboardInterrupt
        last = pilot.last
        if not _drifts(pilot.stats["lp"]) or not plan.clock.left(PILOT_SHARE):
            break
    scaling = Scaling.by_curvature(posterior, jax.tree.map(lambda leaf: leaf[0], last))
    return Start(posterior, last, scaling)


def _drifts(lp: np.ndarray) -> bool:
    """Whether the log-likelihood of some chain (chains x steps) is still on its way: its second half is elsewhere."""
    half = lp.shape[1] // 2
    before, after = lp[:, :half], lp[:, half:]
    return bool(np.any(np.abs(after.mean(axis=1) - before.mean(axis=1)) > 1.5 * after.std(axis=1) + 1.0))


# --- what a run says of itself


def diagnose(result: Result, y: Any) -> dict[str, Any]:
    """Convergence of the function at the training inputs, of its distance from the targets and of sampled scales.

    The smallest ESS and the largest R-hat of them; and the squared distance in units of the noise, which is
    less than about 1.
    """
    f = result.draws["f_train"]
    distance = np.mean((f - np.asarray(y)) ** 2, axis=(2, 3))
    noise = result.draws.get("noise")
    scales = [result.draws[name] for name in ("noise", "logit_scale") if name in result.draws]
    scales = [values for values in scales if np.ptp(values) > 0]
    values = np.concatenate(
        [project_predictions(f, count=20), np.stack([distance, *map(np.log, scales)], axis=2)], axis=2
    )
    sizes, ratios = ess(values), rhat(values)
    finite = ratios[np.isfinite(ratios)]
    return {
        "ess": float(np.nanmin(sizes)) if np.isfinite(sizes).any() else 0.0,
        "rhat": float(finite.max()) if finite.size else None,
        "misfit": None if noise is None or not noise.all() else float(np.mean(distance / noise**2)),
        "acceptance_rate": result.acceptance_rate,
        "steps": result.steps,
        "chains": result.chains,
        "draws": result.stats["lp"].size,
        "seconds": result.seconds,
    }


def shortcomings(diagnostics: dict[str, Any], wanted: int) -> list[str]:
    """Why draws are not enough."""
    reasons = []
    if diagnostics["rhat"] is not None and diagnostics["rhat"] > RHAT_LIMIT:
        reasons.append(f"R-hat is {diagnostics['rhat']:.3f} (should be below {RHAT_LIMIT})")
    if diagnostics["ess"] < ENOUGH * wanted:
        reasons.append(f"{diagnostics['ess']:.0f} effective draws of {wanted} wanted")
    return reasons


def warn_if_not_converged(diagnostics: dict[str, Any], wanted: int, limit: str, width: int) -> None:
    """Say what is wrong with the draws of a fit; ``limit`` says what to raise, as ``max_steps=1000``."""
    reasons = shortcomings(diagnostics, wanted)
    if reasons:
        warnings.warn(
            f"the chains have not converged: {' and '.join(reasons)} after {diagnostics['steps']} steps; raise {limit} "
            "or the width, or lower target_ess",
            ConvergenceWarning,
            stacklevel=4,
        )
    misfit = diagnostics["misfit"]
    if misfit is not None and misfit > MISFIT_LIMIT:
        warnings.warn(
            f"the function stays {math.sqrt(misfit):.2g} times the noise away from the training targets: a network "
            f"of width {width} cannot follow them that closely, so raise the width or the noise",
            ConvergenceWarning,
            stacklevel=4,
        )
