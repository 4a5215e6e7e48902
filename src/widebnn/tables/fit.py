"""A network fitted to a table, and saved."""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Iterable
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from widebnn.errors import WidebnnError, check_fields, check_integer, check_real
from widebnn.names import ClassLikelihood, ClosedFormActivation, Tails, Transform
from widebnn.runs.command import begin
from widebnn.runs.files import check_output, locked

if TYPE_CHECKING:
    from widebnn.data import TableEncoder

log = logging.getLogger("widebnn")
FilePath = str | os.PathLike[str]


class TableModel(NamedTuple):
    """A fitted estimator and the encoder of its tables."""

    estimator: Any
    encoder: TableEncoder


@dataclass(frozen=True)
class TableFit:
    """A wide Bayesian neural network for a CSV table, and how it is fitted.

    Args:
        table: CSV file, the first line with the names of the columns.
        target: Column to predict.
        out: New file for the model.
        classify: The target is a class: predict probabilities of its values.
        drop: Column to leave out, such as an identifier; may be given repeatedly.
        text: Column whose numbers are names of categories; may be given repeatedly.
        width: Units per hidden layer; inf for the limit of infinite width, an exact Gaussian process.
        depth: Number of hidden layers.
        activation: Activation; by default gelu or erf, by the evidence.
        noise: Standard deviation of an observation, in units of the target; sample makes it an unknown like the
            weights, the default for numbers; evidence chooses it by the evidence, the default for classes.
        input_scales: Choose a scale for every input by the evidence; by default with at most 32 inputs.
        transform: Predict asinh(target / b) where errors grow with the target; everything is reported in its own units.
            auto does so where the evidence is clearly for it.
        tails: Tails of the errors: heavy where a few are much larger than most; auto where that is clearly better.
        likelihood: With classify: regression on 0/1 targets, the default, or softmax, which takes longer.
        chains: Number of independent chains.
        burn_in: Steps per chain that are discarded first, over which the step size is tuned.
        target_ess: Effective draws of the slowest statistic that chains are run for.
        max_steps: Most steps per chain.
        max_minutes: Draws end after so many minutes, enough or not; inf for no limit.
        seed: The same seed gives the same model.

    Raises:
        WidebnnError: A setting has the wrong type; ranges are checked by ``run``.

    Examples:
        >>> TableFit("train.csv", target="price", out="model").run()
    """

    table: FilePath
    _: KW_ONLY
    target: str
    out: FilePath
    classify: bool = False
    drop: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    width: int | str = 256
    depth: int = 1
    activation: ClosedFormActivation | None = None
    noise: float | str | None = None
    input_scales: bool | None = None
    transform: Transform = "auto"
    tails: Tails = "auto"
    likelihood: ClassLikelihood | None = None
    chains: int = 2
    burn_in: int = 100
    target_ess: int = 100
    max_steps: int = 2000
    max_minutes: float | None = 20.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        check_integer("seed", self.seed, 0, 2**32 - 1)
        for name in ("table", "out"):  # a fit may be resumed from another folder
            object.__setattr__(self, name, os.path.abspath(getattr(self, name)))
        if self.width != "inf":
            if not str(self.width).isdecimal():
                raise WidebnnError(f"width must be a whole number or inf, got {self.width!r}.")
            object.__setattr__(self, "width", int(self.width))
        if self.noise not in (None, "sample", "evidence"):
            object.__setattr__(self, "noise", check_real("noise", self.noise, above=0))  # type: ignore[arg-type]
        if self.max_minutes == math.inf:
            object.__setattr__(self, "max_minutes", None)

    @property
    def running(self) -> Path:
        """The folder of the chains, beside the model, until there is a model."""
        return Path(f"{self.out}.run")

    def run(self, *, progress: bool | None = None) -> TableModel:
        """Fit, or resume the same fit, and save the model.

        Args:
            progress: Whether to show a progress bar; by default on terminals.

        Returns:
            The model that was saved.

        Raises:
            WidebnnError: The table or a setting is wrong, or the model cannot be written.
        """
        from widebnn.data import TableEncoder, read_table, with_target
        from widebnn.data.columns import listed, log_notes
        from widebnn.estimators.models import check_free, save

        check_output(check_free(self.out), force=False)
        notes: list[str] = []
        rows = with_target(read_table(self.table, notes), self.target, notes)
        columns: dict[str, Any] = {name: getattr(self, name) for name in ("target", "classify", "drop", "text")}
        encoder = TableEncoder.fit(rows, **columns, notes=notes)
        x, y = encoder.transform(rows, notes), encoder.targets(rows)
        estimator = self._estimator().set_params(progress=progress)
        with locked(self.running):
            is_resumed = begin(self.running, "fit", asdict(self))
            log_notes(notes)
            inputs = f"{len(encoder.columns)} columns, {x.shape[1]} inputs ({listed(encoder.inputs, 8)})"
            log.info(f"Fitting {self.target!r} to {len(x)} rows, {inputs}")
            if self.max_minutes is not None and self.width != "inf":
                log.info(f"Draws end after {self.max_minutes:g} minutes, enough or not (--max-minutes)")
            if is_resumed:
                log.info(f"Resuming the fit in {self.running}")
            try:
                estimator.fit(x, y)
            except KeyboardInterrupt:
                resume = f"widebnn resume {self.running}"
                log.warning(f"Interrupted: {self.out} was not written; the same command or {resume} resumes the fit.")
                raise
            except WidebnnError:
                if not any(path.is_dir() for path in self.running.iterdir()):
                    shutil.rmtree(self.running)  # refused before anything ran
                raise
            estimator.table_ = encoder.to_json()
            save(estimator, self.out)
            shutil.rmtree(self.running)
        model = TableModel(estimator, encoder)
        log.info(estimator.report())
        _log_inputs(model, x, y)
        log.info(f"Wrote {self.out} ({os.path.getsize(self.out) / 1e6:.1f} MB)")
        return model

    def _estimator(self) -> Any:
        from widebnn.estimators import WideBNNClassifier, WideBNNRegressor

        apart = ("table", "target", "out", "classify", "drop", "text", "transform", "tails", "likelihood", "seed")
        parameters = {name: value for name, value in asdict(self).items() if name not in apart}
        parameters |= {"random_state": self.seed, "store": str(self.running)}
        parameters["width"] = math.inf if self.width == "inf" else self.width
        if not self.classify:
            if self.likelihood is not None:
                raise WidebnnError(f"likelihood {self.likelihood} is for classes; add --classify or leave it out.")
            return WideBNNRegressor(target_transform=self.transform, noise_tails=self.tails, **parameters)
        for name in ("transform", "tails"):
            if getattr(self, name) != "auto":
                raise WidebnnError(f"{name} {getattr(self, name)} is for numbers; leave out either it or --classify.")
        return WideBNNClassifier(likelihood=self.likelihood or "regression", **parameters)


def describe_model(model: TableModel) -> dict[str, Any]:
    """Describe what was chosen and how well the chains mixed, in values by a few words that say what they are."""
    estimator = model.estimator
    chosen, found = estimator.hyperparameters_, estimator.diagnostics_
    units = "infinitely many" if math.isinf(estimator.width) else estimator.width
    rows = {"hidden layers": chosen.depth, "units per layer": units, "activation": chosen.activation}
    if not model.encoder.classes:
        scale = estimator.y_bend_
        rows["scale of the target"] = "as it is" if scale is None else f"asinh(target / {scale[0]:.4g})"
        at_median = "" if scale is None else ", at its median"
        rows[f"noise, in units of the target{at_median}"] = float(estimator.noise_.mean())
        rows["tails of the noise"] = "normal" if chosen.row_noise is None else "heavy"
    rows["log evidence (infinite width)"] = chosen.log_evidence
    for name in ("weight", "bias", "readout_weight", "readout_bias"):
        rows[f"prior std: {name.replace('_', ' ')}"] = getattr(chosen, f"{name}_std")
    if "ess" not in found:  # the limit has no chains
        return rows
    rows |= {"draws": found["draws"], "effective draws": found["ess"], "largest R-hat": found["rhat"]}
    return rows | {"acceptance rate": found["acceptance_rate"], "steps per chain": found["steps"]}


def _log_inputs(model: TableModel, x: np.ndarray, y: np.ndarray) -> None:
    """How much predictions depend on each column, and how quickly they change along each input."""
    from widebnn.estimators.base import MANY_INPUTS
    from widebnn.estimators.importance import column_importances

    estimator, encoder = model
    groups, scales = encoder.groups, estimator.hyperparameters_.input_scales
    if 1 < len(groups) <= MANY_INPUTS:
        score, found = "accuracy" if encoder.classes else "R2", column_importances(estimator, x, y, [*groups.values()])
        log.info(f"Importance of the columns (how much {score} falls if one is shuffled): {_ranked(groups, found)}")
    if scales is not None:
        listed = _ranked(encoder.inputs, scales)
        log.info(f"Scales of the inputs (how quickly the function changes along one, not how much): {listed}")


def _ranked(names: Iterable[str], values: Iterable[float]) -> str:
    from widebnn.data.columns import listed

    ranked = sorted(zip(values, names, strict=True), reverse=True)
    return listed([f"{name} {value:.2g}" for value, name in ranked], 8)
