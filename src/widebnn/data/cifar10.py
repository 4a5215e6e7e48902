"""CIFAR-10 from its official files, or from binary files with the first images of TensorFlow Datasets' order.

The columns of x keep the files' order, channel by channel (CHW). TensorFlow Datasets hands out HWC;
a dense network with i.i.d. weights has the same law under any permutation of its inputs.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from widebnn.data.counts import check_counts, rows_of_own_table
from widebnn.data.dataset import Dataset, image_classes
from widebnn.data.pickled import PIXELS, read_batch
from widebnn.errors import WidebnnError, check_choice, check_integer

RECORD = 1 + PIXELS
PER_FILE = 10_000
"""Images in each official file."""
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
ORDERS = ("tfds", "file")


class _Layout(NamedTuple):
    train: tuple[str, ...]
    test: tuple[str, ...]
    folder: str
    """Where the files are when the archive was unpacked in data_dir."""


BINARY = _Layout(tuple(f"data_batch_{i}.bin" for i in range(1, 6)), ("test_batch.bin",), "cifar-10-batches-bin")
PYTHON = _Layout(tuple(f"data_batch_{i}" for i in range(1, 6)), ("test_batch",), "cifar-10-batches-py")
FIRST = _Layout(("tfds_train_first4096.bin",), ("tfds_test_first1024.bin",), "")

ADVICE = (
    "a folder with data_batch_1.bin to data_batch_5.bin and test_batch.bin (the 'binary version' of "
    "https://www.cs.toronto.edu/~kriz/cifar.html, unpacked; widebnn.data.download('cifar10', data_dir) fetches it), "
    "with the same files of the 'python version', or with tfds_train_first4096.bin and tfds_test_first1024.bin"
)


def load_cifar10(
    data_dir: str | PathLike[str] | None,
    n_train: int | None = None,
    n_test: int | None = None,
    *,
    order: str = "tfds",
) -> Dataset:
    """The first ``n_train`` and ``n_test`` images of the files in ``data_dir``.

    The official files (binary or Python version, in ``data_dir`` or in the folder that the archive unpacks to) come
    in TensorFlow Datasets' order, whose first images are those of the paper, or with ``order="file"`` as they are
    stored; files that lack images come as they are stored, with a warning. Official files win over the ``tfds_*``
    files, which hold the first images of that order already.
    """
    check_choice("order", order, ORDERS)
    n_train, n_test = check_counts(n_train, n_test)
    if data_dir is None:
        raise WidebnnError(f"cifar10 needs data_dir, {ADVICE}.")
    folder, layout = _find_layout(Path(os.path.expanduser(data_dir)))
    labels_train, x_train = _read("train", folder, layout, order, n_train)
    labels_test, x_test = _read("test", folder, layout, order, n_test)
    return image_classes("cifar10", x_train, x_test, labels_train, labels_test, CLASSES)


def tfds_order(split: str, count: int) -> np.ndarray:
    """The order in which TensorFlow Datasets hands out the ``count`` images of ``split``, as indices into the files.

    It sorts the examples by the MD5 of the split's name followed by the example's key, here the index in
    decimal: b"train0", b"train1", ... The first training image is number 16399, a horse.
    """
    check_choice("split", split, ("train", "test"))
    count = check_integer("count", count, 0)
    digests = [hashlib.md5(f"{split}{i}".encode(), usedforsecurity=False).digest() for i in range(count)]
    return np.array(sorted(range(count), key=digests.__getitem__), np.int64)


def _find_layout(data_dir: Path) -> tuple[Path, _Layout]:
    """The first layout of which there is any file, and its folder; it must be complete."""
    if not os.path.isdir(data_dir):
        raise WidebnnError(f"there is no folder {data_dir}; set data_dir to {ADVICE}.")
    for layout in (BINARY, PYTHON, FIRST):
        names = layout.train + layout.test
        for folder in dict.fromkeys((data_dir, data_dir / layout.folder)):
            missing = [name for name in names if not (folder / name).is_file()]
            if not missing:
                return folder, layout
            if len(missing) < len(names):
                raise WidebnnError(f"{folder} lacks {', '.join(missing)}; copy it there, or set data_dir to {ADVICE}.")
    raise WidebnnError(f"{data_dir} has no CIFAR-10 file; set data_dir to {ADVICE}.")


def _read(split: str, folder: Path, layout: _Layout, order: str, asked: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Labels and pixels of the first images; a file of which none is needed is not read."""
    names = layout.train if split == "train" else layout.test
    counts = [_count_images(folder / name, layout) for name in names]
    source = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    count = rows_of_own_table(f"{source} in {folder}", sum(counts), f"n_{split}", asked)
    shuffle = order == "tfds" and layout is not FIRST
    if shuffle and any(found != PER_FILE for found in counts):
        # The order is one of all images: with some missing it would be another.
        warnings.warn(f"{source} in {folder} hold {sum(counts)} images, not all: taken in file order", stacklevel=4)
        shuffle = False
    chosen = (tfds_order(split, sum(counts)) if shuffle else np.arange(sum(counts)))[:count]
    labels, pixels = np.empty(count, np.uint8), np.empty((count, PIXELS), np.uint8)
    start = 0
    for name, available in zip(names, counts, strict=True):
        here = np.flatnonzero((start <= chosen) & (chosen < start + available))
        if here.size:
            labels[here], pixels[here] = _read_rows(folder / name, layout, chosen[here] - start)
        start += available
    return labels, pixels


def _count_images(path: Path, layout: _Layout) -> int:
    if layout is PYTHON:
        return PER_FILE
    size = path.stat().st_size
    if size % RECORD or size == 0:
        raise WidebnnError(
            f"{path} has {size} bytes, not a positive multiple of {RECORD} (a label byte and {PIXELS} pixels for each "
            "image): it is truncated or not the CIFAR-10 binary version; fetch it again."
        )
    return size // RECORD


def _read_rows(path: Path, layout: _Layout, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    labels, pixels = read_batch(path, PER_FILE) if layout is PYTHON else _read_records(path, int(rows.max()) + 1)
    labels, pixels = labels[rows], pixels[rows]
    bad = np.flatnonzero(labels >= len(CLASSES))
    if bad.size:
        raise WidebnnError(
            f"{path} has label {labels[bad[0]]} in record {rows[bad[0]]}, expected 0 to {len(CLASSES) - 1}: "
            "it is damaged or not CIFAR-10; fetch it again."
        )
    return labels, pixels


def _read_records(path: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
    try:
        records = np.fromfile(path, np.uint8, count=count * RECORD).reshape(count, RECORD)
    except (OSError, ValueError) as error:
        raise WidebnnError(f"{path} cannot be read ({error}); check its permissions or fetch it again.") from None
    return records[:, 0], records[:, 1:]
