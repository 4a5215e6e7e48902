"""What a data set is here, and the preprocessing that makes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from widebnn.errors import WidebnnError

MAX_CLASSES = 1000
"""More distinct labels than this are counts, measurements or names."""
Rows = slice | np.ndarray


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test rows as 2-D float64 arrays, preprocessed with statistics of the training rows alone.

    Attributes:
        x_train: n x m, standardised; ``x_test`` likewise.
        y_train: n x c, one-hot minus 1/c for classes, standardised columns for regression; ``y_test`` likewise.
        labels_train: Class indices 0..c-1, None for regression; ``labels_test`` likewise.
        y_mean: Shape (c,): the training mean of the targets; zeros for classes.
        y_scale: Shape (c,): the training standard deviation (1 for a constant column); ones for classes.
        class_names: What each class index stands for; empty for regression.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    labels_train: np.ndarray | None
    labels_test: np.ndarray | None
    y_mean: np.ndarray
    y_scale: np.ndarray
    class_names: tuple[str, ...] = ()

    def to_original_units(self, y: np.ndarray) -> np.ndarray:
        """Targets or predictions of shape (..., c) in the units of the data: y * y_scale + y_mean."""
        return y * self.y_scale + self.y_mean


def classification(
    name: str,
    x: np.ndarray,
    labels: np.ndarray,
    classes: Sequence[object],
    train: Rows,
    test: Rows,
    axis: int | None = 0,
) -> Dataset:
    """Rows with labels 0..c-1; ``axis`` None standardises with one mean and standard deviation for all columns."""
    x_train, x_test, _, _ = _standardise("inputs", x[train], x[test], axis)
    l_train, l_test, count = labels[train].astype(np.int64), labels[test].astype(np.int64), len(classes)
    y_train, y_test = ((one[:, None] == np.arange(count)) - 1.0 / count for one in (l_train, l_test))
    names = tuple(map(str, classes))
    return Dataset(name, x_train, y_train, x_test, y_test, l_train, l_test, np.zeros(count), np.ones(count), names)


def regression(name: str, x: np.ndarray, y: np.ndarray, train: Rows, test: Rows) -> Dataset:
    """Rows with real targets (rows x c); all columns are standardised one by one."""
    x_train, x_test, _, _ = _standardise("inputs", x[train], x[test])
    # A constant target keeps its unit, so that a test value that differs from it is not lost.
    y_train, y_test, y_mean, y_scale = _standardise("targets", y[train], y[test], constant=1.0)
    return Dataset(name, x_train, y_train, x_test, y_test, None, None, y_mean, y_scale)


def split_rows(
    source: str, rows: int, n_train: int | None, n_test: int | None, boundary: int | None = None
) -> tuple[slice, slice]:
    """Which rows train and test: the first ones each, test rows from ``boundary`` on where they are stored apart.

    A missing count is all rows that are left; with neither, and no boundary, a fifth of the rows test.
    """
    if n_test is None:
        n_test = rows - boundary if boundary else rows // 5 if n_train is None else max(rows - n_train, 0)
    if n_train is None:
        n_train = boundary or max(rows - n_test, 1)
    start = boundary or n_train
    if n_train > start or start + n_test > rows:
        has = f"{boundary} training and {rows - boundary} test rows" if boundary else f"{rows} rows"
        raise WidebnnError(
            f"{source} has {has}, too few for n_train={n_train} and n_test={n_test}; ask for {rows} at most."
        )
    return slice(n_train), slice(start, start + n_test)


def check_classes(what: str, count: int, advice: str, most: int = MAX_CLASSES) -> None:
    """Refuse labels that cannot be classes."""
    if count < 2:
        raise WidebnnError(f"{what} has one class only; it needs at least two, or numbers for regression.")
    if count > most:
        raise WidebnnError(f"{what} has {count} distinct labels, too many for classes; {advice}.")


def _standardise(
    name: str, train: np.ndarray, test: np.ndarray, axis: int | None = 0, constant: float = np.inf
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Train and test in units of the training mean and standard deviation, and these two.

    The scale of a constant column is infinite by default: what training rows say nothing about is 0 in test rows.
    """
    train, test = (np.array(one, np.float64) for one in (train, test))
    with np.errstate(all="ignore"):
        low, is_constant = train.min(axis), np.ptp(train, axis) == 0
        mean = np.where(is_constant, low, train.mean(axis))  # the mean of n copies of 0.1 need not be 0.1
        scale = np.where(is_constant, constant, train.std(axis))
        for one in (train, test):
            one -= mean
            one /= scale
    if not (np.isfinite(train).all() and np.isfinite(test).all()):
        raise WidebnnError(f"the {name} are too large to standardise in double precision; rescale them first.")
    return train, test, mean, scale
