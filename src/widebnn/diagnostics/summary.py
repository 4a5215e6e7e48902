"""One dictionary of numbers about a run: speed, mixing, and fit to the test set."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

import numpy as np

from widebnn.data import Dataset
from widebnn.diagnostics.convergence import ess, rhat
from widebnn.sampling import Result

PREDICTION_DIRECTIONS = 100
VERSIONS = ("widebnn", "jax", "jaxlib", "numpy", "scipy", "arviz-stats")


def summarise(result: Result, dataset: Dataset) -> dict[str, Any]:
    """Summary of a run whose draws were collected by ``track(target, dataset.x_test)``.

    ESS is per sampler step (not per stored draw), all chains together: for ``lp`` and, as mean and minimum,
    over random projections of the predictions and of the chain's weights. ``rhat`` is the largest over all of
    them. A number that cannot be estimated (a chain that never moved, fewer than four draws) is None.
    """
    tracked = {"lp": result.stats["lp"][..., None], "weights": result.draws["weights"]}
    if dataset.x_test.shape[0]:
        tracked["predictions"] = project_predictions(result.draws["f_test"])
    steps = max(result.steps * result.chains, 1)
    per_step: dict[str, float | None] = {}
    worst_rhat = []
    for name, values in tracked.items():
        sizes = ess(values) / steps
        per_step[name] = _number(sizes.mean())
        if name != "lp":
            per_step[f"{name}_min"] = _number(sizes.min())
        worst_rhat.append(rhat(values).max())
    summary = {
        "acceptance_rate": _number(result.acceptance_rate),
        "ms_per_step": _number(result.ms_per_step),
        "dimension": getattr(result.target, "dimension", None),
        "gradients_per_step": _number(result.gradients_per_step),
        "ess_per_step": per_step,
        "rhat": _number(np.max(worst_rhat)),
        "nonfinite_proposals": int(result.stats["nonfinite"].sum()),
        "compile_seconds": _number(result.compile_seconds),
        "steps": result.steps,
        "burn_in": result.burn_in,
        "thin": result.thin,
        "chains": result.chains,
        "seed": result.seed,
        "interrupted": result.interrupted,
        "versions": installed_versions(),
    }
    return summary | test_scores(result, dataset)


def installed_versions() -> dict[str, str]:
    """The versions of what a run depends on."""
    return {name: version(name) for name in VERSIONS} | {"python": platform.python_version()}


def test_scores(result: Result, dataset: Dataset) -> dict[str, float | None]:
    """Test error of the posterior mean, in the units of the data, and accuracy where there are labels."""
    if not dataset.x_test.shape[0] or not result.steps:
        return {}
    mean = result.draws["mean_test"].mean(axis=(0, 1))
    error = dataset.to_original_units(mean) - dataset.to_original_units(dataset.y_test)
    scores = {"test_rmse": _number(np.sqrt(np.mean(error**2)))}
    if dataset.labels_test is not None:
        scores["test_accuracy"] = _number(np.mean(mean.argmax(axis=1) == dataset.labels_test))
    return scores


def project_predictions(predictions: np.ndarray, count: int = PREDICTION_DIRECTIONS, seed: int = 0) -> np.ndarray:
    """Predictions (chains, draws, rows, outputs) on ``count`` fixed random unit directions."""
    flat = predictions.reshape(*predictions.shape[:2], -1)
    directions = np.random.default_rng(seed).normal(size=(flat.shape[-1], count))
    return flat @ (directions / np.linalg.norm(directions, axis=0))


def _number(value: Any) -> float | None:
    """A float, or None where it is not finite (JSON has no NaN)."""
    return float(value) if np.isfinite(value) else None
