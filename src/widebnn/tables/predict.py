"""Models read from their files, and predictions for the rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from widebnn.errors import WidebnnError, check_real
from widebnn.runs.files import check_output, write_output
from widebnn.tables.fit import FilePath, TableModel, log

if TYPE_CHECKING:
    from pandas import DataFrame
else:
    DataFrame = Any  # the command line evaluates annotations

BATCH = 2048
"""Rows predicted between two updates of the progress bar."""


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
    import pandas as pd

    from widebnn.data import read_table
    from widebnn.data.columns import listed, log_notes

    given = quantiles.split(",") if isinstance(quantiles, str) else quantiles
    levels = [check_real("each of quantiles", level, above=0, at_most=1) for level in given]
    if 1.0 in levels:
        raise WidebnnError("quantiles must be below 1, where the quantile is infinite; try 0.999.")
    if out is not None:
        check_output(Path(out), force)
    estimator, encoder = load_table_model(model)
    notes: list[str] = []
    rows = read_table(table, notes)
    if encoder.target in rows.columns:
        notes.append(f"column {encoder.target!r} of {table} is what the model predicts, and is ignored.")
    x = encoder.transform(rows, notes)
    log_notes(notes)
    if encoder.classes:
        (numbers,) = by_batches(lambda part: [estimator.predict_proba(part)], progress, rows, x)
        predictions = pd.DataFrame(numbers, columns=[f"p[{label}]" for label in estimator.classes_])
        predictions.insert(0, "class", estimator.classes_[numbers.argmax(axis=1)])
    else:
        numbers = np.column_stack(by_batches(lambda part: _describe(estimator, levels, part), progress, rows, x))
        predictions = pd.DataFrame(numbers, columns=["mean", "std", *(f"q{level:g}" for level in levels)])
    if out is not None:
        write_output(Path(out), to_csv(predictions).encode())
        log.info(f"Wrote {len(x)} rows of {listed(list(predictions.columns), 8)} to {out}")
    return predictions


def _describe(estimator: Any, levels: list[float], x: np.ndarray) -> Sequence[np.ndarray]:
    return *estimator.predict(x, return_std=True), estimator.predict_quantiles(x, levels).T


def to_csv(predictions: DataFrame) -> str:
    """Format predictions as ``widebnn predict`` writes them: ten digits, one line for each row."""
    return predictions.to_csv(index=False, float_format="%.10g", lineterminator="\n")


def by_batches(
    function: Callable[..., Sequence[np.ndarray]], progress: bool | None, table: DataFrame, *arrays: np.ndarray
) -> list[np.ndarray]:
    """The results of a function of some rows for all of them, with a progress bar where that takes long.

    Raises:
        WidebnnError: A result is not finite; the message names the row of the table.
    """
    from rich.console import Console
    from rich.progress import track

    from widebnn.data.columns import place

    console = Console(stderr=True)
    starts = range(0, len(table), BATCH)
    hidden = progress is False or len(starts) < 3 or not console.is_terminal
    parts = [
        function(*(array[start : start + BATCH] for array in arrays))
        for start in track(starts, "predicting", console=console, transient=True, disable=hidden)
    ]
    results = [np.concatenate(part) for part in zip(*parts, strict=True)]
    bad = np.flatnonzero(~np.isfinite(np.column_stack(results)).all(axis=1))
    if len(bad):
        raise WidebnnError(
            f"the row in {place(table, bad[0])} of {table.attrs['source']} has no finite prediction: its numbers are "
            "too far from those of the training table; check them."
        )
    return results
