"""The paper's diagnostics (section 5.2 and its appendix): effective sample size, R-hat, principal components.

The first two differ from today's practice, which :mod:`widebnn.diagnostics` follows: no rank normalisation, no
splitting of chains, autocorrelations cut at the first negative one, and R-hat is a ratio of variances, not its root.
"""

from __future__ import annotations

import warnings

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft


def published_ess(draws: np.ndarray) -> np.ndarray:
    """N / (1 + 2 sum_i (1 - i/N) R_i), autocorrelations R_i cut at the first negative one; summed over chains.

    R_i is the estimate of the software that the paper used, sum_t x_t x_{t+i} / (N - i) over the same at i = 0.

    Args:
        draws: Array of shape (chains, draws, ...).

    Returns:
        One number per statistic; NaN with a warning where a chain is constant, not finite or shorter than two draws.
    """
    flat, shape = _flatten(draws)
    short = np.full(flat.shape[2], np.nan)
    sizes = np.array([_one_chain(chain) if len(chain) >= 2 else short for chain in flat]).sum(axis=0)
    _warn_about(sizes, "effective sample size")
    return sizes.reshape(shape)


def _one_chain(values: np.ndarray) -> np.ndarray:
    """Effective sample size of every column."""
    n = len(values)
    usable = np.isfinite(values).all(axis=0) & (np.ptp(np.nan_to_num(values), axis=0) > 0)
    centred = np.where(usable, values - values.mean(axis=0, keepdims=True), 0.0)
    length = next_fast_len(2 * n, real=True)
    # With the weight (1 - i/N) the divisor N - i becomes N.
    products = irfft(np.abs(rfft(centred, length, axis=0)) ** 2, length, axis=0)[:n]
    with np.errstate(invalid="ignore", divide="ignore"):
        weighted = products / products[0]
    kept = np.cumsum(weighted < 0, axis=0) == 0
    sums = np.where(kept, weighted, 0.0)[1:].sum(axis=0)
    return np.where(usable, n / (1 + 2 * sums), np.nan)


def published_rhat(draws: np.ndarray) -> np.ndarray:
    """((N - 1)/N W + B/N) / W with the variance within chains, W, and N times that of their means, B.

    Args:
        draws: Array of shape (chains, draws, ...).

    Returns:
        One number per statistic; NaN with a warning where chains never moved or are not finite, or where there are
        fewer than two chains or draws.
    """
    flat, shape = _flatten(draws)
    chains, n, count = flat.shape
    values = np.full(count, np.nan)
    if chains >= 2 and n >= 2:
        with np.errstate(invalid="ignore", divide="ignore"):
            within = flat.var(axis=1, ddof=1).mean(axis=0)
            between = n * flat.mean(axis=1).var(axis=0, ddof=1)
            ratio = ((n - 1) / n * within + between / n) / within
        moved = (np.ptp(np.nan_to_num(flat), axis=1) > 0).any(axis=0)
        values = np.where(moved & np.isfinite(ratio), ratio, np.nan)
    _warn_about(values, "R-hat")
    return values.reshape(shape)


def _flatten(draws: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    draws = np.asarray(draws, np.float64)
    if draws.ndim < 2:
        raise ValueError(f"draws must have shape (chains, draws, ...), got {draws.shape}")
    return draws.reshape(*draws.shape[:2], -1), draws.shape[2:]


def _warn_about(values: np.ndarray, what: str) -> None:
    if unknown := int(np.isnan(values).sum()):
        reason = "constant, not finite, or too few draws or chains"
        warnings.warn(f"{what} of {unknown} statistics is not defined ({reason}): NaN", stacklevel=3)


def principal_traces(projections: np.ndarray, components: int = 2) -> np.ndarray:
    """Traces of the leading principal components of the iterates of one chain.

    A trace, the coordinate of every iterate along a component, is a left singular vector of the matrix of centred
    iterates (draws x dimension) times its singular value. Random projections are that matrix times a random one and
    keep its leading left singular vectors (Halko, Martinsson and Tropp 2011).

    Args:
        projections: Random projections of the iterates, draws x directions.
        components: How many components.

    Returns:
        draws x components, the first draw on the positive side; NaN with a warning where there are fewer than two
        draws, or where they are all the same or not finite.
    """
    projections = np.asarray(projections, np.float64)
    draws = len(projections)
    centred = projections - projections.mean(axis=0) if draws else projections
    if draws < 2 or not np.isfinite(centred).all() or not np.abs(centred).max() > 0:
        warnings.warn("principal components need at least two finite draws that differ: NaN", stacklevel=2)
        return np.full((draws, components), np.nan)
    left, singular, _ = np.linalg.svd(centred, full_matrices=False)
    count = min(components, len(singular))
    signs = np.where(left[0, :count] < 0, -1.0, 1.0)
    traces = np.zeros((draws, components))
    traces[:, :count] = left[:, :count] * singular[:count] * signs / np.sqrt(projections.shape[1])
    return traces
