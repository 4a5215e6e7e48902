"""Data sets from the network, only when asked for: over https, checked before use, each file complete or absent."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from os import PathLike
from pathlib import Path
from typing import IO

from widebnn.data.cifar10 import BINARY, PER_FILE, RECORD
from widebnn.data.mnist import FILES
from widebnn.errors import WidebnnError, check_choice

CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR10_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
MNIST_URL = "https://storage.googleapis.com/cvdf-datasets/mnist/"
MNIST_MD5 = dict(
    zip(
        FILES,
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        strict=True,
    )
)
MAX_BYTES = 200_000_000
"""More than any of the files has."""
MAX_UNPACKED = 400_000_000
"""Twice what the archive unpacks to."""
MAX_MEMBERS = 100
"""It has nine."""
MAX_READ = 2**20
"""More than any header of a member, and than what is copied at a time."""
TIMEOUT = 60.0


def download(name: str, data_dir: str | PathLike[str]) -> Path:
    """Fetch the files of ``cifar10`` or ``mnist`` into ``data_dir``, for :func:`load_dataset` to read, and return it.

    The folder is made if it is not there. Files that it has already are not fetched again.
    """
    check_choice("name", name, ("cifar10", "mnist"))
    folder = Path(os.path.expanduser(data_dir))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as scratch:
            (_cifar10 if name == "cifar10" else _mnist)(folder, Path(scratch))
    except OSError as error:
        raise WidebnnError(
            f"data_dir must be a folder to write to, {folder} is not ({error.strerror or error}); choose another."
        ) from None
    return folder


def _cifar10(folder: Path, scratch: Path) -> None:
    place, names, size = folder / BINARY.folder, BINARY.train + BINARY.test, PER_FILE * RECORD
    if all((place / name).is_file() and (place / name).stat().st_size == size for name in names):
        return
    advice = f"unpack {CIFAR10_URL} in {folder}, which makes {place}"
    archive = scratch / "cifar10.tar.gz"
    _fetch(CIFAR10_URL, CIFAR10_MD5, archive, advice)
    _unpack(archive, BINARY.folder, names, size, scratch)
    place.mkdir(exist_ok=True)
    for name in names:
        os.replace(scratch / name, place / name)


def _mnist(folder: Path, scratch: Path) -> None:
    for name, md5 in MNIST_MD5.items():
        file = f"{name}.gz"
        if (folder / name).is_file() or ((folder / file).is_file() and _md5(folder / file) == md5):
            continue
        _fetch(f"{MNIST_URL}{file}", md5, scratch / file, f"put {MNIST_URL}{file} into {folder}")
        os.replace(scratch / file, folder / file)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req, fp, code, msg, headers, newurl):
        if not newurl.lower().startswith("https://"):
            raise urllib.error.URLError("it redirects to an address without https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(url: str) -> IO[bytes]:
    return urllib.request.build_opener(_HttpsOnly).open(url, timeout=TIMEOUT)


def _fetch(url: str, md5: str, path: Path, advice: str) -> None:
    """The file at ``url`` as ``path``, if it has the checksum; ``advice`` says what to do without network."""
    size = 0
    try:
        with _open(url) as source, path.open("xb") as file:
            while size <= MAX_BYTES and (block := source.read(1 << 16)):
                size += file.write(block)
    except (OSError, http.client.HTTPException) as error:
        raise WidebnnError(f"{url} cannot be fetched ({error}); {advice}.") from None
    if (found := _md5(path)) != md5:
        raise WidebnnError(
            f"{url} must have the MD5 {md5}; what came has {found} ({size} bytes) and was deleted: "
            f"try again later, or {advice}."
        )


class _Unpacked:
    """A gzip file unpacked, of which nobody reads or skips more than an archive of data needs."""

    def __init__(self, file: gzip.GzipFile):
        self._file = file

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MAX_READ:
            raise tarfile.ReadError(f"a header claims {size} bytes")
        return self._file.read(size)

    def seek(self, place: int) -> int:
        if not 0 <= place <= MAX_UNPACKED:
            raise tarfile.ReadError(f"it claims more than {MAX_UNPACKED} bytes")
        return self._file.seek(place)

    def tell(self) -> int:
        return self._file.tell()


def _unpack(archive: Path, folder: str, names: tuple[str, ...], size: int, place: Path) -> None:
    """The files ``folder/name`` of the archive as ``place/name``.

    The archive's own names, links and permissions are looked at but never used to write anything.
    """
    missing = set(names)
    try:
        with gzip.open(archive) as file, tarfile.open(fileobj=_Unpacked(file), mode="r:") as tar:  # type: ignore[call-overload]
            for count, member in enumerate(tar):
                if count == MAX_MEMBERS:
                    raise WidebnnError(f"{archive.name} has more than {MAX_MEMBERS} members; report this archive.")
                parent, _, name = member.name.rpartition("/")
                if parent != folder or name not in missing:
                    continue
                content = tar.extractfile(member) if member.isreg() and member.size == size else None
                if content is None:
                    raise WidebnnError(f"{name} in {archive.name} must be a file of {size} bytes; report this archive.")
                with content, (place / name).open("xb") as copy:
                    shutil.copyfileobj(content, copy)
                missing.remove(name)
    except WidebnnError:
        raise
    # A damaged archive fails in whichever layer meets the damage, with any exception.
    except Exception as error:
        raise WidebnnError(f"{archive.name} cannot be unpacked ({error}); try again.") from None
    if missing:
        raise WidebnnError(f"{archive.name} lacks {', '.join(sorted(missing))}; try again.")
