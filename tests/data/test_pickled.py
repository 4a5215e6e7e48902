"""Batches of the Python version of CIFAR-10, which are pickles: good, damaged and hostile."""

import os
import sys
import tracemalloc

import numpy as np
import pytest

from hostile_archives import PICKLES as HOSTILE
from hostile_archives import PROGRAMS
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
    for content in PROGRAMS.values():
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
