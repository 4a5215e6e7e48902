"""Effective sample size and R-hat exactly as the paper defines them (section 5.2 and its appendix).

They differ from today's practice, which :mod:`widebnn.diagnostics.convergence` follows: no rank normalisation, no
splitting of chains, autocorrelations cut at the first negative one, and R-hat is a ratio of variances, not its root.
"""

from __future__ import annotations

import warnings

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

BLOCK_BYTES = 2**26
"""How much the transforms of one block of statistics may take."""


def published_ess(draws: np.ndarray) -> np.ndarray:
    """N / (1 + 2 sum_i (1 - i/N) R_i), autocorrelations R_i cut at the first negative one; summed over chains.

    ``draws`` has shape (chains, draws, ...); the result one number per statistic. R_i is the estimate of the software
    that the paper used, sum_t x_t x_{t+i} / (N - i) over the same at i = 0. A statistic that is constant or not finite
    in a chain, and chains of fewer than two draws, give NaN and a warning.
    """
    flat, shape = _flatten(draws)
    chains, n, count = flat.shape
    sizes = np.full((chains, count), np.nan)
    if n >= 2:
        block = max(1, BLOCK_BYTES // (16 * 2 * n))
        for chain in range(chains):
            for first in range(0, count, block):
                sizes[chain, first : first + block] = _one_chain(flat[chain, :, first : first + block])
    _warn_about(sizes, "effective sample size")
    return sizes.sum(axis=0).reshape(shape)


def _one_chain(values: np.ndarray) -> np.ndarray:
    """Effective sample size of every column."""
    n = len(values)
    usable = np.isfinite(values).all(axis=0) & (np.ptp(np.nan_to_num(values), axis=0) > 0)
    centred = np.where(usable, values - values.mean(axis=0, keepdims=True), 0.0)
    length = next_fast_len(2 * n, real=True)
    spectrum = rfft(centred, length, axis=0)
    # With the weight (1 - i/N) the divisor N - i becomes N.
    products = irfft(np.abs(spectrum) ** 2, length, axis=0)[:n]
    with np.errstate(invalid="ignore", divide="ignore"):
        weighted = products / products[0]
    kept = np.cumsum(weighted < 0, axis=0) == 0
    sums = np.where(kept, weighted, 0.0)[1:].sum(axis=0)
    return np.where(usable, n / (1 + 2 * sums), np.nan)


def published_rhat(draws: np.ndarray) -> np.ndarray:
    """((N - 1)/N W + B/N) / W with the variance within chains, W, and N times that of their means, B.

    ``draws`` has shape (chains, draws, ...), at least two of each; the result is one number per statistic, NaN with a
    warning where chains never moved or are not finite.
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
    unknown = int(np.isnan(values).any(axis=0).sum() if values.ndim > 1 else np.isnan(values).sum())
    if unknown:
        warnings.warn(
            f"{what} of {unknown} statistics is not defined (constant, not finite, or too few draws or chains): NaN",
            stacklevel=3,
        )
