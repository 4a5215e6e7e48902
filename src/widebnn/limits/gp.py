"""The density N(y; 0, C), its leave-one-out predictions, and the exact posterior of a Gaussian process.

Matrices are NumPy arrays in float64, and LAPACK works in place: C may have several thousand rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs

from widebnn.errors import WidebnnError, check_inputs, check_real, check_targets
from widebnn.limits.kernel import nngp_kernel
from widebnn.networks.dense import DenseNetwork


def factored(covariance: Any, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """The lower Cholesky factor of C, C^-1 y, and log N(y; 0, C); NaN where C is not positive definite."""
    n, outputs = y.shape
    factor, failed = dpotrf(np.array(covariance, order="F"), lower=True, overwrite_a=True)
    if failed:
        return np.full((n, n), math.nan), np.full(y.shape, math.nan), math.nan
    weights = dpotrs(factor, y, lower=True)[0]
    half_log_det = float(np.sum(np.log(np.diagonal(factor))))
    value = -outputs * (half_log_det + 0.5 * n * math.log(2 * math.pi)) - 0.5 * float(np.sum(y * weights))
    return factor, weights, value


def log_normal(covariance: Any, y: np.ndarray) -> tuple[float, np.ndarray]:
    """log N(y; 0, C), summed over the columns of y, and its derivative in C.

        d log N / dC = (a a' - outputs C^-1) / 2,   a = C^-1 y

    Args:
        covariance: C, n x n, symmetric.
        y: n x outputs.

    Returns:
        The value and the n x n derivative; NaN where C is not positive definite.

    Examples:
        >>> value, derivative = log_normal(np.eye(1), np.zeros((1, 1)))
        >>> round(value, 6), derivative.tolist()
        (-0.918939, [[-0.5]])
    """
    factor, weights, value = factored(covariance, y)
    # A third of the operations that a triangular inverse and a product would take.
    inverse = np.tril(dpotri(factor, lower=True, overwrite_c=True)[0])
    inverse += np.tril(inverse, -1).T
    return value, 0.5 * (weights @ weights.T - y.shape[1] * inverse)


def leave_one_out(covariance: Any, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What all other rows of y ~ N(0, C) say of each row.

        y_i - E[y_i | others] = (C^-1 y)_i / (C^-1)_ii,     Var[y_i | others] = 1 / (C^-1)_ii

    Args:
        covariance: C, n x n, symmetric.
        y: n x outputs.

    Returns:
        The errors, n x outputs, and the variances, n; NaN where C is not positive definite.

    Examples:
        >>> errors, variances = leave_one_out([[1.0, 0.5], [0.5, 1.0]], np.ones((2, 1)))
        >>> errors.ravel().round(6).tolist(), variances.round(6).tolist()
        ([0.5, 0.5], [0.75, 0.75])
    """
    factor, weights, _ = factored(covariance, y)
    precision = np.diagonal(dpotri(factor, lower=True, overwrite_c=True)[0])
    return weights / precision[:, None], 1 / precision


class GPPosterior(NamedTuple):
    """The exact posterior of a Gaussian process at test inputs, without observation noise."""

    mean: np.ndarray
    """test inputs x outputs."""
    covariance: np.ndarray
    """test inputs x test inputs, the same for every output."""
    log_evidence: float
    """log N(y; 0, K + s^2 I), summed over outputs."""

    @property
    def variance(self) -> np.ndarray:
        """The diagonal of the covariance; rounding below zero is cut off."""
        return np.maximum(np.diagonal(self.covariance), 0.0)


def gp_posterior(
    network: DenseNetwork | Callable[[np.ndarray], np.ndarray], x: Any, y: Any, noise: float, x_test: Any
) -> GPPosterior:
    """Condition the infinite-width limit of ``network`` on y = f(x) + s e, e ~ N(0, I).

        mean = K_*x (K_xx + s^2 I)^-1 y,     covariance = K_** - K_*x (K_xx + s^2 I)^-1 K_x*

    Args:
        network: a dense network, or any kernel: a function from inputs to the covariance matrix of their rows.
        x: inputs, n x features.
        y: observations, n x outputs, or n.
        noise: s, the standard deviation of the observations.
        x_test: inputs to predict at, rows x features.

    Returns:
        Mean, covariance and log evidence.

    Raises:
        WidebnnError: if arguments do not fit together, or K + s^2 I is not positive definite.

    Examples:
        >>> found = gp_posterior(lambda x: x @ x.T, [[1.0]], [2.0], 1.0, [[1.0], [3.0]])
        >>> found.mean.ravel().round(6).tolist(), found.variance.round(6).tolist()
        ([1.0, 3.0], [0.5, 4.5])
    """
    kernel = network if callable(network) else functools.partial(nngp_kernel, network)
    noise = check_real("noise", noise, above=0, advice="It is the standard deviation of the observations.")
    x = check_inputs("x", x, getattr(network, "input_dim", None))
    x_test = check_inputs("x_test", x_test, x.shape[1])
    n, y = len(x), check_targets(y, len(x))
    k = np.asarray(kernel(np.concatenate([x, x_test])), np.float64)
    if k.shape != (n + len(x_test),) * 2:
        raise WidebnnError(f"the kernel of {n + len(x_test)} inputs must be square; it returned shape {k.shape}.")
    factor, weights, log_evidence = factored(k[:n, :n] + noise**2 * np.eye(n), y)
    if not math.isfinite(log_evidence):
        raise WidebnnError(
            f"the kernel plus noise^2 = {noise**2:g} is not positive definite; "
            "use a larger noise, or a larger quadrature_order if the kernel comes from quadrature."
        )
    white = solve_triangular(factor, k[:n, n:], lower=True)
    return GPPosterior(k[n:, :n] @ weights, k[n:, n:] - white.T @ white, log_evidence)
