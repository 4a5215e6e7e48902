"""Atomic files, checksums and locks.

A *record* is a plain uncompressed .npz file, ``header.json`` and one .npy member per array, followed by the 64
hexadecimal digits of the SHA-256 of everything before. ``numpy.load`` and ``unzip`` read it; nothing in it is pickled,
and reading one takes memory in proportion to the size of the file, whatever the file claims.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import secrets
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from widebnn.errors import StoreError, readable

HEADER = "header.json"
DIGITS = 64
LOCK = "lock"
"""The file by which a process has a folder to itself."""


class DamageError(ValueError):
    """A file is missing or corrupted."""


class Record(NamedTuple):
    """Contents of a record, and its SHA-256."""

    header: dict[str, Any]
    arrays: dict[str, np.ndarray]
    checksum: str


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file with a random name that replaces ``path`` in the end: fsync, rename, fsync of the folder.

    Nothing that somebody put into the folder is written through; a link at ``path`` is replaced and not followed. After
    an error the old file is as it was.
    """
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}.tmp")
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Replace a file atomically; see ``replacing``."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


@contextlib.contextmanager
def output(path: Path, done: str = "written", advice: str = "choose another folder or make room") -> Iterator[None]:
    """Turn an OSError into a StoreError: one sentence that names the file, the reason and what to do."""
    try:
        yield
    except OSError as error:
        named = str(error.filename or ".tmp")
        where = path if named.endswith(".tmp") else named  # not the temporary name, which nobody has given
        raise StoreError(f"{where} cannot be {done} ({error.strerror or error}); {advice}.") from None


def make_folder(folder: Path) -> None:
    """Create a folder for output and try to write to it, before any work whose result would be lost."""
    with output(folder):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{secrets.token_hex(8)}.tmp"
        probe.touch(exist_ok=False)
        probe.unlink()


def check_output(path: Path, force: bool) -> None:
    """Raise a StoreError, before any work is done, if a file cannot be written or exists and ``force`` is False."""
    if path.is_dir():
        raise StoreError(f"{path} is a folder; give the name of a file.")
    if path.exists() and not force:
        raise StoreError(f"{path} exists already; choose another --out, or overwrite it with --force.")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    make_folder(above if above.is_dir() else path.parent)  # folders that are missing are created with the result


def write_output(path: Path, content: bytes) -> None:
    """Write a file for the user, and the folders above it that are missing."""
    make_folder(path.parent)
    with output(path):
        write_bytes(path, content)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create a folder if needed, and keep other processes out of it: they get a StoreError."""
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} must be a folder, new or of an earlier run, and is a file; choose another.")
    path = folder / LOCK
    with output(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its owner may have removed the folder meanwhile.
            is_ours = os.path.samestat(os.fstat(lock), os.stat(path, follow_symlinks=False))
        except OSError:
            is_ours = False
        if not is_ours:
            raise StoreError(f"{folder} is in use by another process; wait for it, or choose another folder.")
        yield
    finally:
        os.close(lock)


def write_record(path: Path, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """Write a record atomically.

    Args:
        path: The file to write.
        header: Anything that JSON can say, with a ``kind`` that ``read_record`` asks for.
        arrays: Numeric arrays by name.

    Returns:
        The SHA-256 of its contents.

    Examples:
        write_record(path, {"kind": "start"}, {"u": np.zeros(3)})
        read_record(path, "start").arrays["u"]
    """
    with replacing(path) as temporary, temporary.open("r+b") as file:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(zipfile.ZipInfo(HEADER), json.dumps(dict(header), allow_nan=False))
            for name, array in arrays.items():
                # Without a time in it, equal contents are equal bits.
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                    plain = np.asarray(array, order="C")
                    np.lib.format.write_array(member, plain, version=(1, 0), allow_pickle=False)
        file.seek(0)
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
        file.write(checksum.encode())
    return checksum


def read_record(path: Path, kind: str) -> Record:
    """Read a record of a kind and verify its checksum.

    Raises:
        DamageError: It is missing, corrupted, or no record of that kind.
        OSError: The system cannot read it now; the file itself may be good.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise DamageError(f"{path.name} is not a file")  # reading a pipe would wait for ever
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DamageError(f"{path.name} is missing") from None
    checksum = hashlib.sha256(memoryview(data)[:-DIGITS]).hexdigest()
    if data[-DIGITS:] != checksum.encode():
        raise DamageError(f"the checksum of {path.name} is wrong")
    try:
        members = zipfile.ZipFile(io.BytesIO(data)).infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("it is compressed")
        if sum(member.file_size for member in members) > len(data):
            raise ValueError("it claims to be larger than it is")
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            header = dict(json.loads(archive[HEADER]))
            arrays = {name: archive[name] for name in archive.files if name != HEADER}
        if not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise ValueError("it has what is not an array")
        json.dumps(header, allow_nan=False)  # NaN and infinities are not JSON
        if header.get("kind") != kind:
            raise ValueError(f"it is not a record of kind {kind}")
    # The checksum is right, so somebody wrote this on purpose: no list of what may be wrong would be complete.
    except Exception as error:
        reason = readable(str(error))[:200]
        raise DamageError(f"{path.name} has a correct checksum and invalid contents ({reason})") from None
    return Record(header, arrays, checksum)


def _checksum_line(path: Path) -> str:
    """The line of ``sha256sum`` for a file."""
    with path.open("rb") as file:
        return f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n"


def write_checksums(listing: Path, names: list[str]) -> None:
    """List the SHA-256 of files in the folder of ``listing``, in the format of ``sha256sum -c``."""
    write_bytes(listing, "".join(_checksum_line(listing.parent / name) for name in names).encode())


def damaged_files(listing: Path, names: list[str]) -> list[str]:
    """Which of the files are missing or not as they were listed; none if there is no listing."""
    if not listing.is_file():
        return []
    paths = [listing.parent / name for name in names]
    with output(listing, "read", "repair the disk, then repeat the command"):
        listed = listing.read_text(errors="replace").splitlines(keepends=True)
        return [path.name for path in paths if not path.is_file() or _checksum_line(path) not in listed]
