"""Have the chains of a fit converged? What is monitored is what users look at."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from widebnn.diagnostics.convergence import ess, rhat
from widebnn.diagnostics.summary import project_predictions
from widebnn.estimators.cost import in_words

RHAT_LIMIT = 1.05
MISFIT_LIMIT = 2.0
"""Squared distance of the targets from the function, in units of the noise, above which the two contradict."""


def monitored(stats: dict[str, np.ndarray], draws: dict[str, np.ndarray], y: Any) -> dict[str, np.ndarray]:
    """By name, arrays of chains x draws x statistics.

    The function at the training inputs (random projections) and between and beyond them, its distance from the targets,
    the log-likelihood, and scales that are sampled.
    """
    f, new = draws["f_train"], draws["f_new"]
    found = {
        "predictions at training inputs": project_predictions(f, count=20),
        "predictions at new inputs": new.reshape(*new.shape[:2], -1),
        "log-likelihood": np.stack([stats["lp"], _distance(f, y)], axis=2),
    }
    scales = [draws[name] for name in ("noise_train", "logit_scale") if name in draws and np.ptp(draws[name]) > 0]
    return found | ({"scales": np.log(np.stack(scales, axis=2))} if scales else {})


def diagnose(stats: dict[str, np.ndarray], draws: dict[str, np.ndarray], y: Any) -> dict[str, Any]:
    """ESS of the slowest monitored statistic, the largest R-hat, and what they mean for predictions.

    ``misfit`` is the mean squared distance of the targets in units of the noise, about 1 or less.
    """
    found = {name: _worst(values) for name, values in monitored(stats, draws, y).items()}
    slowest = min(found, key=lambda name: found[name][0])
    ratios = [ratio for _, ratio in found.values() if ratio is not None]
    return {
        "ess": found[slowest][0],
        "rhat": max(ratios, default=None),
        "slowest": slowest,
        "mean_error": _mean_error(draws["f_new"], draws.get("noise_train")),
        "misfit": float(draws["misfit"].mean()) if "misfit" in draws else None,
        "acceptance_rate": float(stats["acceptance_rate"].mean()),
        "gradients": int(stats["gradients"].sum()),
        "chains": len(stats["lp"]),
        "draws": stats["lp"].size,
    }


def _distance(f: np.ndarray, y: Any) -> np.ndarray:
    return np.mean((f - np.asarray(y)) ** 2, axis=(2, 3))


def _mean_error(f: np.ndarray, noise: np.ndarray | None) -> float:
    """The Monte Carlo error of the mean of predictions f, where it is largest, in predictive standard deviations."""
    flat = f.reshape(*f.shape[:2], -1).astype(np.float64)
    variance = flat.var(axis=(0, 1))
    whole = variance + (0.0 if noise is None else float(np.mean(noise**2)))
    sizes = np.maximum(np.nan_to_num(ess(flat), nan=1.0), 1.0)  # not a number where nothing moved
    return float(np.max(np.sqrt(variance / sizes / np.where(whole > 0, whole, 1.0))))


def _worst(values: np.ndarray) -> tuple[float, float | None]:
    """The smallest ESS and the largest R-hat of several statistics."""
    sizes, ratios = ess(values), rhat(values)
    ratios = ratios[np.isfinite(ratios)]
    return float(np.nanmin(sizes)) if np.isfinite(sizes).any() else 0.0, float(ratios.max()) if ratios.size else None


def shortcomings(diagnostics: dict[str, Any], wanted: int) -> list[str]:
    """Why draws are not enough."""
    reasons = []
    if diagnostics["rhat"] is not None and diagnostics["rhat"] > RHAT_LIMIT:
        reasons.append(f"R-hat is {diagnostics['rhat']:.3f} (should be below {RHAT_LIMIT})")
    if diagnostics["ess"] < wanted:
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
