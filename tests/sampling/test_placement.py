"""Chains and hidden units over devices and processes: the same draws as on one device."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.ambient, pytest.mark.xdist_group("placement")]
SCRIPT = Path(__file__).with_name("many_devices.py")
ROUNDING = 1e-4
"""Sums over units in float32, in another order: of a log-likelihood, and of draws after 80 steps."""

NUMBERS = ("f64[]", "f32[]", "pred[]")


def start(what, folder, processes=1, devices=1):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir(exist_ok=True)
    arguments = [[what, process, processes, devices, port, folder] for process in range(processes)]
    return [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), *map(str, own)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for own in arguments
    ]


def finish(children, seconds=400):
    said = [child.communicate(timeout=seconds) for child in children]
    assert [child.returncode for child in children] == [0] * len(children), said[0][1][-2000:]
    return said


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Draws of the same runs on one device, on eight, and on four of two and of four processes."""
    folder = tmp_path_factory.mktemp("draws")
    finish(start("draws", folder / "one"))
    finish(start("draws", folder / "eight", devices=8))
    finish(start("draws", folder / "two processes", processes=2, devices=2))
    finish(start("draws", folder / "four processes", processes=4, devices=1))
    return folder


@pytest.mark.long
@pytest.mark.parametrize(
    ("where", "name", "count"),
    [
        ("eight", "pcn, one layer", 2),
        ("eight", "hilbert_hmc, two layers", 1),
        ("two processes", "hilbert_hmc, two layers", 1),
        ("four processes", "pcn, one layer", 1),
    ],
)
def test_the_same_draws_wherever(drawn, where, name, count):
    one = np.load(drawn / "one" / f"{name}, 0.npz")
    paths = sorted((drawn / where).glob(f"{name}, *.npz"))
    assert len(paths) == count
    for path in paths:
        many = np.load(path)
        for key in one:
            np.testing.assert_allclose(many[key], one[key], rtol=ROUNDING, atol=ROUNDING, err_msg=f"{path.name} {key}")
        np.testing.assert_array_equal(many["accepted"], one["accepted"])
        assert not np.array_equal(many["lp"][0], many["lp"][1])


@pytest.fixture(scope="module", params=["few", pytest.param("others", marks=pytest.mark.long)])
def others(request, tmp_path_factory):
    """Refusals, targets of several kinds, or one, and what is sent: on eight devices."""
    folder = tmp_path_factory.mktemp("others")
    finish(start(request.param, folder, devices=8))
    return folder, ["carried"] if request.param == "few" else ["plain", "carried", "unknown noise", "softmax"]


def test_what_does_not_fit_is_refused_and_what_fits_is_the_same(others):
    folder, names = others
    said = json.loads((folder / "refusals.json").read_text())
    assert "axes ('chains', 'units'), got ('batch',)" in said["axes"]
    assert "6 chains cannot be divided equally over the 4 rows" in said["chains"]
    assert "60 hidden units cannot be divided equally over 8 devices" in said["units"]
    assert "use coordinates='function'" in said["coordinates"]
    assert "needs 9; there are 8" in said["too many"]
    for name in names:
        mesh, none = (np.load(folder / f"{name}, {which}.npz") for which in ("mesh", "none"))
        for key in none:
            np.testing.assert_allclose(mesh[key], none[key], rtol=1e-3, atol=1e-3, err_msg=f"{name} {key}")
        np.testing.assert_array_equal(mesh["accepted"], none["accepted"])


def test_a_step_sends_nothing_but_sums_of_kernels(others):
    """One n x n matrix per evaluation and layer, one more per layer on the way back, and numbers."""
    sent = json.loads((others[0] / "communication.json").read_text())
    for name in sent:
        matrices = {"pcn 1": 1, "pcnl 1": 1, "pcnl 2": 3}[name]
        assert {one["kind"] for one in sent[name]} == {"all-reduce"}, sent[name]
        shapes = [array for one in sent[name] for array in one["arrays"]]
        assert [shape for shape in shapes if shape not in NUMBERS] == ["f32[12, 12]"] * matrices


@pytest.mark.long
@pytest.mark.parametrize("lost", [1, 0])
def test_a_lost_process_is_named_and_the_run_goes_on_with_another_number(tmp_path, lost):
    children = start("slowly", tmp_path, processes=2)
    deadline = time.monotonic() + 120
    while len(list((tmp_path / "store").glob("draws-*"))) < 2:
        assert time.monotonic() < deadline, "nothing is kept"
        time.sleep(0.02)
    children[lost].kill()
    outputs = [child.communicate(timeout=150) for child in children]
    assert children[1 - lost].returncode != 0
    said = outputs[1 - lost][0] + outputs[1 - lost][1]
    assert "another process of this run was lost" in said or "another task died" in said
    assert not (tmp_path / "slowly.npz").exists()
    finish(start("stored", tmp_path, processes=4 if lost else 1))
    finish(start("stored", tmp_path / "whole"))
    resumed, whole = np.load(tmp_path / "stored.npz"), np.load(tmp_path / "whole" / "stored.npz")
    np.testing.assert_array_equal(resumed["accepted"], whole["accepted"])
    for key in whole:
        np.testing.assert_allclose(resumed[key], whole[key], rtol=1e-3, atol=1e-3, err_msg=key)
    if lost:
        before = os.stat(tmp_path / "store" / "draws-000000").st_ino
        finish(start("longer", tmp_path, devices=2))
        longer = np.load(tmp_path / "longer.npz")
        np.testing.assert_array_equal(longer["lp"][:, :240], resumed["lp"])
        assert longer["lp"].shape == (4, 480)
        assert os.stat(tmp_path / "store" / "draws-000000").st_ino == before
