"""Predictions for the rows of a table beside the truth."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from widebnn.errors import WidebnnError
from widebnn.runs.files import check_output, write_output
from widebnn.tables.fit import FilePath, log
from widebnn.tables.predict import by_batches, load_table_model


def evaluate_table(
    model: FilePath, table: FilePath, *, out: FilePath | None = None, force: bool = False, progress: bool | None = None
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
    from widebnn.data import read_table, with_target
    from widebnn.data.columns import log_notes

    files = [] if out is None else [Path(out) / "calibration.png", Path(out) / "scores.json"]
    for file in files:
        check_output(file, force)
    estimator, encoder = load_table_model(model)
    notes: list[str] = []
    rows = read_table(table, notes)
    if encoder.target not in rows.columns:
        raise WidebnnError(f"{table} has no column {encoder.target!r}, which the model predicts; add it to compare.")
    rows = with_target(rows, encoder.target, notes)
    x, y = encoder.transform(rows, notes), encoder.targets(rows)
    log_notes(notes)
    title = f"{encoder.target} in {os.path.basename(table)}, {len(x)} rows"
    found, figure = _compare(estimator, rows, x, y, title, progress)
    scores = {"rows": len(x), **found}
    if files:
        figure.savefig(picture := io.BytesIO(), format="png", dpi=150)
        write_output(files[0], picture.getvalue())
        write_output(files[1], json.dumps(scores, indent=2).encode() + b"\n")
        log.info(f"Wrote calibration.png and scores.json to {out}")
    return scores


def _compare(
    estimator: Any, rows: Any, x: np.ndarray, y: np.ndarray, title: str, progress: bool | None
) -> tuple[Mapping[str, float | None], Any]:
    """Scores, and a reliability diagram or a figure of the coverage of intervals."""
    import pandas as pd

    from widebnn import figures
    from widebnn.data.columns import listed, refuse_cell
    from widebnn.diagnostics import calibration

    if not hasattr(estimator, "classes_"):

        def compare(part: Any, truth: Any) -> Any:
            return estimator.predict(part), estimator.log_density(part, truth), estimator.cdf(part, truth)

        mean, log_density, below = by_batches(compare, progress, rows, x, y)
        return calibration.regression_scores(y, mean, log_density, below), figures.coverage_figure(below, title)
    known = estimator.classes_.astype(str)
    labels = pd.Index(known).get_indexer(y.astype(str))
    if (labels < 0).any():  # it has no probability
        problem = (
            f"is not a class of the model ({listed(known.tolist(), 8)}): remove such rows, or fit to a table with it"
        )
        refuse_cell(rows, estimator.table_["target"], int((labels < 0).argmax()), problem)
    (p,) = by_batches(lambda part: [estimator.predict_proba(part)], progress, rows, x)
    figure = figures.reliability_figure(calibration.reliability(p, labels), title)
    return calibration.classification_scores(p, labels), figure
