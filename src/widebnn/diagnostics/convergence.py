"""Effective sample size and R-hat of arrays (chains, draws, ...), by ArviZ."""

from __future__ import annotations

from typing import Any

import numpy as np
from arviz_stats.base import array_stats  # type: ignore[attr-defined]


def _per_statistic(draws: np.ndarray, function: Any) -> np.ndarray:
    draws = np.asarray(draws, np.float64)
    if draws.ndim < 2:
        raise ValueError(f"draws must have shape (chains, draws, ...), got {draws.shape}")
    flat = draws.reshape(*draws.shape[:2], -1)
    if flat.shape[1] < 4:
        return np.full(draws.shape[2:], np.nan)
    # Statistics that never moved have no autocorrelation to estimate: no information, not a full sample.
    moving = np.ptp(flat, axis=(0, 1)) > 0
    values = np.full(flat.shape[2], np.nan)
    if moving.any():
        # Part of a chain can be constant though the whole is not; what cannot be estimated then is NaN.
        with np.errstate(divide="ignore", invalid="ignore"):
            values[moving] = function(flat[:, :, moving])
    values[~np.isfinite(values)] = np.nan
    return values.reshape(draws.shape[2:])


def ess(draws: np.ndarray, method: str = "bulk") -> np.ndarray:
    """Rank-normalised effective sample size of all chains together, of the ``bulk`` or the ``tail``, per statistic.

    NaN for a statistic that is constant, and for chains of fewer than four draws.
    """
    options = {"prob": (0.05, 0.95)} if method == "tail" else {}
    return _per_statistic(
        draws, lambda flat: array_stats.ess(flat, chain_axis=0, draw_axis=1, method=method, **options)
    )


def rhat(draws: np.ndarray) -> np.ndarray:
    """Rank-normalised split R-hat, one number per statistic; NaN where ``ess`` is."""
    return _per_statistic(draws, lambda flat: array_stats.rhat(flat, chain_axis=0, draw_axis=1, method="rank"))
