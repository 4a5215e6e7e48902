"""Images with labels: scikit-learn's digits, CIFAR-10 and MNIST, which are downloaded only when asked for.

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
from typing import get_args

import numpy as np

from widebnn.data.dataset import Dataset, classification, split_rows
from widebnn.errors import WidebnnError, check_choice
from widebnn.names import Download
from widebnn.runs.files import make_folder

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_FOLDER = "cifar-10-batches-bin"
"""Where the official files are when the archive was unpacked in data_dir."""
OFFICIAL = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
FIRST = ("tfds_train_first4096.bin", "tfds_test_first1024.bin")
RECORD = 1 + 3 * 32 * 32
"""Bytes of a label and its image."""
PER_FILE = 10_000
"""Images in each official file."""
MNIST_FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MNIST_URL = "https://storage.googleapis.com/cvdf-datasets/mnist/"
SHA256 = {
    "cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
ADVICE = {
    "cifar10": "a folder with data_batch_1.bin to data_batch_5.bin and test_batch.bin (the 'binary version' of "
    "https://www.cs.toronto.edu/~kriz/cifar.html, unpacked; widebnn download cifar10 fetches it), or with "
    "tfds_train_first4096.bin and tfds_test_first1024.bin",
    "mnist": f"a folder with {', '.join(MNIST_FILES)}, plain or with .gz at the end (widebnn download mnist fetches "
    "them)",
}


def load_digits(n_train: int | None, n_test: int | None, seed: int) -> Dataset:
    """scikit-learn's digits, shuffled by ``seed``."""
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    x, labels = load_digits(return_X_y=True)
    train, test = split_rows("digits", len(x), n_train, n_test)
    # NumPy guarantees the raw stream of a bit generator for ever, but not what Generator.permutation makes of it.
    order = np.argsort(np.random.PCG64(seed).random_raw(len(x)), kind="stable")
    return classification("digits", x, labels, "0123456789", order[train], order[test], axis=None)


def load_cifar10(data_dir: str | PathLike[str] | None, n_train: int | None, n_test: int | None) -> Dataset:
    """The first ``n_train`` and ``n_test`` CIFAR-10 images of the files in ``data_dir``.

    The official files of the binary version, in ``data_dir`` or in the folder that the archive unpacks to, come in
    TensorFlow Datasets' order, whose first images are those of the paper. They win over the ``tfds_*`` files, which
    hold the first images of that order already.
    """
    folder = _folder("cifar10", data_dir)
    places = [(folder, OFFICIAL), (folder / CIFAR10_FOLDER, OFFICIAL), (folder, FIRST)]
    places = [(place, names) for place, names in places if any((place / name).is_file() for name in names)]
    if not places:
        raise WidebnnError(f"{folder} has no CIFAR-10 file; set data_dir to {ADVICE['cifar10']}.")
    place, names = places[0]
    if missing := [name for name in names if not (place / name).is_file()]:
        raise WidebnnError(
            f"{place} lacks {', '.join(missing)}; copy it there, or set data_dir to {ADVICE['cifar10']}."
        )
    parts = [_read_cifar10(place / name, names is OFFICIAL) for name in names]
    records, boundary = np.concatenate(parts), sum(map(len, parts[:-1]))
    train, test = split_rows(str(place), len(records), n_train, n_test, boundary)
    order = np.arange(len(records))
    if names is OFFICIAL:
        order = np.append(tfds_order("train", boundary), boundary + tfds_order("test", len(parts[-1])))
    return classification("cifar10", records[:, 1:], records[:, 0], CLASSES, order[train], order[test], axis=None)


def tfds_order(split: str, count: int) -> np.ndarray:
    """The order in which TensorFlow Datasets hands out the ``count`` images of ``split``, as indices into the files.

    It sorts the examples by the MD5 of the split's name followed by the example's key, here the index in
    decimal: b"train0", b"train1", ... The first training image is number 16399, a horse.
    """
    digests = [hashlib.md5(f"{split}{i}".encode(), usedforsecurity=False).digest() for i in range(count)]
    return np.array(sorted(range(count), key=digests.__getitem__), np.int64)


def _read_cifar10(path: Path, is_official: bool) -> np.ndarray:
    """Records of a label and its pixels."""
    size = path.stat().st_size
    # The order is one of all images: with some missing it would be another.
    if size % RECORD or not size or (is_official and size != PER_FILE * RECORD):
        wanted = f"{PER_FILE} records" if is_official else "records"
        raise WidebnnError(
            f"{path} has {size} bytes, expected {wanted} of {RECORD}: it is truncated or not the CIFAR-10 binary "
            "version; fetch it again."
        )
    records = np.fromfile(path, np.uint8).reshape(-1, RECORD)
    if (largest := records[:, 0].max()) >= len(CLASSES):
        raise WidebnnError(f"{path} has label {largest}, expected 0 to 9: it is corrupted; fetch it again.")
    return records


def load_mnist(data_dir: str | PathLike[str] | None, n_train: int | None, n_test: int | None) -> Dataset:
    """The first ``n_train`` and ``n_test`` MNIST images of the files in ``data_dir``, in file order."""
    folder = _folder("mnist", data_dir)
    images = [_read_idx(folder, name, (28, 28)) for name in MNIST_FILES[::2]]
    labels = [_read_idx(folder, name, ()) for name in MNIST_FILES[1::2]]
    x, y = np.concatenate(images).reshape(-1, 784), np.concatenate(labels)
    counts = [[len(one) for one in parts] for parts in (images, labels)]
    if counts[0] != counts[1] or y.max() > 9:
        got = f"{counts[0]} images and {counts[1]} labels up to {y.max()}"
        raise WidebnnError(
            f"the files in {folder} must have as many images as labels from 0 to 9, got {got}: fetch them again."
        )
    train, test = split_rows(str(folder), len(x), n_train, n_test, len(images[0]))
    return classification("mnist", x, y, "0123456789", train, test, axis=None)


def _read_idx(folder: Path, name: str, item: tuple[int, ...]) -> np.ndarray:
    """Bytes of shape (count, *item): 0, 0, 8 (bytes), the number of axes, each axis as 4 bytes, the bytes."""
    path = next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
    if path is None:
        raise WidebnnError(f"{folder} lacks {name} or {name}.gz; copy it there, or set data_dir to {ADVICE['mnist']}.")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(2**26)  # MNIST has less; a small file may unpack to more than the memory
    except (OSError, EOFError, zlib.error) as error:
        raise WidebnnError(f"{path} cannot be read ({error}); check its permissions or fetch it again.") from None
    start, size = 8 + 4 * len(item), math.prod(item)
    count = max(len(content) - start, 0) // size
    header = bytes([0, 0, 8, 1 + len(item)]) + b"".join(n.to_bytes(4, "big") for n in (count, *item))
    if count == 0 or not content.startswith(header) or len(content) != start + count * size:
        raise WidebnnError(f"{path} must be an IDX file of items of shape {item}: it is corrupted; fetch it again.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(count, *item)


def _folder(name: str, data_dir: str | PathLike[str] | None) -> Path:
    if data_dir is None:
        raise WidebnnError(f"{name} needs data_dir, {ADVICE[name]}.")
    folder = Path(os.path.expanduser(data_dir))
    if not os.path.isdir(folder):
        raise WidebnnError(f"there is no folder {folder}; set data_dir to {ADVICE[name]}.")
    return folder


def download(name: str, data_dir: str | PathLike[str]) -> Path:
    """Fetch the files of ``cifar10`` or ``mnist`` into ``data_dir``, for ``load_dataset`` to read.

    Files that the folder has already are not fetched again. What does not have the known SHA-256 is deleted.

    Args:
        name: ``cifar10`` or ``mnist``.
        data_dir: Folder for the files; it is created if it does not exist.

    Returns:
        The folder.

    Raises:
        WidebnnError: The folder cannot be written, or a file cannot be fetched or is not the known one.
    """
    check_choice("name", name, get_args(Download))
    folder = Path(os.path.expanduser(data_dir))
    make_folder(folder)
    if name == "mnist":
        for one in MNIST_FILES:
            if not (folder / one).is_file():
                _fetch(f"{MNIST_URL}{one}.gz", folder)
        return folder
    files = [folder / CIFAR10_FOLDER / one for one in OFFICIAL]
    incomplete = [file for file in files if not file.is_file() or file.stat().st_size != PER_FILE * RECORD]
    for file in incomplete:
        file.unlink(missing_ok=True)  # pooch does not unpack over what is there
    if incomplete:
        _fetch(CIFAR10_URL, folder, [f"{CIFAR10_FOLDER}/{one}" for one in OFFICIAL])
    return folder


def _fetch(url: str, folder: Path, members: list[str] | None = None) -> None:
    """The file at ``url``, or members of the archive there."""
    import pooch  # only needed here

    name = url.rpartition("/")[2]
    unpack = None if members is None else pooch.Untar(members=members, extract_dir=".")
    try:
        options = {"processor": unpack, "downloader": pooch.HTTPDownloader(timeout=60.0)}
        pooch.retrieve(url, f"sha256:{SHA256[name]}", fname=name, path=folder, **options)
        if members is not None:
            (folder / name).unlink()
    except (OSError, ValueError) as error:
        reason, verb = " ".join(str(error).split()), "put" if members is None else "unpack"
        raise WidebnnError(f"{url} cannot be fetched ({reason}); try again, or {verb} it into {folder}.") from None
