"""Images with labels: scikit-learn's digits, CIFAR-10 and MNIST.

The columns of x keep the files' order; for CIFAR-10 channel by channel (CHW). TensorFlow Datasets hands out HWC;
a dense network with i.i.d. weights has the same distribution under any permutation of its inputs.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import zlib
from os import PathLike
from pathlib import Path

import numpy as np

from widebnn.data.dataset import Arrays, Dataset, classification, first_rows, split_rows
from widebnn.errors import WidebnnError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_FOLDER = "cifar-10-batches-bin"
"""Where the official files are when the archive was unpacked in data_dir."""
OFFICIAL = (tuple(f"data_batch_{i}.bin" for i in range(1, 6)), ("test_batch.bin",))
FIRST = (("tfds_train_first4096.bin",), ("tfds_test_first1024.bin",))
PIXELS = 3 * 32 * 32
RECORD = 1 + PIXELS
PER_FILE = 10_000
"""Images in each official file."""
CIFAR10_ADVICE = (
    "a folder with data_batch_1.bin to data_batch_5.bin and test_batch.bin (the 'binary version' of "
    "https://www.cs.toronto.edu/~kriz/cifar.html, unpacked; widebnn.data.download('cifar10', data_dir) fetches it), "
    "or with tfds_train_first4096.bin and tfds_test_first1024.bin"
)
MNIST_FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
MNIST_MOST = 60_000
"""The images of the training file; more are never read."""
MNIST_ADVICE = (
    f"a folder with {', '.join(MNIST_FILES)}, each plain or with .gz at the end "
    "(widebnn.data.download('mnist', data_dir) fetches them)"
)


def load_digits(n_train: int | None, n_test: int | None, seed: int) -> Dataset:
    """scikit-learn's digits, shuffled by ``seed``."""
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    x, labels = load_digits(return_X_y=True)
    n_train, n_test = split_rows("digits", len(x), n_train, n_test)
    # NumPy guarantees the raw stream of a bit generator for ever, but not what Generator.permutation makes of it.
    order = np.argsort(np.random.PCG64(seed).random_raw(len(x)), kind="stable")
    train, test = order[:n_train], order[n_train : n_train + n_test]
    return classification("digits", (x[train], x[test]), (labels[train], labels[test]), "0123456789", images=True)


def load_cifar10(data_dir: str | PathLike[str] | None, n_train: int | None, n_test: int | None) -> Dataset:
    """The first ``n_train`` and ``n_test`` CIFAR-10 images of the files in ``data_dir``.

    The official files of the binary version, in ``data_dir`` or in the folder that the archive unpacks to, come in
    TensorFlow Datasets' order, whose first images are those of the paper. They win over the ``tfds_*`` files, which
    hold the first images of that order already.
    """
    folder = _folder("cifar10", data_dir, CIFAR10_ADVICE)
    for names, place in ((OFFICIAL, folder), (OFFICIAL, folder / CIFAR10_FOLDER), (FIRST, folder)):
        missing = [name for name in (*names[0], *names[1]) if not (place / name).is_file()]
        if not missing:
            break
        if len(missing) < len(names[0]) + len(names[1]):
            raise WidebnnError(
                f"{place} lacks {', '.join(missing)}; copy it there, or set data_dir to {CIFAR10_ADVICE}."
            )
    else:
        raise WidebnnError(f"{folder} has no CIFAR-10 file; set data_dir to {CIFAR10_ADVICE}.")
    parts = [_read_cifar10("train", place, names[0], n_train), _read_cifar10("test", place, names[1], n_test)]
    x, labels = zip(*parts, strict=True)
    return classification("cifar10", x, labels, CLASSES, images=True)


def tfds_order(split: str, count: int) -> np.ndarray:
    """The order in which TensorFlow Datasets hands out the ``count`` images of ``split``, as indices into the files.

    It sorts the examples by the MD5 of the split's name followed by the example's key, here the index in
    decimal: b"train0", b"train1", ... The first training image is number 16399, a horse.
    """
    digests = [hashlib.md5(f"{split}{i}".encode(), usedforsecurity=False).digest() for i in range(count)]
    return np.array(sorted(range(count), key=digests.__getitem__), np.int64)


def _read_cifar10(split: str, folder: Path, names: tuple[str, ...], asked: int | None) -> Arrays:
    """Pixels and labels of the first images."""
    files = [_records(folder / name) for name in names]
    starts = np.cumsum([0, *map(len, files)])
    source = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    count = first_rows(f"{source} in {folder}", starts[-1], f"n_{split}", asked)
    is_official = names in OFFICIAL
    if is_official and any(len(one) != PER_FILE for one in files):
        # The order is one of all images: with some missing it would be another.
        raise WidebnnError(f"{source} in {folder} must hold {PER_FILE} images each, and lack some; fetch them again.")
    chosen = (tfds_order(split, starts[-1]) if is_official else np.arange(starts[-1]))[:count]
    which = np.searchsorted(starts, chosen, side="right") - 1
    records = np.empty((count, RECORD), np.uint8)
    for i, one in enumerate(files):
        records[which == i] = one[chosen[which == i] - starts[i]]
    bad = np.flatnonzero(records[:, 0] >= len(CLASSES))
    if bad.size:
        name, record = names[which[bad[0]]], chosen[bad[0]] - starts[which[bad[0]]]
        raise WidebnnError(
            f"{folder / name} has label {records[bad[0], 0]} in record {record}, expected 0 to {len(CLASSES) - 1}: it "
            "is corrupted or not CIFAR-10; fetch it again."
        )
    return records[:, 1:], records[:, 0]


def _records(path: Path) -> np.ndarray:
    size = path.stat().st_size
    if size % RECORD or size == 0:
        raise WidebnnError(
            f"{path} has {size} bytes, not a positive multiple of {RECORD} (a label byte and {PIXELS} pixels for each "
            "image): it is truncated or not the CIFAR-10 binary version; fetch it again."
        )
    try:
        return np.memmap(path, np.uint8, "r").reshape(-1, RECORD)
    except (OSError, ValueError) as error:
        raise WidebnnError(f"{path} cannot be read ({error}); check its permissions or fetch it again.") from None


def load_mnist(data_dir: str | PathLike[str] | None, n_train: int | None, n_test: int | None) -> Dataset:
    """The first ``n_train`` and ``n_test`` MNIST images of the files in ``data_dir``, in file order."""
    folder, parts = _folder("mnist", data_dir, MNIST_ADVICE), []
    for split, names, asked in (("n_train", MNIST_FILES[:2], n_train), ("n_test", MNIST_FILES[2:], n_test)):
        x, labels = _read_idx(folder, names[0], (28, 28)), _read_idx(folder, names[1], ())
        if len(x) != len(labels) or labels.max() > 9:
            raise WidebnnError(
                f"{names[0]} and {names[1]} in {folder} must have as many images as labels from 0 to 9; they have "
                f"{len(x)} images and {len(labels)} labels up to {labels.max()}: fetch both again."
            )
        count = first_rows(f"{names[0]} in {folder}", len(x), split, asked)
        parts.append((x.reshape(len(x), -1)[:count], labels[:count]))
    x, labels = zip(*parts, strict=True)
    return classification("mnist", x, labels, "0123456789", images=True)


def _read_idx(folder: Path, name: str, item: tuple[int, ...]) -> np.ndarray:
    """Bytes of shape (count, *item): 0, 0, 8 (bytes), the number of axes, each axis as 4 bytes, the bytes."""
    path = next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
    if path is None:
        raise WidebnnError(f"{folder} lacks {name} or {name}.gz; copy it there, or set data_dir to {MNIST_ADVICE}.")
    start, size = 8 + 4 * len(item), math.prod(item)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(start)
            count = int.from_bytes(header[4:8], "big")
            declared = bytes([0, 0, 8, 1 + len(item)]) + b"".join(n.to_bytes(4, "big") for n in (count, *item))
            good = header == declared and 1 <= count <= MNIST_MOST
            content = file.read(count * size + 1) if good else b""
    except (OSError, EOFError, zlib.error) as error:
        raise WidebnnError(f"{path} cannot be read ({error}); check its permissions or fetch it again.") from None
    if not good or len(content) != count * size:
        raise WidebnnError(
            f"{path} must be an IDX file of 1 to {MNIST_MOST} items of shape {item}: it is corrupted; fetch it again."
        )
    return np.frombuffer(content, np.uint8).reshape(count, *item)


def _folder(name: str, data_dir: str | PathLike[str] | None, advice: str) -> Path:
    if data_dir is None:
        raise WidebnnError(f"{name} needs data_dir, {advice}.")
    folder = Path(os.path.expanduser(data_dir))
    if not os.path.isdir(folder):
        raise WidebnnError(f"there is no folder {folder}; set data_dir to {advice}.")
    return folder
