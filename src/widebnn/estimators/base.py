"""What the estimators share: standardise, choose hyperparameters, sample until there are enough effective draws."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from widebnn.errors import WidebnnError, check_choice, check_integer, check_real
from widebnn.estimators.chains import Clock, Plan, sample_posterior, warn_if_not_converged
from widebnn.estimators.cost import QUICK, Cost, check_time, gradients, measure_gradient, multiplications
from widebnn.estimators.ensemble import Ensemble, evaluate, to_ensemble
from widebnn.estimators.transform import location_and_scale
from widebnn.likelihoods import LogNormal
from widebnn.limits import Hyperparameters, choose_hyperparameters
from widebnn.limits.kernel import CLOSED_FORMS
from widebnn.posteriors import Posterior
from widebnn.samplers import build_sampler
from widebnn.sampling import Result
from widebnn.sampling.driver import MOST_CHAINS
from widebnn.sampling.progress import SearchProgress

DEPTHS = (1, 2)
DEEP_ROWS = 5000
"""With more rows there is one hidden layer unless asked otherwise: a second one doubles the cost of a step, and where
rows are many and units few its chains move so slowly that the fit is worse, whatever the evidence of the limit says."""
ACTIVATIONS = ("gelu", "relu", "erf")
MANY_INPUTS = 32
"""With more inputs than this they all have the same scale unless asked otherwise."""
NOISE_PRIOR = LogNormal(0.1, log_sd=1.5)
"""Of noise that is sampled, in units of the standardised targets; the prior that the evidence has too."""
SCALES = ("weight_std", "bias_std", "readout_weight_std", "readout_bias_std")


class WideBNN(BaseEstimator):
    """Base class of :class:`WideBNNRegressor` and :class:`WideBNNClassifier`."""

    # Parameters of both, which scikit-learn wants in the signature of each.
    width: int
    depth: int | None
    activation: str | None
    noise: float | str | None
    input_scales: bool | None
    sampler: str
    step_size: float | None
    chains: int
    burn_in: int
    target_ess: int
    max_steps: int
    max_minutes: float | None
    random_state: Any
    progress: bool | None
    store: str | None

    def _keep(self, arguments: dict[str, Any]) -> None:
        """Every argument of the constructor as an attribute, as it came."""
        for name, value in arguments.items():
            if name != "self":
                setattr(self, name, value)

    def _fit(
        self,
        x: np.ndarray,
        standard_targets: Callable[[np.ndarray, int], tuple[np.ndarray, dict[str, Any]]],
        build: Callable[[np.ndarray, str, Hyperparameters], Posterior],
    ) -> None:
        """Everything after the checks of x (n x m).

        ``standard_targets(x, seed)`` are what the evidence looks at, n x outputs, and more options of
        :func:`choose_hyperparameters`; ``build(x, dtype, hyperparameters)`` is the target. Both are given standardised
        inputs. All parameters are checked, and memory and time are estimated, before the search.
        """
        plan = self._checked_plan()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.x_mean_, self.x_scale_ = location_and_scale(x)
        x = self._standardise(x)
        with SearchProgress(self.progress) as progress:
            self._check_cost(x, build, plan, progress)
            targets, options = standard_targets(x, seed)
            self.hyperparameters_ = choose_hyperparameters(
                x,
                targets,
                **self._candidates(len(x)),
                fixed=self._fixed_scales(),
                input_scales=self._has_input_scales(x),
                seed=seed,
                watch=progress.update,
                **options,
            )
        if self.hyperparameters_.input_scales is not None:
            self.x_scale_ = self.x_scale_ / np.array(self.hyperparameters_.input_scales)
            x = x * np.array(self.hyperparameters_.input_scales)
        kept, limit = sample_posterior(lambda dtype: build(x, dtype, self.hyperparameters_), plan, seed)
        self.network_: Any = kept.result.target.network  # type: ignore[attr-defined]
        self.diagnostics_ = kept.diagnostics
        warn_if_not_converged(kept.diagnostics, plan.wanted, f"{limit} (now {getattr(self, limit)})", self.width)
        self.ensemble_: Ensemble = to_ensemble(kept.result.draws, len(self.network_.widths))
        self.posterior_ = _datatree(kept.result)

    def _checked_plan(self) -> Plan:
        """How chains are run; and whatever else can be wrong with a parameter is found here."""
        check_integer("width", self.width, 1)
        if self.depth is not None:
            check_integer("depth", self.depth, 1)
        if self.activation is not None:
            check_choice("activation", self.activation, CLOSED_FORMS)
        self._fixed_scales()
        plan = Plan(
            sampler=self.sampler,
            step_size=self.step_size,
            chains=check_integer("chains", self.chains, 1, MOST_CHAINS),
            burn_in=check_integer("burn_in", self.burn_in, 1),
            wanted=check_integer("target_ess", self.target_ess, 1),
            most=check_integer("max_steps", self.max_steps, 4),
            clock=Clock(self.max_minutes),
            progress=self.progress,
            store=self.store,
        )
        build_sampler(plan.sampler, lambda u: 0.0, plan.burn_in, step_size=plan.step_size)
        return plan

    def _check_cost(self, x: np.ndarray, build: Callable[..., Posterior], plan: Plan, progress: SearchProgress) -> None:
        """Say how long a fit of many rows will take; refuse what does not fit into memory or into the time.

        What is measured is the deepest network that the evidence may choose, with scales of any value.
        """
        candidates = self._candidates(len(x))
        widths = (self.width,) * max(candidates["depths"])
        if multiplications(len(x), x.shape[1], widths) < QUICK:
            return
        any_scales: dict[str, Any] = dict.fromkeys((*SCALES, "noise"), 1.0)
        nominal = Hyperparameters(
            len(widths), candidates["activations"][0], **any_scales, log_evidence=0.0, candidates=()
        )
        seconds = measure_gradient(build(x, "float32", nominal), plan.chains)
        counts = gradients(plan.sampler, plan.chains, plan.burn_in, plan.wanted, plan.most)
        cost = Cost(len(x), x.shape[1], widths, seconds, *counts)
        progress.say(str(cost))
        if not plan.has_begun and (problem := check_time(cost, plan.clock.seconds)):
            warnings.warn(problem, stacklevel=4)

    def _candidates(self, rows: int) -> dict[str, Any]:
        """What the evidence may choose from."""
        depths = DEPTHS if rows <= DEEP_ROWS else DEPTHS[:1]
        return {
            "depths": depths if self.depth is None else (self.depth,),
            "activations": ACTIVATIONS if self.activation is None else (self.activation,),
        }

    def _has_input_scales(self, x: np.ndarray) -> bool:
        own = x.shape[1] <= MANY_INPUTS if self.input_scales is None else bool(self.input_scales)
        return own and x.shape[1] > 1

    def _fixed_scales(self) -> dict[str, float]:
        """The scales that are given instead of chosen."""
        given: dict[str, Any] = {name: getattr(self, name) for name in SCALES if getattr(self, name) is not None}
        for name, value in given.items():
            may_be_zero = "bias" in name
            given[name] = check_real(name, value, at_least=0 if may_be_zero else None, above=None if may_be_zero else 0)
        if isinstance(self.noise, str):
            if self.noise != "sample":
                raise WidebnnError(f"noise must be a number, None (chosen) or 'sample'; got {self.noise!r}.")
        elif self.noise is not None:
            given["noise"] = check_real("noise", self.noise, above=0) / float(np.mean(self.y_scale_))
        return given

    def save(self, path: Any) -> None:
        """Write the fitted estimator to a new file (:func:`widebnn.estimators.save`)."""
        from widebnn.estimators.models import save

        save(self, path)

    def _standardise(self, x: np.ndarray) -> np.ndarray:
        return (x - self.x_mean_) / self.x_scale_

    def _evaluate(self, x: Any, reduce: Callable[[slice, np.ndarray, np.ndarray], Any]) -> list[Any]:
        """``reduce(rows, means, draws)`` of the function at new inputs, for some rows after the other."""
        check_is_fitted(self)
        x = validate_data(self, x, reset=False, dtype=np.float64)
        return [reduce(*part) for part in evaluate(self.network_, self.ensemble_, self._standardise(x))]


def _datatree(result: Result) -> Any:
    """The run without the networks, which are in the ensemble."""
    small: dict[str, np.ndarray] = {
        name: result.draws[name] for name in ("f_train", "noise", "logit_scale") if name in result.draws
    }
    return dataclasses.replace(result, draws=small).to_datatree()
