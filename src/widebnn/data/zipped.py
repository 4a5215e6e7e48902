"""Arrays in zip archives, as ``numpy.savez`` writes them; nothing is unpickled, and no claim is believed.

NumPy takes the memory that a header asks for, and then looks whether there is anything to fill it with. Here the sizes
that the file, the directory of the archive and the header claim are compared first.
"""

from __future__ import annotations

import math
import os
import zipfile
from typing import IO, NamedTuple

import numpy as np

LONGEST_DIRECTORY = 2**16
"""Bytes of the directory of an archive, hundreds of members; in memory it takes ten times as much."""
MOST_PACKED = 1100
"""Nothing that is packed is smaller than a 1032nd."""
MOST_AXES = 32
LONGEST_HEADER = 1000
"""Characters; NumPy's own limit is ten times this, and parsing that takes megabytes."""


class Header(NamedTuple):
    """What an array claims to be."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype


def open_archive(file: IO[bytes]) -> zipfile.ZipFile:
    """The archive; ValueError if its directory is too long."""
    length = file.seek(0, os.SEEK_END)
    file.seek(max(0, length - 2**16 - 100))
    tail = bytes(76) + file.read()
    file.seek(0)
    for at in (tail.rfind(b"PK\x05\x06"), len(tail) - 22):  # where zipfile looks
        claims = [tail[at + 12 : at + 16]]
        if tail[at - 76 : at - 72] == b"PK\x06\x06":
            claims.append(tail[at - 36 : at - 28])
        if at >= 76 and max(int.from_bytes(claim, "little") for claim in claims) > LONGEST_DIRECTORY:
            raise ValueError("the directory of the archive is too long")
    return zipfile.ZipFile(file)


def read_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, size: int) -> Header:
    """What the array in a member is, in an archive of ``size`` bytes; ValueError if it has not the size it claims."""
    packed = member.compress_type == zipfile.ZIP_DEFLATED
    if not packed and member.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{member.filename} is packed in an unusual way")
    if member.compress_size > size or member.file_size > (MOST_PACKED if packed else 1) * member.compress_size:
        raise ValueError(f"{member.filename} claims more than there is")
    with archive.open(member) as content:
        if np.lib.format.read_magic(content) != (1, 0):
            raise ValueError(f"{member.filename} has an unusual header")
        header = Header(*np.lib.format.read_array_header_1_0(content, LONGEST_HEADER))
        if header.dtype.hasobject:
            raise ValueError(f"{member.filename} holds Python objects")
        if len(header.shape) > MOST_AXES or any(type(one) is not int or one < 0 for one in header.shape):
            raise ValueError(f"{member.filename} has a strange shape")
        if member.file_size != content.tell() + math.prod(header.shape) * header.dtype.itemsize:
            raise ValueError(f"{member.filename} has another size than it claims")
    return header


def read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """The array in a member whose header was read."""
    with archive.open(member) as content:
        return np.lib.format.read_array(content, allow_pickle=False)
