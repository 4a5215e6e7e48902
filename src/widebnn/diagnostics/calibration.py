"""Whether predictions mean what they say: scores, and stated against observed frequencies."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from widebnn.errors import WidebnnError, check_integer, check_numbers

INTERVALS = (0.5, 0.9)
"""Central intervals whose coverage is a score of a regression."""
TINY = np.finfo(np.float64).tiny


@dataclasses.dataclass(frozen=True)
class Reliability:
    """Predictions grouped by the probability of the class they name; a bin without any has NaN for its means."""

    confidence: np.ndarray
    """Mean probability of the predicted class, for each bin."""
    accuracy: np.ndarray
    """Share of right predictions, for each bin."""
    count: np.ndarray
    """Number of predictions, for each bin."""


def reliability(probabilities: Any, labels: Any, bins: int = 15) -> Reliability:
    """Confidence and accuracy of the predicted class in ``bins`` bins of equal width between 0 and 1.

    ``probabilities`` is rows x classes, ``labels`` the column of the true class of each row. The predicted class is
    the most probable one, the first of several. A bin holds its upper end and not its lower one.
    """
    probabilities, labels = _checked(probabilities, labels)
    bins = check_integer("bins", bins, 1)
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    # Against the same edges that a figure draws: multiplying by the number of bins would round differently.
    place = np.clip(np.searchsorted(np.linspace(0, 1, bins + 1), confidence, side="left") - 1, 0, bins - 1)
    count = np.bincount(place, minlength=bins)
    total = np.where(count > 0, count, np.nan)
    return Reliability(
        np.bincount(place, weights=confidence, minlength=bins) / total,
        np.bincount(place, weights=right, minlength=bins) / total,
        count,
    )


def expected_calibration_error(probabilities: Any, labels: Any, bins: int = 15) -> float:
    """How far confidence is from accuracy: the mean over predictions of the absolute difference in their bin.

    Only the most probable class counts, and bins have equal width, see ``reliability``. 0 is perfect. With few rows
    it is never 0: bins have a random error, which makes it larger with more bins.
    """
    found = reliability(probabilities, labels, bins)
    return float(np.nansum(found.count * np.abs(found.confidence - found.accuracy)) / found.count.sum())


def classification_scores(probabilities: Any, labels: Any) -> dict[str, float]:
    """Accuracy, log loss (mean of minus the log probability of the true class) and expected calibration error."""
    probabilities, labels = _checked(probabilities, labels)
    chosen = probabilities[np.arange(len(labels)), labels]
    return {
        "accuracy": float(np.mean(probabilities.argmax(axis=1) == labels)),
        "log_loss": float(-np.mean(np.log(np.maximum(chosen, TINY)))),
        "ece": expected_calibration_error(probabilities, labels),
    }


def regression_scores(y: Any, mean: Any, log_density: Any, below: Any) -> dict[str, float | None]:
    """RMSE and R2 of the mean, negative log-likelihood per row, coverage of central 50 and 90 % intervals.

    ``log_density`` is the log of the predictive density at ``y``, ``below`` the predictive probability of less than
    ``y``. R2 is None where all ``y`` are equal.
    """
    y, mean, log_density = check_numbers("y", y), check_numbers("mean", mean), check_numbers("log_density", log_density)
    squares, spread = np.mean((y - mean) ** 2), np.var(y)
    scores: dict[str, float | None] = {
        "rmse": float(np.sqrt(squares)),
        "r2": float(1 - squares / spread) if spread > 0 else None,
        "nll": float(-np.mean(log_density)),
    }
    for level, covered in zip(INTERVALS, central_coverage(below, INTERVALS), strict=True):
        scores[f"coverage_{100 * level:.0f}"] = float(covered)
    return scores


def central_coverage(below: Any, levels: Any) -> np.ndarray:
    """The share of observations inside their central intervals of each level.

    ``below`` is, for each observation, the predictive probability of less than it. The central interval of level
    0.9 goes from the quantile 0.05 to the quantile 0.95.
    """
    below, levels = check_numbers("below", below), check_numbers("levels", levels)
    # 2 |below - 1/2| is the level of the smallest central interval that holds the observation.
    needed = np.sort(np.abs(2 * below - 1))
    return np.searchsorted(needed, levels, side="right") / len(needed)


def _checked(probabilities: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    probabilities, labels = check_numbers("probabilities", probabilities), np.asarray(labels)
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or not probabilities.size:
        raise WidebnnError(
            "probabilities must be rows x classes with one label for each row; got shapes "
            f"{probabilities.shape} and {labels.shape}."
        )
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= probabilities.shape[1]:
        raise WidebnnError(
            f"labels must be whole numbers from 0 to {probabilities.shape[1] - 1}, one column of probabilities each; "
            "pass the index of each class."
        )
    off = np.max(np.abs(probabilities.sum(axis=1) - 1))
    if probabilities.min() < 0 or off > 1e-3:
        raise WidebnnError("probabilities must not be negative and must add up to 1 in each row; normalise them.")
    return probabilities, labels.astype(np.int64)
