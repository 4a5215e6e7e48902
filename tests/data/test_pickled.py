"""Batches of the Python version of CIFAR-10, which are pickles: good, damaged and hostile."""

import os
import pickle
import sys
import tracemalloc

import numpy as np
import pytest

from widebnn.data.pickled import read_batch
from widebnn.errors import WidebnnError

ROWS = 3
PADDING = bytes(ROWS * 3072)  # after the end of a program, so that the size is no reason to refuse it
EVENTS: list[str] | None = None


def record(event, _):
    if EVENTS is not None:
        EVENTS.append(event)


@pytest.fixture(scope="module", autouse=True)
def audit():
    """Imports, calls of the system, processes, code objects: the interpreter reports them all. Hooks stay for good."""
    sys.addaudithook(record)


@pytest.fixture
def records(make_records):
    return make_records(ROWS, seed=1)


@pytest.fixture
def read(tmp_path, make_batch, records):
    """read_batch on given bytes, during which nothing may happen but that the file is opened."""
    path = tmp_path / "data_batch_1"

    def run(content):
        global EVENTS
        path.write_bytes(content)
        EVENTS = []
        try:
            return read_batch(path, ROWS)
        finally:
            events, EVENTS = EVENTS, None
            assert set(events) <= {"open"}, events

    path.write_bytes(make_batch(records))
    read_batch(path, ROWS)  # codecs are imported when first used
    return run


def test_code_that_runs_would_be_noticed():
    global EVENTS
    EVENTS = []
    compile("1", "here", "eval")
    events, EVENTS = EVENTS, None
    assert "compile" in events


@pytest.mark.parametrize("order", [b"\x88", b"\x89"])
@pytest.mark.parametrize("dtype", [b"U\x02u1", b"U\x03|u1"])
def test_labels_and_pixels_come_back(read, make_batch, records, order, dtype):
    labels, pixels = read(make_batch(records, order=order, dtype=dtype))
    np.testing.assert_array_equal(labels, records[:, 0])
    np.testing.assert_array_equal(pixels, records[:, 1:])
    assert labels.dtype == pixels.dtype == np.uint8


class Evil:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


def dumped(value, protocol=2):
    return pickle.dumps(value, protocol)[2 if protocol > 1 else 0 : -1]


COMMAND = b"U\x0ctouch hacked"
SYSTEM = b"cposix\nsystem\n"
# Each is a value in an otherwise good batch, with the reason for which it must be refused.
HOSTILE = {
    "system": (dumped(Evil(os.system, "touch hacked")), "asks for 'posix system', which is never imported"),
    "protocol 0": (dumped(Evil(os.system, "touch hacked"), 0), "asks for 'posix system'"),
    "eval": (dumped(Evil(eval, "open('hacked', 'w')")), "asks for '__builtin__ eval'"),
    "nested": (dumped([({"a": [Evil(os.system, "touch hacked")]},)]), "asks for 'posix system'|instruction"),
    "REDUCE": (SYSTEM + COMMAND + b"\x85R", "asks for 'posix system'"),
    "INST": (b"(" + COMMAND + b"iposix\nsystem\n", "instruction INST, which is never followed"),
    "OBJ": (b"(cnumpy\ndtype\nU\x02u1o", "instruction OBJ"),
    "STACK_GLOBAL": (b"U\x05posixU\x06system\x93" + COMMAND + b"\x85R", "instruction STACK_GLOBAL"),
    "NEWOBJ": (b"cnumpy\nndarray\nK\x03\x85\x81", "instruction NEWOBJ"),
    "NEWOBJ_EX": (b"cnumpy\nndarray\nK\x03\x85}\x92", "instruction NEWOBJ_EX"),
    "EXT1": (b"\x82\x01", "instruction EXT1"),
    "PERSID": (b"Phacked\n", "instruction PERSID"),
    "BINPERSID": (b"K\x01Q", "instruction BINPERSID"),
    "dotted name": (b"cnumpy\ndtype.__class__\nK\x01\x85R", r"asks for 'numpy dtype\.__class__'"),
    "other NumPy name": (b"cnumpy\nload\nU\x06hacked\x85R", "asks for 'numpy load'"),
    "near name": (b"cnumpy.core.multiarray\n_reconstruct2\n", "asks for"),
    "name with a line": (b"cos\rsystem\nsystem\n", "asks for"),
    "BUILD of a setter": (b"cnumpy\nndarray\n}(U\x0c__setstate__" + SYSTEM + b"ub", "asks for 'posix system'"),
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


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_values_are_refused_and_run_nothing(read, make_batch, records, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    value, reason = HOSTILE[case]
    content = make_batch(records, extra=b"U\x05extra" + value)
    tracemalloc.start()
    try:
        with pytest.raises(
            WidebnnError, match=rf"data_batch_1 .*({reason}).*, so it is not a batch .*; fetch it again"
        ):
            read(content)
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()
    assert os.listdir(tmp_path) == ["data_batch_1"]


@pytest.mark.parametrize("case", ["system", "protocol 0", "nested", "REDUCE", "INST", "STACK_GLOBAL"])
@pytest.mark.parametrize("field", ["labels", "array", "dtype", "shape", "content"])
def test_hostile_parts_are_refused_and_run_nothing(read, make_batch, records, tmp_path, monkeypatch, field, case):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WidebnnError, match=r"never imported|never followed"):
        read(make_batch(records, **{field: HOSTILE[case][0]}) + PADDING)
    assert os.listdir(tmp_path) == ["data_batch_1"]


def test_a_hostile_program_alone_is_refused(read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        content = pickle.dumps(Evil(os.system, "touch hacked"), protocol)
        with pytest.raises(WidebnnError, match=r"too few or too many for 3 CIFAR-10 images; fetch it again"):
            read(content)
        with pytest.raises(WidebnnError, match=r"is never (imported|followed), so it is not a batch"):
            read(content + PADDING)
    assert os.listdir(tmp_path) == ["data_batch_1"]


def test_allowed_names_are_never_called(read, make_batch, records):
    # Unpickling would allocate 8 TB here.
    huge = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nJ\x00\x00\x10\x00J\x00\x00\x10\x00\x86U\x01d\x87R"
    labels, _ = read(make_batch(records, extra=b"U\x05extra" + huge))
    np.testing.assert_array_equal(labels, records[:, 0])


# 3^60 labels if it were unfolded
DOUBLED = b"]((](K\x00K\x00K\x00eq\x64" + b"](h\x64h\x64h\x64eq\x64" * 60 + b"th\x64h\x64e"
WRONG = {
    "doubled lists": ({"labels": DOUBLED}, "has no list of 3 labels"),
    "a list in itself": ({"labels": b"]q\x64(h\x64h\x64h\x64e"}, "has no list of 3 labels"),
    "few labels": ({"labels": b"](K\x01K\x02e"}, "has no list of 3 labels"),
    "text labels": ({"labels": b"](U\x01aU\x01bU\x01ce"}, "has no list of 3 labels"),
    "true labels": ({"labels": b"](\x88\x88\x88e"}, "has no list of 3 labels"),
    "labels in a dict": ({"labels": b"}"}, "has no list of 3 labels"),
    "negative labels": ({"labels": b"](J\xff\xff\xff\xffK\x01K\x01e"}, "is damaged"),
    "large labels": ({"labels": b"](M\x00\x01K\x01K\x01e"}, "is damaged"),
    "no array": ({"array": b"N"}, "is damaged"),
    "array without state": ({"array": b"cnumpy\nndarray\nK\x01\x85R"}, "is damaged"),
    "objects": ({"dtype": b"U\x01O"}, "has no array of bytes"),
    "wide numbers": ({"dtype": b"U\x02u8"}, "has no array of bytes"),
    "few rows": ({"shape": b"K\x02M\x00\x0c\x86"}, "has no array of 3 x 3072 bytes"),
    "huge shape": ({"shape": b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86"}, "has no array of 3 x 3072 bytes"),
    "negative shape": ({"shape": b"J\xff\xff\xff\xffM\x00\x0c\x86"}, "has no array of 3 x 3072 bytes"),
    "few bytes": ({"content": b"U\x03abc"}, "too few|has no array of 3 x 3072 bytes"),
    "list of bytes": ({"content": b"](" + b"K\x01" * 3 * 3072 + b"e"}, "is damaged"),
}


@pytest.mark.parametrize("case", WRONG)
def test_batches_of_the_wrong_kind_are_refused(read, make_batch, records, case):
    parts, reason = WRONG[case]
    with pytest.raises(WidebnnError, match=reason):
        read(make_batch(records, **parts) + PADDING)


def test_a_batch_must_be_a_dictionary_with_labels_and_data(read, make_batch, records):
    good = make_batch(records)
    without = good.replace(b"labels", b"labelz"), good.replace(b"data", b"date")
    for content in (*without, b"\x80\x02]." + good, b"." + good):
        with pytest.raises(WidebnnError, match="is damaged"):
            read(content)


def test_a_file_too_large_is_not_read(tmp_path):
    path = tmp_path / "data_batch_1"
    with path.open("wb") as file:
        file.truncate(40_000_001)
    with pytest.raises(WidebnnError, match="has 40000001 bytes, too few or too many for 10000 CIFAR-10 images"):
        read_batch(path, 10_000)


def test_damage_anywhere_never_escapes_as_another_error(read, make_batch, records):
    good = make_batch(records)
    start = good.index(b"T") + 5
    program = [*range(start), *range(start + ROWS * 3072, len(good))]  # pixels may be anything
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(good)
        if rng.random() < 0.3:
            damaged = damaged[: rng.integers(len(good))]
        else:
            damaged[rng.choice(program)] ^= 1 << rng.integers(8)
        try:
            labels, pixels = read(bytes(damaged))
            assert labels.shape == (ROWS,) and pixels.shape == (ROWS, 3072)
        except WidebnnError:
            refused += 1
    assert refused > 150  # names of images and numbers in the memo mean nothing to us
