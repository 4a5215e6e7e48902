"""The chains of a fit: runs until there are enough effective draws, and what they say of themselves."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from widebnn.diagnostics.convergence import ess, rhat
from widebnn.diagnostics.summary import project_predictions
from widebnn.errors import WidebnnError
from widebnn.estimators.cost import in_words
from widebnn.estimators.ensemble import bytes_per_draw, collect_networks
from widebnn.estimators.length import ENOUGH, run_long_enough
from widebnn.estimators.plan import Plan
from widebnn.estimators.start import start_precisely, warn_of_rounding
from widebnn.posteriors import Posterior
from widebnn.sampling import Result, sample

STORE_BYTES = 2**30
"""How much the stored networks may take; beyond it fewer draws are kept."""
RHAT_LIMIT = 1.05
MISFIT_LIMIT = 2.0
"""Squared distance of the targets from the function, in units of the noise, above which the two contradict."""


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
    """Chains with enough effective draws (``widebnn.estimators.length``), or as many as the limits allow.

    ``build`` is the target in a precision. Returns the run to keep, and the name of the limit that would have to be
    raised for a better one. After Ctrl-C there is a KeyboardInterrupt where there is nothing to predict with, or a
    store to resume from.
    """
    start = start_precisely(build, plan, seed)
    posterior, step_size = start.posterior, start.step_size or plan.step_size
    # Warmed-up chains keep their step size; others have a burn-in before every run.
    burn_in = 0 if start.step_size or (plan.sampler == "auto" and plan.step_size) else plan.burn_in
    collect = collect_networks(posterior)
    room = max(4, STORE_BYTES // (bytes_per_draw(posterior) * plan.chains))
    most_draws = min(max(4, math.ceil(2 * plan.wanted / plan.chains)), plan.most, room)
    limit = "max_steps"

    def run(steps: int, before: Attempt | None) -> Attempt:
        nonlocal seed, limit
        seed += 1
        draws = min(steps, most_draws)
        result = sample(
            start.target if plan.sampler == "auto" else posterior,
            plan.sampler,
            steps=steps // draws * draws,
            step_size=step_size,
            burn_in=burn_in if before is None else burn_in // 2,
            thin=steps // draws,
            chains=plan.chains,
            seed=seed,
            collect=collect,
            initial=start.positions if before is None else before.result.last,
            progress=plan.progress,
            store=plan.folder(posterior, f"run-{seed}"),
            max_seconds=plan.clock.left(),
        )
        if result.interrupted and (plan.store is not None or (result.steps < 4 and before is None)):
            raise KeyboardInterrupt  # something to resume from, or nothing to predict with
        if result.steps < 4 and before is None:
            raise WidebnnError("max_minutes ended the burn-in, so that there are no draws; raise it, or lower burn_in.")
        if result.steps < 4 and before is not None:
            return replace(before, diagnostics=before.diagnostics | {"ess": 0.0}, is_whole=False)
        is_whole = result.stats["lp"].shape[1] == draws
        if not is_whole and not result.interrupted:
            limit = "max_minutes"
        return Attempt(replace(result, target=posterior), diagnose(result, posterior.y), plan, is_whole)

    def has_time(attempt: Attempt) -> bool:
        nonlocal limit
        has_ended = not attempt.is_whole or plan.clock.left() < attempt.result.seconds
        if has_ended and not attempt.result.interrupted:
            limit = "max_minutes"
        return not has_ended and not attempt.result.interrupted

    kept = run_long_enough(run, wanted=plan.wanted, chains=plan.chains, most=plan.most, has_time=has_time)
    warn_of_rounding(start, kept.result.last, seed)
    return kept, limit


def diagnose(result: Result, y: Any) -> dict[str, Any]:
    """Convergence of what users look at: ESS of the statistic that has fewest, and its R-hat.

    Monitored are the function at the training inputs and between and beyond them (random projections, and each of the
    latter), its distance from the targets, the log-likelihood, and sampled scales. ``misfit`` is the squared distance
    in units of the noise, less than about 1.
    """
    f, new = result.draws["f_train"], result.draws["f_new"]
    distance = np.mean((f - np.asarray(y)) ** 2, axis=(2, 3))
    noise = result.draws.get("noise")
    scales = [result.draws[name] for name in ("noise", "logit_scale") if name in result.draws]
    logs = [np.log(values) for values in scales if np.ptp(values) > 0]
    monitored = {
        "predictions at training inputs": project_predictions(f, count=20),
        "predictions at new inputs": new.reshape(*new.shape[:2], -1),
        "log-likelihood": np.stack([result.stats["lp"], distance], axis=2),
    }
    if logs:
        monitored["scales"] = np.stack(logs, axis=2)
    found = {name: _worst(values) for name, values in monitored.items()}
    slowest = min(found, key=lambda name: found[name][0])
    ratios = [ratio for _, ratio in found.values() if ratio is not None]
    return {
        "ess": found[slowest][0],
        "rhat": max(ratios, default=None),
        "slowest": slowest,
        "mean_error": _mean_error(new, noise),
        "misfit": None if noise is None or not noise.all() else float(np.mean(distance / noise**2)),
        "acceptance_rate": result.acceptance_rate,
        "steps": result.steps,
        "chains": result.chains,
        "draws": result.stats["lp"].size,
        "seconds": result.seconds,
    }


def _mean_error(f: np.ndarray, noise: np.ndarray | None) -> float:
    """The Monte Carlo error of the mean of predictions f, where it is largest, in predictive standard deviations."""
    flat = f.reshape(*f.shape[:2], -1).astype(np.float64)
    variance = flat.var(axis=(0, 1))
    whole = variance + (0.0 if noise is None else float(np.mean(noise**2)))
    sizes = np.maximum(np.nan_to_num(ess(flat), nan=1.0), 1.0)  # not a number where nothing moved
    return float(np.max(np.sqrt(variance / sizes / np.where(whole > 0, whole, 1.0))))


def _worst(values: np.ndarray) -> tuple[float, float | None]:
    """The smallest ESS and the largest R-hat of several statistics, chains x draws x statistics."""
    sizes, ratios = ess(values), rhat(values)
    ratios = ratios[np.isfinite(ratios)]
    return float(np.nanmin(sizes)) if np.isfinite(sizes).any() else 0.0, float(ratios.max()) if ratios.size else None


def shortcomings(diagnostics: dict[str, Any], wanted: int) -> list[str]:
    """Why draws are not enough."""
    reasons = []
    if diagnostics["rhat"] is not None and diagnostics["rhat"] > RHAT_LIMIT:
        reasons.append(f"R-hat is {diagnostics['rhat']:.3f} (should be below {RHAT_LIMIT})")
    if diagnostics["ess"] < ENOUGH * wanted:
        reasons.append(f"{diagnostics['ess']:.0f} effective draws of {wanted} wanted")
    return reasons


def describe_convergence(diagnostics: dict[str, Any]) -> str:
    """What was reached, what it means for predictions, and how long the rest would take."""
    size, ratio, seconds = (diagnostics[name] for name in ("ess", "rhat", "total_seconds"))
    reasons = shortcomings(diagnostics, diagnostics["wanted"])
    error = f"Monte Carlo errors of predicted means are at most {diagnostics['mean_error']:.2g} predictive standard "
    error += "deviations"
    if not reasons:
        agreement = "" if ratio is None else f"R-hat is {ratio:.3f} and "
        return (
            f"the chains have converged: {agreement}there are {size:.0f} effective draws of the slowest statistic, "
            f"{diagnostics['slowest']}, after {in_words(seconds)} of sampling; {error}"
        )
    times = max(diagnostics["wanted"] / max(size, 1.0), 2.0 if ratio is None or ratio > RHAT_LIMIT else 1.0)
    return (
        f"the chains have not converged: {' and '.join(reasons)} after {diagnostics['steps']} steps, "
        f"{in_words(seconds)} of sampling (slowest: {diagnostics['slowest']}); {error}; about "
        f"{in_words((times - 1) * seconds)} more are needed"
    )


def warn_if_not_converged(diagnostics: dict[str, Any], limit: str, width: int) -> None:
    """Say what is wrong with the draws of a fit; ``limit`` says what to raise, as ``max_steps=1000``."""
    if shortcomings(diagnostics, diagnostics["wanted"]):
        text = f"{describe_convergence(diagnostics)}; raise {limit}, or lower target_ess"
        warnings.warn(text, ConvergenceWarning, stacklevel=4)
    misfit = diagnostics["misfit"]
    if misfit is not None and misfit > MISFIT_LIMIT:
        warnings.warn(
            f"the function stays {math.sqrt(misfit):.2g} times the noise away from the training targets: a network "
            f"of width {width} cannot follow them that closely, so raise the width or the noise",
            ConvergenceWarning,
            stacklevel=4,
        )
