"""A small share of the hostile files, and whether what they should not do would be noticed."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import hostile
from hostile_archives import CANARY, ENTRIES, PICKLES, PROGRAMS, tars, zips
from hostile_commands import Ended, here, wrong
from hostile_inputs import TABLES, generate, large, readers
from hostile_watch import Watch, place
from page import Page
from widebnn.errors import DamageWarning, WidebnnError

pytestmark = [pytest.mark.long, pytest.mark.ambient, pytest.mark.xdist_group("hostile")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("watched") / "files"


@pytest.fixture(scope="module")
def watch(folder):
    return Watch(folder.parent)


@pytest.fixture(scope="module")
def all_readers():
    return readers()


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.setattr(hostile, "KEPT", tmp_path / "kept")
    return Page("hostile", 0.001)


def failing(page):
    return [check for check in page.checks if not check["holds"]]


def test_there_are_100_000_inputs_and_30_pickles_and_archives(all_readers):
    assert sum(reader.count for reader in all_readers) == 100_000
    assert len(PICKLES) >= 15 and len(PROGRAMS) >= 15 and len(tars()) >= 15 and len(zips()) >= 15


def test_malformed_files(page, all_readers, watch, folder):
    hostile.warm(all_readers, watch, folder, 3)
    hostile.malformed(page, all_readers, watch, folder)
    assert not failing(page)


def test_inputs_are_the_same_every_time():
    assert list(generate(TABLES, 20)) == list(generate(TABLES, 20)) != list(generate(TABLES, 40))[20:]


def test_large_files(watch, folder):
    for one in large(20_000):
        place(folder, one.reader.files)
        outcome = watch(lambda one=one: one.reader.read(folder), one.declared, one.reader.errors, 60)
        assert not outcome.problems and bool(outcome.message) != one.good, (one.reader.name, outcome)


@pytest.mark.long
def test_pickles_and_archives(page, all_readers, watch, folder):
    hostile.pickles_and_archives(page, all_readers, watch, folder)
    assert not failing(page)


@pytest.mark.long
def test_commands(page, tmp_path):
    hostile.commands.check(page, tmp_path)
    assert not failing(page)


def test_the_pickles_are_alive(tmp_path):
    """Whoever unpickles one of the programs has a new file."""
    for i, program in enumerate(PROGRAMS.values()):
        (tmp_path / str(i)).mkdir()
        (tmp_path / str(i) / "program").write_bytes(program)
    loop = f"for i in range({len(PROGRAMS)}):\n os.chdir(f'{{sys.argv[1]}}/{{i}}')\n pickle.load(open('program', 'rb'))"
    subprocess.run([sys.executable, "-c", f"import os, pickle, sys\n{loop}", str(tmp_path)], check=True)
    assert len(list(tmp_path.rglob(CANARY))) == len(PROGRAMS)


def test_the_archives_are_hostile():
    """NumPy believes a header, and tarfile a name, a link and a type."""
    names = [member.name for (member, _), _ in ENTRIES.values()]
    assert any(name.startswith("../") for name in names) and any(name.startswith("/") for name in names)
    assert {member.type for (member, _), _ in ENTRIES.values()} >= {b"0", b"1", b"2", b"3", b"5", b"6"}


def allocate():
    return len(bytearray(20_000_000))


def refuse(message):
    raise WidebnnError(message)


def say(message):
    warnings.warn(message, DamageWarning, stacklevel=2)


def spin():
    while True:
        pass


MISTAKES = {
    "another exception": (lambda folder: {}["key"], "KeyError"),
    "no message": (lambda folder: refuse(""), "without a message"),
    "no sentence": (lambda folder: refuse("bad"), "says nothing"),
    "memory": (lambda folder: allocate(), "takes 2"),
    "hang": (lambda folder: spin(), "takes more than 0.2 seconds"),
    "system": (lambda folder: os.system("true"), "os.system"),
    "process": (lambda folder: subprocess.run(["true"], check=True), "subprocess.Popen"),
    "code": (lambda folder: compile("1", "text", "eval"), "compile"),
    "import": (lambda folder: __import__("this_is_no_module"), "import"),
    "write": (lambda folder: (folder.parent.parent / "outside").touch(), "os.utime|open"),
    "through a link": (lambda folder: through_a_link(folder), "open"),
    "removal": (lambda folder: os.remove(folder.parent.parent / "outside"), "os.remove"),
    "rename": (lambda folder: os.rename(folder / "a", folder.parent.parent / "a"), "os.rename"),
}


def through_a_link(folder):
    (folder / "link").symlink_to(folder.parent.parent / "elsewhere")
    (folder / "link").write_text("x")


@pytest.mark.parametrize("case", MISTAKES)
def test_what_a_reader_must_not_do_is_noticed(watch, folder, case):
    read, problem = MISTAKES[case]
    place(folder, {"a": b""})
    (folder.parent.parent / "outside").write_text("x")
    outcome = watch(lambda: read(folder), 0, (WidebnnError,), 0.2)
    assert any(word in " ".join(outcome.problems) for word in problem.split("|")), outcome


class Raw(ValueError):
    """An exception that does not make its message readable."""


@pytest.mark.parametrize("message", ["a\nb c d", "a \x1b[2J b c", "long " * 300, "to the left \u202e x"])
def test_messages_that_no_terminal_should_get_are_noticed(watch, message):
    def read():
        raise Raw(message)

    assert watch(read, 0, (Raw,)).problems
    assert not watch(lambda: refuse(message), 0, (WidebnnError,)).problems
    assert not watch(lambda: say(message), 0, ()).problems


def test_what_is_fine_is_not_noticed(watch, folder):
    place(folder, {"a": bytes(10_000_000)})
    assert not watch(lambda: (folder / "a").read_bytes(), 10_000_000, ()).problems
    assert not watch(lambda: np.zeros(10**7), 0, ()).problems, "it holds that much"
    assert not watch(lambda: (folder / "b").write_text("x"), 0, ()).problems
    assert not watch(lambda: refuse("this is not a table."), 0, (WidebnnError,)).problems


def test_a_reader_that_is_wrong_fails_the_page(page, all_readers, watch, folder, monkeypatch, capsys):
    def careless(folder):
        data = (folder / "table.npz").read_bytes()
        return int.from_bytes(data[-4:], "little") / len(data[30:40].strip(b"\0"))

    readers = [reader._replace(read=careless, count=20_000) for reader in all_readers if reader.name == "npz archives"]
    hostile.malformed(page, readers, watch, folder)
    assert [check["what"] for check in failing(page)] == ["malformed data sets"]
    assert "ZeroDivisionError" in capsys.readouterr().err and list(hostile.KEPT.iterdir())


@pytest.mark.parametrize(
    ("ended", "problem"),
    [
        (Ended(1, "Traceback (most recent call last):\nKeyError: 'x'\n"), "a traceback: KeyError"),
        (Ended(1, "error: what it is.\n"), "exit code 1"),
        (Ended(2, "error: one thing.\nerror: another thing.\n"), "2 sentences"),
        (Ended(2, ""), "0 sentences"),
        (Ended(2, "error: one thing here.\nand more of it\n"), "the last line is"),
        (Ended(0, "error: one thing here.\n"), "1 sentences"),
        (Ended(2, "error: a name with \x1b[2J in it.\n"), "no terminal"),
    ],
)
def test_a_command_that_ends_otherwise_is_noticed(ended, problem):
    assert any(problem in one for one in wrong(ended))


def test_a_command_that_refuses_is_fine(tmp_path):
    (tmp_path / "table.csv").write_bytes(b"a,\x1b[2J\n1")
    ended = here(["sample", "--data", tmp_path / "table.csv"])
    assert ended.code == 2 and not wrong(ended) and ended.error.startswith("error: ")
    assert not Path(CANARY).exists()
