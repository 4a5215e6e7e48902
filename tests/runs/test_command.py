"""widebnn resume, and fits with a store: killed at any moment, they end with the same draws."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict

import numpy as np
import pytest
import xarray

from killing import Killed, kill_after, loop, save_often
from pages import WIDEBNN
from widebnn.errors import WidebnnError
from widebnn.estimators import WideBNNRegressor
from widebnn.experiments import Experiment
from widebnn.runs.command import begin
from widebnn.runs.files import locked, write_record
from widebnn.tables import TableFit

pytestmark = [pytest.mark.ambient, pytest.mark.xdist_group("resume")]
SETTINGS = ["--n-train", 20, "--n-test", 10, "--width", 8, "--burn-in", 50, "--thin", 50, "--sampler", "pcn"]


@pytest.mark.long
def test_longer_than_it_was_begun_with(tmp_path, widebnn):
    assert widebnn("sample", *SETTINGS, "--steps", 500, "--out", tmp_path / "run")[0] == 0
    code, _, stderr = widebnn("sample", *SETTINGS, "--steps", 500, "--out", tmp_path / "run")
    assert code == 2 and "make the run longer by widebnn resume" in stderr.replace("\n", " ")
    assert widebnn("resume", tmp_path / "run", "--steps", 1000)[0] == 0
    with xarray.open_datatree(tmp_path / "run" / "draws.nc", engine="h5netcdf") as tree:
        assert tree["posterior"].sizes["draw"] == 20


@pytest.mark.long
@pytest.mark.filterwarnings("always::widebnn.errors.DamageWarning")
def test_damaged_outputs_are_written_again(tmp_path, widebnn):
    assert widebnn("sample", *SETTINGS, "--steps", 100, "--out", tmp_path)[0] == 0
    whole = (tmp_path / "summary.json").read_bytes()
    (tmp_path / "summary.json").write_bytes(whole[:-9])
    (tmp_path / "summary.png").unlink()
    code, _, stderr = widebnn("resume", tmp_path)
    assert code == 0 and "has corrupted files (summary.json, summary.png): rewritten" in stderr
    assert json.loads((tmp_path / "summary.json").read_bytes())["ess_per_step"] == json.loads(whole)["ess_per_step"]
    assert (tmp_path / "summary.png").exists()
    assert "corrupted" not in widebnn("resume", tmp_path)[2]


def test_what_cannot_be_resumed_is_explained(tmp_path, widebnn):
    assert "holds no run to resume" in widebnn("resume", tmp_path)[2]
    (tmp_path / "command").write_text("nonsense")
    assert "is corrupted" in widebnn("resume", tmp_path)[2]
    for command, message in {
        "rm": "does not know",
        "reproduce": "repeat that command",
        "sample": "other settings",
        "fit": "other settings",
    }.items():
        write_record(tmp_path / "command", {"kind": "command", "command": command, "settings": {"width": 3}}, {})
        assert message in widebnn("resume", tmp_path)[2]


def test_settings_of_other_types_are_refused(tmp_path, widebnn):
    wrong = {"width": "8", "seed": 1.5, "noise": None, "data": ["x"], "carry": 1, "sampler": "rm", "data_dir": 3}
    for name, value in wrong.items():
        settings = asdict(Experiment()) | {name: value}
        write_record(tmp_path / "command", {"kind": "command", "command": "sample", "settings": settings}, {})
        code, _, stderr = widebnn("resume", tmp_path)
        assert code == 2 and stderr.startswith(f"error: {name} must be ") and f"got {value!r}" in stderr


def test_a_fit_is_resumed_in_its_own_folder_only(tmp_path, widebnn):
    """The folder of a run says where the model goes, and is removed when it is there."""
    for name in ("a.run", "b.run"):
        (tmp_path / name).mkdir()
        settings = asdict(TableFit(tmp_path / "absent.csv", target="y", out=tmp_path / "a"))
        write_record(tmp_path / name / "command", {"kind": "command", "command": "fit", "settings": settings}, {})
    assert "absent.csv" in widebnn("resume", tmp_path / "a.run")[2]
    assert "is the run of a fit to" in widebnn("resume", tmp_path / "b.run")[2]
    assert "steps are for runs of widebnn sample" in widebnn("resume", tmp_path / "a.run", "--steps", 9)[2]
    with pytest.raises(WidebnnError, match=r"c.run is needed for the run and holds other files"):
        (tmp_path / "c.run").mkdir()
        (tmp_path / "c.run" / "thesis.txt").touch()
        begin(tmp_path / "c.run", "fit", {})
    assert (tmp_path / "c.run" / "thesis.txt").exists()


@pytest.mark.long
def test_another_command_is_not_mixed_in(tmp_path, widebnn):
    settings = ["sample", *SETTINGS, "--steps", 500, "--out", tmp_path]
    assert widebnn(*settings, "--noise", "-1")[0] == 2
    assert widebnn(*settings, "--noise", "0.2")[0] == 0  # the first never began
    (tmp_path / "summary.json").unlink()
    code, _, stderr = widebnn(*settings, "--noise", "0.3")
    assert code == 2 and "holds a run with noise 0.2" in stderr
    assert widebnn(*settings, "--noise", "0.2")[0] == 0


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_a_second_command_leaves_the_record_of_a_running_one(tmp_path, widebnn):
    """The first is stopped early, as a rule before it has any chains, and can be resumed after it was killed."""
    first = ["sample", *SETTINGS, "--steps", 100, "--out", tmp_path]
    with subprocess.Popen([WIDEBNN, *map(str, first)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            deadline = time.monotonic() + 120
            while not (tmp_path / "command").exists() and time.monotonic() < deadline:
                time.sleep(0.001)
            running.send_signal(signal.SIGSTOP)
            record = (tmp_path / "command").read_bytes()
            for second in (["sample", *SETTINGS, "--steps", 50, "--seed", 1, "--out", tmp_path], ["resume", tmp_path]):
                code, _, stderr = widebnn(*second)
                assert code == 2 and "in use by another process" in stderr.replace("\n", " ")
        finally:
            running.kill()
    assert (tmp_path / "command").read_bytes() == record
    code, _, stderr = widebnn("resume", tmp_path)
    assert code == 0, stderr
    assert json.loads((tmp_path / "summary.json").read_text())["steps"] == 100


def test_nothing_is_written_to_a_folder_in_use(tmp_path, widebnn):
    (tmp_path / "table.csv").write_text("a,y\n" + "".join(f"{i},{i % 7}\n" for i in range(20)))
    commands = {
        "sample": ["sample", *SETTINGS, "--out"],
        "demo": ["demo", "--out"],
        "reproduce": ["reproduce", "acceptance", "--out"],
        "fit.run": ["fit", tmp_path / "table.csv", "--target", "y", "--out"],
    }
    for name, command in commands.items():
        with locked(tmp_path / name):
            code, _, stderr = widebnn(*command, tmp_path / name.removesuffix(".run"))
            assert code == 2 and "in use by another process" in stderr.replace("\n", " "), stderr
            assert [path.name for path in (tmp_path / name).iterdir()] == ["lock"]


def test_other_test_rows_are_not_mixed_in(tmp_path, widebnn):
    """The table is edited between a run and its continuation: the training rows are the same, a test row is not."""
    rng = np.random.default_rng(0)
    rows = [f"{x:.3f},{np.sin(x):.3f}\n" for x in rng.uniform(-2, 2, 30)]
    table = tmp_path / "table.csv"
    table.write_text("x,y\n" + "".join(rows))
    arguments = ["--data", table, "--n-train", 20, "--n-test", 10, "--width", 8, "--burn-in", 10, "--sampler", "pcn"]
    assert widebnn("sample", *arguments, "--steps", 20, "--out", tmp_path / "run")[0] == 0
    table.write_text("x,y\n" + "".join([*rows[:-1], "1.234,0.5\n"]))
    code, _, stderr = widebnn("resume", tmp_path / "run", "--steps", 40)
    assert code == 2 and "other values of" in stderr and "mean_test" in stderr


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_killed_fit_ends_with_the_same_model(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(40, 2))
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=40)
    scales = dict.fromkeys(["weight_std", "bias_std", "readout_weight_std", "readout_bias_std"], 1.0)
    model = WideBNNRegressor(32, depth=1, activation="erf", input_scales=False, noise=0.1, **scales)
    model.set_params(burn_in=20, target_ess=30, max_steps=60, random_state=0)
    whole = model.fit(x, y).predict(x)
    model.set_params(store=str(tmp_path))
    save_often(monkeypatch)
    monkeypatch.setitem(loop.sample.__kwdefaults__, "checkpoint_seconds", 0.0)
    killed = 0
    for updates in (4, 9, 30):
        kill_after(monkeypatch, updates)
        try:
            model.fit(x, y)
        except Killed:
            killed += 1
    kill_after(monkeypatch, None)
    assert killed >= 2
    np.testing.assert_array_equal(model.fit(x, y).predict(x), whole)
