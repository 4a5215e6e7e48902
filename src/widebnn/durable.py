"""Files that are whole or not there, and that know whether they are damaged.

A *record* is one file: a line that names the format, a line of JSON, the bytes of some arrays one after the other, and
the SHA-256 of everything before. It holds no code, nothing in it is compressed, and its size follows from its second
line, so reading one takes no more memory than the file is large.

    widebnn-record 1
    {"kind": "draws", ..., "arrays": {"lp": {"dtype": "float64", "shape": [2, 100]}, ...}}
    <little-endian arrays, in the order of the names><64 hexadecimal digits>
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from widebnn.errors import StoreError, WidebnnError

MAGIC = b"widebnn-record 1\n"
DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
          "float16", "float32", "float64")  # fmt: skip
LONGEST_LINE = 2**24
DIGITS = 64
LOCK = "lock"
"""The file by which a process has a folder to itself."""


class DamageError(ValueError):
    """A file is not what was written."""


class Record(NamedTuple):
    """What a file says, its arrays, and its checksum."""

    header: dict[str, Any]
    arrays: dict[str, np.ndarray]
    checksum: str


def write_bytes(path: Path, data: bytes | list[bytes | memoryview], *, lasting: bool = True) -> None:
    """Replace a file or leave the old one: temporary file, fsync, rename, fsync of the folder.

    The temporary file is new and has a random name, so nothing that somebody put into the folder is written through,
    and a symbolic link at ``path`` itself is replaced and not followed.

    Args:
        path: The file to write.
        data: Its contents, whole or in parts.
        lasting: False leaves out fsync, for files that nobody needs after a crash.

    Raises:
        OSError: The system cannot write there; the old file is as it was.
    """
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:  # O_CREAT | O_EXCL, which follows no link
            for part in [data] if isinstance(data, bytes) else data:
                file.write(part)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if lasting:
            sync(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A private path for a library that writes files by name; what is there in the end replaces ``path``.

    It lies in a new folder with a random name that only this user can enter, beside ``path``.

    Raises:
        OSError: The system cannot write there; the old file is as it was.

    Example:
        with replacing(folder / "draws.nc") as temporary:
            tree.to_netcdf(temporary)
    """
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", suffix=".tmp", dir=path.parent) as scratch:
        temporary = Path(scratch) / path.name
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
    sync(path.parent)


@contextlib.contextmanager
def output(path: Path) -> Iterator[None]:
    """An error of the system while ``path`` is written as one sentence.

    Raises:
        WidebnnError: The system raised an OSError.
    """
    try:
        yield
    except OSError as error:
        is_temporary = str(error.filename or ".tmp").endswith(".tmp")  # a name that nobody has given
        raise WidebnnError(_cannot(path if is_temporary else Path(error.filename), error)) from None


def _cannot(path: Path, error: OSError) -> str:
    return f"{path} cannot be written ({error.strerror or error}); choose another folder or make room."


def make_folder(folder: Path) -> None:
    """Create a folder for output, and write to it: before any work whose result would be lost.

    Raises:
        WidebnnError: It cannot be created or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{secrets.token_hex(8)}.tmp"
        probe.touch(0o600, exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise WidebnnError(_cannot(folder, error)) from None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create a folder if it is not there, and keep other processes out of it, where the system has locks.

    Raises:
        StoreError: Another process is in it, or it cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} must be a folder, new or of an earlier run, and is a file; choose another.")
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A link to elsewhere is not followed, and a pipe is not waited for.
        lock = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666), "ab")
    except OSError as error:
        raise StoreError(_cannot(folder, error)) from None
    with lock:
        if not _take(lock, path):
            raise StoreError(f"{folder} is in use by another process; wait for it, or choose another folder.")
        yield


def _take(lock: IO[bytes], path: Path) -> bool:
    """Whether the lock is ours, and still the one that others find: the folder may have been removed by its owner."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock.fileno()), os.stat(path, follow_symlinks=False))
    except OSError:
        return False


def sync(path: Path) -> None:
    """Make the system write a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_record(path: Path, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """Write a record, and return its checksum."""
    plain = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    plain = {name: array.astype(array.dtype.newbyteorder("<"), copy=False) for name, array in plain.items()}
    shapes = {name: {"dtype": array.dtype.name, "shape": list(array.shape)} for name, array in plain.items()}
    text = json.dumps({**header, "arrays": shapes}, allow_nan=False).encode() + b"\n"
    # A view of an empty array cannot be cast.
    parts: list[bytes | memoryview] = [MAGIC, text]
    parts += [memoryview(array.reshape(-1)).cast("B") for array in plain.values() if array.size]  # type: ignore[arg-type]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    write_bytes(path, [*parts, digest.hexdigest().encode()])
    return digest.hexdigest()


def write_checksums(listing: Path, names: list[str]) -> None:
    """List the SHA-256 of finished files beside it, as sha256sum -c reads it."""
    write_bytes(listing, "".join(_checksum_line(listing.parent / name) for name in names).encode())


def damaged_files(listing: Path, names: list[str]) -> list[str]:
    """Which of the files are not those that were listed, the listing included; none if nothing was listed."""
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


def read_record(path: Path, kind: str) -> Record:
    """Read a record; raise DamageError if it is missing or not a whole record of that kind.

    An OSError of the system is passed on: what cannot be read now may be whole.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise DamageError(f"{path.name} is no file")  # reading a pipe would wait for ever
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DamageError(f"{path.name} is missing") from None
    start = len(MAGIC)
    end = data.find(b"\n", start, start + LONGEST_LINE) + 1
    if data[:start] != MAGIC or end == 0 or len(data) < end + DIGITS:
        raise DamageError(f"{path.name} is not a whole record")
    body = memoryview(data)[:-DIGITS]
    checksum = hashlib.sha256(body).hexdigest()
    if bytes(data[-DIGITS:]) != checksum.encode():
        raise DamageError(f"the checksum of {path.name} is wrong")
    try:
        header = json.loads(data[start:end], parse_constant=_no_constant, parse_float=_finite)
        if not isinstance(header, dict) or header.get("kind") != kind:
            raise ValueError(f"it is no record of {kind}")
        arrays, place = {}, end
        for name, entry in header.pop("arrays").items():
            dtype, shape = entry["dtype"], entry["shape"]
            # Products of numbers of thousands of digits would take hours.
            if dtype not in DTYPES or len(shape) > 32 or not all(type(n) is int and 0 <= n < 2**63 for n in shape):
                raise ValueError(f"{name} is no array")
            size = math.prod(shape) * np.dtype(dtype).itemsize
            if place + size > len(body):
                raise ValueError(f"{name} is longer than the file")
            values = np.frombuffer(body[place : place + size], np.dtype(dtype).newbyteorder("<"))
            arrays[name] = values.astype(np.dtype(dtype), copy=False).reshape(shape)
            place += size
        if place != len(body):
            raise ValueError("there is more than it says")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise DamageError(f"{path.name} has a right checksum and wrong contents ({error})") from None
    return Record(header, arrays, checksum)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _no_constant(text)
    return value
