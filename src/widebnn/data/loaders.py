"""One call for all data: a built-in name or the path of a file. Nothing is ever unpickled."""

from __future__ import annotations

import os
from collections.abc import Collection
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import numpy as np

from widebnn.data.dataset import Dataset, check_classes, classification, regression, split_rows
from widebnn.data.encoder import TableEncoder, with_target
from widebnn.data.images import load_cifar10, load_digits, load_mnist
from widebnn.data.tables import read_table
from widebnn.errors import WidebnnError, check_choice, check_inputs, check_integer, check_targets
from widebnn.names import Download

WHOLE = ("x", "y")
SPLIT = ("x_train", "y_train", "x_test", "y_test")


def load_dataset(
    name_or_path: str | PathLike[str],
    n_train: int | None = None,
    n_test: int | None = None,
    *,
    data_dir: str | PathLike[str] | None = None,
    seed: int = 0,
    target: str | None = None,
    classify: bool = False,
    drop: Collection[str] = (),
    text: Collection[str] = (),
) -> Dataset:
    """``digits``, ``cifar10``, ``mnist`` or the path of an ``.npz`` or ``.csv`` file as a ``Dataset``.

    - ``digits``: the 1797 images of 8 x 8 pixels that come with scikit-learn, shuffled by ``seed``.
    - ``cifar10``: the first images in TensorFlow Datasets' order, those of the paper, from the files in ``data_dir``:
      the official six of the binary version, or ``tfds_train_first4096.bin`` and ``tfds_test_first1024.bin``.
    - ``mnist``: the first images of the four IDX files in ``data_dir``, plain or ``.gz``, in file order.
    - ``*.npz``: the first rows of ``x, y`` or of ``x_train, y_train, x_test, y_test``; an integer or Boolean y
      means classes, a float y regression.
    - ``*.csv``: the first rows of a table, encoded as ``widebnn fit`` does by what ``TableEncoder`` learns from them.

    Images are flattened and standardised by one mean and one standard deviation over all training pixels,
    tables column by column. Labels become one-hot rows minus 1/classes, regression targets are standardised.

    Args:
        name_or_path: Name of a built-in data set, or path of a file.
        n_train: Training rows. A count left out means all rows that are left: all of them where train and test rows
            are stored apart, otherwise what the other count leaves, and with neither a fifth of the rows for the test.
        n_test: Test rows; 0 gives empty test arrays.
        data_dir: Folder of the files of cifar10 and mnist.
        seed: Of the shuffle of digits.
        target: Column of a CSV file to predict, by default the last.
        classify: The target of a CSV file is a class.
        drop: Columns of a CSV file to leave out.
        text: Columns of a CSV file whose numbers are names of categories.

    Returns:
        The data set.

    Raises:
        WidebnnError: The file is missing, corrupted or not what was expected, or has too few rows.

    Examples:
        >>> load_dataset("digits", 256, 128).x_train.shape
        (256, 64)
    """
    n_train = None if n_train is None else check_integer("n_train", n_train, 1)
    n_test = None if n_test is None else check_integer("n_test", n_test, 0)
    name, path = str(name_or_path), Path(os.path.expanduser(str(name_or_path)))
    if name.lower().endswith(".npz"):
        return _load_npz(path, n_train, n_test)
    if name.lower().endswith(".csv"):
        return _load_csv(path, n_train, n_test, target, classify=classify, drop=drop, text=text)
    check_choice("dataset", name, ("digits", *get_args(Download), "PATH.npz", "PATH.csv"))
    if name == "digits":
        return load_digits(n_train, n_test, check_integer("seed", seed, 0))
    return (load_mnist if name == "mnist" else load_cifar10)(data_dir, n_train, n_test)


def _load_csv(path: Path, n_train: int | None, n_test: int | None, target: str | None, **options: Any) -> Dataset:
    """The first rows of a CSV file; what is learned of its columns is learned from the training rows."""
    frame = read_table(path)
    target = frame.columns[-1] if target is None else target
    frame = with_target(frame, target)
    train, test = split_rows(str(path), len(frame), n_train, n_test)
    encoder = TableEncoder.fit(frame[train], target=target, **options)
    x, y = encoder.transform(frame[: test.stop]), encoder.targets(frame)
    if not encoder.classes:
        return regression(path.stem, x, y[:, None], train, test)
    classes, labels = np.unique(y, return_inverse=True)
    return classification(path.stem, x, labels, classes.tolist(), train, test)


def _load_npz(path: Path, n_train: int | None, n_test: int | None) -> Dataset:
    """The first rows of ``x, y``, or of the four arrays in SPLIT, which win if the file has both."""
    arrays = _read_npz(path)
    xs, ys = [], []
    for x_name, y_name in zip(list(arrays)[::2], list(arrays)[1::2], strict=True):
        x, y = arrays[x_name], arrays[y_name]
        xs.append(check_inputs(f"{x_name} in {path}", x.reshape(len(x), -1) if x.ndim > 2 and x.size else x))
        if y.dtype.kind != "f" and y.shape != (len(x),):
            wanted = f"one class label for each of {len(x)} rows, or floats for regression"
            raise WidebnnError(f"{y_name} in {path} must have {wanted}; got shape {y.shape}: reshape it.")
        ys.append(check_targets(y, len(x), f"{y_name} in {path}") if y.dtype.kind == "f" else y.astype(object))
    if xs[0].shape[1] != xs[-1].shape[1] or ys[0].shape[1:] != ys[-1].shape[1:]:
        shapes = ", ".join(f"{name} {array.dtype} {array.shape}" for name, array in arrays.items())
        raise WidebnnError(f"training and test rows in {path} must have the same columns and kind; got {shapes}.")
    x, y = np.concatenate(xs), np.concatenate(ys)
    train, test = split_rows(str(path), len(x), n_train, n_test, len(xs[0]) if len(xs) == 2 else None)
    if y.ndim == 2:
        return regression(path.stem, x, y, train, test)
    classes, labels = np.unique(y, return_inverse=True)  # of the whole file, whatever rows are used
    check_classes(f"y in {path}", len(classes), "if it is a regression target, save it as y.astype(float)")
    return classification(path.stem, x, labels, classes.tolist(), train, test)


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    if not os.path.isfile(path):
        raise WidebnnError(f"there is no file {path}; write one with numpy.savez(path, x=..., y=...).")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            names: tuple[str, ...] = next((names for names in (SPLIT, WHOLE) if set(names) <= set(archive)), ())
            arrays, found = {name: np.asarray(archive[name]) for name in names}, ", ".join(archive) or "nothing"
    except Exception as error:  # of zip, zlib, the header parser or the allocation, whichever meets the corruption
        problem = f"{path} is corrupted or not an .npz archive of numbers ({error})"
        raise WidebnnError(f"{problem}; write it again with numpy.savez and numeric arrays.") from None
    if not arrays:
        wanted = f"{', '.join(WHOLE)} or {', '.join(SPLIT)}"
        raise WidebnnError(
            f"{path} must hold {wanted}; it holds {found}: name them in numpy.savez(path, x=..., y=...)."
        )
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf" or array.ndim == 0:
            got = f"{array.dtype} of shape {array.shape}"
            raise WidebnnError(f"{name} in {path} must hold rows of real numbers; got {got}: encode it as numbers.")
    return arrays
