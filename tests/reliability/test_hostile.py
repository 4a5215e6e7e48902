"""Hostile files are refused in one sentence, and run nothing.

Hypothesis changes files of saved models, stored runs, folders of commands, and tables: bytes flipped, cut, inserted and
repeated, numbers and words exchanged for huge, negative, NaN or wrong ones. Most get right checksums again, so that
what lies behind them is attacked. Pickles that run commands, named pipes, devices, folders and links in circles take
the place of files. An input may be accepted, repaired with a warning, or refused with the package's own exception (exit
code 2 of a command); nothing may start a process, open a connection, unpickle, or write outside its folder, and a model
takes no more memory than twice its files and two megabytes. The HDF5 library is not covered.
"""

import contextlib
import hashlib
import itertools
import os
import re
import shutil
import sys
import tempfile
import tracemalloc
import warnings
import zipfile
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trial import COMMAND, command, counts, files_of, run, size

import widebnn
from widebnn.estimators import WideBNNRegressor, load

pytestmark = [pytest.mark.long, pytest.mark.ambient, pytest.mark.xdist_group("hostile")]
PICKLE = b"cposix\nsystem\n(S'touch hacked'\ntR."
"""Whoever unpickles this has a new file."""
FORBIDDEN = "os.system os.exec os.fork os.posix_spawn subprocess.Popen socket.connect pickle.find_class urllib.Request"
VALUES = [b"-1", b"0", b"1e999", b"NaN", b"null", b"18446744073709551616", b"[[]]", b"{}", b'"a"', b'"\x1b[2J"', b""]
QUIET = settings(derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
WATCHED = {"folder": "", "seen": []}


def hook(event, arguments):
    """Notes what no reader may do, while a folder is watched."""
    forbidden = event in FORBIDDEN.split()
    if event == "open" and not isinstance(arguments[0], int) and (arguments[2] or 0) & WRITING:
        path = os.path.realpath(os.fsdecode(arguments[0]))  # but for compiled programs
        forbidden = not path.startswith((WATCHED["folder"], "/dev/null")) and "/widebnn-" not in path
    if WATCHED["folder"] and forbidden:
        WATCHED["seen"].append(f"{event} {str(arguments)[:100]}")


sys.addaudithook(hook)


def judge(read, folder, tally):
    """Read a folder: accepted, repaired, or refused in a sentence, and nothing else."""
    kind, message = "accepted", ""
    WATCHED.update(folder=os.path.realpath(folder), seen=[])
    try:
        # The CRC-32 of a member of an archive stops nobody who writes one.
        crc = mock.patch.object(zipfile.ZipExtFile, "_update_crc", lambda self, data: None)
        # A payload would leave something in the folder.
        with warnings.catch_warnings(record=True) as said, contextlib.chdir(folder), crc:
            warnings.simplefilter("always", UserWarning)
            read(folder)
    except widebnn.WidebnnError as error:
        kind, message = "refused", str(error)
    finally:
        WATCHED["folder"] = ""
    messages = [str(warning.message) for warning in said if issubclass(warning.category, UserWarning)]
    for text in [*messages, *[message] * (kind == "refused")]:
        assert text.isprintable() and len(text) <= 1000 and len(text.split()) >= 3, text
    assert not WATCHED["seen"] and not list(folder.rglob("hacked")), WATCHED["seen"]
    tally["repaired" if messages and kind == "accepted" else kind] += 1
    tally["stopped by a checksum"] += "checksum" in message and "correct checksum" not in message


def commanded(*arguments):
    """Read by a command, which refuses with exit code 2 and one line."""

    def read(folder):
        code, error = command(*(folder / part if isinstance(part, Path) else part for part in arguments))
        lines = [line for line in error.splitlines() if line.startswith("error: ")]
        assert code in (0, 2) and len(lines) == (code == 2) and error.replace("\n", " ").isprintable(), error
        if code:
            raise widebnn.WidebnnError(lines[0])

    return read


def spoiled(data):
    """Bytes that are nearly these."""
    place, some = st.integers(0, len(data) - 1), st.binary(min_size=1, max_size=8)
    words = [match.span() for match in re.finditer(rb'-?\d+(\.\d+)?|"[^"]*"|true|false', data[:20_000])] or [(0, 0)]
    exchange = st.tuples(st.sampled_from(words), st.sampled_from(VALUES))
    return st.one_of(
        st.tuples(place, some).map(lambda c: data[: c[0]] + c[1] + data[c[0] + len(c[1]) :]),
        st.tuples(place, some).map(lambda c: data[: c[0]] + c[1] + data[c[0] :]),
        st.tuples(place, place).map(lambda c: data[: c[0]] + data[c[1] :]),
        *[exchange.map(lambda c: data[: c[0][0]] + c[1] + data[c[0][1] :])] * 3,
        st.sampled_from([PICKLE, b""]),
    )


def resealed(folder, name, content):
    """Write a file, and put its checksum wherever that of the old one was, in itself and in others, and so on."""

    def digests(data):
        return [hashlib.sha256(part).hexdigest().encode() for part in (data, data[:-64])]

    pending = [(folder / name, content)]
    for path, new in pending:  # which grows
        before = digests(old := path.read_bytes())
        if old.endswith(before[1]):  # sealed by its own checksum
            new = new[:-64] + hashlib.sha256(new[:-64]).hexdigest().encode()
        path.write_bytes(new)
        for other in set(files_of(folder)) - {path}:
            text = changed = other.read_bytes()
            for digest, other_digest in zip(before, digests(new), strict=True):
                changed = changed.replace(digest, other_digest)
            pending += [(other, changed)] * (changed != text and len(pending) < 50)


ODD = (os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path))


def attack(good, count, read):
    """Change a file of a folder in so many ways, and read it; what came of it."""
    files, tally = {path.relative_to(good): path.read_bytes() for path in files_of(good)}, Counter()

    def attempt(change, *arguments):
        with tempfile.TemporaryDirectory() as scratch:
            copy = shutil.copytree(good, Path(scratch) / "copy")
            change(copy, *arguments)
            judge(read, copy, tally)

    changes = st.sampled_from(list(files)).flatmap(lambda name: st.tuples(st.just(name), spoiled(files[name])))

    @settings(QUIET, max_examples=count)
    @given(
        st.sampled_from([resealed, resealed, resealed, lambda folder, name, new: (folder / name).write_bytes(new)]),
        changes,
    )
    def trial(write, change):
        attempt(write, *change)

    trial()
    one_of_each = {name.name.rstrip("0123456789"): name for name in files}
    for name, make in itertools.product(one_of_each.values(), ODD):
        attempt(lambda folder, name=name, make=make: ((folder / name).unlink(), make(folder / name)))
    return tally


def bounded_load(folder):
    """Load, and compare the memory it takes with the size of the files."""
    whole = sum(path.stat().st_size for path in files_of(folder))
    tracemalloc.start()
    try:
        return load(folder / "model")
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= 2 * whole + 2**21, f"{peak} bytes for files of {whole}"


def make_model(folder):
    x = np.random.default_rng(0).normal(size=(12, 3))
    options = {"width": 4, "depth": 1, "activation": "erf", "chains": 1, "burn_in": 8, "target_ess": 4, "max_steps": 8}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a fit has not converged
        model = WideBNNRegressor(noise=0.5, input_scales=False, random_state=0, **options).fit(x, x[:, 0])
    model.save(folder / "model")


def make_run(folder):
    run(store=folder, steps=80, burn_in=40)


def make_table(folder):
    folder.mkdir()
    (folder / TABLE).write_text("a,b,price\n" + "".join(f"{i},{'xyz'[i % 3]},{i * 0.5}\n" for i in range(12)))


TABLE = Path("table.csv")
REFUSED = ["--noise", "-1"]  # so that a table that happens to be valid is not sampled from
FIT = commanded("fit", TABLE, "--target", "price", *REFUSED, "--out", Path("new"))
ATTACKS = {
    "models": (make_model, bounded_load, 400, 8000),
    "stored runs": (make_run, make_run, 60, 3000),
    "widebnn resume": (lambda folder: command(*COMMAND.split(), "--out", folder), commanded("resume", Path()), 25, 300),
    "widebnn sample": (make_table, commanded("sample", "--data", TABLE, *REFUSED), 100, 3000),
    "widebnn fit": (make_table, FIT, 150, 3000),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_hostile_files(name, tmp_path, record):
    make, read, *trials = ATTACKS[name]
    make(tmp_path / "good")
    with contextlib.suppress(widebnn.WidebnnError):
        read(shutil.copytree(tmp_path / "good", tmp_path / "warm"))  # imports what is imported on first use
    tally = attack(tmp_path / "good", size(*trials), read)
    figure, stopped = counts(tally), tally.pop("stopped by a checksum")
    right = tally["refused"] > 0 and stopped < 0.8 * tally.total()
    record(f"hostile files: {name}", f"{figure}; 0 otherwise", "some refused, a fifth not by a checksum; 0", right)


@pytest.mark.parametrize("read", [
    lambda folder: os.system("true"),
    lambda folder: (folder / "hacked").write_text(""),
    lambda folder: (folder.parent / "outside").write_text(""),
    lambda folder: np.zeros(3)[5],
    lambda folder: warnings.warn("a name with \x1b[2J in it", stacklevel=1),
], ids=["process", "payload", "elsewhere", "exception", "terminal"])  # fmt: skip
def test_what_a_reader_must_not_do_is_seen(read, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises((AssertionError, IndexError)):
        judge(read, tmp_path / "folder", Counter())
