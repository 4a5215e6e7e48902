"""What the estimators share: standardise, choose hyperparameters, sample until there are enough effective draws."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from widebnn.diagnostics.convergence import ess, rhat
from widebnn.diagnostics.summary import project_predictions
from widebnn.errors import check_integer, check_real
from widebnn.estimators.ensemble import Ensemble, bytes_per_draw, collect_networks, evaluate, to_ensemble
from widebnn.networks.evidence import choose_hyperparameters
from widebnn.posteriors import posterior
from widebnn.sampling import Result, sample

DEPTHS = (1, 2)
ACTIVATIONS = ("gelu", "relu", "erf")
STORE_BYTES = 2**30
"""How much the stored networks may take; beyond it fewer draws are kept."""
RHAT_LIMIT = 1.05
SCALES = ("weight_std", "bias_std", "readout_weight_std", "readout_bias_std", "noise")


class WideBNN(BaseEstimator):
    """Base class of :class:`WideBNNRegressor` and :class:`WideBNNClassifier`."""

    def __init__(
        self,
        width: int = 1024,
        *,
        depth: int | None = None,
        activation: str | None = None,
        noise: float | None = None,
        weight_std: float | None = None,
        bias_std: float | None = None,
        readout_weight_std: float | None = None,
        readout_bias_std: float | None = None,
        sampler: str = "auto",
        step_size: float | None = None,
        chains: int = 2,
        burn_in: int = 200,
        target_ess: int = 400,
        max_steps: int = 5000,
        random_state: Any = None,
        progress: bool | None = False,
    ):
        self.width = width
        self.depth = depth
        self.activation = activation
        self.noise = noise
        self.weight_std = weight_std
        self.bias_std = bias_std
        self.readout_weight_std = readout_weight_std
        self.readout_bias_std = readout_bias_std
        self.sampler = sampler
        self.step_size = step_size
        self.chains = chains
        self.burn_in = burn_in
        self.target_ess = target_ess
        self.max_steps = max_steps
        self.random_state = random_state
        self.progress = progress

    def _fit(self, x: np.ndarray, y: np.ndarray) -> None:
        """Everything after the checks of x (n x m) and y (n x outputs, floats)."""
        width = check_integer("width", self.width, 1)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.x_mean_, self.x_scale_ = _location_and_scale(x)
        self.y_mean_, self.y_scale_ = _location_and_scale(y)
        x, y = self._standardise(x), (y - self.y_mean_) / self.y_scale_
        fixed = {name: getattr(self, name) for name in SCALES if getattr(self, name) is not None}
        for name, value in fixed.items():
            fixed[name] = check_real(name, value, at_least=0 if "bias" in name else None, above=0)
        if "noise" in fixed:
            fixed["noise"] = fixed["noise"] / float(np.mean(self.y_scale_))
        self.hyperparameters_ = choose_hyperparameters(
            x,
            y,
            depths=DEPTHS if self.depth is None else (check_integer("depth", self.depth, 1),),
            activations=ACTIVATIONS if self.activation is None else (self.activation,),
            fixed=fixed,
            seed=seed,
        )
        self.network_ = self.hyperparameters_.network(x.shape[1], width)
        self.noise_ = self.hyperparameters_.noise * self.y_scale_
        # In double: tables often have little noise and nearly equal rows, where float32 features are not enough.
        target = posterior(self.network_, x, y, noise=self.hyperparameters_.noise, dtype="float64")
        result = self._sample(target, seed)
        self.ensemble_: Ensemble = to_ensemble(result.draws, len(self.network_.widths))
        self.posterior_ = _datatree(result)

    def _sample(self, target: Any, seed: int) -> Result:
        """One run, and where that has too few effective draws longer ones, each going on from the one before."""
        chains = check_integer("chains", self.chains, 1)
        burn_in = check_integer("burn_in", self.burn_in, 1)
        wanted = check_integer("target_ess", self.target_ess, 1)
        most = check_integer("max_steps", self.max_steps, 4)
        options = {} if self.step_size is None else {"step_size": self.step_size}
        size = bytes_per_draw(self.network_, target.y.shape[1])
        room = max(4, STORE_BYTES // (size * chains))
        draws = min(max(4, math.ceil(2 * wanted / chains)), most, room)

        def run(steps: int, burn_in: int, seed: int, initial: Any) -> Result:
            thin = max(1, steps // draws)
            return sample(
                target,
                self.sampler,
                steps=thin * draws,
                burn_in=burn_in,
                thin=thin,
                chains=chains,
                seed=seed,
                collect=collect_networks(target),
                initial=initial,
                progress=self.progress,
                **options,
            )

        steps = draws
        result = run(steps, burn_in, seed, None)
        self.diagnostics_ = diagnose(result)
        while self.diagnostics_["ess"] < wanted and steps < most:
            seed += 1
            steps = min(math.ceil(steps * max(2.0, 1.2 * wanted / max(self.diagnostics_["ess"], 1.0))), most)
            result = run(steps, max(burn_in // 2, 1), seed, result.last)
            self.diagnostics_ = diagnose(result)
        self._warn_if_not_converged(wanted)
        return result

    def _warn_if_not_converged(self, wanted: int) -> None:
        found = self.diagnostics_
        reasons = []
        if found["rhat"] is not None and found["rhat"] > RHAT_LIMIT:
            reasons.append(f"R-hat is {found['rhat']:.3f} (should be below {RHAT_LIMIT})")
        if found["ess"] < wanted:
            reasons.append(f"{found['ess']:.0f} effective draws of {wanted} wanted")
        if reasons:
            warnings.warn(
                f"the chains have not converged: {' and '.join(reasons)} after {found['steps']} steps; raise max_steps "
                f"(now {self.max_steps}) or the width, or lower target_ess",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _standardise(self, x: np.ndarray) -> np.ndarray:
        return (x - self.x_mean_) / self.x_scale_

    def _evaluate(self, x: Any) -> tuple[np.ndarray, np.ndarray]:
        """(means, draws) of the standardised function at new inputs, float64."""
        check_is_fitted(self)
        x = validate_data(self, x, reset=False, dtype=np.float64)
        means, draws = evaluate(self.network_, self.ensemble_, self._standardise(x))
        return means.astype(np.float64), draws.astype(np.float64)


def _location_and_scale(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation per column; a constant column has scale 1."""
    mean, scale = values.mean(axis=0), values.std(axis=0)
    return mean, np.where(scale > 1e-12 * np.maximum(np.abs(mean), 1e-300), scale, 1.0)


def diagnose(result: Result) -> dict[str, Any]:
    """Convergence of the log-likelihood and of the function at the training inputs; the smallest ESS, largest R-hat."""
    functions = project_predictions(result.draws["f_train"], count=20)
    values = np.concatenate([result.stats["lp"][..., None], functions], axis=2)
    sizes, ratios = ess(values), rhat(values)
    finite = ratios[np.isfinite(ratios)]
    return {
        "ess": float(np.nanmin(sizes)) if np.isfinite(sizes).any() else 0.0,
        "rhat": float(finite.max()) if finite.size else None,
        "acceptance_rate": result.acceptance_rate,
        "steps": result.steps,
        "chains": result.chains,
        "draws": result.stats["lp"].size,
        "seconds": result.seconds,
    }


def _datatree(result: Result) -> Any:
    """The run without the networks, which are in the ensemble."""
    import dataclasses

    small = {"f_train": result.draws["f_train"]}
    return dataclasses.replace(result, draws=small).to_datatree()
