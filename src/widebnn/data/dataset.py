"""What a data set is here, and the preprocessing that makes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from widebnn.data.counts import check_memory
from widebnn.errors import WidebnnError


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


def image_classes(
    name: str,
    x_train: np.ndarray,
    x_test: np.ndarray,
    labels_train: np.ndarray,
    labels_test: np.ndarray,
    class_names: Sequence[str],
) -> Dataset:
    """Images with labels: one mean and one standard deviation for all pixels of all training images."""
    x_train, x_test = _standardise_inputs(x_train, x_test, axis=None)
    return _classes(name, x_train, x_test, labels_train, labels_test, class_names)


def table_classes(
    name: str,
    x_train: np.ndarray,
    x_test: np.ndarray,
    labels_train: np.ndarray,
    labels_test: np.ndarray,
    class_names: Sequence[str],
) -> Dataset:
    """A table with labels: each input column has its own mean and standard deviation."""
    x_train, x_test = _standardise_inputs(x_train, x_test, axis=0)
    return _classes(name, x_train, x_test, labels_train, labels_test, class_names)


def table_regression(
    name: str, x_train: np.ndarray, x_test: np.ndarray, y_train: np.ndarray, y_test: np.ndarray
) -> Dataset:
    """A table with real targets (rows x c): input and target columns are standardised one by one."""
    x_train, x_test = _standardise_inputs(x_train, x_test, axis=0)
    y_mean, std = _moments("targets", y_train, axis=0)
    # A constant target keeps its unit, so that a test value that differs from it is not lost.
    y_scale = np.where(std > 0, std, 1.0)
    y_train, y_test = (_divide("targets", y, y_mean, y_scale) for y in (y_train, y_test))
    return Dataset(name, x_train, y_train, x_test, y_test, None, None, y_mean, y_scale)


def _classes(name, x_train, x_test, labels_train, labels_test, class_names) -> Dataset:
    count = len(class_names)
    labels_train, labels_test = (np.asarray(labels, np.int64) for labels in (labels_train, labels_test))
    check_memory(f"the targets of {name}", (len(labels_train) + len(labels_test)) * count)
    y_train, y_test = (_centred_one_hot(labels, count) for labels in (labels_train, labels_test))
    zeros, ones = np.zeros(count), np.ones(count)
    return Dataset(
        name, x_train, y_train, x_test, y_test, labels_train, labels_test, zeros, ones, tuple(map(str, class_names))
    )


def _centred_one_hot(labels: np.ndarray, count: int) -> np.ndarray:
    """One row per label: 1 - 1/count at the label, -1/count elsewhere."""
    y = np.full((len(labels), count), -1.0 / count)
    y[np.arange(len(labels)), labels] += 1.0
    return y


def _standardise_inputs(train: np.ndarray, test: np.ndarray, axis: int | None) -> tuple[np.ndarray, np.ndarray]:
    mean, std = _moments("inputs", train, axis)
    # Training rows say nothing about a column that is constant there, so it is 0 in the test rows as well.
    scale = np.where(std > 0, std, np.inf)
    return _divide("inputs", train, mean, scale), _divide("inputs", test, mean, scale)


def _moments(name: str, values: np.ndarray, axis: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation, exactly (value, 0) where all values are equal.

    The mean of n copies of 0.1 need not be 0.1, and what rounding leaves must not become a scale.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        low, mean, std = values.min(axis), values.mean(axis), values.std(axis)
    constant = low == values.max(axis)
    mean, std = np.where(constant, low, mean), np.where(constant, 0.0, std)
    _check_finite(name, mean, std)
    return mean, std


def _divide(name: str, values: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    result = np.array(values, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        result -= mean
        result /= scale
    _check_finite(name, result)
    return result


def _check_finite(name: str, *arrays: np.ndarray) -> None:
    # With a NaN among them, the smallest and the largest are NaN.
    if not all(np.isfinite((array.min(), array.max())).all() for array in arrays if array.size):
        raise WidebnnError(f"the {name} are too large to standardise in double precision; rescale them first.")
