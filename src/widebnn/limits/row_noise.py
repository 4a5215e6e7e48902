"""Noise that differs from row to row, fitted to leave-one-out errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.optimize
import scipy.special

from widebnn.limits.kernel import normal_nodes

# The intervals of the median and of the spread.
_MEDIAN = (1e-4, 10.0)
_SPREAD = (0.01, 1.0)
# How much larger the log-likelihood must be for unequal noise to be preferred.
_CLEARLY = 20.0


def fit_row_noise(
    errors: np.ndarray, variances: np.ndarray, noise: float, *, always: bool
) -> tuple[float, float] | None:
    """The log-normal noise that makes leave-one-out errors likeliest.

        p(e_i) = E_z[N(e_i; 0, v_i + m^2 exp(2 t z))],   z ~ N(0, 1)

    Args:
        errors: e, of the leave-one-out means, n x outputs.
        variances: v, of the function at each row given all others, n.
        noise: the standard deviation of equal noise, where the search starts.
        always: return what is not clearly better than equal noise, too.

    Returns:
        The median m of the noise and the spread t of its log; None if equal noise is about as likely.
    """
    z, weights = normal_nodes()
    low, high = np.log([_MEDIAN, _SPREAD]).T
    squares = np.sum(errors**2, axis=1)[:, None]

    def minus_log_likelihood(logs: Any) -> Any:
        median, spread = np.exp(np.clip(logs, low, high))
        total = variances[:, None] + median**2 * np.exp(2 * spread * z)
        log_densities = -0.5 * squares / total - 0.5 * errors.shape[1] * np.log(2 * math.pi * total)
        return -float(np.sum(scipy.special.logsumexp(log_densities, axis=1, b=weights)))

    def minimise(function: Any, *start: Any) -> Any:
        return scipy.optimize.minimize(function, np.log(start), method="Nelder-Mead")

    equal = minimise(lambda log: minus_log_likelihood([log[0], low[1]]), noise)
    unequal = minimise(minus_log_likelihood, noise, 0.5)
    if not always and unequal.fun > equal.fun - _CLEARLY:
        return None
    median, spread = np.exp(np.clip(unequal.x, low, high)).tolist()
    return median, spread
