"""Regression with calibrated uncertainty, the scikit-learn way."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from widebnn.errors import check_numbers
from widebnn.estimators.base import WideBNN
from widebnn.estimators.ensemble import mixture_quantiles

COMPONENTS = 1000
"""Most components of the predictive mixture that quantiles look at."""


class WideBNNRegressor(MultiOutputMixin, RegressorMixin, WideBNN):
    """A wide Bayesian neural network for regression, sampled exactly.

    Inputs and targets are standardised. Noise, scales, activation and depth that are not given are chosen by the
    evidence of the infinite-width limit. Chains run until the function has ``target_ess`` effective draws, or warn.

    Attributes after ``fit``: ``posterior_`` (an ArviZ DataTree of the run), ``diagnostics_`` (ESS, R-hat, acceptance),
    ``hyperparameters_``, ``noise_`` (standard deviation of an observation, in units of y), ``ensemble_``, ``network_``.
    """

    def fit(self, X: Any, y: Any) -> WideBNNRegressor:
        """Sample the posterior given inputs X (n x m) and targets y (n, or n x outputs)."""
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, ensure_min_samples=2)
        y = np.asarray(y, np.float64)
        self.single_output_ = y.ndim == 1
        self._fit(X, y.reshape(len(y), -1))
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The posterior mean; with ``return_std`` also the standard deviation of a new observation."""
        means, draws = self._evaluate(X)
        mean = means.mean(axis=0)
        if not return_std:
            return self._shape(mean * self.y_scale_ + self.y_mean_)
        variance = np.mean((draws - mean[None, ..., None]) ** 2, axis=(0, 3)) + self.hyperparameters_.noise**2
        return self._shape(mean * self.y_scale_ + self.y_mean_), self._shape(np.sqrt(variance) * self.y_scale_)

    def predict_quantiles(self, X: Any, quantiles: Any = (0.05, 0.5, 0.95)) -> np.ndarray:
        """Quantiles of a new observation, the levels along the first axis."""
        levels = check_numbers("quantiles", quantiles).reshape(-1)
        if np.any((levels <= 0) | (levels >= 1)):
            raise ValueError(f"quantiles must lie between 0 and 1, got {levels.tolist()}.")
        _, draws = self._evaluate(X)
        centres = np.moveaxis(draws, 3, 1).reshape(-1, *draws.shape[1:3])
        centres = centres[:: max(1, len(centres) // COMPONENTS)]
        found = mixture_quantiles(centres, self.hyperparameters_.noise, levels)
        return np.stack([self._shape(q * self.y_scale_ + self.y_mean_) for q in found])

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0, noise: bool = True) -> np.ndarray:
        """Draws of new observations (``noise=False``: of the function), samples along the last axis."""
        _, draws = self._evaluate(X)
        random = check_random_state(random_state)
        every = np.moveaxis(draws, 3, 1).reshape(-1, *draws.shape[1:3])
        chosen = every[random.randint(len(every), size=n_samples)]
        if noise:
            chosen = chosen + self.hyperparameters_.noise * random.standard_normal(chosen.shape)
        return np.stack([self._shape(one * self.y_scale_ + self.y_mean_) for one in chosen], axis=-1)

    def _shape(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self.single_output_ else values
