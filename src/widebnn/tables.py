"""CSV tables in, models and predictions out: what ``widebnn fit``, ``predict`` and ``evaluate`` do.

Modules that import JAX are imported where they are used, so that ``widebnn --help`` need not wait for them.
"""

from __future__ import annotations

import io
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from widebnn.errors import WidebnnError, check_fields, check_integer, check_real
from widebnn.names import ClassLikelihood, ClosedFormActivation, Tails, Transform
from widebnn.runs.command import begin
from widebnn.runs.files import locked, make_folder, output, write_bytes

if TYPE_CHECKING:
    import numpy as np
    from pandas import DataFrame

    from widebnn.data import TableEncoder
else:
    DataFrame = Any  # the command line evaluates annotations

log = logging.getLogger("widebnn")
BATCH = 2048
"""Rows predicted between two updates of the progress bar."""
FEW_NOTES, SHORT_NOTE = 2, 200
"""Notes on a table, and characters of a note, that are logged unless debugging messages are enabled."""
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
        width: Units per hidden layer.
        depth: Number of hidden layers; by default 1 or 2, by the evidence, or 1 with many rows.
        activation: Activation; by default gelu, relu or erf, by the evidence.
        noise: Standard deviation of an observation, in units of the target, by default by the evidence; sample makes it
            an unknown like the weights.
        input_scales: Choose a scale for every input by the evidence; by default with at most 32 inputs.
        transform: Predict asinh(target / b) where errors grow with the target; everything is reported in its own units.
            auto does so where the evidence is clearly for it.
        tails: Tails of the errors: heavy where a few are much larger than most; auto where that is clearly better.
        likelihood: With classify: softmax, the default, or regression on 0/1 targets, which is faster.
        chains: Number of independent chains.
        burn_in: Steps per chain that are discarded first.
        target_ess: Effective draws that chains are run for, about.
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
    width: int = 1024
    depth: int | None = None
    activation: ClosedFormActivation | None = None
    noise: float | str | None = None
    input_scales: bool | None = None
    transform: Transform = "auto"
    tails: Tails = "auto"
    likelihood: ClassLikelihood | None = None
    chains: int = 2
    burn_in: int = 100
    target_ess: int = 400
    max_steps: int = 1000
    max_minutes: float | None = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        check_integer("seed", self.seed, 0, 2**32 - 1)
        for name in ("table", "out"):  # a fit may be resumed from another folder
            object.__setattr__(self, name, os.path.abspath(getattr(self, name)))
        if self.noise not in (None, "sample"):
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
        from widebnn.estimators.models import check_free, save

        check_free(self.out)
        notes: list[str] = []
        rows = with_target(read_table(Path(self.table), notes), self.target, notes)
        columns: dict[str, Any] = {
            "target": self.target,
            "classify": self.classify,
            "drop": self.drop,
            "text": self.text,
        }
        encoder = TableEncoder.fit(rows, **columns, notes=notes)
        x, y = encoder.transform(rows, notes), encoder.targets(rows)
        estimator = self._estimator().set_params(progress=progress)
        _log_notes(notes)
        inputs = f"{len(encoder.columns)} columns, {x.shape[1]} inputs ({_some(encoder.inputs)})"
        log.info(f"Fitting {self.target!r} to {len(x)} rows, {inputs}")
        if self.max_minutes is not None:
            log.info(f"Draws end after {self.max_minutes:g} minutes, enough or not (--max-minutes)")
        with locked(self.running):
            if begin(self.running, "fit", asdict(self)):
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
        _log_inputs(model, x, y)
        log.info(f"Wrote {self.out} ({os.path.getsize(self.out) / 1e6:.1f} MB)")
        return model

    def _estimator(self) -> Any:
        from widebnn.estimators import WideBNNClassifier, WideBNNRegressor

        apart = ("table", "target", "out", "classify", "drop", "text", "transform", "tails", "likelihood", "seed")
        parameters = {name: value for name, value in asdict(self).items() if name not in apart}
        parameters |= {"random_state": self.seed, "store": str(self.running)}
        if not self.classify:
            if self.likelihood is not None:
                raise WidebnnError(f"likelihood {self.likelihood} is for classes; add --classify or leave it out.")
            return WideBNNRegressor(target_transform=self.transform, noise_tails=self.tails, **parameters)
        for name in ("transform", "tails"):
            if getattr(self, name) != "auto":
                raise WidebnnError(f"{name} {getattr(self, name)} is for numbers; leave out either it or --classify.")
        return WideBNNClassifier(likelihood=self.likelihood or "softmax", **parameters)


def describe_model(model: TableModel) -> dict[str, Any]:
    """Describe what was chosen and how well the chains mixed, in values by a few words that say what they are."""
    estimator = model.estimator
    chosen, found = estimator.hyperparameters_, estimator.diagnostics_
    rows = {"hidden layers": chosen.depth, "units per layer": estimator.width, "activation": chosen.activation}
    if not model.encoder.classes:
        scale = estimator.y_bend_
        rows["scale of the target"] = "as it is" if scale is None else f"asinh(target / {scale[0]:.4g})"
        at_median = "" if scale is None else ", at its median"
        rows[f"noise, in units of the target{at_median}"] = float(estimator.noise_.mean())
        rows["tails of the noise"] = "normal" if chosen.row_noise is None else "heavy"
    rows["log evidence (infinite width)"] = chosen.log_evidence
    for name in ("weight", "bias", "readout_weight", "readout_bias"):
        rows[f"prior std: {name.replace('_', ' ')}"] = getattr(chosen, f"{name}_std")
    rows |= {"draws": found["draws"], "effective draws": found["ess"], "largest R-hat": found["rhat"]}
    return rows | {"acceptance rate": found["acceptance_rate"], "steps per chain": found["steps"]}


def load_table_model(path: FilePath) -> TableModel:
    """Read a model that ``TableFit`` saved, without ``posterior_``.

    Raises:
        WidebnnError: The file is missing or corrupted, or the model was not fitted to a table.
    """
    from widebnn.data import TableEncoder
    from widebnn.estimators import load

    estimator = load(path, posterior=False)
    if not hasattr(estimator, "table_"):
        raise WidebnnError(f"{path} was not fitted to a table by widebnn fit; load it in Python, which made it.")
    encoder = TableEncoder.from_json(estimator.table_)
    same_kind = encoder.classes == hasattr(estimator, "classes_") and getattr(estimator, "single_output_", True)
    if len(encoder.inputs) != estimator.n_features_in_ or not same_kind:
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
    """Predict the rows of a table: one row for each, in its order.

    Args:
        model: File that widebnn fit wrote.
        table: CSV file with the columns of the training table, in any order.
        quantiles: Levels of quantiles of a new observation, for regression, separated by commas.
        out: CSV file to write; missing folders are created.
        force: Overwrite the file that is there.
        progress: Whether to show a progress bar; by default on terminals.

    Returns:
        Mean, standard deviation and quantiles of a new observation; or the most probable class, and the probability of
        each.

    Raises:
        WidebnnError: The model or the table cannot be used, or ``out`` exists.

    Examples:
        >>> predict_table("model", "new.csv")["mean"]
    """
    import numpy as np
    import pandas as pd

    given = quantiles.split(",") if isinstance(quantiles, str) else quantiles
    levels = [check_real("each of quantiles", level, above=0, at_most=1) for level in given]
    if 1.0 in levels:
        raise WidebnnError("quantiles must be below 1, where the quantile is infinite; try 0.999.")
    if out is not None:
        _check_output(Path(out), force)
    (estimator, encoder), rows, notes = _load(model, table)
    if encoder.target in rows.columns:
        notes.append(f"column {encoder.target!r} of {table} is what the model predicts, and is ignored.")
    x = encoder.transform(rows, notes)
    _log_notes(notes)
    if encoder.classes:
        (numbers,) = _by_batches(lambda part: (estimator.predict_proba(part),), progress, x)
        predictions = pd.DataFrame(numbers, columns=[f"p[{label}]" for label in estimator.classes_])
        predictions.insert(0, "class", estimator.classes_[numbers.argmax(axis=1)])
    else:

        def describe(part: Any) -> Any:
            return *estimator.predict(part, return_std=True), estimator.predict_quantiles(part, levels).T

        numbers = np.column_stack(_by_batches(describe, progress, x))
        predictions = pd.DataFrame(numbers, columns=["mean", "std", *(f"q{level:g}" for level in levels)])
    _check_finite(rows, numbers)
    if out is not None:
        _write(Path(out), to_csv(predictions).encode())
        log.info(f"Wrote {len(x)} rows of {_some(list(predictions.columns))} to {out}")
    return predictions


def to_csv(predictions: DataFrame) -> str:
    """Format predictions as ``widebnn predict`` writes them: ten digits, one line for each row."""
    return predictions.to_csv(index=False, float_format="%.10g", lineterminator="\n")


def evaluate_table(
    model: FilePath,
    table: FilePath,
    *,
    out: FilePath | None = None,
    force: bool = False,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Compare predictions with the truth in rows that were not used for training.

    Args:
        model: File that widebnn fit wrote.
        table: CSV file with the columns of the training table and the target.
        out: Folder for calibration.png and scores.json; created if missing.
        force: Overwrite the files that are there.
        progress: Whether to show a progress bar; by default on terminals.

    Returns:
        Number of rows and scores, see ``widebnn.diagnostics.calibration``. Regression: RMSE, R2, negative
        log-likelihood per row, coverage of central 50 % and 90 % intervals. Classes: accuracy, log loss, expected
        calibration error.

    Raises:
        WidebnnError: The model or the table cannot be used, or the files exist.

    Examples:
        >>> evaluate_table("model", "test.csv")["rmse"]
    """
    from widebnn.data import with_target

    files = [] if out is None else [Path(out) / "calibration.png", Path(out) / "scores.json"]
    for file in files:
        _check_output(file, force)
    (estimator, encoder), rows, notes = _load(model, table)
    if encoder.target not in rows.columns:
        raise WidebnnError(f"{table} has no column {encoder.target!r}, which the model predicts; add it to compare.")
    rows = with_target(rows, encoder.target, notes)
    x, y = encoder.transform(rows, notes), encoder.targets(rows)
    _log_notes(notes)
    title = f"{encoder.target} in {os.path.basename(table)}, {len(x)} rows"
    compare = _compare_classes if encoder.classes else _compare_numbers
    scores, figure = compare(estimator, rows, x, y, title, progress)
    if files:
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=150)
        _write(files[0], picture.getvalue())
        _write(files[1], json.dumps(scores, indent=2).encode() + b"\n")
        log.info(f"Wrote calibration.png and scores.json to {out}")
    return scores


def _compare_classes(
    estimator: Any, rows: DataFrame, x: np.ndarray, y: np.ndarray, title: str, progress: bool | None
) -> tuple[dict[str, Any], Any]:
    """Scores and a reliability diagram."""
    import pandas as pd

    from widebnn.data.columns import refuse_cell
    from widebnn.diagnostics.calibration import classification_scores, reliability
    from widebnn.figures import reliability_figure

    known = estimator.classes_.astype(str)
    labels = pd.Index(known).get_indexer(y.astype(str))
    if (labels < 0).any():  # it has no probability
        problem = f"is not a class of the model ({_some(known.tolist())}): remove such rows, or fit to a table with it"
        refuse_cell(rows, estimator.table_["target"], int((labels < 0).argmax()), problem)
    (probabilities,) = _by_batches(lambda part: (estimator.predict_proba(part),), progress, x)
    _check_finite(rows, probabilities)
    scores = {"rows": len(x), **classification_scores(probabilities, labels)}
    return scores, reliability_figure(reliability(probabilities, labels), title)


def _compare_numbers(
    estimator: Any, rows: DataFrame, x: np.ndarray, y: np.ndarray, title: str, progress: bool | None
) -> tuple[dict[str, Any], Any]:
    """Scores and a figure of the coverage of intervals."""
    import numpy as np

    from widebnn.diagnostics.calibration import regression_scores
    from widebnn.figures import coverage_figure

    def compare(part: Any, truth: Any) -> Any:
        return estimator.predict(part), estimator.log_density(part, truth), estimator.cdf(part, truth)

    mean, log_density, below = _by_batches(compare, progress, x, y)
    _check_finite(rows, np.column_stack([mean, log_density]))
    return {"rows": len(x), **regression_scores(y, mean, log_density, below)}, coverage_figure(below, title)


def _load(model: FilePath, table: FilePath) -> tuple[TableModel, DataFrame, list[str]]:
    """The model, the table, and notes on the table."""
    from widebnn.data import read_table

    notes: list[str] = []
    return load_table_model(model), read_table(Path(table), notes), notes


def _by_batches(
    function: Callable[..., tuple[np.ndarray, ...]], progress: bool | None, *arrays: np.ndarray
) -> list[np.ndarray]:
    """The results of a function of some rows for all of them, with a progress bar where that takes long."""
    import numpy as np
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    starts = range(0, len(arrays[0]), BATCH)
    hidden = progress is False or len(starts) < 3 or not console.is_terminal
    parts = [
        function(*(array[start : start + BATCH] for array in arrays))
        for start in track(starts, "predicting", console=console, transient=True, disable=hidden)
    ]
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def _check_finite(table: DataFrame, numbers: np.ndarray) -> None:
    import numpy as np

    from widebnn.data.columns import place

    bad = np.flatnonzero(~np.isfinite(numbers).all(axis=1))
    if len(bad):
        raise WidebnnError(
            f"the row in {place(table, bad[0])} of {table.attrs['source']} has no finite prediction: its numbers are "
            "too far from those of the training table; check them."
        )


def _log_inputs(model: TableModel, x: np.ndarray, y: np.ndarray) -> None:
    """How much predictions depend on each column, and how quickly they change along each input."""
    from widebnn.estimators.base import MANY_INPUTS
    from widebnn.estimators.importance import column_importances

    estimator, encoder = model
    if 1 < len(encoder.columns) <= MANY_INPUTS:
        found = zip(column_importances(estimator, x, y, list(encoder.groups.values())), encoder.groups, strict=True)
        listed = _some([f"{name} {value:.2g}" for value, name in sorted(found, reverse=True)])
        score = "accuracy" if encoder.classes else "R2"
        log.info(f"Importance of the columns (how much {score} falls if one is shuffled): {listed}")
    if estimator.hyperparameters_.input_scales is not None:
        scales = sorted(zip(estimator.hyperparameters_.input_scales, encoder.inputs, strict=True), reverse=True)
        listed = _some([f"{name} {scale:.2g}" for scale, name in scales])
        log.info(f"Scales of the inputs (how quickly the function changes along one, not how much): {listed}")


def _log_notes(notes: list[str]) -> None:
    """Log notes on a table: all with debugging messages, otherwise the first few and how many there are."""
    everything = log.isEnabledFor(logging.DEBUG)
    for note in notes if everything else notes[:FEW_NOTES]:
        short = everything or len(note) <= SHORT_NOTE
        log.info(f"note: {note if short else f'{note[:SHORT_NOTE]} ... (--verbose shows the rest)'}")
    if not everything and (more := len(notes) - FEW_NOTES) > 0:
        log.info(f"{more} more note{'s' if more > 1 else ''} with --verbose")


def _some(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f", ... ({len(names)} in all)" if len(names) > most else "")


def _check_output(path: Path, force: bool) -> None:
    """Before any work is done: whether the file may be written, and can be."""
    if path.is_dir():
        raise WidebnnError(f"{path} is a folder; give the name of a file.")
    if path.exists() and not force:
        raise WidebnnError(f"{path} exists already; choose another --out, or overwrite it with --force.")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    make_folder(above if above.is_dir() else path.parent)  # folders that are missing are created with the result


def _write(path: Path, content: bytes) -> None:
    make_folder(path.parent)
    with output(path):
        write_bytes(path, content)
