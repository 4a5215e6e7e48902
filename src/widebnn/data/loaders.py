"""One call for all data: a built-in name or the path of a file."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path

import numpy as np

from widebnn.data.cifar10 import load_cifar10
from widebnn.data.counts import check_counts, rows_of_one_table
from widebnn.data.dataset import Dataset, image_classes
from widebnn.data.mnist import load_mnist
from widebnn.data.npz import load_npz
from widebnn.data.table import load_csv
from widebnn.errors import check_choice, check_integer

CHOICES = ("digits", "cifar10", "mnist", "PATH.npz", "PATH.csv")


def load_dataset(
    name_or_path: str | PathLike[str],
    n_train: int | None = None,
    n_test: int | None = None,
    *,
    data_dir: str | PathLike[str] | None = None,
    seed: int = 0,
    target: str | None = None,
) -> Dataset:
    """``digits``, ``cifar10``, ``mnist`` or the path of an ``.npz`` or ``.csv`` file as a :class:`Dataset`.

    - ``digits``: the 1797 images of 8 x 8 pixels that come with scikit-learn, shuffled by ``seed``.
    - ``cifar10``: the first images in TensorFlow Datasets' order, those of the paper, from the files in ``data_dir``:
      the official six (binary or Python version) or ``tfds_train_first4096.bin`` and ``tfds_test_first1024.bin``.
    - ``mnist``: the first images of the four IDX files in ``data_dir``, plain or ``.gz``, in file order.
    - ``*.npz``: the first rows of ``x, y`` or of ``x_train, y_train, x_test, y_test``; an integer or Boolean y
      means classes, a float y regression.
    - ``*.csv``: the first rows of a table whose first line names the columns. The column ``target``, by default the
      last, is y: text or integers mean classes, numbers with a decimal point regression. Input columns of
      text become one 0/1 column for each value. Missing values are refused.

    Images are flattened and standardised by one mean and one standard deviation over all training pixels,
    tables column by column. Labels become one-hot rows minus 1/classes, regression targets are standardised.

    A count left out means all rows that are left: all of them where train and test rows are stored apart,
    otherwise what the other count leaves, and with neither a fifth of the rows for the test.
    ``n_test=0`` gives empty test arrays. ``data_dir`` matters to cifar10 and mnist only, ``seed`` to digits,
    ``target`` to CSV files. Nothing is fetched from the network: see :func:`widebnn.data.download`.
    """
    n_train, n_test = check_counts(n_train, n_test)
    seed = check_integer("seed", seed, 0)
    name = str(name_or_path)
    path = Path(os.path.expanduser(name))
    if name.lower().endswith(".npz"):
        return load_npz(path, n_train, n_test)
    if name.lower().endswith(".csv"):
        return load_csv(path, n_train, n_test, target)
    if check_choice("dataset", name, CHOICES) == "cifar10":
        return load_cifar10(data_dir, n_train, n_test)
    if name == "mnist":
        return load_mnist(data_dir, n_train, n_test)
    return _load_digits(n_train, n_test, seed)


def _load_digits(n_train: int | None, n_test: int | None, seed: int) -> Dataset:
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    x, labels = load_digits(return_X_y=True)
    n_train, n_test = rows_of_one_table("digits", len(x), n_train, n_test)
    # NumPy guarantees the raw stream of a bit generator for ever, but not what Generator.permutation makes of it.
    order = np.argsort(np.random.PCG64(seed).random_raw(len(x)), kind="stable")
    train, test = order[:n_train], order[n_train : n_train + n_test]
    return image_classes("digits", x[train], x[test], labels[train], labels[test], tuple("0123456789"))
