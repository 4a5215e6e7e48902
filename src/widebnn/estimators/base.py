"""What the estimators share: standardise, choose hyperparameters, sample until there are enough effective draws."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from widebnn.diagnostics.convergence import ess, rhat
from widebnn.diagnostics.summary import project_predictions
from widebnn.errors import PrecisionWarning, StoreError, WidebnnError, check_integer, check_real
from widebnn.estimators.ascent import ascend
from widebnn.estimators.ensemble import Ensemble, bytes_per_draw, collect_networks, evaluate, to_ensemble
from widebnn.estimators.transform import location_and_scale
from widebnn.limits import choose_hyperparameters
from widebnn.posteriors import LogNormal, NetworkTarget
from widebnn.posteriors.preconditioned import preconditioned, rescale, row_precision
from widebnn.sampling import Result, sample
from widebnn.sampling.progress import SearchProgress

DEPTHS = (1, 2)
DEEP_ROWS = 5000
"""With more rows there is one hidden layer unless asked otherwise: a second one doubles the cost of a step, and where
rows are many and units few its chains move so slowly that the fit is worse, whatever the evidence of the limit says."""
ACTIVATIONS = ("gelu", "relu", "erf")
MANY_INPUTS = 32
"""With more inputs than this they all have the same scale unless asked otherwise."""
STORE_BYTES = 2**30
"""How much the stored networks may take; beyond it fewer draws are kept."""
RHAT_LIMIT = 1.05
MISFIT_LIMIT = 2.0
"""Squared distance of the targets from the function, in units of the noise, above which the two contradict."""
PILOT_GRADIENTS = 6
"""Length of a trajectory on the way to the bulk of the posterior."""
MOST_PILOTS = 6
"""How often it may be as long as the burn-in."""
NOISE_PRIOR = LogNormal(0.1, log_sd=1.5)
"""Of noise that is sampled, in units of the standardised targets; the prior that the evidence has too."""
PILOT_SHARE = 0.5
"""Of the time of a fit: no further pilot is begun after it."""
SCALES = ("weight_std", "bias_std", "readout_weight_std", "readout_bias_std")


class _Clock:
    """The time that a fit may still take."""

    def __init__(self, minutes: float | None):
        self._began = time.perf_counter()
        self._seconds = math.inf
        if minutes is not None:
            self._seconds = 60 * check_real("max_minutes", minutes, above=0, at_most=math.inf)

    def left(self, share: float = 1.0) -> float:
        """Seconds until this share of the time is over; 0 afterwards."""
        return max(0.0, share * self._seconds - (time.perf_counter() - self._began))


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
        build: Callable[..., NetworkTarget],
    ) -> None:
        """Everything after the checks of x (n x m).

        ``standard_targets(x, seed)`` are what the evidence looks at, n x outputs, and more options of
        :func:`choose_hyperparameters`; ``build(x, dtype)`` is the target for ``network_``. Both are given standardised
        inputs.
        """
        clock = _Clock(self.max_minutes)
        width = check_integer("width", self.width, 1)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.x_mean_, self.x_scale_ = location_and_scale(x)
        x = self._standardise(x)
        with SearchProgress(self.progress) as progress:
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
        self.network_ = self.hyperparameters_.network(x.shape[1], width)
        result = self._sample_precisely(lambda dtype: build(x, dtype), seed, clock)
        self.ensemble_: Ensemble = to_ensemble(result.draws, len(self.network_.widths))
        self.posterior_ = _datatree(result)

    def _candidates(self, rows: int) -> dict[str, Any]:
        """What the evidence may choose from."""
        depths = DEPTHS if rows <= DEEP_ROWS else DEPTHS[:1]
        return {
            "depths": depths if self.depth is None else (check_integer("depth", self.depth, 1),),
            "activations": ACTIVATIONS if self.activation is None else (self.activation,),
        }

    def _has_input_scales(self, x: np.ndarray) -> bool:
        own = x.shape[1] <= MANY_INPUTS if self.input_scales is None else bool(self.input_scales)
        return own and x.shape[1] > 1

    def _fixed_scales(self) -> dict[str, float]:
        """The scales that are given instead of chosen."""
        given: dict[str, Any] = {name: getattr(self, name) for name in SCALES if getattr(self, name) is not None}
        for name, value in given.items():
            given[name] = check_real(name, value, at_least=0 if "bias" in name else None, above=0)
        if isinstance(self.noise, str):
            if self.noise != "sample":
                raise WidebnnError(f"noise must be a number, None (chosen) or 'sample'; got {self.noise!r}.")
        elif self.noise is not None:
            given["noise"] = check_real("noise", self.noise, above=0) / float(np.mean(self.y_scale_))
        return given

    def _sample_precisely(self, build: Callable[[str], NetworkTarget], seed: int, clock: _Clock) -> Result:
        """In float32 where that is enough, else with float32 gradients where those are.

        Tables often have little noise and nearly equal rows, where float32 is not.
        """
        for dtype in ("float32", "mixed"):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error", PrecisionWarning)
                    return self._sample(build(dtype), seed, clock)
            except StoreError:
                raise
            except (PrecisionWarning, WidebnnError):  # the latter if not even the start is finite
                continue
        return self._sample(build("float64"), seed, clock)

    def _sample(self, target: NetworkTarget, seed: int, clock: _Clock) -> Result:
        """One run, and where that has too few effective draws longer ones, each going on from the one before.

        Each is at least twice as long, or is not begun: neither where there are too few steps left for that, nor where
        time would end it before it has more draws.
        """
        chains = check_integer("chains", self.chains, 1)
        burn_in = check_integer("burn_in", self.burn_in, 1)
        wanted = check_integer("target_ess", self.target_ess, 1)
        most = check_integer("max_steps", self.max_steps, 4)
        options: dict[str, Any] = {} if self.step_size is None else {"step_size": self.step_size}
        start = None
        if self.sampler == "auto":
            target, start = self._scaled_by_curvature(target, chains, burn_in, seed, clock)
            burn_in = max(burn_in // 2, 1)
        room = max(4, STORE_BYTES // (bytes_per_draw(target) * chains))
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
                store=self._folder(target, f"run-{seed}"),
                max_seconds=clock.left(),
                **options,
            )

        def is_partial(result: Result) -> bool:
            return result.stats["lp"].shape[1] < draws

        steps = draws
        result = run(steps, burn_in, seed + 1, start)
        if result.steps < 4 or (result.interrupted and self.store is not None):
            raise KeyboardInterrupt  # Ctrl-C, and nothing to predict with, or something to go on from
        self.diagnostics_ = diagnose(result, target.y)
        late = is_partial(result)
        while self._shortcomings(wanted) and 2 * steps <= most and not result.interrupted:
            late = late or clock.left() < result.seconds
            if late:
                break
            seed += 1
            steps = min(math.ceil(steps * max(2.0, 1.2 * wanted / max(self.diagnostics_["ess"], 1.0))), most)
            longer = run(steps, max(burn_in // 2, 1), seed + 1, result.last)
            if longer.interrupted and self.store is not None:
                raise KeyboardInterrupt
            found = diagnose(longer, target.y) if longer.steps >= 4 else None
            late = is_partial(longer) and not longer.interrupted
            if found is None or (is_partial(longer) and found["ess"] < self.diagnostics_["ess"]):
                break  # what the run before has is better than part of this one
            result, self.diagnostics_ = longer, found
        self._warn_if_not_converged(wanted, "max_minutes" if late and not result.interrupted else "max_steps")
        return result

    def _scaled_by_curvature(
        self, target: NetworkTarget, chains: int, burn_in: int, seed: int, clock: _Clock
    ) -> tuple[NetworkTarget, Any]:
        """The target in coordinates scaled by its curvature, and where chains are after a burn-in of short turns."""
        last = ascend(target, chains, seed)
        for attempt in range(MOST_PILOTS):
            pilot = sample(
                target,
                "hilbert_hmc",
                num_steps=PILOT_GRADIENTS,
                steps=max(burn_in - burn_in // 2, 2),
                burn_in=burn_in // 2,
                chains=chains,
                seed=seed + 7919 * attempt,
                collect=lambda key, u: {},
                initial=last,
                progress=self.progress,
                store=self._folder(target, f"pilot-{attempt}"),
            )
            if pilot.interrupted:
                raise KeyboardInterrupt
            last = pilot.last
            if not _drifts(pilot.stats["lp"]) or not clock.left(PILOT_SHARE):
                break
        curvature = row_precision(target, jax.tree.map(lambda leaf: leaf[0], last))
        start = [rescale(curvature, 0.5, jax.tree.map(lambda leaf: leaf[i], last)) for i in range(chains)]  # noqa: B023
        return preconditioned(target, curvature), jax.tree.map(lambda *leaves: np.stack(leaves), *start)

    def _folder(self, target: NetworkTarget, name: str) -> Path | None:
        """Where a part of the fit is stored."""
        return None if self.store is None else Path(self.store) / f"{target.dtype}-{name}"

    def save(self, folder: Any) -> None:
        """Write the fitted estimator to a new folder of open files (:mod:`widebnn.estimators.saving`)."""
        from widebnn.estimators.saving import save

        save(self, folder)

    def _shortcomings(self, wanted: int) -> list[str]:
        """Why the draws are not enough."""
        found = self.diagnostics_
        reasons = []
        if found["rhat"] is not None and found["rhat"] > RHAT_LIMIT:
            reasons.append(f"R-hat is {found['rhat']:.3f} (should be below {RHAT_LIMIT})")
        if found["ess"] < wanted:
            reasons.append(f"{found['ess']:.0f} effective draws of {wanted} wanted")
        return reasons

    def _warn_if_not_converged(self, wanted: int, limit: str) -> None:
        reasons, steps = self._shortcomings(wanted), self.diagnostics_["steps"]
        if reasons:
            warnings.warn(
                f"the chains have not converged: {' and '.join(reasons)} after {steps} steps; raise {limit} "
                f"(now {getattr(self, limit)}) or the width, or lower target_ess",
                ConvergenceWarning,
                stacklevel=5,
            )
        misfit = self.diagnostics_["misfit"]
        if misfit is not None and misfit > MISFIT_LIMIT:
            warnings.warn(
                f"the function stays {math.sqrt(misfit):.2g} times the noise away from the training targets: a network "
                f"of width {self.width} cannot follow them that closely, so raise the width or the noise",
                ConvergenceWarning,
                stacklevel=5,
            )

    def _standardise(self, x: np.ndarray) -> np.ndarray:
        return (x - self.x_mean_) / self.x_scale_

    def _evaluate(self, x: Any, reduce: Callable[[slice, np.ndarray, np.ndarray], Any]) -> list[Any]:
        """``reduce(rows, means, draws)`` of the function at new inputs, for some rows after the other."""
        check_is_fitted(self)
        x = validate_data(self, x, reset=False, dtype=np.float64)
        return [reduce(*part) for part in evaluate(self.network_, self.ensemble_, self._standardise(x))]


def _drifts(lp: np.ndarray) -> bool:
    """Whether the log-likelihood of some chain (chains x steps) is still on its way: its second half is elsewhere."""
    half = lp.shape[1] // 2
    before, after = lp[:, :half], lp[:, half:]
    return bool(np.any(np.abs(after.mean(axis=1) - before.mean(axis=1)) > 1.5 * after.std(axis=1) + 1.0))


def diagnose(result: Result, y: Any) -> dict[str, Any]:
    """Convergence of the function at the training inputs, of its distance from the targets and of sampled scales.

    The smallest ESS and the largest R-hat of them; and the squared distance in units of the noise, which is
    less than about 1.
    """
    f = result.draws["f_train"]
    distance = np.mean((f - np.asarray(y)) ** 2, axis=(2, 3))
    noise = result.draws.get("noise")
    scales = [result.draws[name] for name in ("noise", "logit_scale") if name in result.draws]
    scales = [values for values in scales if np.ptp(values) > 0]
    values = np.concatenate(
        [project_predictions(f, count=20), np.stack([distance, *map(np.log, scales)], axis=2)], axis=2
    )
    sizes, ratios = ess(values), rhat(values)
    finite = ratios[np.isfinite(ratios)]
    return {
        "ess": float(np.nanmin(sizes)) if np.isfinite(sizes).any() else 0.0,
        "rhat": float(finite.max()) if finite.size else None,
        "misfit": None if noise is None or not noise.all() else float(np.mean(distance / noise**2)),
        "acceptance_rate": result.acceptance_rate,
        "steps": result.steps,
        "chains": result.chains,
        "draws": result.stats["lp"].size,
        "seconds": result.seconds,
    }


def _datatree(result: Result) -> Any:
    """The run without the networks, which are in the ensemble."""
    small: dict[str, np.ndarray] = {
        name: result.draws[name] for name in ("f_train", "noise", "logit_scale") if name in result.draws
    }
    return dataclasses.replace(result, draws=small).to_datatree()
