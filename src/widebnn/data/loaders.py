"""One call for all data: a built-in name or the path of a file."""

from __future__ import annotations

import os
from collections.abc import Collection
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import numpy as np

from widebnn.data.dataset import Dataset, classification, regression, split_rows
from widebnn.data.encoder import TableEncoder, with_target
from widebnn.data.images import load_cifar10, load_digits, load_mnist
from widebnn.data.npz import load_npz
from widebnn.data.tables import read_table
from widebnn.errors import check_choice, check_integer
from widebnn.names import Download

CHOICES = ("digits", *get_args(Download), "PATH.npz", "PATH.csv")


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
    - ``*.csv``: the first rows of a table, read and encoded as ``widebnn fit`` does: see
      ``widebnn.data.read_table`` and ``widebnn.data.TableEncoder``, which learns from the training rows.

    Images are flattened and standardised by one mean and one standard deviation over all training pixels,
    tables column by column. Labels become one-hot rows minus 1/classes, regression targets are standardised.
    Nothing is fetched from the network: see ``widebnn.data.download``.

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
    seed = check_integer("seed", seed, 0)
    name, path = str(name_or_path), Path(os.path.expanduser(str(name_or_path)))
    if name.lower().endswith(".npz"):
        return load_npz(path, n_train, n_test)
    if name.lower().endswith(".csv"):
        return _load_csv(path, n_train, n_test, target=target, classify=classify, drop=drop, text=text)
    if check_choice("dataset", name, CHOICES) == "cifar10":
        return load_cifar10(data_dir, n_train, n_test)
    return load_mnist(data_dir, n_train, n_test) if name == "mnist" else load_digits(n_train, n_test, seed)


def _load_csv(path: Path, n_train: int | None, n_test: int | None, target: str | None, **options: Any) -> Dataset:
    """The first rows of a CSV file; what is learned of its columns is learned from the training rows."""
    frame = read_table(path)
    target = frame.columns[-1] if target is None else target
    frame = with_target(frame, target)
    n_train, n_test = split_rows(str(path), len(frame), n_train, n_test)
    train, test = slice(n_train), slice(n_train, n_train + n_test)
    encoder = TableEncoder.fit(frame[train], target=target, **options)
    x, y = (encoder.transform(frame[train]), encoder.transform(frame[test])), encoder.targets(frame)
    if encoder.classes:
        classes, labels = np.unique(y, return_inverse=True)
        return classification(path.stem, x, (labels[train], labels[test]), classes.tolist())
    return regression(path.stem, x, (y[train, None], y[test, None]))
