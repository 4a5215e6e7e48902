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
from widebnn.estimators.ensemble import bytes_per_draw
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
        result = sample(
            target,
            plan.sampler,
            steps=steps // draws * draws,
            burn_in=burn_in if before is None else max(burn_in // 2, 1),
            thin=steps // draws,
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
        has_ended = not attempt.is_whole or plan.clock.left() < attempt.result.seconds
        if has_ended and not attempt.result.interrupted:
            limit = "max_minutes"
        return not has_ended and not attempt.result.interrupted

    kept = run_long_enough(run, wanted=plan.wanted, chains=plan.chains, most=plan.most, has_time=has_time)
    warn_of_rounding(start, kept.result.last, seed)
    return kept, limit


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
