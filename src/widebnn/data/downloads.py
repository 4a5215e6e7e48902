"""Data sets from the network, only when asked for: over https, checked by SHA-256 before use."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path
from typing import get_args

from widebnn.data.images import CIFAR10_FOLDER, MNIST_FILES, OFFICIAL, PER_FILE, RECORD
from widebnn.errors import WidebnnError, check_choice
from widebnn.names import Download
from widebnn.runs.files import make_folder

CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MNIST_URL = "https://storage.googleapis.com/cvdf-datasets/mnist/"
SHA256 = {
    "cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}


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
