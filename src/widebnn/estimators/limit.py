"""The infinite-width limit as a fitted estimator: an exact Gaussian process, predicted with like an ensemble.

A Gaussian process predicts from its training rows, which are therefore part of the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.stats import norm

from widebnn.errors import WidebnnError
from widebnn.estimators.ensemble import ROWS, Function
from widebnn.limits.gp import factored, leave_one_out
from widebnn.limits.kernel import nngp_kernel, nngp_variance
from widebnn.networks.dense import DenseNetwork
from widebnn.sampling.placement import physical_memory

MATRICES = 4
"""Matrices of rows x rows, in float64, that a search and a fit hold at a time, about."""
JITTER = 1e-10
"""Added to the variance, relatively, of joint draws of the function."""


@dataclass(frozen=True, eq=False)
class Limit:
    """The training rows, standardised, and their noise: f | y is a Gaussian process with known mean and covariance."""

    x: np.ndarray
    """rows x inputs."""
    y: np.ndarray
    """rows x outputs."""
    noise: np.ndarray
    """One number, with one axis: the standard deviation of a new observation."""

    @classmethod
    def of(cls, x: np.ndarray, y: Any, noise: float) -> Limit:
        """From standardised inputs and targets."""
        return cls(x, np.asarray(y, np.float64), np.array([noise]))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_factored"}

    def at(self, network: DenseNetwork, x: np.ndarray) -> Iterator[Function]:
        """The function at inputs x, some rows after the other; there is one mean and there are no draws."""
        for first in range(0, len(x), ROWS):
            part = x[first : first + ROWS]
            mean, white = self._condition(network, part)
            variance = np.maximum(nngp_variance(network, part) - np.sum(white**2, axis=0), 0.0)
            rows = slice(first, first + len(part))
            yield Function(rows, mean[None], variance, mean[None, ..., None], self.noise[None])

    def sample(
        self, network: DenseNetwork, x: np.ndarray, count: int, random: np.random.RandomState
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws of the function jointly at inputs x, count x rows x outputs, and their noise, count x 1."""
        mean, white = self._condition(network, x)
        prior = nngp_kernel(network, x)
        covariance = prior - white.T @ white + JITTER * prior.diagonal().mean() * np.eye(len(x))
        root = cholesky(covariance, lower=True)
        normal = random.standard_normal((count, *mean.shape))
        return mean + np.einsum("ij,cjo->cio", root, normal), np.repeat(self.noise[None], count, axis=0)

    def log_left_out(self, network: DenseNetwork) -> np.ndarray:
        """log p(y_i | all other rows) of every row, all outputs together."""
        errors, variance = leave_one_out(self._covariance(network), self.y)
        return norm.logpdf(errors, 0.0, np.sqrt(variance)[:, None]).sum(axis=1)

    def _condition(self, network: DenseNetwork, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The mean, and L^-1 K(training rows, x) with L L' the covariance of the observations."""
        factor, weights = self._factor(network)
        across = nngp_kernel(network, self.x, x)
        return across.T @ weights, solve_triangular(factor, across, lower=True)

    def _factor(self, network: DenseNetwork) -> tuple[np.ndarray, np.ndarray]:
        if "_factored" not in vars(self):
            factor, weights, value = factored(self._covariance(network), self.y)
            if not math.isfinite(value):
                raise WidebnnError("the covariance of the rows is not positive definite; pass a larger noise.")
            object.__setattr__(self, "_factored", (factor, weights))
        return vars(self)["_factored"]

    def _covariance(self, network: DenseNetwork) -> np.ndarray:
        """Of the observations."""
        return nngp_kernel(network, self.x) + self.noise**2 * np.eye(len(self.x))


def check_memory(rows: int) -> None:
    """Refuse a Gaussian process that does not fit into memory, before anything else is done."""
    needed, available = 8 * MATRICES * rows**2, physical_memory()
    if available is not None and needed > available:
        fewer = math.isqrt(available // (8 * MATRICES))
        raise WidebnnError(
            f"the Gaussian process of {rows} rows takes {needed / 1e9:.1f} GB, more than the {available / 1e9:.1f} GB "
            f"of this machine: fit at most {fewer} rows, or a finite width."
        )
