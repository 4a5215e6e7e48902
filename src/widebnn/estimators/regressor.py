"""Regression with calibrated uncertainty, the scikit-learn way."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import logsumexp, ndtr
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from widebnn.errors import WidebnnError, check_choice, check_integer, check_numbers
from widebnn.estimators.base import NOISE_PRIOR, WideBNN
from widebnn.estimators.ensemble import Mixture, mixture_quantiles, predictive
from widebnn.estimators.transform import bend, choose_bend, location_and_scale, log_slope, unbend, unbent_moments
from widebnn.likelihoods import Gaussian, HeavyTails
from widebnn.posteriors import posterior

COMPONENTS = 1000
"""Most components of the predictive mixture that quantiles look at."""


class WideBNNRegressor(MultiOutputMixin, RegressorMixin, WideBNN):
    """A wide Bayesian neural network for regression, sampled exactly.

    Inputs and targets are standardised. Noise, scales, activation and depth that are not given are chosen by the
    evidence of the infinite-width limit (with more than 5000 rows there is one hidden layer), and so is a scale for
    every input (``input_scales``; by default with at most 32 of them). ``noise`` is in units of y; ``noise="sample"``
    makes it an unknown of the chain.

    Chains run for about ``target_ess`` effective draws of the function, with a warning where ``max_steps`` or
    ``max_minutes`` end them with fewer than three quarters. Stopping as soon as the draws themselves show enough would
    favour draws that vary too little (optional stopping): a trial, which is discarded, decides how long the run that is
    kept will be, and only one that falls short of three quarters is replaced by a longer one
    (:mod:`widebnn.estimators.length`). After ``max_minutes`` no more draws are begun, but for the first ten after
    burn-in: where rows are many or noise is small the machine's speed then decides how many there are;
    ``max_minutes=None`` gives the same bits everywhere. Before a large fit begins a gradient is timed: where burn-in
    and ten draws take longer than ``max_minutes`` there is a warning, and an error where they take twice as long.

    Where errors grow with the target, the network is fitted to asinh(y / b): ``target_transform="auto"`` does that if
    the evidence is clearly for it, ``"asinh"`` always and ``"none"`` never. Everything predicted is in units of y.

    Where a few errors are much larger than most, noise differs from row to row (its log is normal, which gives errors
    heavy tails), so that outliers neither bend the function nor widen all intervals: ``noise_tails="auto"`` does that
    if rows left out are clearly predicted better and the targets are not bent, ``"heavy"`` always and ``"normal"``
    never. Noise that is given, or sampled as one number for all rows, has normal tails.

    With ``store``, a folder, the chains are written there while they run: a fit that was stopped goes on when it is
    called again with the same data and parameters, and ends with the same model; one that ``max_minutes`` ended goes on
    for as long again.

    Attributes after ``fit``: ``posterior_`` (an ArviZ DataTree of the run), ``diagnostics_`` (ESS, R-hat, acceptance),
    ``hyperparameters_``, ``noise_`` (standard deviation of an observation, in units of y; at the median of y if its
    scale is bent), ``y_bend_`` (b, or None), ``ensemble_``, ``network_``.
    """

    def __init__(
        self,
        width: int = 1024,
        *,
        target_transform: str = "auto",
        noise_tails: str = "auto",
        depth: int | None = None,
        activation: str | None = None,
        noise: float | str | None = None,
        weight_std: float | None = None,
        bias_std: float | None = None,
        readout_weight_std: float | None = None,
        readout_bias_std: float | None = None,
        input_scales: bool | None = None,
        sampler: str = "auto",
        step_size: float | None = None,
        chains: int = 2,
        burn_in: int = 100,
        target_ess: int = 400,
        max_steps: int = 1000,
        max_minutes: float | None = 10.0,
        random_state: Any = None,
        progress: bool | None = False,
        store: str | None = None,
    ):
        self._keep(locals())

    def fit(self, X: Any, y: Any) -> WideBNNRegressor:
        """Sample the posterior given inputs X (n x m) and targets y (n, or n x outputs)."""
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, ensure_min_samples=2)
        y = np.asarray(y, np.float64)
        self.single_output_ = y.ndim == 1
        y = y.reshape(len(y), -1)
        self._check_combinations()
        self.y_bend_ = None
        self.y_mean_, self.y_scale_ = location_and_scale(y)

        def standard_targets(x, seed):
            self.y_bend_ = self._choose_bend(x, y, seed)
            self.y_mean_, self.y_scale_ = location_and_scale(bend(y, self.y_bend_))
            return self._standardise_targets(y), {"row_noise": self._row_noise()}

        def build(x, dtype, chosen):
            if chosen.row_noise is not None:
                likelihood: Any = HeavyTails(*chosen.row_noise)
            else:
                likelihood = Gaussian(NOISE_PRIOR if self.noise == "sample" else chosen.noise)
            network = chosen.network(x.shape[1], self.width)
            return posterior(network, x, self._standardise_targets(y), likelihood=likelihood, dtype=dtype)

        self._fit(X, standard_targets, build)
        slope = np.exp(log_slope(np.median(y, axis=0), self.y_bend_))
        self.noise_ = float(np.mean(self.ensemble_.noise)) * self.y_scale_ / slope
        return self

    def _check_combinations(self) -> None:
        transform = check_choice("target_transform", self.target_transform, ("auto", "asinh", "none"))
        tails = check_choice("noise_tails", self.noise_tails, ("auto", "heavy", "normal"))
        if tails == "heavy" and self.noise is not None:
            raise WidebnnError(
                f"noise={self.noise!r} is the same for all rows, noise_tails='heavy' is not; leave one out."
            )
        if tails == "heavy" and transform == "asinh":
            raise WidebnnError("target_transform='asinh' needs noise_tails='normal': bent heavy tails have no mean.")
        if transform == "asinh" and self._has_own_noise():
            raise WidebnnError(
                f"noise={self.noise!r} is in units of y and target_transform='asinh' bends them; leave one out."
            )

    def _has_own_noise(self) -> bool:
        return self.noise is not None and self.noise != "sample"

    def _row_noise(self) -> bool | None:
        """Whether noise differs from row to row; None: if that is clearly better."""
        if self.noise_tails == "normal" or self.noise is not None or self.y_bend_ is not None:
            return False
        return True if self.noise_tails == "heavy" else None

    def _choose_bend(self, x: np.ndarray, y: np.ndarray, seed: int) -> np.ndarray | None:
        transform = self.target_transform
        if transform == "none" or self._has_own_noise() or self.noise_tails == "heavy":
            return None
        options = {name: values[:1] for name, values in self._candidates(len(x)).items()}
        options |= {"fixed": self._fixed_scales(), "input_scales": self._has_input_scales(x)}
        return choose_bend(x, y, seed, always=transform == "asinh", **options)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The posterior mean; with ``return_std`` also the standard deviation of a new observation."""
        parts = self._evaluate(X, lambda _, means, draws: self._moments(self._predictive(means, draws)))
        mean, variance = (np.concatenate(part) for part in zip(*parts, strict=True))
        if not return_std:
            return self._shape(mean, raw=True)
        return self._shape(mean, raw=True), self._shape(np.sqrt(variance), raw=True)

    def _moments(self, mixture: Mixture) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of new observations, rows x outputs."""
        centres, std = mixture.centres * self.y_scale_ + self.y_mean_, mixture.std * self.y_scale_
        if self.y_bend_ is None:
            mean = mixture.average(centres)
            return mean, mixture.average((centres - mean) ** 2 + std**2)
        first, second = unbent_moments(centres, std, self.y_bend_)
        mean = mixture.average(first)
        return mean, np.maximum(mixture.average(second) - mean**2, 0.0)

    def predict_quantiles(self, X: Any, quantiles: Any = (0.05, 0.5, 0.95)) -> np.ndarray:
        """Quantiles of a new observation, the levels along the first axis."""
        levels = check_numbers("quantiles", quantiles).reshape(-1)
        if np.any((levels <= 0) | (levels >= 1)):
            raise ValueError(f"quantiles must lie between 0 and 1, got {levels.tolist()}.")

        def reduce(_rows, means, draws):
            step = max(1, len(means) // COMPONENTS)
            return mixture_quantiles(self._predictive(means, draws, step), levels)

        return np.stack([self._shape(q) for q in np.concatenate(self._evaluate(X, reduce), axis=1)])

    def log_density(self, X: Any, y: Any) -> np.ndarray:
        """The log of the predictive density of observations y at X, per row, all outputs together."""
        raw, y = self._checked_targets(X, y)

        def reduce(rows, means, draws):
            centres, std, weights = self._predictive(means, draws)
            logs = np.sum(-0.5 * ((y[rows] - centres) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi), axis=2)
            return logsumexp(logs, axis=0, b=weights[:, None])

        slopes = log_slope(raw, self.y_bend_) - np.log(self.y_scale_)
        return np.concatenate(self._evaluate(X, reduce)) + np.sum(slopes, axis=1)

    def cdf(self, X: Any, y: Any) -> np.ndarray:
        """The predictive probability of an observation below y at X, shaped like y: uniform if all is calibrated."""
        _, y = self._checked_targets(X, y)

        def reduce(rows, means, draws):
            mixture = self._predictive(means, draws)
            return mixture.average(ndtr((y[rows] - mixture.centres) / mixture.std))

        return self._shape(np.concatenate(self._evaluate(X, reduce)), raw=True)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0, noise: bool = True) -> np.ndarray:
        """Draws of new observations (``noise=False``: of the function), samples along the last axis.

        A sample is one network at all inputs: the function is smooth, the noise is independent.
        """
        check_is_fitted(self)
        count = check_integer("n_samples", n_samples, 1)
        random = check_random_state(random_state)
        networks, copies = self.ensemble_.readout.shape[0], self.ensemble_.readout.shape[3]
        member, copy = np.divmod(random.randint(networks * copies, size=count), copies)
        parts = self._evaluate(X, lambda _rows, _means, draws: draws[member, :, :, copy])
        samples = np.concatenate(parts, axis=1)
        if noise:
            std, spread = np.asarray(self.ensemble_.noise, np.float64)[member, None, None], self._spread()
            if spread:
                std = std * np.exp(spread * random.standard_normal((*samples.shape[:2], 1)) - spread**2)
            samples = samples + std * random.standard_normal(samples.shape)
        return np.stack([self._shape(one) for one in samples], axis=-1)

    def _checked_targets(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Observations as rows x outputs, and standardised."""
        check_is_fitted(self)
        y = check_numbers("y", y)
        check_consistent_length(X, y)
        y = y.reshape(len(y), -1)
        return y, self._standardise_targets(y)

    def _standardise_targets(self, y: np.ndarray) -> np.ndarray:
        return (bend(y, self.y_bend_) - self.y_mean_) / self.y_scale_

    def _spread(self) -> float:
        """Of the log of the noise, from row to row."""
        return 0.0 if self.hyperparameters_.row_noise is None else self.hyperparameters_.row_noise[1]

    def _predictive(self, means: np.ndarray, draws: np.ndarray, step: int = 1) -> Mixture:
        """New observations, by every ``step``-th network."""
        return predictive(means[::step], draws[::step], self.ensemble_.noise[::step], self._spread())

    def _shape(self, values: np.ndarray, raw: bool = False) -> np.ndarray:
        values = values if raw else unbend(values * self.y_scale_ + self.y_mean_, self.y_bend_)
        return values[:, 0] if self.single_output_ else values
