"""MNIST from its four IDX files, plain or gzipped, in file order."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from os import PathLike
from pathlib import Path

import numpy as np

from widebnn.data.counts import rows_of_own_table
from widebnn.data.dataset import Dataset, image_classes
from widebnn.errors import WidebnnError

FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
IMAGE = (28, 28)
MAX_COUNT = 60_000
"""The images of the training file; more are not read, whatever the header declares."""
BLOCK = 2**16
ADVICE = (
    f"a folder with {', '.join(FILES)}, each plain or with .gz at the end "
    "(widebnn.data.download('mnist', data_dir) fetches them)"
)


def load_mnist(data_dir: str | PathLike[str] | None, n_train: int | None, n_test: int | None) -> Dataset:
    """The first ``n_train`` and ``n_test`` images of the files in ``data_dir``, in file order."""
    if data_dir is None:
        raise WidebnnError(f"mnist needs data_dir, {ADVICE}.")
    folder = Path(os.path.expanduser(data_dir))
    if not os.path.isdir(folder):
        raise WidebnnError(f"there is no folder {folder}; set data_dir to {ADVICE}.")
    train_images, train_labels, test_images, test_labels = (_find(folder, name) for name in FILES)
    x_train, labels_train = _read_split("n_train", train_images, train_labels, n_train)
    x_test, labels_test = _read_split("n_test", test_images, test_labels, n_test)
    return image_classes("mnist", x_train, x_test, labels_train, labels_test, tuple("0123456789"))


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise WidebnnError(f"{folder} lacks {name} or {name}.gz; copy it there, or set data_dir to {ADVICE}.")


def _read_split(name: str, images: Path, labels: Path, asked: int | None) -> tuple[np.ndarray, np.ndarray]:
    x, y = _read_idx(images, IMAGE), _read_idx(labels, ())
    if len(x) != len(y):
        raise WidebnnError(
            f"{images} has {len(x)} images but {labels} has {len(y)} labels; fetch both again from one source."
        )
    bad = np.flatnonzero(y > 9)
    if bad.size:
        raise WidebnnError(
            f"{labels} has label {y[bad[0]]} at position {bad[0]}, expected 0 to 9: it is damaged; fetch it again."
        )
    count = rows_of_own_table(str(images), len(x), name, asked)
    return x.reshape(len(x), -1)[:count], y[:count]


def _read_idx(path: Path, item: tuple[int, ...]) -> np.ndarray:
    """Bytes of shape (count, *item): 0, 0, 8 (bytes), the number of axes, each axis as 4 bytes, the bytes."""
    axes = 1 + len(item)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4 + 4 * axes)
            shape = tuple(int.from_bytes(header[4 * i : 4 * i + 4], "big") for i in range(1, axes + 1))
            if header[:4] != bytes([0, 0, 8, axes]) or shape[1:] != item or not 1 <= shape[0] <= MAX_COUNT:
                raise WidebnnError(
                    f"{path} must start as an IDX file of 1 to {MAX_COUNT} items of shape {item}; "
                    f"it starts with {header.hex(' ') or 'nothing'}: fetch it again."
                )
            size = math.prod(shape)
            # Never more than a byte beyond what the header declares, and no memory for what may not be there.
            content = bytearray()
            while block := file.read(min(BLOCK, size + 1 - len(content))):
                content += block
    except (OSError, EOFError, zlib.error) as error:
        raise WidebnnError(f"{path} cannot be read ({error}); check its permissions or fetch it again.") from None
    if len(content) != size:
        raise WidebnnError(
            f"{path} declares {size} bytes and has {'more' if len(content) > size else len(content)}: "
            "it is damaged; fetch it again."
        )
    return np.frombuffer(content, np.uint8).reshape(shape)
