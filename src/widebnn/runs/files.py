"""Atomic files, checksums and locks.

A *record* is a plain uncompressed .npz file, ``header.json`` and one .npy member per array, followed by the 64
hexadecimal digits of the SHA-256 of everything before. ``numpy.load`` and ``unzip`` read it; nothing in it is pickled,
and reading one takes memory in proportion to the size of the file, whatever the file claims.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import secrets
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from io import BufferedRandom
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from widebnn.errors import StoreError

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
def _new_file(path: Path, lasting: bool = True) -> Iterator[BufferedRandom]:
    """A temporary file that replaces ``path`` in the end: fsync, rename, fsync of the folder."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("x+b") as file:  # O_CREAT | O_EXCL, which follows no link
            yield file
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if lasting:
            _sync(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_bytes(path: Path, data: bytes | memoryview, *, lasting: bool = True) -> None:
    """Replace a file atomically.

    The temporary file is new and has a random name, so nothing that somebody put into the folder is written through;
    a symbolic link at ``path`` itself is replaced and not followed.

    Args:
        path: The file to write.
        data: Its contents.
        lasting: False leaves out fsync, for files that nobody needs after a crash.

    Raises:
        OSError: The system cannot write there; the old file is as it was.
    """
    with _new_file(path, lasting) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A private path for a library that writes files by name; the file written there replaces ``path``.

    It lies beside ``path`` in a new folder with a random name that only this user can enter.

    Raises:
        OSError: The system cannot write there; the old file is as it was.

    Examples:
        with replacing(folder / "draws.nc") as temporary:
            tree.to_netcdf(temporary)
    """
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", suffix=".tmp", dir=path.parent) as scratch:
        temporary = Path(scratch) / path.name
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Make the system write a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def output(path: Path, done: str = "written", advice: str = "choose another folder or make room") -> Iterator[None]:
    """Turn an OSError into one sentence that names the file, the reason and what to do.

    Raises:
        StoreError: The system raised an OSError.
    """
    try:
        yield
    except OSError as error:
        named = str(error.filename or ".tmp")
        where = path if named.endswith(".tmp") else named  # not the temporary name, which nobody has given
        raise StoreError(f"{where} cannot be {done} ({error.strerror or error}); {advice}.") from None


def make_folder(folder: Path) -> None:
    """Create a folder for output and try to write to it, before any work whose result would be lost.

    Raises:
        StoreError: It cannot be created or written to.
    """
    with output(folder):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{secrets.token_hex(8)}.tmp"
        probe.touch(0o600, exist_ok=False)
        probe.unlink()


def check_output(path: Path, force: bool) -> None:
    """Check, before any work is done, that a file may be written and can be.

    Raises:
        StoreError: It is a folder, it exists and ``force`` is False, or it cannot be written.
    """
    if path.is_dir():
        raise StoreError(f"{path} is a folder; give the name of a file.")
    if path.exists() and not force:
        raise StoreError(f"{path} exists already; choose another --out, or overwrite it with --force.")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    make_folder(above if above.is_dir() else path.parent)  # folders that are missing are created with the result


def write_output(path: Path, content: bytes) -> None:
    """Write a file for the user, and the folders above it that are missing.

    Raises:
        StoreError: It cannot be written.
    """
    make_folder(path.parent)
    with output(path):
        write_bytes(path, content)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create a folder if needed, and keep other processes out of it where the system has locks.

    Raises:
        StoreError: Another process uses it, or it cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} must be a folder, new or of an earlier run, and is a file; choose another.")
    path = folder / LOCK
    with output(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # A link to elsewhere is not followed, and a pipe is not waited for.
        lock = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666), "ab")
    with lock:
        if not _take(lock, path):
            raise StoreError(f"{folder} is in use by another process; wait for it, or choose another folder.")
        yield


def _take(lock: IO[bytes], path: Path) -> bool:
    """Whether the lock is ours, and still the one that others find: its owner may have removed the folder."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock.fileno()), os.stat(path, follow_symlinks=False))
    except OSError:
        return False


def write_record(path: Path, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """Write a record atomically.

    Args:
        path: The file to write.
        header: Anything that JSON can say, with a ``kind`` that ``read_record`` asks for.
        arrays: Numeric arrays by name.

    Returns:
        The SHA-256 of its contents.

    Raises:
        OSError: The system cannot write there; the old file is as it was.

    Examples:
        write_record(path, {"kind": "start"}, {"u": np.zeros(3)})
        read_record(path, "start").arrays["u"]
    """
    with _new_file(path) as file:
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
    """Read a record and verify its checksum.

    Args:
        path: The file.
        kind: The ``kind`` that its header must have.

    Returns:
        Its header, arrays (read-only) and checksum.

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
        header, arrays = _contents(data)
        if header.get("kind") != kind:
            raise ValueError(f"it is not a record of kind {kind}")
    # The checksum is right, so somebody wrote this on purpose: no list of what may be wrong would be complete.
    except Exception as error:
        raise DamageError(f"{path.name} has a correct checksum and invalid contents ({error})") from None
    return Record(header, arrays, checksum)


def _contents(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("it is compressed")
        if sum(member.file_size for member in members) > len(data):
            raise ValueError("it claims to be larger than it is")
        header = json.loads(archive.read(HEADER))
        json.dumps(header, allow_nan=False)  # NaN and infinities are not JSON
        names = [member.filename for member in members if member.filename != HEADER]
        return dict(header), {name.removesuffix(".npy"): _array(archive.read(name)) for name in names}


def _array(data: bytes) -> np.ndarray:
    """A .npy file in memory; numpy.load would allocate what the file claims before reading it."""
    stream = io.BytesIO(data)
    np.lib.format.read_magic(stream)
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if is_fortran:
        raise ValueError("it has an array in another order")
    return np.frombuffer(memoryview(data)[stream.tell() :], dtype).reshape(shape)


def write_checksums(listing: Path, names: list[str]) -> None:
    """List the SHA-256 of files in the folder of ``listing``, in the format of ``sha256sum -c``."""
    write_bytes(listing, "".join(_checksum_line(listing.parent / name) for name in names).encode())


def damaged_files(listing: Path, names: list[str]) -> list[str]:
    """Which of the files, or the listing itself, are not as they were listed; none if there is no listing."""
    if not listing.is_file():
        return []
    try:
        listed = listing.read_bytes()
        lines = {name: _checksum_line(listing.parent / name).encode() for name in names}
    except OSError as error:
        return [f"{listing.name} ({error.strerror or error})"]
    damaged = [name for name, line in lines.items() if line not in listed]
    return damaged or ([listing.name] if b"".join(lines.values()) != listed else [])


def _checksum_line(path: Path) -> str:
    if not path.is_file():
        return f"{'missing':64}  {path.name}\n"
    with path.open("rb") as file:
        return f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n"
