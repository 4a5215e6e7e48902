"""Regression with calibrated uncertainty, the scikit-learn way."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from arviz_base import from_dict
from arviz_stats import loo  # type: ignore[attr-defined]
from scipy.special import logsumexp, ndtr
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from widebnn.errors import WidebnnError, check_choice, check_integer, check_numbers
from widebnn.estimators.base import NOISE_LOG_SD, WideBNN
from widebnn.estimators.ensemble import Function, Mixture, mixture_quantiles, predictive
from widebnn.estimators.limit import Limit
from widebnn.estimators.transform import TargetScale, choose_asinh
from widebnn.likelihoods import Gaussian, HeavyTails, InputNoise, LogNormal
from widebnn.limits import Hyperparameters
from widebnn.limits.kernel import nngp_variance
from widebnn.posteriors import posterior
from widebnn.sampling import Result

COMPONENTS = 1000
"""Most components of the predictive mixture that quantiles look at."""
NOISE_VARIES = 0.7
"""Prior standard deviation of the logarithm of noise that depends on the inputs, from input to input."""
LOO_DRAWS = 50
"""Draws that Pareto smoothing needs, at least."""
LIMIT_ROWS = 5000
"""With more rows the score of the limit, which takes their cube, is not computed."""


@dataclass(eq=False, repr=False)
class WideBNNRegressor(MultiOutputMixin, RegressorMixin, WideBNN):
    """A wide Bayesian neural network for regression, sampled exactly.

    Inputs and targets are standardised. Scales and activation that are not given are chosen by the evidence of the
    infinite-width limit, the noise too. Chains run until R-hat is below 1.05 and there are
    ``target_ess`` effective draws of the slowest monitored statistic, with a warning where ``max_steps`` or
    ``max_minutes`` end them before. Everything predicted is in units of y.

    Args:
        target_transform: ``"asinh"`` fits the network to asinh(y / b), for errors that grow with the target;
            ``"none"`` never does; ``"auto"`` does if the evidence is clearly for it.
        noise_tails: ``"heavy"`` lets the noise differ from row to row (its log is normal), so that outliers neither
            distort the function nor widen all intervals; chains with a noise for every row take several times as long
            to converge, so that ``"normal"`` is the default; ``"auto"``: heavy if rows left out are clearly predicted
            better and the targets are not transformed. Noise that is given is normal.

    Attributes:
        noise_: Standard deviation of an observation, in units of y; at the median of y if y is transformed, and the
            geometric mean over the training rows where it depends on the inputs.
        y_bend_: The scale b of asinh(y / b), for every output; None if y is not transformed.

    Examples:
        >>> model = WideBNNRegressor(width=256, random_state=0).fit(x, y)
        >>> mean, std = model.predict(x_new, return_std=True)
    """

    target_transform: str = field(default="auto", kw_only=True)
    noise_tails: str = field(default="normal", kw_only=True)

    def fit(self, X: Any, y: Any) -> WideBNNRegressor:
        """Sample the posterior.

        Args:
            X: Inputs, n x m.
            y: Targets, n, or n x outputs.

        Returns:
            The fitted estimator.

        Raises:
            WidebnnError: A parameter is wrong, or memory or time do not suffice.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, ensure_min_samples=2)
        y = np.asarray(y, np.float64)
        self.single_output_ = y.ndim == 1
        y = y.reshape(len(y), -1)
        _check_combinations(self)
        self.y_bend_, self.y_mean_, self.y_scale_ = TargetScale.of(y, None)

        def standard_targets(x: Any, seed: Any) -> Any:
            self.y_bend_, self.y_mean_, self.y_scale_ = TargetScale.of(y, self._choose_asinh(x, y, seed))
            has_equal_noise = self.noise_tails == "normal" or self.noise is not None or self.y_bend_ is not None
            has_equal_noise |= self._is_limit
            row_noise = False if has_equal_noise else True if self.noise_tails == "heavy" else None
            return self._scale.forward(y), {"row_noise": row_noise}

        def build(x: Any, dtype: Any, chosen: Any) -> Any:
            if chosen.row_noise is not None:
                likelihood: Any = HeavyTails(*chosen.row_noise)
            else:
                likelihood = Gaussian(LogNormal(chosen.noise, NOISE_LOG_SD) if self.noise == "sample" else chosen.noise)
            network = chosen.network(x.shape[1], self._units)
            if self.noise == "inputs":
                size = float(np.sqrt(np.mean(nngp_variance(network, x))))
                likelihood = InputNoise(LogNormal(chosen.noise, NOISE_LOG_SD), NOISE_VARIES / size)
            return posterior(network, x, self._scale.forward(y), likelihood=likelihood, dtype=dtype)

        result = self._fit(X, standard_targets, build)
        slope = np.exp(self._scale.log_derivative(np.median(y, axis=0)))
        noise = result.draws["noise_train"] if result and self.noise == "inputs" else self.ensemble_.noise
        self.noise_ = float(np.mean(noise)) / slope
        _leave_one_out(self, X, y, result)
        return self

    def loo(self) -> Any:
        """Leave-one-out cross-validation without refitting, in the form of ArviZ.

        Each draw gives log p(y_i | all other rows, hidden layers) in closed form, with the readout (and with heavy
        tails the noise of row i) integrated out; Pareto-smoothed importance sampling corrects the hidden layers, which
        have seen row i. What is left to correct is little, so that its weights are far more even than usual.

        Returns:
            ``arviz_stats.ELPDData``: ``elpd`` (sum over rows, in units of y), its standard error, ``pareto_k``.

        Raises:
            WidebnnError: There are no chains, at infinite width; ``report`` has the exact score.

        Examples:
            ``arviz_stats.compare({"narrow": narrow.loo(), "wide": wide.loo()})``
        """
        check_is_fitted(self)
        if self._is_limit:
            raise WidebnnError("loo is for finite widths; report() has the exact leave-one-out score of the limit.")
        return loo(self.posterior_, pointwise=True)

    def _choose_asinh(self, x: np.ndarray, y: np.ndarray, seed: int) -> np.ndarray | None:
        """The scale b of asinh(y / b); None: y is not transformed."""
        if self.target_transform == "none" or _noise_is_given(self) or self.noise_tails == "heavy":
            return None
        options = self._search_options(x)
        options |= {name: options[name][:1] for name in ("depths", "activations")}
        return choose_asinh(x, y, seed, always=self.target_transform == "asinh", **options)

    @property
    def _scale(self) -> TargetScale:
        return TargetScale(self.y_bend_, self.y_mean_, self.y_scale_)

    def predict(self, X: Any, return_std: bool = False, parts: bool = False) -> Any:
        """The posterior mean.

        Args:
            X: Inputs, rows x m.
            return_std: Return the standard deviation of a new observation, too.
            parts: Return the two parts of it instead, whose squares add up to its square: epistemic, which more data
                would reduce, and aleatoric, the noise.

        Returns:
            The mean, shaped like y in ``fit``; with ``return_std`` mean and standard deviation; with ``parts`` mean,
            epistemic and aleatoric standard deviation.
        """

        def moments(part: Function) -> Any:
            mixture, v = self._predictive(part), part.variance[:, None]
            each, variances = self._scale.moments(mixture.centres, mixture.std)
            mean = mixture.average(each)
            noise = np.sqrt(np.maximum(mixture.std**2 - v, 0.0))
            aleatoric = mixture.average(self._scale.noise_variance(mixture.centres, v, noise)) if parts else mean
            return mean, mixture.average((each - mean) ** 2 + variances), aleatoric

        mean, whole, aleatoric = (np.concatenate(part) for part in zip(*self._evaluate(X, moments), strict=True))
        if not parts:
            return (self._shaped(mean), self._shaped(np.sqrt(whole))) if return_std else self._shaped(mean)
        epistemic = np.maximum(whole - aleatoric, 0.0)
        return tuple(map(self._shaped, (mean, np.sqrt(epistemic), np.sqrt(aleatoric))))

    def predict_quantiles(self, X: Any, quantiles: Any = (0.05, 0.5, 0.95)) -> np.ndarray:
        """Quantiles of a new observation.

        Args:
            X: Inputs, rows x m.
            quantiles: Levels between 0 and 1.

        Returns:
            The quantiles, the levels along the first axis.

        Raises:
            ValueError: A level is not between 0 and 1.
        """
        levels = check_numbers("quantiles", quantiles).reshape(-1)
        if np.any((levels <= 0) | (levels >= 1)):
            raise ValueError(f"quantiles must lie between 0 and 1, got {levels.tolist()}.")

        def reduce(part: Function) -> Any:
            return mixture_quantiles(self._predictive(part, max(1, len(part.means) // COMPONENTS)), levels)

        found = self._scale.inverse(np.concatenate(self._evaluate(X, reduce), axis=1))
        return np.stack([self._shaped(one) for one in found])

    def log_density(self, X: Any, y: Any) -> np.ndarray:
        """The log of the predictive density of observations, all outputs together.

        Args:
            X: Inputs, rows x m.
            y: Observations, shaped like y in ``fit``.

        Returns:
            One number per row.
        """
        y = self._checked_targets(X, y)
        z = self._scale.forward(y)

        def reduce(part: Function) -> Any:
            centres, std, weights = self._predictive(part)
            logs = np.sum(-0.5 * ((z[part.rows] - centres) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi), axis=2)
            return logsumexp(logs, axis=0, b=weights[:, None])

        return np.concatenate(self._evaluate(X, reduce)) + np.sum(self._scale.log_derivative(y), axis=1)

    def cdf(self, X: Any, y: Any) -> np.ndarray:
        """The predictive probability of an observation below y: uniform if predictions are calibrated.

        Args:
            X: Inputs, rows x m.
            y: Observations, shaped like y in ``fit``.

        Returns:
            Probabilities, shaped like y.
        """
        z = self._scale.forward(self._checked_targets(X, y))

        def reduce(part: Function) -> Any:
            mixture = self._predictive(part)
            return mixture.average(ndtr((z[part.rows] - mixture.centres) / mixture.std))

        return self._shaped(np.concatenate(self._evaluate(X, reduce)))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0, noise: bool = True) -> np.ndarray:
        """Draws of new observations.

        A sample is one network at all inputs: the function is smooth, the noise is independent.

        Args:
            X: Inputs, rows x m.
            n_samples: Number of draws.
            random_state: Seed or generator.
            noise: Add the noise of observations; False: draws of the function.

        Returns:
            The draws, along the last axis.
        """
        check_is_fitted(self)
        count = check_integer("n_samples", n_samples, 1)
        random = check_random_state(random_state)
        samples, std = self.ensemble_.sample(self.network_, self._standard_inputs(X), count, random)
        if noise:
            std, spread = std[..., None], _spread(self.hyperparameters_)
            if spread:
                std = std * np.exp(spread * random.standard_normal((*samples.shape[:2], 1)) - spread**2)
            samples = samples + std * random.standard_normal(samples.shape)
        return np.stack([self._shaped(one) for one in self._scale.inverse(samples)], axis=-1)

    def _checked_targets(self, X: Any, y: Any) -> np.ndarray:
        """Observations as rows x outputs."""
        check_is_fitted(self)
        y = check_numbers("y", y)
        check_consistent_length(X, y)
        return y.reshape(len(y), -1)

    def _predictive(self, function: Function, step: int = 1) -> Mixture:
        """New observations, by every ``step``-th network."""
        return predictive(function, _spread(self.hyperparameters_), step)

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self.single_output_ else values


def _spread(chosen: Hyperparameters) -> float:
    """Of the log of the noise, from row to row."""
    return 0.0 if chosen.row_noise is None else chosen.row_noise[1]


def _noise_is_given(model: WideBNNRegressor) -> bool:
    return model.noise is not None and not isinstance(model.noise, str)


def _check_combinations(model: WideBNNRegressor) -> None:
    transform = check_choice("target_transform", model.target_transform, ("auto", "asinh", "none"))
    tails = check_choice("noise_tails", model.noise_tails, ("auto", "heavy", "normal"))
    if tails == "heavy" and model.noise is not None:
        raise WidebnnError(
            f"noise={model.noise!r} is the same for all rows, noise_tails='heavy' is not; leave one out."
        )
    if tails == "heavy" and model._is_limit:
        raise WidebnnError("noise_tails='heavy' needs a finite width: the limit is exact for normal noise only.")
    if tails == "heavy" and transform == "asinh":
        raise WidebnnError("target_transform='asinh' needs noise_tails='normal': transformed heavy tails have no mean.")
    if transform == "asinh" and _noise_is_given(model):
        raise WidebnnError(
            f"noise={model.noise!r} is in units of y and target_transform='asinh' changes them; leave one out."
        )


def _leave_one_out(model: WideBNNRegressor, x: np.ndarray, y: np.ndarray, result: Result | None) -> None:
    """The score of the fit and of its limit, per row and in units of y; the fit's by row into ``posterior_``."""
    change = np.sum(model._scale.log_derivative(y), axis=1)
    if result is not None:
        logs = result.draws["log_left_out"].astype(np.float64) + change
        group = from_dict({"log_likelihood": {"y": logs}}, dims={"y": ["row"]})
        model.posterior_["log_likelihood"] = group["log_likelihood"]
        model.diagnostics_["loo"] = None
        # loo() itself says where its estimate is not reliable, and ArviZ refuses chains that stood still.
        with warnings.catch_warnings(), contextlib.suppress(ValueError):
            warnings.simplefilter("ignore")
            if result.stats["lp"].size >= LOO_DRAWS:
                model.diagnostics_["loo"] = float(model.loo().elpd) / len(y)
    if len(x) <= LIMIT_ROWS:
        limit: Any = model.ensemble_
        if result is not None:
            limit = Limit.of(
                (x - model.x_mean_) / model.x_scale_, model._scale.forward(y), model.hyperparameters_.noise
            )
        score = float(np.mean(limit.log_left_out(model.network_) + change))
        model.diagnostics_["loo" if result is None else "limit_loo"] = score
