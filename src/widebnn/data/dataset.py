"""What a data set is here, and the preprocessing that makes one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from widebnn.errors import WidebnnError

MAX_CLASSES = 1000
"""More distinct labels than this are counts, measurements or names."""
Arrays = tuple[np.ndarray, np.ndarray]
"""Training and test rows."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test rows, preprocessed; all inputs and targets are 2-D float64 arrays.

    Every statistic used in the preprocessing comes from the training rows alone.
    """

    name: str
    x_train: np.ndarray
    """n x m, standardised."""
    y_train: np.ndarray
    """n x c: one-hot minus 1/c for classes, standardised columns for regression."""
    x_test: np.ndarray
    y_test: np.ndarray
    labels_train: np.ndarray | None
    """Class indices 0..c-1; None for regression."""
    labels_test: np.ndarray | None
    y_mean: np.ndarray
    """Shape (c,): the training mean of the targets; zeros for classes."""
    y_scale: np.ndarray
    """Shape (c,): the training standard deviation (1 for a constant column); ones for classes."""
    class_names: tuple[str, ...] = ()
    """What each class index stands for; empty for regression."""

    @property
    def n_classes(self) -> int:
        """The number of classes, 0 for regression."""
        return len(self.class_names)

    def to_original_units(self, y: np.ndarray) -> np.ndarray:
        """Targets or predictions of shape (..., c) in the units of the data: y * y_scale + y_mean."""
        return y * self.y_scale + self.y_mean


def classification(
    name: str, x: Arrays, labels: Arrays, class_names: Sequence[str], *, images: bool = False
) -> Dataset:
    """A data set with labels.

    Images have one mean and one standard deviation for all pixels of all training images, tables one for each column.
    """
    count = len(class_names)
    x_train, x_test, _, _ = _standardise("inputs", *x, axis=None if images else 0)
    labels_train, labels_test = (np.asarray(one, np.int64) for one in labels)
    check_memory(f"the targets of {name}", (len(labels_train) + len(labels_test)) * count)
    y_train, y_test = ((one[:, None] == np.arange(count)) - 1.0 / count for one in (labels_train, labels_test))
    names = tuple(map(str, class_names))
    return Dataset(
        name, x_train, y_train, x_test, y_test, labels_train, labels_test, np.zeros(count), np.ones(count), names
    )


def regression(name: str, x: Arrays, y: Arrays) -> Dataset:
    """A table with real targets (rows x c); all columns are standardised one by one."""
    x_train, x_test, _, _ = _standardise("inputs", *x)
    # A constant target keeps its unit, so that a test value that differs from it is not lost.
    y_train, y_test, y_mean, y_scale = _standardise("targets", *y, constant=1.0)
    return Dataset(name, x_train, y_train, x_test, y_test, None, None, y_mean, y_scale)


def split_rows(source: str, rows: int, n_train: int | None, n_test: int | None) -> tuple[int, int]:
    """Counts when train and test rows come from one table: a missing count is what the other leaves.

    Without any, a fifth of the rows (rounded down) is for the test.
    """
    if n_test is None:
        n_test = rows // 5 if n_train is None else max(rows - n_train, 0)
    if n_train is None:
        n_train = max(rows - n_test, 1)
    if n_train + n_test > rows:
        raise WidebnnError(
            f"{source} has {rows} rows, too few for n_train={n_train} and n_test={n_test}; "
            f"ask for {rows} at most in total."
        )
    return n_train, n_test


def first_rows(source: str, rows: int, name: str, asked: int | None) -> int:
    """The count when the rows come from a table of their own: all of them unless fewer are asked for."""
    if asked is not None and asked > rows:
        raise WidebnnError(f"{source} has {rows} rows, too few for {name}={asked}; ask for {rows} at most.")
    return rows if asked is None else asked


def check_classes(what: str, count: int, as_numbers: str) -> None:
    """Refuse labels that cannot be classes; ``as_numbers`` says how to make them a regression target."""
    if count < 2:
        raise WidebnnError(f"{what} has one class only; it needs at least two, or numbers for regression.")
    if count > MAX_CLASSES:
        raise WidebnnError(
            f"{what} has {count} distinct labels, more than {MAX_CLASSES} classes; "
            f"if it is a regression target, {as_numbers}."
        )


def check_memory(what: str, numbers: int) -> None:
    """Refuse so many numbers in double precision if this machine has no room for them twice."""
    try:
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not every system says
        return
    if 16 * numbers > available:
        raise WidebnnError(
            f"{what} holds {numbers} numbers, {8e-9 * numbers:.1f} GB, too many for the {available / 1e9:.1f} GB of "
            "this machine; use fewer rows or columns."
        )


def _standardise(
    name: str, train: np.ndarray, test: np.ndarray, axis: int | None = 0, constant: float = np.inf
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Train and test in units of the training mean and standard deviation, and these two.

    ``constant`` is the scale of a constant column. By default it is infinite: training rows say nothing about such a
    column, so it is 0 in the test rows as well.
    """
    parts = [np.array(part, np.float64) for part in (train, test)]
    with np.errstate(over="ignore", invalid="ignore"):
        low, mean, std = train.min(axis), train.mean(axis), train.std(axis)
        # The mean of n copies of 0.1 need not be 0.1, and what rounding leaves must not become a scale.
        is_constant = low == train.max(axis)
        mean = np.where(is_constant, low, mean)
        scale = np.where(is_constant | (std == 0), constant, std)
        for part in parts:
            part -= mean
            part /= scale
    if not all(np.isfinite(array).all() for array in (mean, std, *parts)):
        raise WidebnnError(f"the {name} are too large to standardise in double precision; rescale them first.")
    return parts[0], parts[1], mean, scale
