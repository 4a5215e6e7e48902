"""What hostile.py feeds to the readers of the package: valid files of every kind, and strategies that spoil them.

A strategy yields what is written over a valid folder: the bytes of some files by name, None for one that is removed.
Formats with checksums are spoiled on both sides of them: bytes of the file, which the checksum finds, and contents with
all checksums made right again, as somebody does who knows the format.
"""

from __future__ import annotations

import copy
import functools
import gzip
import hashlib
import io
import itertools
import json
import os
import pickletools
import random
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import hypothesis
import jax.numpy as jnp
import numpy as np
import xarray as xr
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import hostile_archives as archives
from widebnn import cli, commands, unfinished
from widebnn.data import cifar10, downloads, load_dataset, pickled
from widebnn.data.encoding import learn_encoding, with_target
from widebnn.data.mnist import FILES as MNIST
from widebnn.data.table import read_table
from widebnn.durable import MAGIC, DamageError, read_record
from widebnn.errors import WidebnnError
from widebnn.estimators import WideBNNClassifier, WideBNNRegressor, saving
from widebnn.estimators.ensemble import Ensemble
from widebnn.networks.dense import Layer, dense
from widebnn.networks.evidence import Hyperparameters
from widebnn.posteriors.target import Target
from widebnn.reproduction.analysis import summarise_cell
from widebnn.reproduction.cells import Cell
from widebnn.reproduction.grid import load_cell, write_config
from widebnn.reproduction.sweep import path_of
from widebnn.sampling.driver import _Run
from widebnn.sampling.placement import Placement
from widebnn.sampling.result import Result
from widebnn.sampling.store import open_store

Files = dict[str, bytes | None]
BATCH, AT_ONCE = 500, 5
PICKLE_FILE = "data_batch_1"


class Reader(NamedTuple):
    """Something that reads files, and what it is given."""

    name: str
    kind: str
    count: int
    """Inputs of a whole run."""
    files: Files
    """A valid folder."""
    inputs: SearchStrategy[Files]
    """What is written over it."""
    read: Callable[[Path], Any]
    errors: tuple[type[Exception], ...] = (WidebnnError,)
    """What it may raise; all of these are shown to people as one sentence."""
    sealed: bool = False
    """Whether its files have checksums."""
    own: tuple[str, ...] = ()
    """The files that it opens itself."""


HOME = Path(tempfile.gettempdir()) / "widebnn-hypothesis"
hypothesis.configuration.set_hypothesis_home_dir(HOME)  # not the folder that the command is run in


def generate(inputs: SearchStrategy[Files], count: int, seed: int = 0) -> Iterator[Files]:
    """So many different inputs, made in batches of fixed seeds."""
    seen: set[int] = set()
    made: list[Files] = []

    def keep(several: list[Files]) -> None:
        made.extend(several)

    for batch in itertools.count(1000 * seed):
        made.clear()
        before = len(seen)
        settings = hypothesis.settings(
            max_examples=min(BATCH, max(50, count - before)) // AT_ONCE,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        several = st.lists(inputs, min_size=AT_ONCE, max_size=AT_ONCE)
        hypothesis.seed(batch)(settings(hypothesis.given(several=several)(keep)))()
        for files in made:
            key = hash(tuple(sorted((name, content or b"-") for name, content in files.items())))
            if key not in seen and len(seen) < count:
                seen.add(key)
                yield files
        if len(seen) == count or len(seen) == before:
            return  # or there are no others


# --- bytes

PLACE = st.integers(0, 2**16 - 1)
NUMBERS = [
    struct.pack(order + code, value)
    for order in "<>"
    for code, values in {
        "H": (0, 1, 2**15, 2**16 - 1),
        "I": (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 60_000),
        "Q": (0, 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1),
        "d": (float("nan"), float("inf"), 1e308, -1.0),
    }.items()
    for value in values
]
KINDS = ("flip", "set", "insert", "delete", "cut", "copy", "set", "flip")
DICE = st.integers(0, 2**64 - 1).map(random.Random)
"""For what has no structure: one draw of the fuzzer instead of ten."""


def spoiled(data: bytes, most: int = 3) -> SearchStrategy[bytes]:
    """The bytes with some of them changed, cut, inserted or copied elsewhere."""

    def spoil(dice: random.Random) -> bytes:
        result = data
        for _ in range(dice.randint(1, most)):
            content = dice.choice(NUMBERS) if dice.random() < 0.5 else dice.randbytes(dice.randint(1, 6))
            result = _edit(result, (dice.choice(KINDS), dice.randrange(2**16), dice.randrange(2**16), content))
        return result

    return DICE.map(spoil)


def _edit(data: bytes, edit: tuple[str, int, int, bytes]) -> bytes:
    kind, first, second, content = edit
    at, other = _place(first, len(data)), _place(second, len(data))
    if kind == "flip" and data:
        return data[:at] + bytes([data[at] ^ 1 << second % 8]) + data[at + 1 :]
    if kind == "set":
        return data[:at] + content + data[at + len(content) :]
    if kind == "insert":
        return data[:at] + content + data[at:]
    if kind == "delete":
        return data[:at] + data[at + 1 + second % 16 :]
    if kind == "copy":
        return data[:at] + data[other : other + 1 + first % 64] + data[at:]
    return data[:at]


def _place(number: int, size: int) -> int:
    """Anywhere, but half of the time in the first or the last bytes, where headers and directories are."""
    if size == 0:
        return 0
    if number < 2**14:
        return number % min(size, 300)
    if number < 2**15:
        return size - 1 - number % min(size, 300)
    return number % size


# --- JSON

RAW = {
    "@nan": "NaN",
    "@inf": "1e999",
    "@minus": "-Infinity",
    "@deep": "[" * 3000 + "]" * 3000,
    "@digits": "9" * 5000,
    "@twice": '{"a": 1, "a": [2]}',
    "@surrogate": '"\\ud800"',
    "@cut": '{"a": ',
}
"""What JSON can say and Python's json.dumps cannot, by the text that stands for it."""
CONTROL = "\x1b[2J\x07 a\nb\rc\u202e"
ODD = st.one_of(
    st.sampled_from(
        [None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, 2**64, 10**30, 10**300, 0.5, -0.5, 1e-300, 1e308, "", "x",
         "0", "x" * 5000, CONTROL, "../../hacked", "/etc/passwd", "__import__('os').system('touch hacked')", "nan",
         "auto", [], {}, [[]], [0], [-1], [1, 2], [10**18], ["a", "b"], {"a": None}, {"$array": 3}, {"$float": "x"},
         {"$tuple": None}, {"$tuple": [1]}, {"$array": {"dtype": "float64", "shape": [10**9], "values": [1]}},
         {"$array": {"dtype": "object", "shape": [1], "values": [{}]}},
         {"$array": {"dtype": "str", "shape": [3], "values": ["x" * 3000, "", ""]}}, *RAW]
    ),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=4,
    ),
)  # fmt: skip


def dumps(document: Any) -> bytes:
    """The document as JSON, with what json.dumps cannot say."""
    text = json.dumps(document)
    for name, raw in RAW.items():
        text = text.replace(f'"{name}"', raw)
    return text.encode("utf-8", "surrogatepass")


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where everything in a document is."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *itertools.chain.from_iterable(paths(one, (*path, key)) for key, one in items)]


def changed(document: Any, most: int = 2) -> SearchStrategy[Any]:
    """The document with parts of it replaced, removed, renamed, nudged or added to."""
    places = paths(document)[1:]
    kinds = ("replace", "replace", "replace", "remove", "rename", "nudge", "nudge", "add", "wrap")

    def change(dice: random.Random, odd: list[Any]) -> Any:
        return _change(document, [(dice.choice(places), dice.choice(kinds), one) for one in odd])

    return st.builds(change, DICE, st.lists(ODD, min_size=1, max_size=most))


def _change(document: Any, changes: list[tuple[tuple[Any, ...], str, Any]]) -> Any:
    document = copy.deepcopy(document)
    for path, kind, value in changes:
        odd = copy.deepcopy(value)
        try:
            parent = functools.reduce(lambda value, key: value[key], path[:-1], document)
            old = parent[path[-1]]
        except (KeyError, IndexError, TypeError):  # an earlier change took it away
            continue
        if not isinstance(parent, (dict, list)):
            continue
        if kind == "remove":
            del parent[path[-1]]
        elif kind == "rename" and isinstance(parent, dict):
            parent[str(odd)[:5000]] = parent.pop(path[-1])
        elif kind == "add" and isinstance(old, list):
            old.append(odd)
        elif kind == "add" and isinstance(old, dict):
            old[str(odd)[:20]] = odd
        else:
            parent[path[-1]] = [old] if kind == "wrap" else _nudged(old) if kind == "nudge" else odd
    return document


def _nudged(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return -value
    if isinstance(value, str):
        return value[:-1]
    return value[:-1] if isinstance(value, list) else {**value, "more": 1}


# --- tables

TABLE = (
    b"size,colour,weight,unit,price\n1.5,red,0.2,cm,10.0\n-2,blue,,cm,11.5\n3e0,red,0.4,cm,9\n0.25,green,0.1,cm,12.25\n"
    b"7,blue,?,cm,10.5\n2,red,0.9,cm,8.75\n4,green,0.3,cm,10.125\n5,red,0.5,cm,11\n"
)
WHOLE = TABLE.replace(b",,", b",0.7,").replace(b"?", b"0.6")
CELL = st.one_of(
    st.sampled_from(["1", "2.5", "-3", "0.125", "7", "1e3", "red", "blue", "", "?", "NA"]),
    st.sampled_from(
        ["nan", "inf", "-inf", "1e999", "1e-999", "1e200", "9" * 500, "9" * 5000, "0x10", "١٢", "1_000", "+5", "07",
         "-", ".", "1e", "True", "x" * 3000, CONTROL, "\0", '"', '""', '"a,b"', '"a\nb"', "a;b", "\t", "é", "😀",
         "\ufeff", "'; drop table", "=cmd|' /C calc'!A0", "\x85", "\u2028"]
    ),
    st.integers().map(str), st.floats().map(repr), st.text(max_size=5),
)  # fmt: skip
NAME = st.one_of(st.sampled_from(["size", "colour", "weight", "unit", "price", "a", "b"]), CELL)
PLAIN = st.sampled_from(["1", "2.5", "-3", "0.125", "7", "1e3", "4", "0"])


@st.composite
def csv_text(draw: Any) -> bytes:
    """Columns of numbers, of text or of anything; most rows as long as the first."""
    names = draw(st.lists(NAME, min_size=1, max_size=4))
    if draw(st.booleans()):
        names.append("price")
    kinds = [draw(st.sampled_from((PLAIN, CELL, PLAIN))) for _ in names]
    rows = [[draw(kind) for kind in kinds] for _ in range(draw(st.integers(0, 4)))]
    if rows and draw(st.integers(0, 7)) == 0:
        rows[-1].append("1")
    rows = rows * draw(st.sampled_from((1, 1, 1, 3, 40)))
    separator, end = (
        draw(st.sampled_from((",", ",", ",", ";", "\t"))),
        draw(st.sampled_from(("\n", "\n", "\r\n", "\r"))),
    )
    text = end.join(separator.join(row) for row in [names, *rows]) + end
    return text.encode(draw(st.sampled_from(("utf-8", "utf-8", "utf-8", "utf-16", "latin-1"))), "replace")


TABLES = st.one_of(spoiled(TABLE), spoiled(WHOLE), csv_text(), csv_text()).map(lambda text: {"table.csv": text})


def _fit(classify: bool) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        notes: list[str] = []
        table = with_target(read_table(folder / "table.csv"), "price", notes)
        encoding = learn_encoding(table, "price", classify=classify, notes=notes)
        return encoding.encode(table, notes), encoding.targets(table), notes

    return read


def _fit_either(folder: Path) -> Any:
    path = folder / "table.csv"
    return _fit(os.path.isfile(path) and path.stat().st_size % 2 == 1)(folder)


@functools.cache
def _encoding() -> Any:
    table = functools.partial(read_table)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "table.csv").write_bytes(TABLE)
        return learn_encoding(table(Path(folder) / "table.csv"), "price", notes=[])


def _encode(folder: Path) -> Any:
    notes: list[str] = []
    return _encoding().encode(read_table(folder / "table.csv", 1), notes), notes


# --- NumPy archives

DESCR = ["<f8", "<f8", "<f8", ">f4", "<i8", "|b1", "|u1", "<u8", "<f2", "<c16", "<U5", "|S3", "|O", "|V8", "<M8[ns]",
         "<f16", "f", "<f8" * 300, "", None, 5, [("a", "<f8")], [("a", "|O")], ("<f8", (2, 2)), "<U2000000000",
         "<i3"]  # fmt: skip
SHAPE = st.one_of(
    st.sampled_from([(4, 2), (4, 2), (4,), (4, 1), (0, 2), (), (2, 2, 2), (8,)]),
    st.sampled_from([(-1, 2), (10**12,), (10**12, 10**12), (2**63,), (2**31, 2**31), (1,) * 40, (True, 2), (4.0, 2),
                     "4", None, [4, 2], (4, None), 10**9, (3 * 10**9, 1), (10**6, 0)]),
)  # fmt: skip


@st.composite
def npy_member(draw: Any) -> bytes:
    """A .npy file whose header and content need not agree."""
    content = draw(
        st.sampled_from((bytes(64), np.arange(8.0).tobytes(), bytes(31), b"", b"\x80\x04K\x01.", b"\xff" * 64))
    )
    version = draw(st.sampled_from((b"\x01\x00", b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x09")))
    order = draw(st.sampled_from((False, False, True, None, "x")))
    member = archives.npy(draw(st.sampled_from(DESCR)), draw(SHAPE), content, order, version)
    return draw(spoiled(member, 1)) if draw(st.integers(0, 3)) == 0 else member


def npz_bytes(**arrays: np.ndarray) -> bytes:
    """An archive as NumPy writes it."""
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def npy_bytes(array: np.ndarray) -> bytes:
    """An array as NumPy writes it."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


ODD_ARRAY = st.tuples(
    st.sampled_from(("f8", "f4", "f2", "i8", "u1", "b1", "i1", "u8", "c8", "U2", "M8[s]")),
    st.sampled_from(((4, 2), (4,), (4, 1), (3, 2), (1, 1), (4, 2, 2), (0,), ())),
    st.sampled_from((0.0, 1.0, -1.0, 2.0**62, 1e4, 200.0, float("nan"), float("inf"), 1e308)),
)
X, Y = np.arange(8.0).reshape(4, 2), np.array([0.5, 1.0, -1.0, 2.0])
PARTS = ("x", "y", "x_train", "y_train", "x_test", "y_test")


def _odd_array(parts: tuple[str, tuple[int, ...], float]) -> bytes:
    dtype, shape, value = parts
    with np.errstate(all="ignore"):
        array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
        if array.size and array.dtype.kind in "fiub":
            array.reshape(-1)[0] = np.float64(value).astype(dtype)
    return npy_bytes(array)


MEMBER = st.one_of(st.just(npy_bytes(X)), npy_member(), ODD_ARRAY.map(_odd_array))
COMPRESSION = st.sampled_from((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
MEMBER_NAME = st.sampled_from((*PARTS, "x.npy", "../x", "y.npy", CONTROL, "x" * 5000, "", "é")).map(
    lambda n: f"{n}.npy"
)
NPZ = st.one_of(
    spoiled(npz_bytes(x=X, y=Y)),
    spoiled(npz_bytes(x_train=X, y_train=Y, x_test=X, y_test=Y)),
    st.builds(
        lambda x, y, compression: archives.zipped({"x.npy": x, "y.npy": y}, compression), MEMBER, MEMBER, COMPRESSION
    ),
    st.builds(
        lambda members, changes, compression: archives.zipped(
            dict(zip(members, itertools.cycle(changes))), compression
        ),
        st.just([f"{name}.npy" for name in PARTS[2:]]),
        st.lists(MEMBER, min_size=4, max_size=4),
        COMPRESSION,
    ),
    st.builds(archives.zipped, st.dictionaries(MEMBER_NAME, MEMBER, max_size=4), COMPRESSION),
    st.builds(lambda x, y: archives.zipped({"x.npy": x, "y.npy": y}), MEMBER, MEMBER).flatmap(
        lambda zip: spoiled(zip, 2)
    ),
).map(lambda data: {"table.npz": data})


# --- MNIST and CIFAR-10


def idx(array: np.ndarray, axes: int | None = None) -> bytes:
    """An IDX file."""
    header = bytes([0, 0, 8, array.ndim if axes is None else axes])
    return header + b"".join(size.to_bytes(4, "big") for size in array.shape) + array.astype(np.uint8).tobytes()


IDX = {name: idx(np.arange(784 * 3).reshape(3, 28, 28) if "images" in name else np.array([7, 1, 3])) for name in MNIST}


@st.composite
def mnist_files(draw: Any) -> Files:
    """One of the four files spoiled, plain or packed, inside or outside the packing."""
    name = draw(st.sampled_from(MNIST))
    good = IDX[name]
    count = draw(st.one_of(st.sampled_from((0, 1, 3, 4, 60_000, 60_001, 2**31, 2**32 - 1)), st.integers(0, 70_000)))
    inner = draw(
        st.one_of(
            spoiled(good),
            st.just(good[:4] + count.to_bytes(4, "big") + good[8:]),
            st.just(good[:4] + count.to_bytes(4, "big") + good[8:] + bytes(count % 4096)),
        )
    )
    how = draw(st.sampled_from(("plain", "packed", "packed and spoiled", "twice")))
    if how == "plain":
        return {name: inner}
    packed = gzip.compress(good if how == "packed and spoiled" else inner, 1)
    packed = draw(spoiled(packed)) if how == "packed and spoiled" else packed * 2 if how == "twice" else packed
    return {name: None, f"{name}.gz": packed}


ROWS = archives.ROWS
RECORDS = archives.records(ROWS, seed=1)
BATCH_FILE = archives.batch(RECORDS)
CIFAR: Files = dict.fromkeys(cifar10.BINARY.train + cifar10.BINARY.test, RECORDS.tobytes())
CIFAR_FILES = st.one_of(
    st.tuples(st.sampled_from(list(CIFAR)), spoiled(RECORDS.tobytes())).map(lambda pair: {pair[0]: pair[1]}),
    st.tuples(st.sampled_from(list(CIFAR)), st.integers(0, 4), PLACE).map(
        lambda parts: {parts[0]: _edit(RECORDS.tobytes() * parts[1], ("set", parts[2], 0, bytes([parts[2] % 256])))}
    ),
    st.sampled_from(list(CIFAR)).map(lambda name: {name: None}),
)


def _instructions(program: bytes) -> list[bytes]:
    starts = [at for *_, at in pickletools.genops(program)] + [len(program)]  # type: ignore[misc]
    return [program[first:last] for first, last in itertools.pairwise(starts)]


INSTRUCTIONS = _instructions(BATCH_FILE)
OTHERS = [value for value, _ in archives.PICKLES.values() if len(value) < 2000]
CODES = [opcode.code.encode("latin-1") for opcode in pickletools.opcodes]
PIECE = st.one_of(
    st.sampled_from([one for one in INSTRUCTIONS if len(one) < 100]),
    st.sampled_from(OTHERS),
    st.builds(bytes.__add__, st.sampled_from(CODES), st.one_of(st.binary(max_size=8), st.sampled_from(NUMBERS))),
)
SHIFT = st.lists(st.tuples(st.sampled_from(("put", "drop", "set", "swap")), PLACE, PIECE), min_size=1, max_size=3)


def _shift(changes: list[tuple[str, int, bytes]]) -> bytes:
    """The program of a batch with some instructions changed, removed or exchanged."""
    pieces = list(INSTRUCTIONS)
    for kind, number, piece in changes:
        at = number % len(pieces)
        if kind == "put":
            pieces.insert(at, piece)
        elif kind == "set":
            pieces[at] = piece
        elif kind == "drop":
            del pieces[at]
        else:
            pieces[at - 1], pieces[at] = pieces[at], pieces[at - 1]
    return b"".join(pieces)


PADDING = bytes(ROWS * cifar10.RECORD)  # after the end of a program, so that its size is no reason to refuse it
BATCHES = st.one_of(SHIFT.map(_shift), SHIFT.map(_shift), spoiled(BATCH_FILE)).map(
    lambda program: {PICKLE_FILE: program + PADDING}
)


def _small(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """With three images in an official file, instead of 10 000."""

    def read(folder: Path) -> Any:
        with mock.patch.object(cifar10, "PER_FILE", ROWS), mock.patch.object(downloads, "PER_FILE", ROWS):
            return function(folder)

    return read


# --- downloads

GOOD = archives.good_entries()
TYPES = [tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE,
         tarfile.DIRTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE,
         tarfile.XGLTYPE, b"Z"]  # fmt: skip
PAX = ["path", "size", "linkpath", "mtime", "GNU.sparse.map", "GNU.sparse.size", "GNU.sparse.major", "GNU.sparse.name",
       "GNU.sparse.realsize", "hdrcharset", "comment", "uid"]  # fmt: skip
ZERO = bytes(ROWS * cifar10.RECORD)


@st.composite
def tar_gz(draw: Any) -> bytes:
    """A good archive with hostile members, or spoiled, with right checksums of its headers or not."""
    entries = [archives.entry(member.name, ZERO) for member, _ in GOOD.values()]
    member, content = entries[0]
    for _ in range(draw(st.integers(1, 2))):
        what = draw(st.sampled_from(("type", "name", "linkname", "pax", "content", "twice", "none")))
        if what == "type":
            member.type = draw(st.sampled_from(TYPES))
        elif what in ("name", "linkname"):
            name = draw(
                st.sampled_from(("../hacked", "/tmp/hacked", "", "x" * 300, CONTROL.replace("\0", ""), "..", "é"))
            )
            setattr(member, what, name)
        elif what == "pax":
            keys, values = st.sampled_from(PAX), st.sampled_from(("", "-1", "9", "x", "1,2,3", "9" * 30, "nan", "../x"))
            member.pax_headers = draw(st.dictionaries(keys, values, min_size=1, max_size=3))
        elif what == "content":
            content = ZERO[: draw(st.integers(0, len(ZERO)))] + draw(st.binary(max_size=3))
            member.size = len(content)
        elif what == "twice":
            entries.append(archives.entry(member.name, b"again"))
    entries[0] = member, content
    tar = archives.tar(*entries)
    if draw(st.booleans()):
        header = draw(spoiled(tar[:512], 1))[:512].ljust(512, b"\0")
        tar = archives.sealed_header(header) + tar[512:]
    packed = gzip.compress(tar, 1)
    return draw(spoiled(packed, 1)) if draw(st.integers(0, 4)) == 0 else packed


def _download(folder: Path) -> Any:
    """As if the archive in the folder were the right one on the network."""
    data = (folder / "archive").read_bytes()
    with (
        mock.patch.object(downloads, "_open", lambda url: io.BytesIO(data)),
        mock.patch.object(downloads, "CIFAR10_MD5", hashlib.md5(data, usedforsecurity=False).hexdigest()),
    ):
        return downloads.download("cifar10", folder / "data")


# --- configurations

WORDS = st.one_of(
    st.sampled_from(
        ["table.csv", "table.npz", "mnist", "cifar10", "dig1ts", "PATH.npz", "", ".csv", ".npz", "/dev/zero",
         "a.csv/b.npz", "/dev/null.csv", "\0.csv", "x" * 5000 + ".csv", "x" * 300 + ".npz", "~nobody.csv",
         "~/x.csv", "..", CONTROL, CONTROL + ".csv", "folder.csv", "https://example.org/x.csv", "\ud800.csv"]
    ),
    st.text(max_size=6),
    st.text(max_size=6).map(lambda text: text + ".csv"),
)  # fmt: skip
COUNTS = st.one_of(st.none(), st.sampled_from((-1, 0, 1, 3, 10**30, 1.5, True, "3", [])), st.integers(-2, 20))
OPTIONS = st.fixed_dictionaries(
    {"name_or_path": WORDS, "n_train": COUNTS, "n_test": COUNTS},
    optional={"data_dir": WORDS, "seed": COUNTS, "target": st.one_of(WORDS, st.just("price"))},
).map(lambda options: {"options": dumps(options)})


def _load_options(folder: Path) -> Any:
    """The options of a command, relative to the folder."""
    options = json.loads((folder / "options").read_bytes())
    for name in ("name_or_path", "data_dir"):
        text = options.get(name)
        if isinstance(text, str) and text not in ("mnist", "cifar10") and text[:1] not in "/~":
            options[name] = f"{folder}/{text}"
    return load_dataset(**options)


CONFIG = {"data": "digits", "n_train": 16, "n_test": 8, "scale": "smoke", "seed": 0}
CONFIG_TEXT = json.dumps(CONFIG).encode()
VALUE = st.sampled_from(
    ["1", "-1", "9" * 400, "9" * 5000, "NaN", "1e999", '"digits"', "'x'", '"\\u001b[2J"', '"\\uD800"', "[1, 2]", "[]",
     "{}", '{"a": 1}', "null", "true", "[" * 2000, "[" * 2000 + "]" * 2000, '"' + "x" * 5000]
)  # fmt: skip
KEY = st.sampled_from(["data", "n_train", "n_test", "scale", "seed", "a", "", "\\n"])
CONFIGS = st.one_of(
    spoiled(CONFIG_TEXT),
    VALUE.map(str.encode),
    st.lists(st.tuples(KEY, VALUE), max_size=6).map(
        lambda lines: CONFIG_TEXT[:-1] + "".join(f', "{key}": {value}' for key, value in lines).encode() + b"}"
    ),
).map(lambda text: {"config.json": text})


# --- records


def seal(header: Any, body: bytes) -> tuple[bytes, str]:
    """A record with a right checksum, and the checksum."""
    data = MAGIC + (header if isinstance(header, bytes) else dumps(header)) + b"\n" + body
    digest = hashlib.sha256(data).hexdigest()
    return data + digest.encode(), digest


ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([True, False]), "c": np.zeros((1, 3, 0)), "d": np.int64(7)}


def described(arrays: dict[str, Any]) -> dict[str, Any]:
    """What a record says of its arrays."""
    return {name: {"dtype": np.asarray(a).dtype.name, "shape": list(np.shape(a))} for name, a in arrays.items()}


def body_of(arrays: dict[str, Any]) -> bytes:
    """The bytes of the arrays one after the other."""
    return b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())


HEADER = {"kind": "draws", "first": 0, "count": 3, "previous": "", "arrays": described(ARRAYS)}
RECORD = seal(HEADER, body_of(ARRAYS))[0]
RECORD_FILES = st.one_of(
    spoiled(RECORD),
    changed(HEADER).map(lambda header: seal(header, body_of(ARRAYS))[0]),
    changed(HEADER["arrays"], 3).map(lambda arrays: seal(HEADER | {"arrays": arrays}, body_of(ARRAYS))[0]),
    spoiled(dumps(HEADER)).map(lambda header: seal(header.replace(b"\n", b" "), body_of(ARRAYS))[0]),
    spoiled(body_of(ARRAYS)).map(lambda body: seal(HEADER, body)[0]),
).map(lambda data: {"draws-000000": data})

SAMPLE = {
    "data": "digits", "data_dir": None, "target_column": None, "n_train": 20, "n_test": 10, "width": 8, "depth": 1,
    "activation": "gelu", "noise": 0.1, "coordinates": "function", "space": "reduced", "carry": None, "sampler": "pcn",
    "step_size": None, "num_steps": None, "friction": None, "steps": 100, "burn_in": 50, "thin": 50, "chains": 2,
    "seed": 0, "dtype": "float32", "checkpoint_seconds": 30.0,
}  # fmt: skip
FIT = {
    "table": "table.csv", "target": "price", "out": "model", "classify": False, "drop": [], "text": [], "width": 8,
    "depth": 1, "activation": "erf", "noise": "0.5", "input_scales": False, "transform": None, "likelihood": None,
    "chains": 1, "burn_in": 4, "target_ess": 4, "max_steps": 4, "random_state": 0,
}  # fmt: skip
COMMANDS: list[dict[str, Any]] = [
    {"kind": "command", "command": name, "settings": settings, "arrays": {}}
    for name, settings in (("sample", SAMPLE), ("fit", FIT))
]
COMMAND_FILES = st.one_of(
    spoiled(seal(COMMANDS[0], b"")[0]),
    *(changed(command).map(lambda header: seal(header, b"")[0]) for command in COMMANDS),
    spoiled(dumps(COMMANDS[1])).map(lambda header: seal(header.replace(b"\n", b" "), b"")[0]),
).map(lambda data: {"command": data})


def _begun(folder: Path) -> Any:
    """What widebnn resume does, and what the same command does that is given again."""
    command, settings = unfinished.begun(folder)
    function, names = (cli.sample, cli.SETTINGS) if command == "sample" else (commands.fit, commands.SETTINGS)
    unfinished.check_settings(folder, settings, function)
    unfinished.check_names(command, settings, names)
    if sum(map(len, settings)) % 2:
        (folder / "chains").mkdir()
        unfinished.begin(folder, "sample", SAMPLE)


# --- runs

MANIFEST = {
    "version": 1,
    "settings": {"sampler": "pcn", "seed": 1, "chains": 2, "kept": {"lp": "float64[]", "f": "float32[2]"}},
    "data": {"SHA-256 of x": "0" * 64},
    "packages": {"jax": "1", "numpy": "2"},
    "device": {"device": "cpu"},
}
CHAINS, DRAWS, PER_CHUNK = 2, 8, 2


class Chunk(NamedTuple):
    """A file of a run: what it says but for checksums, and its arrays."""

    header: dict[str, Any]
    arrays: dict[str, Any]


def _chunk(index: int) -> Chunk:
    shape = (CHAINS, PER_CHUNK)
    arrays = {"lp": np.zeros(shape), "f": np.full((*shape, 2), index, np.float32)}
    return Chunk({"kind": "draws", "first": PER_CHUNK * index, "count": PER_CHUNK, "arrays": described(arrays)}, arrays)


def _checkpoint(chunks: int) -> Chunk:
    arrays = {f"{chain}.{i}": np.full((3, 1)[i], 0.5) for chain in range(CHAINS) for i in range(2)}
    header = {"kind": "checkpoint", "burned": 5, "done": PER_CHUNK * chunks, "chunks": chunks}
    header |= {"burn_totals": [1.0, 2.0, 0.0, 5.0], "seconds": 0.5, "manifest": MANIFEST, "arrays": described(arrays)}
    return Chunk(header, arrays)


RUN = {"manifest": Chunk({"kind": "manifest", **MANIFEST, "arrays": {}}, {})}
RUN |= {f"draws-{index:06d}": _chunk(index) for index in range(3)}
RUN |= {"checkpoint-000000": _checkpoint(1), "checkpoint-000001": _checkpoint(3)}


def sealed_run(run: dict[str, Chunk], bodies: dict[str, bytes] | None = None) -> Files:
    """The files of a run, every checksum right, also those of other files."""
    files: Files = {}
    chain = [""]
    for name, (header, arrays) in run.items():
        header = dict(header)
        if name.startswith("draws"):
            header.setdefault("previous", chain[-1])
        elif name.startswith("checkpoint"):
            count = header.get("chunks")
            there = isinstance(count, int) and 0 <= count < len(chain)
            header.setdefault("chunk", chain[count] if there else chain[-1])
        files[name], digest = seal(header, (bodies or {}).get(name, body_of(arrays)))
        if name.startswith("draws"):
            chain.append(digest)
    return files


ARRAY = st.tuples(
    st.sampled_from(("float64", "float32", "int64", "bool", "uint8")),
    st.sampled_from(((2, 2), (2, 2, 2), (1, 2), (2, 0), (), (2,), (3,), (1,), (2, 9, 2), (0,))),
).map(lambda pair: np.zeros(pair[1], pair[0]))


@st.composite
def run_files(draw: Any, whole: dict[str, Chunk]) -> Files:
    """A run with one or two of its files changed behind their checksums, or before."""
    run = dict(whole)
    bodies: dict[str, bytes] = {}
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(list(run)))
        header, arrays = run[name]
        what = draw(st.sampled_from(("header", "header", "arrays", "array", "body", "body")))
        if what == "header":
            run[name] = Chunk(draw(changed(whole[name].header)), arrays)
        elif what == "arrays" and arrays:
            arrays = {key: value for key, value in arrays.items() if draw(st.integers(0, 2))}
            run[name] = Chunk({**header, "arrays": described(arrays)}, arrays)
        elif what == "array" and arrays:
            arrays = {**arrays, draw(st.sampled_from([*arrays, CONTROL])): draw(ARRAY)}
            run[name] = Chunk({**header, "arrays": described(arrays)}, arrays)
        elif arrays:
            bodies[name] = draw(spoiled(body_of(arrays)))
    files = sealed_run(run, bodies)
    if draw(st.integers(0, 2)) == 0:
        name, other = draw(st.sampled_from(list(run))), draw(st.sampled_from(list(run)))
        files[name] = draw(st.one_of(spoiled(files[name] or b""), st.just(files[other]), st.none()))
    if draw(st.integers(0, 9)) == 0:
        names = (
            "draws-000003",
            "draws-999999999999",
            "checkpoint-000009",
            "draws-\u0660\u0660\u0660\u0660\u0660\u0660",
        )
        names += (".x.tmp", "notes", CONTROL)
        files[draw(st.sampled_from(names))] = draw(st.one_of(st.binary(max_size=9), st.just(files["draws-000000"])))
    return files


def _go_on(folder: Path) -> Any:
    """What sample() does with a folder, without a program to run afterwards."""
    run = _Run.__new__(_Run)
    run.draws, run.chains, run.burn_in = DRAWS, CHAINS, 5
    run.stats, run.kept = {"lp": np.zeros((CHAINS, DRAWS))}, {"f": np.zeros((CHAINS, DRAWS, 2), np.float32)}
    run.states = [(np.zeros(3), np.zeros(1))] * CHAINS
    run.state_shapes = run.states[0]
    run.place = Placement(None, CHAINS, None, None)
    run.burned = run.done = run.stored = 0
    run.burn_totals, run.seconds = np.zeros(4), 0.0
    with open_store(folder, MANIFEST) as store:
        run.keep_in(store, 30.0)
    # What the driver does with them first.
    run.burn_totals += np.ones(4)
    if not (0 <= run.done <= DRAWS and run.burned >= 0 and run.seconds + 1.0 > run.seconds):
        raise AssertionError(f"a state that no run has: {run.burned} {run.done} {run.seconds}")
    return run.stats, run.kept


# --- cells of grids

CELL_OF_GRID = Cell("pcn", 0.1, 8, 1, 20, 5, 5)


def _stored() -> xr.Dataset:
    cell, rng = CELL_OF_GRID, np.random.default_rng(0)
    shape, dims = (1, cell.steps // cell.thin), ("chain", "draw")
    draws = {
        "weights": ((*dims, "projection"), rng.normal(size=(*shape, 100))),
        "predictions": ((*dims, "projection"), rng.normal(size=(*shape, 100))),
        "f_test": ((*dims, "test_input", "output"), rng.normal(size=(*shape, 3, 2))),
        "lp": (dims, rng.normal(size=shape)),
        "acceptance_rate": (dims, rng.uniform(size=shape)),
    }
    attributes = {f"cell_{name}": getattr(cell, name) for name in cell.__dataclass_fields__}
    attributes |= {"dimension": 64, "ms_per_step": 0.5, "gradients_per_step": 0.0, "burn_in_acceptance_rate": 0.5}
    return xr.Dataset(draws, coords={"draw": 5 + 5 * np.arange(1, 5)}, attrs={**attributes, "nonfinite_proposals": 0})


@functools.cache
def cell_variants() -> list[bytes]:
    """A good cell, and cells with variables or attributes missing or of the wrong kind."""
    good = _stored()
    variants = [good, *(good.drop_vars(name) for name in good.data_vars)]
    variants += [good.assign_attrs({name: value}) for name in good.attrs for value in ("x", -1, 10**9, [1.0, 2.0], "")]
    for name in good.data_vars:
        others = good[name] * np.nan, good[name].isel(draw=[0]).mean(), good[name].astype(str)
        variants += [good.assign({name: other}) for other in others]
    for name in good.attrs:
        less = good.copy()
        del less.attrs[name]
        variants.append(less)
    return [bytes(variant.to_netcdf(None, engine="scipy")) for variant in variants]


def cell_files(content: bytes, name: str = CELL_OF_GRID.name) -> Files:
    """A cell with its checksum."""
    line = f"{hashlib.sha256(content).hexdigest()}  {name}.nc\n".encode()
    return {f"cells/{name}.nc": content, f"cells/{name}.sha256": line}


def _cell_strategy() -> SearchStrategy[Files]:
    variants = cell_variants()
    return st.one_of(spoiled(variants[0]), spoiled(variants[0]), st.sampled_from(variants)).map(cell_files)


def _load_cell(folder: Path) -> Any:
    stored = load_cell(folder, CELL_OF_GRID)
    if stored is None:
        raise WidebnnError("a cell that counts as missing and is run again.")
    if sum(path_of(folder, CELL_OF_GRID.name).read_bytes()) % 30 == 0:  # it takes a fifth of a second
        summarise_cell(stored)
    return stored


# --- models

DIMENSION, WIDTH, MEMBERS = 3, 4, 5


def _model(kind: str) -> Any:
    """A fitted estimator, made by hand: fitting one takes a long time."""
    rng = np.random.default_rng(0)
    outputs = 1 if kind == "regressor" else 2

    def draw(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    model = {"regressor": WideBNNRegressor, "classifier": WideBNNClassifier}[kind](WIDTH, random_state=0)
    model.n_features_in_ = DIMENSION
    model.x_mean_, model.x_scale_ = np.zeros(DIMENSION), np.ones(DIMENSION)
    model.y_mean_, model.y_scale_ = np.zeros(outputs), np.ones(outputs)
    if kind == "regressor":
        model.single_output_, model.y_bend_, model.noise_ = True, None, np.array([0.1])
    else:
        model.classes_ = np.array(["big", "small"])
    model.hyperparameters_ = Hyperparameters(1, "erf", 1.0, 1.0, 1.0, 1.0, 0.1, -3.0, ((1, "erf", -3.0),), (1.0,) * 3)
    model.network_ = dense(DIMENSION, [WIDTH], "erf")
    hidden = (Layer(jnp.asarray(draw(MEMBERS, DIMENSION, WIDTH)), jnp.asarray(draw(MEMBERS, WIDTH))),)
    mean, readout = draw(MEMBERS, WIDTH + 1, outputs), draw(MEMBERS, WIDTH + 1, outputs, 1)
    model.ensemble_ = Ensemble(hidden, mean, readout, np.full(MEMBERS, 0.1, np.float32))
    model.diagnostics_ = {"ess": 4.0, "rhat": 1.0, "acceptance_rate": 0.7, "steps": 5, "chains": 1, "draws": 5}
    target = Target(log_likelihood=lambda u: 0.0, sample_reference=lambda key: key)
    names = ("lp", "acceptance_rate", "accepted", "nonfinite", "gradients")
    stats = {name: np.zeros((1, MEMBERS), "i8" if name[0] in "ng" else "f8") for name in names}
    run = Result({"f_train": draw(1, MEMBERS, 6, outputs)}, stats, target, 5, 2, 1, 1, 0, 1.0, 1.0, 0.7, False, None)
    model.posterior_ = run.to_datatree()
    return model


COLUMNS = {
    "target": "price",
    "left_out": ["unit"],
    "columns": [
        {"kind": "number", "name": "size", "fill": 1.5, "varies": True, "missing": False},
        {"kind": "text", "name": "colour", "categories": ["blue", "red"], "missing": False},
    ],
}


class Model(NamedTuple):
    """A saved model: its document without checksums, the members of its archive, the file of its run."""

    document: dict[str, Any]
    members: dict[str, bytes]
    posterior: bytes


@functools.cache
def models() -> dict[str, Model]:
    """One of each kind."""
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        for kind in ("regressor", "classifier"):
            folder = saving.save(_model(kind), Path(scratch) / kind, {"table": COLUMNS | {"classes": kind[0] == "c"}})
            with zipfile.ZipFile(folder / saving.ARRAYS) as archive:
                members = {name: archive.read(name) for name in archive.namelist()}
            document = json.loads((folder / saving.DOCUMENT).read_bytes())
            found[kind] = Model(document, members, (folder / saving.POSTERIOR).read_bytes())
    return found


def sealed_model(document: dict[str, Any], arrays: bytes, posterior: bytes) -> Files:
    """The files of a model with right checksums."""
    files = {saving.ARRAYS: arrays, saving.POSTERIOR: posterior}
    listed = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    document = {**document, "sha256": saving.UNSET}
    document.setdefault("files", listed)
    text = dumps(document)
    text = text.replace(saving.UNSET.encode(), hashlib.sha256(text).hexdigest().encode(), 1)
    return {saving.DOCUMENT: text, **files}


@st.composite
def model_files(draw: Any) -> Files:
    """A model changed behind its checksums, or before."""
    model = models()[draw(st.sampled_from(("regressor", "classifier")))]
    document, members, arrays = model.document, dict(model.members), None
    how = draw(st.sampled_from(("document", "document", "document", "member", "both", "archive", "file")))
    plain = {name: value for name, value in document.items() if name not in ("files", "sha256")}
    if how in ("document", "both"):
        plain = draw(changed(plain, 3))
    if how in ("member", "both"):
        name = draw(st.sampled_from(list(members)))
        members[name] = draw(st.one_of(spoiled(members[name]), npy_member(), ODD_ARRAY.map(_odd_array)))
        if draw(st.integers(0, 5)) == 0:
            members[draw(MEMBER_NAME)] = members.pop(name)
    if how == "both" and isinstance(plain.get("arrays"), dict):
        odd = {
            "dtype": draw(st.sampled_from(("float32", "float64", "object", "f2", "?"))),
            "shape": list(draw(NPY_SHAPE)),
        }
        plain["arrays"][name.removesuffix(".npy")] = odd
    compression = zipfile.ZIP_STORED if draw(st.integers(0, 9)) else zipfile.ZIP_DEFLATED
    arrays = archives.zipped(members, compression)
    if how == "archive":
        arrays = draw(spoiled(arrays))
    files = sealed_model(plain, arrays, model.posterior)
    if how == "file":
        name = draw(st.sampled_from(list(files)))
        files[name] = draw(st.one_of(spoiled(files[name] or b""), st.none()))
    return files


NPY_SHAPE = st.sampled_from(((4, 2), (5,), (5, 3, 4), (5, 5, 1), (10**12,), (0,), (5, 5, 1, 1), (2**62, 4), (1,) * 70))
NEW = np.zeros((2, DIMENSION))


def _use_model(folder: Path) -> Any:
    """Load it as a command does, and predict where that needs no new program."""
    fitted, encoding = commands._load(folder)
    again = saving.load(folder)
    if fitted.network_ == dense(DIMENSION, [WIDTH], "erf") and fitted.ensemble_.mean.shape[0] == MEMBERS:
        again.predict(NEW)
    return fitted.ensemble_, encoding


def valid_model(kind: str) -> Files:
    """The files of a model."""
    document, members, posterior = models()[kind]
    plain = {name: value for name, value in document.items() if name not in ("files", "sha256")}
    return sealed_model(plain, archives.zipped(members), posterior)


def reseal(reader: Reader, files: Files, name: str) -> Files:
    """The files of which one is something else, with the checksums of the others made right where they list it."""
    if reader.name == "models" and name != saving.DOCUMENT:
        document = json.loads(files[saving.DOCUMENT] or b"")
        plain = {key: value for key, value in document.items() if key not in ("files", "sha256")}
        return sealed_model(plain, files[saving.ARRAYS] or b"", files[saving.POSTERIOR] or b"")
    if reader.name == "cells" and name.endswith(".nc"):
        return cell_files(files[name] or b"")
    return files


def readers() -> list[Reader]:
    """Everything that reads files, and how many inputs each gets of 100 000."""
    table: Files = {"table.csv": WHOLE}
    npz: Files = {"table.npz": npz_bytes(x=X, y=Y)}
    config: Files = {"options": dumps({"name_or_path": "table.csv", "n_train": 3, "n_test": 2}), **table, **npz}
    sample = functools.partial(load_dataset, n_train=3, n_test=1)
    good_tar: Files = {"archive": archives.pack(*GOOD.values())}
    tars = tar_gz().map(lambda data: {"archive": data})
    one = "draws-000000"
    found = [
        Reader("tables for sample", "data sets", 9000, table, TABLES, lambda f: load_dataset(f / "table.csv")),
        Reader("tables for fit", "data sets", 9000, table, TABLES, _fit_either),
        Reader("tables for predict", "data sets", 6000, table, TABLES, _encode),
        Reader("npz archives", "data sets", 10_000, npz, NPZ, lambda f: load_dataset(f / "table.npz")),
        Reader("MNIST", "data sets", 8000, dict(IDX), mnist_files(), lambda f: sample("mnist", data_dir=f)),
        Reader("CIFAR-10", "data sets", 4000, CIFAR, CIFAR_FILES, lambda f: sample("cifar10", data_dir=f)),
        Reader("CIFAR-10 pickles", "data sets", 9000, {PICKLE_FILE: BATCH_FILE}, BATCHES, _read_batch),
        Reader("downloads", "data sets", 5000, good_tar, tars, _small(_download)),
        Reader("options", "configurations", 4000, config, OPTIONS, _load_options),
        Reader(
            "config.json",
            "configurations",
            5000,
            {"config.json": CONFIG_TEXT},
            CONFIGS,
            lambda f: write_config(f, CONFIG),
        ),
        Reader("commands", "configurations", 6000, {"command": seal(COMMANDS[0], b"")[0]}, COMMAND_FILES, _begun),
        Reader("records", "checkpoints", 7000, {one: RECORD}, RECORD_FILES, _read_record, (DamageError,)),
        Reader("runs", "checkpoints", 8000, sealed_run(RUN), run_files(RUN), _go_on),
        Reader("cells", "checkpoints", 2000, cell_files(cell_variants()[0]), _cell_strategy(), _load_cell),
        Reader("models", "models", 8000, valid_model("regressor"), model_files(), _use_model),
    ]
    for function in (cli.sample, commands.fit):
        unfinished.check_settings(Path(), {}, function)  # it evaluates our own annotations when first used
    sealed = ("commands", "records", "runs", "cells", "models")
    ours = ("archive", "options", saving.POSTERIOR)  # opened by what is above, or not at all
    return [
        reader._replace(
            sealed=reader.name in sealed,
            own=tuple(name for name in reader.files if name not in ours and reader.name != "options"),
        )
        for reader in found
    ]


def _read_batch(folder: Path) -> Any:
    """With fewer instructions than for 10 000 images."""
    with mock.patch.object(pickled, "MAX_INSTRUCTIONS", 20_000):
        return pickled.read_batch(folder / PICKLE_FILE, ROWS)


def _read_record(folder: Path) -> Any:
    return read_record(folder / "draws-000000", "draws")


# --- large files


class Large(NamedTuple):
    """A reader with its files, what they declare, and whether they are good."""

    reader: Reader
    declared: int
    good: bool


def large(numbers: int) -> list[Large]:
    """Files of about so many numbers, good ones and ones with something wrong at their end."""
    by_name = {reader.name: reader for reader in readers()}
    found = []

    def add(name: str, files: Files, declared: int = 0, good: bool = True) -> None:
        size = sum(len(content or b"") for content in files.values())
        found.append(Large(by_name[name]._replace(files=files), max(size, declared), good))

    x = np.random.default_rng(0).normal(size=(numbers // 10, 10))
    bad = x.copy()
    bad[-1, -1] = np.nan
    y = x[:, 0].copy()
    for arrays, good in (((x, y), True), ((bad, y), False), ((x, y[1:]), False), ((x.astype("f4"), y), True)):
        add("npz archives", {"table.npz": npz_bytes(x=arrays[0], y=arrays[1])}, 88 * len(y), good)
    packed = io.BytesIO()
    np.savez_compressed(packed, x=np.zeros((numbers, 1), np.int8), y=np.arange(numbers) % 3)
    add("npz archives", {"table.npz": packed.getvalue()}, 32 * numbers)
    images = np.zeros((numbers // 784, 28, 28))
    labels = np.arange(len(images)) % 10
    for last, good in ((3, True), (10, False)):
        labels[-1] = last
        arrays = {name: idx(images if "images" in name else labels) for name in MNIST}
        add("MNIST", {f"{name}.gz": gzip.compress(data, 1) for name, data in arrays.items()}, 2 * images.size, good)
    add("CIFAR-10", dict.fromkeys(CIFAR, RECORDS.tobytes() * (1 + numbers // 3072 // 18)), 8 * 4 * 3072)
    cells = ",".join(f"{number:.6f}" for number in x[0])
    lines = [",".join("abcdefghij"), *[cells] * len(x)]
    for last, good in ((cells, True), (cells + ",1", False), (cells[:-8] + "text", False)):
        text = "\n".join([*lines, last]).encode()
        add("tables for sample", {"table.csv": text}, 64 * numbers, good)
    add("tables for sample", {"table.csv": ("a,b\n" + "x" * numbers + "\U0001f600").encode()}, 4 * numbers, False)
    add(
        "tables for sample",
        {"table.csv": (",".join(map(str, range(numbers // 10))) + "\n").encode() * 2},
        8 * numbers,
        False,
    )
    header = {"kind": "draws", "arrays": {"a": {"dtype": "float64", "shape": [x.size]}}}
    add("records", {"draws-000000": seal(header, x.tobytes())[0]})
    add("records", {"draws-000000": seal(header, x.tobytes() + b"x")[0]}, good=False)
    deep = {"kind": "draws", "arrays": {}, "x": [[]] * (numbers // 4)}
    add("records", {"draws-000000": seal(deep, b"")[0]}, 64 * numbers // 4)
    files = valid_model("regressor")
    document = json.loads(files[saving.DOCUMENT] or b"")
    document = {key: value for key, value in document.items() if key not in ("files", "sha256")}
    add(
        "models",
        sealed_model({**document, "extra": {"x": [[]] * (numbers // 4)}}, files[saving.ARRAYS] or b"", b""),
        64 * numbers // 4,
        False,
    )
    return found
