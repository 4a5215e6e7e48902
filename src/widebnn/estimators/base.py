"""What the estimators share: standardise, choose hyperparameters, sample until there are enough effective draws."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from widebnn.errors import WidebnnError, check_choice, check_integer, check_real
from widebnn.estimators.chains import Clock, Plan, sample_posterior
from widebnn.estimators.convergence import describe_convergence, warn_if_not_converged
from widebnn.estimators.cost import QUICK, Cost, check_time, gradients, measure_gradient, multiplications
from widebnn.estimators.ensemble import Function, to_ensemble
from widebnn.estimators.limit import Limit, check_memory
from widebnn.estimators.transform import location_and_scale
from widebnn.limits import Hyperparameters, choose_hyperparameters
from widebnn.limits.kernel import CLOSED_FORMS
from widebnn.posteriors import Posterior
from widebnn.samplers import build_sampler
from widebnn.sampling import Result
from widebnn.sampling.progress import SearchProgress
from widebnn.sampling.trace import MOST_CHAINS

ACTIVATIONS = ("gelu", "erf", "relu")
"""What the evidence chooses from if asked to. Chains of erf and relu take several times as long as those of gelu."""
MANY_INPUTS = 32
"""With more inputs than this they all have the same scale unless asked otherwise."""
NOISE_LOG_SD = 1.5
"""Of the logarithm of noise that is sampled, around what the evidence chooses; that of the evidence's prior too."""
SCALES = ("weight_std", "bias_std", "readout_weight_std", "readout_bias_std")


@dataclass(eq=False, repr=False)
class WideBNN(BaseEstimator):
    """Base class of ``WideBNNRegressor`` and ``WideBNNClassifier``, with the parameters of both.

    Args:
        width: Units in every hidden layer; ``math.inf``: the limit of infinite width, an exact Gaussian process.
        depth: Number of hidden layers.
        activation: ``gelu``, ``erf``, ``relu`` or ``sin``; None: one of the first three, by evidence, whose chains may
            take several times as long to converge.
        noise: Standard deviation of the observations, in units of y; None: chosen by the evidence; ``"sample"``: an
            unknown of the chain; ``"inputs"``: an unknown function of the inputs (regression; slower chains). Not for
            ``likelihood="softmax"``.
        weight_std: Prior standard deviation of the weights of hidden layers, times the root of the number of their
            inputs; None: by evidence, as for the next three.
        bias_std: Prior standard deviation of the biases of hidden layers.
        readout_weight_std: Prior standard deviation of the weights of the readout, times the root of the width.
        readout_bias_std: Prior standard deviation of the bias of the readout.
        input_scales: Give every input a scale of its own, by evidence (automatic relevance determination); None: with
            at most 32 inputs.
        sampler: Name of a sampler; ``"auto"``: Hilbert-space HMC from a start near the bulk.
        step_size: Of the sampler; None: tuned during the burn-in.
        chains: Number of chains.
        burn_in: Steps of each chain over which its step size is tuned; chains that have not settled then go on.
        target_ess: Wanted number of effective draws of the slowest statistic, all chains together.
        max_steps: Most steps of each chain after the burn-in.
        max_minutes: After this time no more draws are begun, but for the first ten after the burn-in. The speed of the
            machine then decides how many there are; None: no limit, and bit-identical results everywhere. Before a
            large fit a gradient is timed: there is a warning if burn-in and ten draws take longer than this, and an
            error if they take twice as long.
        random_state: Seed or generator of everything random.
        progress: Show a progress bar; None: on terminals.
        store: Folder for checkpoints of the chains. A fit that was stopped resumes when it is called again with the
            same data and parameters, and ends with the same model; one that ``max_minutes`` ended runs for as long
            again. None: nothing is written.

    Attributes:
        hyperparameters_: What the evidence chose, see ``widebnn.limits.Hyperparameters``.
        network_: The network with these hyperparameters.
        ensemble_: Networks drawn from the posterior, with which predictions are made.
        diagnostics_: ESS, R-hat, acceptance rate and length of the chains.
        posterior_: The run as an ArviZ DataTree.
    """

    width: float = 256
    _: KW_ONLY
    depth: int = 1
    activation: str | None = "gelu"
    noise: float | str | None = None
    weight_std: float | None = None
    bias_std: float | None = None
    readout_weight_std: float | None = None
    readout_bias_std: float | None = None
    input_scales: bool | None = None
    sampler: str = "auto"
    step_size: float | None = None
    chains: int = 2
    burn_in: int = 100
    target_ess: int = 100
    max_steps: int = 2000
    max_minutes: float | None = 20.0
    random_state: Any = None
    progress: bool | None = False
    store: str | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Let subclasses show the documentation of the shared parameters, too."""
        super().__init_subclass__(**options)
        _, shared = (WideBNN.__doc__ or "\n\n").split("\n\n", 1)
        cls.__doc__ = f"{cls.__doc__}\n    The parameters and attributes of both estimators:\n\n{shared}"

    def _fit(
        self,
        x: np.ndarray,
        standard_targets: Callable[[np.ndarray, int], tuple[np.ndarray, dict[str, Any]]],
        build: Callable[[np.ndarray, str, Hyperparameters], Posterior],
    ) -> Result | None:
        """Everything after the checks of x (n x m); returns the run that was kept, if there are chains.

        ``standard_targets(x, seed)`` are what the evidence looks at, n x outputs, and more options of
        ``choose_hyperparameters``; ``build(x, dtype, hyperparameters)`` is the target. Both are given standardised
        inputs. All parameters are checked, and memory and time are estimated, before the search.
        """
        plan = self._checked_plan()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.x_mean_, self.x_scale_ = location_and_scale(x)
        x = (x - self.x_mean_) / self.x_scale_
        with SearchProgress(self.progress) as progress:
            if self._is_limit:
                check_memory(len(x))
            else:
                self._check_cost(x, build, plan, progress)
            targets, options = standard_targets(x, seed)
            options = self._search_options(x) | options
            self.hyperparameters_ = choose_hyperparameters(x, targets, seed=seed, watch=progress.update, **options)
        if self.hyperparameters_.input_scales is not None:
            self.x_scale_ = self.x_scale_ / np.array(self.hyperparameters_.input_scales)
            x = x * np.array(self.hyperparameters_.input_scales)
        if self._is_limit:
            limit_target = build(x, "float64", self.hyperparameters_)
            self.network_: Any = limit_target.network
            self.ensemble_: Any = Limit.of(x, limit_target.y, self.hyperparameters_.noise)
            self.diagnostics_: dict[str, Any] = {}
            return None
        began = time.perf_counter()
        result, found, limit = sample_posterior(lambda dtype: build(x, dtype, self.hyperparameters_), plan, seed)
        self.network_ = result.target.network  # type: ignore[attr-defined]
        self.diagnostics_ = found | {"wanted": plan.wanted, "total_seconds": time.perf_counter() - began}
        warn_if_not_converged(self.diagnostics_, f"{limit} (now {getattr(self, limit)})", self._units)
        self.ensemble_ = to_ensemble(result.draws, self.depth)
        self.posterior_ = _datatree(result)
        return result

    def _checked_plan(self) -> Plan:
        """How chains are run; and whatever else can be wrong with a parameter is found here."""
        if not self._is_limit:
            check_integer("width", self.width, 1)  # type: ignore[arg-type]
        elif self.noise in ("sample", "inputs"):
            raise WidebnnError(f"noise={self.noise!r} needs a finite width; leave it out to choose it by the evidence.")
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

    @property
    def _is_limit(self) -> bool:
        return self.width == math.inf

    @property
    def _units(self) -> int:
        """Of a layer; those of the limit do not matter."""
        return 1 if self._is_limit else int(self.width)

    def _check_cost(self, x: np.ndarray, build: Callable[..., Posterior], plan: Plan, progress: SearchProgress) -> None:
        """Say how long a fit of many rows will take; refuse what does not fit into memory or into the time.

        What is measured is a network with scales of any value.
        """
        options = self._search_options(x)
        widths = (self._units,) * self.depth
        if multiplications(len(x), x.shape[1], widths) < QUICK:
            return
        scales: dict[str, Any] = dict.fromkeys((*SCALES, "noise"), 1.0)
        nominal = Hyperparameters(len(widths), options["activations"][0], **scales, log_evidence=0.0, candidates=())
        seconds = measure_gradient(build(x, "float32", nominal), plan.chains)
        counts = gradients(plan.sampler, plan.chains, plan.burn_in, plan.wanted, plan.most)
        cost = Cost(len(x), x.shape[1], widths, seconds, *counts)
        progress.say(str(cost))
        if not plan.has_begun and (problem := check_time(cost, plan.clock.seconds)):
            warnings.warn(problem, stacklevel=4)

    def _search_options(self, x: np.ndarray) -> dict[str, Any]:
        """What the evidence may choose from, given standardised inputs."""
        inputs = x.shape[1]
        own_scales = inputs <= MANY_INPUTS if self.input_scales is None else bool(self.input_scales)
        return {
            "depths": (self.depth,),
            "activations": ACTIVATIONS if self.activation is None else (self.activation,),
            "fixed": self._fixed_scales(),
            "input_scales": own_scales and inputs > 1,
        }

    def _fixed_scales(self) -> dict[str, float]:
        """The scales that are given instead of chosen."""
        given: dict[str, Any] = {name: getattr(self, name) for name in SCALES if getattr(self, name) is not None}
        for name, value in given.items():
            may_be_zero = "bias" in name
            given[name] = check_real(name, value, at_least=0 if may_be_zero else None, above=None if may_be_zero else 0)
        if isinstance(self.noise, str):
            check_choice("noise, if not a number,", self.noise, ("sample", "inputs"))
        elif self.noise is not None:
            given["noise"] = check_real("noise", self.noise, above=0) / float(np.mean(self.y_scale_))
        return given

    def save(self, path: Any) -> None:
        """Write the fitted estimator to a new file, without pickle; ``load`` reads it.

        Args:
            path: The file, which must not exist.

        Raises:
            WidebnnError: There is something at the path, or it cannot be written.

        Examples:
            ``model.save("model")``, and later ``widebnn.estimators.load("model").predict(x)``
        """
        from widebnn.estimators.models import save

        save(self, path)

    def report(self) -> str:
        """Whether the fit has converged, what that means for predictions, and what the width has bought.

        Returns:
            A paragraph: R-hat and effective draws of the slowest monitored statistic; the Monte Carlo error of
            predicted means in predictive standard deviations; where chains have not converged, how long that would
            still take; for regression, the leave-one-out log-density per row beside that of the infinite-width limit.

        Raises:
            NotFittedError: There is no fit yet.

        Examples:
            ``print(model.report())``
        """
        check_is_fitted(self)
        found = self.diagnostics_
        parts = [describe_convergence(found) if "ess" in found else "the infinite-width limit is an exact posterior"]
        if found.get("loo") is not None:
            parts.append(f"the leave-one-out log-density per row is {found['loo']:.3f}")
        if found.get("limit_loo") is not None:
            parts.append(f"that of the infinite-width limit is {found['limit_loo']:.3f}")
        return ". ".join(part[0].upper() + part[1:] for part in parts) + "."

    def _evaluate(self, x: Any, reduce: Callable[[Function], Any]) -> list[Any]:
        """``reduce`` of the function at new inputs, for some rows after the other."""
        check_is_fitted(self)
        return [reduce(part) for part in self.ensemble_.at(self.network_, self._standard_inputs(x))]

    def _standard_inputs(self, x: Any) -> np.ndarray:
        return (validate_data(self, x, reset=False, dtype=np.float64) - self.x_mean_) / self.x_scale_


def _datatree(result: Result) -> Any:
    """The run without the networks, which are in the ensemble."""
    names = ("f_train", "noise", "logit_scale")
    small: dict[str, np.ndarray] = {name: result.draws[name] for name in names if name in result.draws}
    return dataclasses.replace(result, draws=small).to_datatree()
