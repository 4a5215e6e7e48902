"""Pickles and archives made to harm whoever opens them, for the tests of the readers.

Every payload tries to make a file called ``hacked`` in the folder in which it runs, or to write outside its own folder.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from widebnn.data.images import CIFAR10_FOLDER, OFFICIAL, RECORD

CANARY = "hacked"
ROWS = 3
"""Images in each file here, instead of 10 000."""


# --- pickles


def records(rows: int, seed: int) -> np.ndarray:
    """CIFAR-10 records: a label and 3072 pixels in each row."""
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.integers(0, 10, rows), rng.integers(0, 256, (rows, RECORD - 1))]).astype(np.uint8)


def batch(
    images: np.ndarray,
    *,
    labels: bytes | None = None,
    array: bytes | None = None,
    dtype: bytes = b"U\x02u1",
    order: bytes = b"\x89",
    shape: bytes | None = None,
    content: bytes | None = None,
    extra: bytes = b"",
) -> bytes:
    """A batch of the Python version of CIFAR-10, instruction by instruction as Python 2 wrote them (protocol 2)."""
    rows, pixels = len(images), images[:, 1:]
    if labels is None:
        labels = _items(b"K" + bytes([label]) for label in images[:, 0])
    if shape is None:
        shape = b"M" + rows.to_bytes(2, "little") + b"M\x00\x0c\x86"
    if content is None:
        content = pixels.tobytes("F" if order == b"\x88" else "C")
        content = b"T" + len(content).to_bytes(4, "little") + content
    if array is None:
        array = (
            b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09(K\x01"
            + shape
            + b"cnumpy\ndtype\nq\x0a"
            + dtype
            + b"K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            + order
            + content
            + b"tb"
        )
    names = _items(b"U\x05a.pngr\x00\x01\x00\x00" for _ in range(rows))
    return (
        b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03"
        + (b"U\x06labelsq\x04" + labels + b"U\x04dataq\x06" + array)
        + (b"U\x09filenamesq\x0c" + names + extra + b"u.")
    )


def _items(values: Iterable[bytes]) -> bytes:
    return b"](" + b"".join(values) + b"e"


class Evil:
    """Pickled, it is a call of anything with any arguments."""

    def __init__(self, call: Callable[..., Any], *arguments: Any):
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call, self.arguments


def dumped(value: Any, protocol: int = 2) -> bytes:
    """The instructions of a pickle without its beginning and its end, to be put into another."""
    return pickle.dumps(value, protocol)[2 if protocol > 1 else 0 : -1]


_OPEN = f"open({CANARY!r}, 'w')"
PROGRAMS: dict[str, bytes] = {
    f"{name}, protocol {protocol}": pickle.dumps(evil, protocol)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    for name, evil in {
        "os.system": Evil(os.system, f"touch {CANARY}"),
        "eval": Evil(eval, _OPEN),
        "exec": Evil(exec, _OPEN),
        "subprocess": Evil(subprocess.call, ["touch", CANARY]),
        "open": Evil(open, CANARY, "w"),
        "os.mkdir": Evil(os.mkdir, CANARY),
    }.items()
}
"""Whole pickles that harm whoever unpickles them."""

_COMMAND = b"U\x0ctouch " + CANARY.encode()
_SYSTEM = b"cposix\nsystem\n"
PICKLES: dict[str, tuple[bytes, str]] = {
    "system": (dumped(Evil(os.system, "touch hacked")), "asks for 'posix system', which is never imported"),
    "protocol 0": (dumped(Evil(os.system, "touch hacked"), 0), "asks for 'posix system'"),
    "eval": (dumped(Evil(eval, "open('hacked', 'w')")), "asks for '__builtin__ eval'"),
    "nested": (dumped([({"a": [Evil(os.system, "touch hacked")]},)]), "asks for 'posix system'|instruction"),
    "REDUCE": (_SYSTEM + _COMMAND + b"\x85R", "asks for 'posix system'"),
    "INST": (b"(" + _COMMAND + b"iposix\nsystem\n", "instruction INST, which is never followed"),
    "OBJ": (b"(cnumpy\ndtype\nU\x02u1o", "instruction OBJ"),
    "STACK_GLOBAL": (b"U\x05posixU\x06system\x93" + _COMMAND + b"\x85R", "instruction STACK_GLOBAL"),
    "NEWOBJ": (b"cnumpy\nndarray\nK\x03\x85\x81", "instruction NEWOBJ"),
    "NEWOBJ_EX": (b"cnumpy\nndarray\nK\x03\x85}\x92", "instruction NEWOBJ_EX"),
    "EXT1": (b"\x82\x01", "instruction EXT1"),
    "EXT4": (b"\x84\x01\x00\x00\x00", "instruction EXT4"),
    "PERSID": (b"Phacked\n", "instruction PERSID"),
    "BINPERSID": (b"K\x01Q", "instruction BINPERSID"),
    "dotted name": (b"cnumpy\ndtype.__class__\nK\x01\x85R", r"asks for 'numpy dtype\.__class__'"),
    "other NumPy name": (b"cnumpy\nload\nU\x06hacked\x85R", "asks for 'numpy load'"),
    "near name": (b"cnumpy.core.multiarray\n_reconstruct2\n", "asks for"),
    "name with a line": (b"cos\rsystem\nsystem\n", "asks for"),
    "BUILD of a setter": (b"cnumpy\nndarray\n}(U\x0c__setstate__" + _SYSTEM + b"ub", "asks for 'posix system'"),
    "BUILD of text": (b"U\x01a}b", "is damaged"),
    "BUILD of a list": (b"]}b", "is damaged"),
    "BUILD of nothing": (b"b", "is damaged"),
    "DUP": (b"K\x012", "instruction DUP"),
    "FRAME": (b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f", "instruction FRAME"),
    "NEXT_BUFFER": (b"\x97", "instruction NEXT_BUFFER"),
    "FROZENSET": (b"(K\x01\x91", "instruction FROZENSET"),
    "unhashable key": (b"}(]K\x01u", "has a key that is not text"),
    "key of doubled tuples": (
        b"}(" + b"K\x00q\x64" + b"h\x64\x86q\x64" * 60 + b"K\x01u",
        "has a key that is not text",
    ),
    "key of nested tuples": (b"}(K\x00" + b"\x85" * 90_000 + b"K\x01u", "has a key that is not text"),
    "odd items": (b"}(K\x01u", "has a key|is damaged"),
    "unknown memo": (b"h\xfe", "is damaged"),
    "POP": (b"N0", "instruction POP"),
    "too many values": (b"N" * 120_000, "has more than 100000 pickle instructions"),
    "append to a number": (b"K\x01(K\x02e", "is damaged"),
    "no mark": (b"t" * 20, "is damaged"),
    "unknown instruction": (b"\xff", "is damaged"),
    "long text": (b"T\xff\xff\xff\x7fabc", "is damaged"),
    "negative text": (b"T\xff\xff\xff\xffabc", "is damaged"),
    "long unicode": (b"X\xff\xff\xff\xffabc", "is damaged"),
    "long unicode, 8 bytes": (b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc", "is damaged"),
    "long bytes, 8 bytes": (b"\x8e\xff\xff\xff\xff\xff\xff\xff\xffabc", "is damaged"),
    "long number": (b"\x8b\xff\xff\xff\x7fabc", "is damaged"),
    "long decimal": (b"L" + b"9" * 100_000 + b"L\n", "is damaged"),
}
"""Each is a value in an otherwise good batch, with the reason for which it must be refused."""


# --- tar archives

Entry = tuple[tarfile.TarInfo, bytes]


def entry(name: str, content: bytes = b"", **fields: Any) -> Entry:
    """A member of a tar archive; ``fields`` are attributes of its header."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for field, value in fields.items():
        setattr(member, field, value)
    return member, content


def pack(*entries: Entry) -> bytes:
    """A tar.gz archive."""
    return gzip.compress(tar(*entries), 1)


def tar(*entries: Entry) -> bytes:
    """A tar archive."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for member, content in entries:
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


ONE = f"{CIFAR10_FOLDER}/data_batch_1.bin"
PART = bytes(ROWS * RECORD)
_SIZE = f"must be a file of {len(PART)} bytes"
ENTRIES: dict[str, tuple[Entry, str]] = {
    "up": (entry("../data_batch_1.bin", PART), "lacks data_batch_1.bin"),
    "up and back": (entry(f"../data/{ONE}", PART), "lacks data_batch_1.bin"),
    "up from the folder": (entry(f"{CIFAR10_FOLDER}/../../data_batch_1.bin", PART), "lacks data_batch_1.bin"),
    "absolute": (entry("/tmp/data_batch_1.bin", PART), "lacks data_batch_1.bin"),
    "symbolic link": (entry(ONE, type=tarfile.SYMTYPE, linkname="/etc/passwd"), _SIZE),
    "link of that size": (entry(ONE, PART, type=tarfile.SYMTYPE, linkname="/etc/passwd"), _SIZE),
    "hard link": (entry(ONE, type=tarfile.LNKTYPE, linkname="/etc/passwd"), _SIZE),
    "hard link to itself": (entry(ONE, type=tarfile.LNKTYPE, linkname=ONE), _SIZE),
    "device": (entry(ONE, type=tarfile.CHRTYPE), _SIZE),
    "pipe": (entry(ONE, type=tarfile.FIFOTYPE), _SIZE),
    "folder": (entry(ONE, type=tarfile.DIRTYPE), f"{_SIZE}|lacks"),
    "oversize": (entry(ONE, PART + b"x"), _SIZE),
    "undersize": (entry(ONE, PART[1:]), _SIZE),
    "bomb": (entry(ONE, bytes(20_000_000)), _SIZE),
    "folder that is a link": (entry(CIFAR10_FOLDER, type=tarfile.SYMTYPE, linkname="/tmp"), "lacks data_batch_1.bin"),
    "long pax header": (entry(ONE, PART, pax_headers={"comment": "x" * 3_000_000}), "cannot be unpacked"),
    "long name": (entry(ONE + "/" + "x" * 3_000_000, PART), "cannot be unpacked"),
    "sparse without a map": (entry(ONE, PART, pax_headers={"GNU.sparse.map": "x", "GNU.sparse.size": "9"}), "cannot"),
    "negative time": (entry(f"{CIFAR10_FOLDER}/a", PART, pax_headers={"mtime": "-1e999"}), "lacks data_batch_1.bin"),
}
"""Each in place of data_batch_1.bin in an otherwise good archive, with the reason for which it must be refused."""


def good_entries() -> dict[str, Entry]:
    """The six files of a good, small archive."""
    names = [*OFFICIAL[0], *OFFICIAL[1]]
    parts = np.split(records(ROWS * len(names), seed=1), len(names))
    return {name: entry(f"{CIFAR10_FOLDER}/{name}", part.tobytes()) for name, part in zip(names, parts, strict=True)}


def tars() -> dict[str, bytes]:
    """Whole archives: good ones with one hostile member, and those that are hostile as a whole."""
    good = good_entries()
    others = [one for name, one in good.items() if name != "data_batch_1.bin"]
    archives = {name: pack(hostile, *others) for name, (hostile, _) in ENTRIES.items()}
    whole = tar(*good.values())
    archives["cut short"] = gzip.compress(whole, 1)[:-2000]
    archives["no gzip"] = whole
    archives["wrong checksum of a header"] = gzip.compress(whole[:20] + b"x" + whole[21:], 1)
    archives["size beyond the end"] = gzip.compress(_with_size(whole, b"77777777777\0"), 1)
    archives["negative size"] = gzip.compress(_with_size(whole, b"\xff" * 12), 1)
    archives["size of a googol"] = gzip.compress(_with_size(whole, b"\x80" + b"\x7f" * 11), 1)
    archives["pax header of a terabyte"] = gzip.compress(
        _with_size(_pax_first(whole), b"\x80" + bytes(5) + b"\xff" * 6)
    )
    return archives


def bombs() -> dict[str, bytes]:
    """Archives of some megabytes that unpack to 40 GB, or to 400 000 files."""
    good = pack(*good_entries().values())
    return {
        "bomb of zeros": gzip_bomb(40 * 10**9),
        "bomb before the files": _large_member(40 * 10**9) + good,
        "many members": gzip.compress(tar(entry(f"{CIFAR10_FOLDER}/x"))[:512] * 400_000, 1),
    }


def _with_size(archive: bytes, size: bytes) -> bytes:
    """The size in the first header replaced."""
    return sealed_header(archive[:124] + size + archive[136:512]) + archive[512:]


def sealed_header(header: bytes) -> bytes:
    """The header of a member with its checksum made right."""
    header = header[:148] + b" " * 8 + header[156:]
    return header[:148] + b"%06o\0 " % sum(header) + header[156:]


def _pax_first(archive: bytes) -> bytes:
    return tar(entry("pax", b"x", pax_headers={"comment": "x" * 300}))[:2048] + archive


def gzip_bomb(size: int) -> bytes:
    """Zeros, a thousandth of their size."""
    block = 2**26
    return gzip.compress(bytes(block)) * -(-size // block)


def _large_member(size: int) -> bytes:
    """A gzip stream of a member that is not wanted, and of the zeros in it."""
    header = entry("zeros")[0]
    header.size = size
    return gzip.compress(header.tobuf()) + gzip_bomb(size)


# --- NumPy arrays and zip archives


def npy(descr: Any, shape: Any, content: bytes = b"", order: bool = False, version: bytes = b"\x01\x00") -> bytes:
    """A .npy file with any header."""
    header = repr({"descr": descr, "fortran_order": order, "shape": shape}).encode()
    return npy_text(header, content, version)


def npy_text(header: bytes, content: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """A .npy file with any text as its header."""
    length = struct.pack("<H" if version[:1] == b"\x01" else "<I", len(header))
    return b"\x93NUMPY" + version + length + header + content


def zipped(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def zips() -> dict[str, bytes]:
    """.npz archives of x and y, one of which is hostile."""
    y = npy("<f8", (2,), bytes(16))
    objects = io.BytesIO()
    np.save(objects, np.array([Evil(os.system, f"touch {CANARY}")], dtype=object), allow_pickle=True)
    bomb = npy("<f8", (10**8, 1))
    members = {
        "objects": objects.getvalue(),
        "objects in a structure": npy([("a", "|O")], (1,), pickle.dumps(Evil(os.system, f"touch {CANARY}"))),
        "a pickle": PROGRAMS["os.system, protocol 2"],
        "terabytes": npy("<f8", (10**12, 1), bytes(16)),
        "gigabytes": npy("<f8", (10**9, 1), bytes(16)),
        "text of gigabytes": npy("<U250000000", (2,), bytes(16)),
        "negative": npy("<f8", (-1, 1), bytes(16)),
        "a call in the header": npy_text(b"{'descr': __import__('os').system('touch hacked'), 'shape': ()}"),
        "deep header": npy_text(b"(" * 9000),
        "long header": npy_text(b" " * 5_000_000, version=b"\x02\x00"),
        "many axes": npy("<f8", (1,) * 3000, bytes(8)),
    }
    archives = {name: zipped({"x.npy": content, "y.npy": y}) for name, content in members.items()}
    archives["bomb that is shorter"] = zipped({"x.npy": bomb + bytes(10**7), "y.npy": y}, zipfile.ZIP_DEFLATED)
    archives["bomb in bzip2"] = zipped({"x.npy": bomb + bytes(10**7), "y.npy": y}, zipfile.ZIP_BZIP2)
    archives["bomb in LZMA"] = zipped({"x.npy": bomb + bytes(10**7), "y.npy": y}, zipfile.ZIP_LZMA)
    archives["names outside"] = zipped({"../x.npy": y, "/y.npy": y, "..\\hacked": b""})
    archives["many members"] = zipped({f"{i}.npy": b"" for i in range(20_000)})
    archives["sizes that lie"] = _lying(zipped({"x.npy": npy("<f8", (10**9, 1), bytes(16)), "y.npy": y}))
    return archives


def _lying(archive: bytes) -> bytes:
    """The first member of the directory says that it has eight gigabytes, packed and unpacked."""
    at = archive.index(b"PK\x01\x02")
    return archive[: at + 20] + struct.pack("<II", 2**32 - 2, 2**32 - 2) + archive[at + 28 :]
