"""CSV tables in, models and predictions out: what ``widebnn fit``, ``predict`` and ``evaluate`` do.

Modules that import JAX or pandas are imported where they are used, so that ``widebnn --help`` need not wait for them.
"""

from __future__ import annotations

import io
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from widebnn.errors import WidebnnError, check_fields, check_integer, check_real
from widebnn.names import ClassLikelihood, ClosedFormActivation, Tails, Transform
from widebnn.runs.command import begin
from widebnn.runs.files import check_output, locked, write_output

if TYPE_CHECKING:
    from pandas import DataFrame

    from widebnn.data import TableEncoder
else:
    DataFrame = Any  # the command line evaluates annotations

log = logging.getLogger("widebnn")
FilePath = str | os.PathLike[str]
BATCH = 2048
"""Rows predicted between two updates of the progress bar."""


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
        activation: Activation; chains of gelu converge soonest.
        noise: Standard deviation of an observation, in units of the target, by default chosen by the evidence; sample
            makes it an unknown like the weights; inputs lets it depend on the inputs, which takes longer.
        input_scales: Choose a scale for every input by the evidence; by default with at most 32 inputs.
        transform: Predict asinh(target / b) where errors grow with the target; everything is reported in its own units.
            auto does so where the evidence is clearly for it.
        tails: Tails of the errors: heavy where a few are much larger than most, which takes longer; auto if clearly
            better.
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
    activation: ClosedFormActivation = "gelu"
    noise: float | str | None = None
    input_scales: bool | None = None
    transform: Transform = "auto"
    tails: Tails = "normal"
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
        # Absolute paths: a fit may be resumed from another folder.
        values: dict[str, Any] = {"table": os.path.abspath(self.table), "out": os.path.abspath(self.out)}
        if self.width != "inf":
            if not str(self.width).isdecimal():
                raise WidebnnError(f"width must be a whole number or inf, got {self.width!r}.")
            values["width"] = int(self.width)
        if self.noise not in (None, "sample", "inputs"):
            values["noise"] = check_real("noise", self.noise, above=0)  # type: ignore[arg-type]
        if self.max_minutes == math.inf:
            values["max_minutes"] = None
        for name, value in values.items():
            object.__setattr__(self, name, value)

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
        from widebnn.data.tables import listed
        from widebnn.estimators.models import check_free, save

        check_output(check_free(self.out), force=False)
        rows = with_target(read_table(self.table), self.target)
        encoder = TableEncoder.fit(rows, target=self.target, classify=self.classify, drop=self.drop, text=self.text)
        x, y = encoder.transform(rows), encoder.targets(rows)
        estimator = self._estimator().set_params(progress=progress)
        with locked(self.running):
            is_resumed = begin(self.running, "fit", asdict(self))
            inputs = f"{len(encoder.columns)} columns, {x.shape[1]} inputs ({listed(encoder.inputs, 8)})"
            log.info(f"{'Resuming the fit of' if is_resumed else 'Fitting'} {self.target!r} to {len(x)} rows, {inputs}")
            if self.max_minutes is not None and self.width != "inf":
                log.info(f"Draws end after {self.max_minutes:g} minutes, enough or not (--max-minutes)")
            try:
                estimator.fit(x, y)
            except KeyboardInterrupt:
                how = f"the same command or widebnn resume {self.running} resumes the fit"
                log.warning(f"Interrupted: {self.out} was not written; {how}.")
                raise
            except WidebnnError:
                if not any(path.is_dir() for path in self.running.iterdir()):
                    shutil.rmtree(self.running)  # refused before anything ran
                raise
            estimator.table_ = encoder.to_json()
            save(estimator, self.out)
            shutil.rmtree(self.running)
        log.info(estimator.report())
        _log_inputs(model := TableModel(estimator, encoder), x, y)
        log.info(f"Wrote {self.out} ({os.path.getsize(self.out) / 1e6:.1f} MB)")
        return model

    def _estimator(self) -> Any:
        from widebnn.estimators import WideBNNClassifier, WideBNNRegressor

        kind: Any = WideBNNClassifier if self.classify else WideBNNRegressor
        if self.likelihood is not None and not self.classify:
            raise WidebnnError(f"likelihood {self.likelihood} is for classes; add --classify or leave it out.")
        for name in ("transform", "tails") if self.classify else ():
            if getattr(self, name) != getattr(TableFit, name):
                raise WidebnnError(f"{name} {getattr(self, name)} is for numbers; leave out either it or --classify.")
        given = asdict(self) | {"target_transform": self.transform, "noise_tails": self.tails}
        given |= {"random_state": self.seed, "store": str(self.running), "likelihood": self.likelihood or "regression"}
        given["width"] = math.inf if self.width == "inf" else self.width
        return kind(**{name: given[name] for name in kind().get_params() if name in given})


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
    if "ess" in found:  # the limit has no chains
        rows |= {"draws": found["draws"], "effective draws": found["ess"], "largest R-hat": found["rhat"]}
        rows |= {"acceptance rate": found["acceptance_rate"], "steps per chain": found["steps"]}
    return rows


def _log_inputs(model: TableModel, x: np.ndarray, y: np.ndarray) -> None:
    """How much predictions depend on each column, and how quickly they change along each input."""
    from widebnn.data.tables import listed
    from widebnn.estimators.base import MANY_INPUTS
    from widebnn.estimators.importance import column_importances

    def ranked(names: Iterable[str], values: Iterable[float]) -> str:
        by_value = sorted(zip(values, names, strict=True), reverse=True)
        return listed([f"{name} {value:.2g}" for value, name in by_value], 8)

    estimator, encoder = model
    groups, scales = encoder.groups, estimator.hyperparameters_.input_scales
    if 1 < len(groups) <= MANY_INPUTS:
        score, found = "accuracy" if encoder.classes else "R2", column_importances(estimator, x, y, [*groups.values()])
        log.info(f"Importance of the columns (how much {score} falls if one is shuffled): {ranked(groups, found)}")
    if scales is not None:
        listing = ranked(encoder.inputs, scales)
        log.info(f"Scales of the inputs (how quickly the function changes along one, not how much): {listing}")


def _load(path: FilePath) -> TableModel:
    """A model that ``TableFit`` saved, without ``posterior_``."""
    from widebnn.data import TableEncoder
    from widebnn.estimators import load

    estimator = load(path, posterior=False)
    if not hasattr(estimator, "table_"):
        raise WidebnnError(f"{path} was not fitted to a table by widebnn fit; load it in Python, which made it.")
    encoder = TableEncoder.from_json(estimator.table_)
    is_same_kind = encoder.classes == hasattr(estimator, "classes_") and getattr(estimator, "single_output_", True)
    if len(encoder.inputs) != estimator.n_features_in_ or not is_same_kind:
        raise WidebnnError(f"the columns of {path} do not fit its network; fit again.")
    return TableModel(estimator, encoder)


def predict_table(
    model: FilePath,
    table: FilePath,
    *,
    quantiles: Sequence[float] | str = "0.05,0.5,0.95",
    out: FilePath | None = None,
    force: bool = False,
    progress: bool | None = None,
) -> DataFrame:
    """Predict the rows of a table: one line for each, in its order.

    Regression: mean and standard deviation of a new observation, the two parts of the latter (epistemic, which more
    data would reduce, and aleatoric, the noise), and quantiles. Classes: the most probable one, and all probabilities.

    Args:
        model: File that widebnn fit wrote.
        table: CSV file with the columns of the training table, in any order.
        quantiles: Levels of quantiles of a new observation, for regression, separated by commas.
        out: CSV file to write; missing folders are created.
        force: Overwrite the file that is there.
        progress: Whether to show a progress bar; by default on terminals.

    Returns:
        The predictions.

    Raises:
        WidebnnError: The model or the table cannot be used, or ``out`` exists.

    Examples:
        >>> predict_table("model", "new.csv")["mean"]
    """
    import pandas as pd

    from widebnn.data import read_table
    from widebnn.data.tables import listed, note

    given = quantiles.split(",") if isinstance(quantiles, str) else quantiles
    levels = [check_real("each of quantiles", level, above=0, at_most=1) for level in given]
    if 1.0 in levels:
        raise WidebnnError("quantiles must be below 1, where the quantile is infinite; try 0.999.")
    if out is not None:
        check_output(Path(out), force)
    estimator, encoder = _load(model)
    rows = read_table(table)
    if encoder.target in rows.columns:
        note(f"column {encoder.target!r} of {table} is what the model predicts, and is ignored.")
    x = encoder.transform(rows)
    if encoder.classes:
        numbers = _by_batches(estimator.predict_proba, progress, rows, x)
        predictions = pd.DataFrame(numbers, columns=[f"p[{label}]" for label in estimator.classes_])
        predictions.insert(0, "class", estimator.classes_[numbers.argmax(axis=1)])
    else:

        def describe(part: np.ndarray) -> np.ndarray:
            mean, *parts = estimator.predict(part, parts=True)
            return np.column_stack([mean, np.hypot(*parts), *parts, estimator.predict_quantiles(part, levels).T])

        names = ["mean", "std", "epistemic", "aleatoric", *(f"q{level:g}" for level in levels)]
        predictions = pd.DataFrame(_by_batches(describe, progress, rows, x), columns=names)
    if out is not None:
        write_output(Path(out), to_csv(predictions).encode())
        log.info(f"Wrote {len(x)} rows of {listed(list(predictions.columns), 8)} to {out}")
    return predictions


def to_csv(predictions: DataFrame) -> str:
    """Format predictions as ``widebnn predict`` writes them: ten digits, one line for each row."""
    return predictions.to_csv(index=False, float_format="%.10g", lineterminator="\n")


def evaluate_table(
    model: FilePath, table: FilePath, *, out: FilePath | None = None, force: bool = False, progress: bool | None = None
) -> dict[str, Any]:
    """Compare predictions with the truth in rows that were not used for training.

    Regression: RMSE, R2, negative log-likelihood (nll) per row, and how many targets lie inside their central 50 % and
    90 % intervals (coverage). Classes: accuracy, log loss and expected calibration error (ece).

    Args:
        model: File that widebnn fit wrote.
        table: CSV file with the columns of the training table and the target.
        out: Folder for calibration.png and scores.json; created if missing.
        force: Overwrite the files that are there.
        progress: Whether to show a progress bar; by default on terminals.

    Returns:
        The number of rows and the scores.

    Raises:
        WidebnnError: The model or the table cannot be used, or the files exist.

    Examples:
        >>> evaluate_table("model", "test.csv")["rmse"]
    """
    from widebnn.data import read_table, with_target

    files = [] if out is None else [Path(out) / "calibration.png", Path(out) / "scores.json"]
    for file in files:
        check_output(file, force)
    estimator, encoder = _load(model)
    rows = read_table(table)
    if encoder.target not in rows.columns:
        raise WidebnnError(f"{table} has no column {encoder.target!r}, which the model predicts; add it to compare.")
    rows = with_target(rows, encoder.target)
    x, y = encoder.transform(rows), encoder.targets(rows)
    title = f"{encoder.target} in {os.path.basename(table)}, {len(x)} rows"
    scores, figure = _compare(estimator, rows, x, y, title, progress)
    if files:
        figure.savefig(picture := io.BytesIO(), format="png", dpi=150)
        write_output(files[0], picture.getvalue())
        write_output(files[1], json.dumps(scores, indent=2).encode() + b"\n")
        log.info(f"Wrote calibration.png and scores.json to {out}")
    return scores


def _compare(
    estimator: Any, rows: DataFrame, x: np.ndarray, y: np.ndarray, title: str, progress: bool | None
) -> tuple[dict[str, Any], Any]:
    """Scores, and a reliability diagram or a figure of the coverage of intervals."""
    from widebnn import figures
    from widebnn.data.tables import listed, refuse_cell
    from widebnn.diagnostics import calibration

    if not hasattr(estimator, "classes_"):

        def compare(part: Any, truth: Any) -> Any:
            below, density = estimator.cdf(part, truth), estimator.log_density(part, truth)
            return np.column_stack([estimator.predict(part), density, below])

        mean, log_density, below = _by_batches(compare, progress, rows, x, y).T
        scores: Any = calibration.regression_scores(y, mean, log_density, below)
        return {"rows": len(y)} | scores, figures.coverage_figure(below, title)
    known = estimator.classes_.astype(str).tolist()
    labels = np.array([known.index(label) if label in known else -1 for label in y.astype(str)])
    if (labels < 0).any():  # it has no probability
        problem = f"is not a class of the model ({listed(known, 8)}): remove such rows, or fit to a table with it"
        refuse_cell(rows, estimator.table_["target"], int((labels < 0).argmax()), problem)
    p = _by_batches(estimator.predict_proba, progress, rows, x)
    figure = figures.reliability_figure(calibration.reliability(p, labels), title)
    return {"rows": len(y)} | calibration.classification_scores(p, labels), figure


def _by_batches(
    function: Callable[..., np.ndarray], progress: bool | None, table: DataFrame, *arrays: np.ndarray
) -> np.ndarray:
    """The numbers that a function has for some rows, for all of them; with a progress bar where that takes long."""
    from rich.console import Console
    from rich.progress import track

    from widebnn.data.tables import place

    console, starts = Console(stderr=True), range(0, len(table), BATCH)
    hidden = progress is False or len(starts) < 3 or not console.is_terminal
    parts = [
        function(*(array[start : start + BATCH] for array in arrays))
        for start in track(starts, "predicting", console=console, transient=True, disable=hidden)
    ]
    results = np.concatenate(parts)
    is_bad = ~np.isfinite(results).all(axis=1)
    if is_bad.any():
        raise WidebnnError(
            f"the row in {place(table, is_bad.argmax())} of {table.attrs['source']} has no finite prediction: its "
            "numbers are too far from those of the training table; check them."
        )
    return results
