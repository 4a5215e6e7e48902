"""CIFAR-10 from binary records: one label byte, then 3 x 32 x 32 pixel bytes.

The columns of x keep the record's order, channel by channel (CHW). TensorFlow Datasets hands out HWC;
a dense network with i.i.d. weights has the same law under any permutation of its inputs.
"""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path

import numpy as np

from widebnn.data.counts import rows_of_own_table
from widebnn.data.dataset import Dataset, image_classes
from widebnn.errors import WidebnnError

PIXELS = 3 * 32 * 32
RECORD = 1 + PIXELS
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

OFFICIAL = (tuple(f"data_batch_{i}.bin" for i in range(1, 6)), ("test_batch.bin",))
TFDS = (("tfds_train_first4096.bin",), ("tfds_test_first1024.bin",))

ADVICE = (
    "a folder with data_batch_1.bin to data_batch_5.bin and test_batch.bin (the 'binary version' of "
    "https://www.cs.toronto.edu/~kriz/cifar.html, unpacked), or with tfds_train_first4096.bin and "
    "tfds_test_first1024.bin"
)


def load_cifar10(data_dir: str | PathLike[str] | None, n_train: int | None, n_test: int | None) -> Dataset:
    """The first ``n_train`` and ``n_test`` images of the files in ``data_dir``, in file order.

    The ``tfds_*`` files are in TensorFlow Datasets' order, the one of the paper. The official files hold
    the same images in another order, so the first n of them are other images.
    """
    if data_dir is None:
        raise WidebnnError(f"cifar10 needs data_dir, {ADVICE}.")
    train_files, test_files = _find_files(Path(os.path.expanduser(data_dir)))
    labels_train, x_train = _read("n_train", train_files, n_train)
    labels_test, x_test = _read("n_test", test_files, n_test)
    return image_classes("cifar10", x_train, x_test, labels_train, labels_test, CLASSES)


def _find_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files of the one layout that the folder holds, which must be complete."""
    if not folder.is_dir():
        raise WidebnnError(f"there is no folder {folder}; set data_dir to {ADVICE}.")
    layouts = [layout for layout in (OFFICIAL, TFDS) if any((folder / name).exists() for name in layout[0] + layout[1])]
    if not layouts:
        raise WidebnnError(f"{folder} has no CIFAR-10 file; set data_dir to {ADVICE}.")
    if len(layouts) > 1:
        # Guessing would decide silently which images a result is about.
        raise WidebnnError(
            f"{folder} holds both official files (data_batch_*.bin) and tfds_*.bin files, whose images come in "
            "different orders; keep them in separate folders and set data_dir to one."
        )
    train_files, test_files = ([folder / name for name in part] for part in layouts[0])
    missing = [path.name for path in train_files + test_files if not path.is_file()]
    if missing:
        raise WidebnnError(f"{folder} lacks {', '.join(missing)}; copy it there, or set data_dir to {ADVICE}.")
    return train_files, test_files


def _read(name: str, files: list[Path], asked: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Labels and pixels of the first records; only their bytes are read."""
    available = [_count_records(path) for path in files]
    source = files[0].name if len(files) == 1 else f"{files[0].name} to {files[-1].name}"
    left = rows_of_own_table(f"{source} in {files[0].parent}", sum(available), name, asked)
    parts = [np.empty((0, RECORD), np.uint8)]
    for path, count in zip(files, available, strict=True):
        if not left:
            break
        parts.append(_read_records(path, min(left, count)))
        left -= len(parts[-1])
    records = np.concatenate(parts)
    return records[:, 0], records[:, 1:]


def _count_records(path: Path) -> int:
    size = path.stat().st_size
    if size == 0 or size % RECORD:
        raise WidebnnError(
            f"{path} has {size} bytes, not a positive multiple of {RECORD} (one label byte and {PIXELS} pixels): "
            "it is truncated or not the CIFAR-10 binary version; fetch it again."
        )
    return size // RECORD


def _read_records(path: Path, count: int) -> np.ndarray:
    try:
        records = np.fromfile(path, np.uint8, count=count * RECORD).reshape(count, RECORD)
    except (OSError, ValueError) as error:
        raise WidebnnError(f"{path} cannot be read ({error}); check its permissions or fetch it again.") from None
    bad = np.flatnonzero(records[:, 0] >= len(CLASSES))
    if bad.size:
        raise WidebnnError(
            f"{path} has label {records[bad[0], 0]} in record {bad[0]}, expected 0 to {len(CLASSES) - 1}: "
            "it is damaged or not the CIFAR-10 binary version; fetch it again."
        )
    return records
