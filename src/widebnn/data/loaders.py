"""One call for all data: a built-in name or the path of a file."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path

import numpy as np

from widebnn.data.cifar10 import load_cifar10
from widebnn.data.counts import rows_of_one_table
from widebnn.data.dataset import Dataset, image_classes
from widebnn.data.npz import load_npz
from widebnn.errors import check_choice, check_integer

CHOICES = ("digits", "cifar10", "PATH.npz")


def load_dataset(
    name_or_path: str | PathLike[str],
    n_train: int | None = None,
    n_test: int | None = None,
    *,
    data_dir: str | PathLike[str] | None = None,
    seed: int = 0,
) -> Dataset:
    """``digits``, ``cifar10`` or the path of an ``.npz`` file as a :class:`Dataset`.

    - ``digits``: the 1797 images of 8 x 8 pixels that come with scikit-learn, shuffled by ``seed``.
    - ``cifar10``: the first images of the binary files in ``data_dir``, in file order: either the official
      six files or ``tfds_train_first4096.bin`` and ``tfds_test_first1024.bin`` (the order of the paper).
    - ``*.npz``: the first rows of ``x, y`` or of ``x_train, y_train, x_test, y_test``; an integer or Boolean y
      means classes, a float y regression.

    Images are flattened and standardised by one mean and one standard deviation over all training pixels,
    tables column by column. Labels become one-hot rows minus 1/classes, regression targets are standardised.

    A count left out means all rows that are left: all of them where train and test rows are stored apart,
    otherwise what the other count leaves, and with neither a fifth of the rows for the test.
    ``n_test=0`` gives empty test arrays. ``data_dir`` matters to cifar10 only, ``seed`` to digits only.
    """
    n_train = None if n_train is None else check_integer("n_train", n_train, 1)
    n_test = None if n_test is None else check_integer("n_test", n_test, 0)
    seed = check_integer("seed", seed, 0)
    name = str(name_or_path)
    if name.lower().endswith(".npz"):
        return load_npz(Path(os.path.expanduser(name)), n_train, n_test)
    if check_choice("dataset", name, CHOICES) == "cifar10":
        return load_cifar10(data_dir, n_train, n_test)
    return _load_digits(n_train, n_test, seed)


def _load_digits(n_train: int | None, n_test: int | None, seed: int) -> Dataset:
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    x, labels = load_digits(return_X_y=True)
    n_train, n_test = rows_of_one_table("digits", len(x), n_train, n_test)
    # NumPy guarantees the raw stream of a bit generator for ever, but not what Generator.permutation makes of it.
    order = np.argsort(np.random.PCG64(seed).random_raw(len(x)), kind="stable")
    train, test = order[:n_train], order[n_train : n_train + n_test]
    return image_classes("digits", x[train], x[test], labels[train], labels[test], tuple("0123456789"))
