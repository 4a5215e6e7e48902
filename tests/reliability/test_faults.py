"""A small share of what make reliability does to runs, and whether it would notice a run that is not durable."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import damage
from page import Page, describe
from summary import COMMANDS, PAGE, build
from trial import run_once, store_often
from widebnn import durable
from widebnn.sampling import driver, store

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.ambient


def test_the_page_says_what_the_results_say():
    assert PAGE.read_text() == build(), "run python reliability/summary.py"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does(name):
    heading, text = describe(ROOT / "reliability" / f"{name}.py")
    assert heading and len(text) > 200
    results = ROOT / "reliability" / "results" / f"{name}.json"
    if results.is_file():
        page = json.loads(results.read_text())
        assert page["share"] == 1 and page["checks"]


def test_a_figure_that_fails_is_an_exit_code(tmp_path):
    program = "from page import main\nmain(__file__, lambda page: page.check('a', '1', '0', False))"
    (tmp_path / "failing.py").write_text(f"'''Title.'''\nimport sys\nsys.path.insert(0, 'reliability')\n{program}\n")
    done = subprocess.run(
        [sys.executable, tmp_path / "failing.py", "--share", "0.5"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "FAILED a: 1 (goal: 0)" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.long
@pytest.mark.parametrize("name", ["kills", "damage"])
def test_a_small_share_holds(name):
    """In a process of its own: it forks, which must be before JAX is used."""
    command = [sys.executable, str(ROOT / "reliability" / f"{name}.py"), "--share", "0.02"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout and done.stdout.count("ok ") >= 4


def without_checksum(path, kind):
    """read_record that takes any checksum for the right one."""
    body = path.read_bytes()[:-64]
    mended = path.with_name("mended")
    mended.write_bytes(body + hashlib.sha256(body).hexdigest().encode())
    try:
        return durable.read_record(mended, kind)
    finally:
        mended.unlink()


@pytest.mark.long
def test_a_store_without_checksums_is_seen(tmp_path, monkeypatch):
    for name in ("CHUNK_SECONDS", "CHECKPOINT_SHARE"):
        monkeypatch.setattr(driver, name, getattr(driver, name))
    store_often()
    monkeypatch.setattr(damage, "begin", lambda folder: run_once("pcn", folder / "chains", **damage.SHORT))
    monkeypatch.setattr(store, "read_record", without_checksum)
    page = Page("damage", 0.03)
    damage.damages(page, tmp_path)
    assert not page.checks[0]["holds"]
