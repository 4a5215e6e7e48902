"""The paper's diagnostics (section 5.2 and its appendix): effective sample size, R-hat, principal components.

The first two differ from today's practice, which ``widebnn.diagnostics`` follows: no rank normalisation, no splitting
of chains, autocorrelations cut at the first negative one, and R-hat is a ratio of variances, not its root. Draws
have the shape (chains, draws, ...), and there is one number per statistic, NaN where it is not defined.
"""

from __future__ import annotations

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft


def published_ess(draws: np.ndarray) -> np.ndarray:
    """N / (1 + 2 sum_i (1 - i/N) R_i), autocorrelations R_i cut at the first negative one; summed over chains.

    R_i is the estimate of the software that the paper used, sum_t x_t x_{t+i} / (N - i) over the same at i = 0.
    """
    n = draws.shape[1]
    centred = draws - draws.mean(axis=1, keepdims=True)
    length = next_fast_len(2 * n, real=True)
    # With the weight (1 - i/N) the divisor N - i becomes N.
    products = irfft(np.abs(rfft(centred, length, axis=1)) ** 2, length, axis=1)[:, :n]
    with np.errstate(invalid="ignore", divide="ignore"):
        weighted = products / products[:, :1]
    sums = np.where(np.cumsum(weighted < 0, axis=1) == 0, weighted, 0.0)[:, 1:].sum(axis=1)
    moved = np.ptp(draws, axis=1) > 0  # rounding of the mean lets a constant chain look like a moving one
    return np.where(moved, n / (1 + 2 * sums), np.nan).sum(axis=0)


def published_rhat(draws: np.ndarray) -> np.ndarray:
    """((N - 1)/N W + B/N) / W with the variance within chains, W, and N times that of their means, B."""
    chains, n = draws.shape[:2]
    if chains < 2 or n < 2:
        return np.full(draws.shape[2:], np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        within = draws.var(axis=1, ddof=1).mean(axis=0)
        ratio = (n - 1) / n + draws.mean(axis=1).var(axis=0, ddof=1) / within
    return np.where((np.ptp(draws, axis=1) > 0).any(axis=0), ratio, np.nan)


def principal_traces(projections: np.ndarray, components: int = 2) -> np.ndarray:
    """Traces (draws x components) of the leading principal components of the iterates of one chain.

    A trace, the coordinate of every iterate along a component, is a left singular vector of the matrix of centred
    iterates (draws x dimension) times its singular value. Random projections (draws x directions) are that matrix times
    a random one and keep its leading left singular vectors (Halko, Martinsson and Tropp 2011). The first draw is on the
    positive side.
    """
    if not np.ptp(projections, axis=0).max() > 0:
        return np.full((len(projections), components), np.nan)
    left, singular, _ = np.linalg.svd(projections - projections.mean(axis=0), full_matrices=False)
    signs = np.where(left[0] < 0, -1.0, 1.0)
    return (left * singular * signs)[:, :components] / np.sqrt(projections.shape[1])
