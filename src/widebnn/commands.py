"""The commands for people with a table: fit, predict, evaluate."""

from __future__ import annotations

import csv
import inspect
import io
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table as Grid

from widebnn.errors import WidebnnError, check_real
from widebnn.runs.files import locked, make_folder, output, write_bytes
from widebnn.verbosity import console as new_console
from widebnn.verbosity import is_quiet, is_verbose, progress
from widebnn.verbosity import say as _say
from widebnn.verbosity import say_notes as _say_notes

if TYPE_CHECKING:  # importing these takes time that --help should not
    import numpy as np
    import pandas as pd

    from widebnn.data import TableEncoder

BATCH = 2048
"""Rows predicted at a time: a prediction at one row is some thousand numbers."""
ModelFolder = Annotated[Path, typer.Argument(help="Folder that widebnn fit wrote.")]


class FitActivation(StrEnum):
    """Activations whose evidence is known in closed form, for --help."""

    gelu = "gelu"
    relu = "relu"
    erf = "erf"
    sin = "sin"


class Likelihood(StrEnum):
    """Likelihoods of classes, for --help."""

    softmax = "softmax"
    regression = "regression"


class Tails(StrEnum):
    """Tails of the errors of regression, for --help."""

    auto = "auto"
    heavy = "heavy"
    normal = "normal"


class Transform(StrEnum):
    """Scales of the target, for --help."""

    auto = "auto"
    asinh = "asinh"
    none = "none"


def fit(
    table: Annotated[Path, typer.Argument(help="CSV file, the first line with the names of the columns.")],
    target: Annotated[str, typer.Option(help="Column to predict.")],
    out: Annotated[Path, typer.Option(help="New folder for the model.")],
    classify: Annotated[
        bool, typer.Option("--classify", help="The target is a class: predict probabilities of its values.")
    ] = False,
    drop: Annotated[
        list[str] | None, typer.Option(help="Column to leave out, such as an identifier; may be given repeatedly.")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="Column whose numbers are names of categories; may be given repeatedly.")
    ] = None,
    width: Annotated[int, typer.Option(min=1, help="Units per hidden layer.")] = 1024,
    depth: Annotated[
        int | None,
        typer.Option(min=1, help="Number of hidden layers.", show_default="1 or 2, by the evidence; 1 with many rows"),
    ] = None,
    activation: Annotated[
        FitActivation | None, typer.Option(help="Activation.", show_default="gelu, relu or erf, by the evidence")
    ] = None,
    noise: Annotated[
        str | None,
        typer.Option(
            help="Standard deviation of an observation, in units of the target; sample makes it an unknown like the "
            "weights.",
            show_default="by the evidence",
        ),
    ] = None,
    input_scales: Annotated[
        bool | None,
        typer.Option(help="Choose a scale for every input by the evidence.", show_default="with at most 32 inputs"),
    ] = None,
    transform: Annotated[
        Transform | None,
        typer.Option(
            help="Predict asinh(target / b) where errors grow with the target; everything is reported in its own "
            "units.",
            show_default="auto: where the evidence is clearly for it",
        ),
    ] = None,
    tails: Annotated[
        Tails | None,
        typer.Option(
            help="Tails of the errors: heavy where a few are much larger than most.",
            show_default="auto: heavy where that is clearly better",
        ),
    ] = None,
    likelihood: Annotated[
        Likelihood | None,
        typer.Option(
            help="With --classify: softmax, or regression on 0/1 targets, which is faster.", show_default="softmax"
        ),
    ] = None,
    chains: Annotated[int, typer.Option(min=1, help="Number of independent chains.")] = 2,
    burn_in: Annotated[int, typer.Option(min=1, help="Steps per chain that are discarded first.")] = 100,
    target_ess: Annotated[int, typer.Option(min=1, help="Effective draws that chains are run for, about.")] = 400,
    max_steps: Annotated[int, typer.Option(min=4, help="Most steps per chain.")] = 1000,
    max_minutes: Annotated[
        float, typer.Option(help="Draws end after so many minutes, enough or not; inf: they do not.")
    ] = 10.0,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="The same seed gives the same model.")] = 0,
) -> None:
    """Fit a wide Bayesian neural network to a table and save it.

    Columns of numbers are used as they are; columns of text become a 0/1 input for each value. Missing values may
    stay empty: numbers get the median and a 0/1 input that says so. Rows without a target are left out. Cells are
    separated by commas, semicolons or tabs. Chains run for as many effective draws as wanted, or for --max-minutes:
    thousands of rows or little noise take longer. A table for which that time is far too short is refused before
    anything runs.

    Example: widebnn fit train.csv --target price --out model
    """
    from widebnn.estimators.saving import check_free

    settings = {
        "table": str(table.absolute()),
        "target": target,
        "out": str(check_free(out)),
        "classify": classify,
        "drop": drop or [],
        "text": text or [],
        "width": width,
        "depth": depth,
        "activation": None if activation is None else activation.value,
        "noise": noise,
        "input_scales": input_scales,
        "transform": None if transform is None else transform.value,
        "tails": None if tails is None else tails.value,
        "likelihood": None if likelihood is None else likelihood.value,
        "chains": chains,
        "burn_in": burn_in,
        "target_ess": target_ess,
        "max_steps": max_steps,
        "max_minutes": None if max_minutes == math.inf else check_real("--max-minutes", max_minutes, above=0),
        "random_state": seed,
    }
    fit_table(settings)


SETTINGS = (inspect.signature(fit).parameters.keys() - {"seed"}) | {"random_state"}
NETWORK = ("width", "depth", "activation", "input_scales")
SAMPLING = ("chains", "burn_in", "target_ess", "max_steps", "max_minutes")


def fit_table(settings: dict[str, Any]) -> None:
    """Fit, or go on with, what the settings say; while it runs the chains are in a folder beside the model's."""
    from widebnn.data import TableEncoder, read_table, with_target
    from widebnn.estimators.saving import check_free, save
    from widebnn.runs.command import begin
    from widebnn.unfinished import check_names

    check_names("fit", settings, SETTINGS)
    began = time.perf_counter()
    notes: list[str] = []
    table, target, classify = Path(settings["table"]), settings["target"], settings["classify"]
    folder, console = check_free(settings["out"]), new_console()
    rows = with_target(read_table(table, notes), target, notes)
    encoding = TableEncoder.fit(
        rows, target=target, classify=classify, drop=settings["drop"], text=settings["text"], notes=notes
    )
    x, y = encoding.transform(rows, notes), encoding.targets(rows)
    inputs = f"{len(encoding.columns)} columns, {x.shape[1]} inputs ({_some(encoding.inputs)})"
    noise = settings["noise"]
    running = folder.with_name(folder.name + ".run")
    estimator = _estimator(
        classify,
        likelihood=settings["likelihood"],
        transform=settings["transform"],
        tails=settings["tails"],
        noise=noise if noise in (None, "sample") else check_real("noise", noise, above=0),
        random_state=settings["random_state"],
        progress=progress(),
        store=str(running),
        **{name: settings[name] for name in NETWORK + SAMPLING},
    )
    _say_notes(console, notes)
    _say(console, f"Fitting {target!r} to {len(x)} rows, {inputs}")
    if settings["max_minutes"] is not None:
        _say(console, f"Draws end after {settings['max_minutes']:g} minutes, enough or not (--max-minutes)")
    with locked(running):
        if begin(running, "fit", settings):
            _say(console, f"Going on with the fit in {running}")
        try:
            model = estimator.fit(x, y)
        except KeyboardInterrupt:
            _say(
                console,
                f"Interrupted: {folder} was not written; the same command, or widebnn resume {running}, goes on.",
            )
            # A program may still run in JAX's threads, and the interpreter would crash if it took its data away.
            sys.stdout.flush()
            os._exit(130)
        except WidebnnError:
            if not any(path.is_dir() for path in running.iterdir()):
                shutil.rmtree(running)  # refused before anything ran
            raise
        save(model, folder, {"table": encoding.to_json()})
        shutil.rmtree(running)
    _show(console, "the model", _summary(model) | {"seconds in total": time.perf_counter() - began})
    _say_inputs(console, model, encoding, x, y)
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    _say(console, f"Wrote {folder} ({size:.1f} MB). Next: widebnn predict {folder} new.csv --out predictions.csv")


def predict(
    model: ModelFolder,
    table: Annotated[Path, typer.Argument(help="CSV file with the columns of the training table, in any order.")],
    out: Annotated[
        Path | None,
        typer.Option(help="CSV file to write; missing folders are created.", show_default="standard output"),
    ] = None,
    quantiles: Annotated[
        str, typer.Option(help="Of a new observation, for regression, separated by commas.")
    ] = "0.05,0.5,0.95",
    force: Annotated[bool, typer.Option("--force", help="Write over the file that is there.")] = False,
) -> None:
    """Predict the rows of a table: one line for each, in its order.

    Regression: mean and standard deviation of a new observation, and its quantiles. Classes: the most probable one,
    and the probability of each.

    Example: widebnn predict model new.csv --out predictions.csv
    """
    from widebnn.data import read_table

    levels = [check_real("each of quantiles", one, above=0, at_most=1) for one in quantiles.split(",")]  # type: ignore[arg-type]
    if 1.0 in levels:
        raise WidebnnError("quantiles must be below 1, where the quantile is infinite; try 0.999.")
    if out is not None:
        _check_file(out, force)
    fitted, encoding = _load(model)
    notes: list[str] = []
    rows = read_table(table, notes)
    if encoding.target in rows.columns:
        notes.append(f"column {encoding.target!r} of {table} is what the model predicts, and is ignored.")
    x = encoding.transform(rows, notes)
    console = new_console(stderr=True)
    _say_notes(console, notes)
    if encoding.classes:
        header = ["class", *(f"p[{label}]" for label in fitted.classes_)]
        (probabilities,) = _in_batches(lambda part: (fitted.predict_proba(part),), x)
        columns = list(probabilities.T)
        first = [[str(fitted.classes_[best])] for best in probabilities.argmax(axis=1)]
    else:
        header = ["mean", "std", *(f"q{level:g}" for level in levels)]

        def describe(part):
            return *fitted.predict(part, return_std=True), fitted.predict_quantiles(part, levels).T

        mean, std, found = _in_batches(describe, x)
        columns, first = [mean, std, *found.T], [[] for _ in x]
    _check_finite(rows, columns)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for start, numbers in zip(first, zip(*columns, strict=True), strict=True):
        writer.writerow([*start, *(f"{number:.10g}" for number in numbers)])
    if out is None:
        sys.stdout.write(text.getvalue())
    else:
        created = "" if out.parent.is_dir() else f" (created folder {out.parent})"
        _write(out, text.getvalue().encode())
        _say(console, f"Wrote {len(x)} rows of {_some(header)} to {out}{created}")


def evaluate(
    model: ModelFolder,
    table: Annotated[Path, typer.Argument(help="CSV file with the columns of the training table and the target.")],
    as_json: Annotated[bool, typer.Option("--json", help="End with one line of JSON on stdout.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for calibration.png and scores.json; created if missing.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over the files that are there.")] = False,
) -> None:
    """Compare predictions with the truth in rows that did not train.

    Regression: RMSE, R2, negative log-likelihood per row, and how many targets lie inside their central 50 % and
    90 % intervals. Classes: accuracy, log loss and expected calibration error.

    Example: widebnn evaluate model test.csv --out evaluation
    """
    from widebnn.data import read_table, with_target
    from widebnn.diagnostics.calibration import classification_scores, regression_scores, reliability
    from widebnn.figures import coverage_figure, reliability_figure

    files = [] if out is None else [out / "calibration.png", out / "scores.json"]
    for file in files:
        _check_file(file, force)
    fitted, encoding = _load(model)
    notes: list[str] = []
    rows = read_table(table, notes)
    if encoding.target not in rows.columns:
        raise WidebnnError(f"{table} has no column {encoding.target!r}, which the model predicts; add it to compare.")
    rows = with_target(rows, encoding.target, notes)
    x, y = encoding.transform(rows, notes), encoding.targets(rows)
    console = new_console(stderr=as_json)
    _say_notes(console, notes)
    title = f"{encoding.target} in {table.name}, {len(x)} rows"
    if encoding.classes:
        (probabilities,) = _in_batches(lambda part: (fitted.predict_proba(part),), x)
        _check_finite(rows, [probabilities.sum(axis=1)])
        labels = _indices(fitted.classes_, y, rows, encoding.target)
        scores: dict[str, Any] = dict(classification_scores(probabilities, labels))
        figure = reliability_figure(reliability(probabilities, labels), title) if files else None
    else:

        def compare(part, truth):
            return fitted.predict(part), fitted.log_density(part, truth), fitted.cdf(part, truth)

        mean, log_density, below = _in_batches(compare, x, y)
        _check_finite(rows, [mean, log_density])
        scores = dict(regression_scores(y, mean, log_density, below))
        figure = coverage_figure(below, title) if files else None
    scores = {"rows": len(x), **scores}
    if figure is not None:
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=150)
        for file, content in zip(
            files, (picture.getvalue(), json.dumps(scores, indent=2).encode() + b"\n"), strict=True
        ):
            _write(file, content)
    names = {"rmse": "RMSE", "r2": "R2", "nll": "negative log-likelihood per row", "log_loss": "log loss"}
    names |= {"coverage_50": "inside 50 % intervals", "coverage_90": "inside 90 % intervals"}
    names |= {"ece": "expected calibration error"}
    _show(console, title, {names.get(name, name): value for name, value in scores.items()})
    if files:
        _say(console, f"Wrote calibration.png and scores.json to {out}")
    if as_json:
        typer.echo(json.dumps(scores))


# --- models


def _estimator(
    classify: bool, likelihood: str | None, transform: str | None, tails: str | None, **parameters: Any
) -> Any:
    from widebnn import estimators

    if classify:
        for name, value in {"transform": transform, "tails": tails}.items():
            if value is not None:
                raise WidebnnError(f"--{name} {value} is for numbers; drop it or --classify.")
        return estimators.WideBNNClassifier(likelihood=likelihood or "softmax", **parameters)
    if likelihood is not None:
        raise WidebnnError(f"--likelihood {likelihood} is for classes; add --classify or leave it out.")
    return estimators.WideBNNRegressor(target_transform=transform or "auto", noise_tails=tails or "auto", **parameters)


def _load(folder: Path) -> tuple[Any, TableEncoder]:
    """The estimator and the encoding of its tables."""
    from widebnn.data import TableEncoder
    from widebnn.estimators.saving import load_with_extra

    fitted, extra = load_with_extra(folder, posterior=False)
    if "table" not in extra:
        raise WidebnnError(f"{folder} was not fitted to a table by widebnn fit; load it in Python, which made it.")
    encoding = TableEncoder.from_json(extra["table"])
    one_target = getattr(fitted, "single_output_", True)  # what widebnn fit makes
    classes = encoding.classes == hasattr(fitted, "classes_")
    if len(encoding.inputs) != fitted.n_features_in_ or not classes or not one_target:
        raise WidebnnError(f"the columns of {folder} do not fit its network; fit again.")
    return fitted, encoding


def _in_batches(function: Callable[..., tuple[np.ndarray, ...]], *arrays: np.ndarray) -> list[np.ndarray]:
    """The results of a function of some rows for all of them, with a bar on terminals where that takes long."""
    import numpy as np

    console = Console(stderr=True)
    starts = range(0, len(arrays[0]), BATCH)
    quiet = is_quiet() or len(starts) < 3 or not console.is_terminal
    parts = [
        function(*(array[start : start + BATCH] for array in arrays))
        for start in track(starts, "predicting", console=console, transient=True, disable=quiet)
    ]
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def _indices(classes: np.ndarray, labels: np.ndarray, table: pd.DataFrame, target: str) -> np.ndarray:
    """Where the model has each label; one that it does not have has no probability."""
    import numpy as np

    from widebnn.data.columns import refuse_cell

    index = {str(label): i for i, label in enumerate(classes.tolist())}
    cells = [str(label) for label in labels.tolist()]
    unknown = [at for at, cell in enumerate(cells) if cell not in index]
    if unknown:
        problem = f"is not a class of the model ({_some(list(index))}): remove such rows, or fit to a table that has it"
        refuse_cell(table, target, unknown[0], problem)
    return np.array([index[cell] for cell in cells])


def _check_finite(table: pd.DataFrame, columns: list[np.ndarray]) -> None:
    import numpy as np

    from widebnn.data.columns import place

    bad = np.flatnonzero(~np.isfinite(np.stack(columns)).all(axis=0))
    if len(bad):
        raise WidebnnError(
            f"the row in {place(table, bad[0])} of {table.attrs['source']} has no finite prediction: its numbers are "
            "too far from those of the training table; check them."
        )


# --- what is seen and written


def _say_inputs(console: Console, model: Any, encoding: TableEncoder, x: np.ndarray, y: np.ndarray) -> None:
    """How much predictions depend on each column, and how quickly they change along each input."""
    from widebnn.estimators.base import MANY_INPUTS
    from widebnn.estimators.importance import column_importances

    if 1 < len(encoding.columns) <= MANY_INPUTS:
        found = zip(column_importances(model, x, y, list(encoding.groups.values())), encoding.groups, strict=True)
        listed = _some([f"{name} {value:.2g}" for value, name in sorted(found, reverse=True)])
        score = "accuracy" if encoding.classes else "R2"
        _say(console, f"Importance of the columns (how much {score} falls if one is shuffled): {listed}")
    if model.hyperparameters_.input_scales is not None:
        scales = sorted(zip(model.hyperparameters_.input_scales, encoding.inputs, strict=True), reverse=True)
        listed = _some([f"{name} {scale:.2g}" for scale, name in scales])
        _say(console, f"Scales of the inputs (how quickly the function changes along one, not how much): {listed}")


def _summary(model: Any) -> dict[str, Any]:
    """What was chosen and how well the chains mixed."""
    chosen, found = model.hyperparameters_, model.diagnostics_
    rows: dict[str, Any] = {"hidden layers": chosen.depth, "units per layer": model.width}
    rows["activation"] = chosen.activation
    if hasattr(model, "noise_"):
        bent = model.y_bend_ is not None
        rows["scale of the target"] = f"asinh(target / {model.y_bend_[0]:.4g})" if bent else "as it is"
        rows["noise, in units of the target" + (", at its median" if bent else "")] = float(model.noise_.mean())
        rows["tails of the noise"] = "normal" if chosen.row_noise is None else "heavy"
    if is_verbose():
        rows["log evidence (infinite width)"] = chosen.log_evidence
        for name in ("weight", "bias", "readout_weight", "readout_bias"):
            rows[f"prior std: {name.replace('_', ' ')}"] = getattr(chosen, f"{name}_std")
    rows |= {"draws": found["draws"], "effective draws": found["ess"], "largest R-hat": found["rhat"]}
    return rows | {"acceptance rate": found["acceptance_rate"], "steps per chain": found["steps"]}


def _show(console: Console, title: str, rows: dict[str, Any]) -> None:
    grid = Grid(title=escape(title))
    grid.add_column("quantity")
    grid.add_column("value", justify="right")
    for name, value in rows.items():
        if value is not None:
            grid.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    console.print(grid)


def _some(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f", ... ({len(names)} in all)" if len(names) > most else "")


def _check_file(path: Path, force: bool) -> None:
    """Before any work is done."""
    if path.is_dir():
        raise WidebnnError(f"{path} is a folder; give the name of a file.")
    if path.exists() and not force:
        raise WidebnnError(f"{path} is there already; choose another --out, or write over it with --force.")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    # What is missing below a folder that can be written to is only created with a result; below a file it cannot be.
    make_folder(above if above.is_dir() else path.parent)


def _write(path: Path, content: bytes) -> None:
    """Complete or not at all; missing folders are created."""
    make_folder(path.parent)
    with output(path):
        write_bytes(path, content)
