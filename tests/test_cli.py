"""The command line as a user meets it: exit codes, one JSON line, no traceback."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray

from widebnn import cli

pytestmark = pytest.mark.xdist_group("cli")  # one worker, which makes the fixture once
COMMAND = [str(Path(sys.executable).with_name("widebnn")), "sample"]
FAST = ["--n-train", "20", "--n-test", "10", "--width", "8", "--steps", "40", "--burn-in", "10", "--thin", "4"]


def widebnn(*arguments):
    """A real process."""
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def widebnn_here(monkeypatch, capsys):
    """The same entry point in this process, which has JAX imported: (exit code, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["widebnn", "sample", *map(str, arguments)])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "run"
    done = widebnn(*FAST, "--chains", "2", "--seed", "7", "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    return done, out


def test_json_is_the_last_line(run):
    summary = json.loads(run[0].stdout.splitlines()[-1])
    assert {
        "acceptance_rate", "ms_per_step", "dimension", "gradients_per_step", "ess_per_step", "rhat",
        "test_rmse", "test_accuracy", "steps", "chains", "seed", "versions",
    } <= set(summary)  # fmt: skip
    assert set(summary["ess_per_step"]) == {"lp", "predictions", "predictions_min", "weights", "weights_min"}
    assert summary["dimension"] == 20 * 8, "function values at 20 inputs, 8 units"
    assert (summary["steps"], summary["chains"], summary["seed"]) == (40, 2, 7)
    assert summary["gradients_per_step"] >= 1
    assert summary["versions"]["jax"]
    ess = summary["ess_per_step"]
    assert 0 < ess["predictions_min"] <= ess["predictions"]


def test_files_of_a_run(run):
    out = run[1]
    summary = json.loads((out / "summary.json").read_text())
    tree = xarray.open_datatree(out / "draws.nc", engine="h5netcdf")
    assert tree["posterior"]["weights"].shape == (2, 10, 100)
    assert tree["predictions"]["f_test"].shape == (2, 10, 10, 10)
    np.testing.assert_allclose(tree["sample_stats"]["acceptance_rate"].mean(), summary["acceptance_rate"])
    assert (out / "summary.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_is_not_written_over(run, widebnn_here):
    code, _, stderr = widebnn_here(*FAST, "--out", run[1])
    assert code == 2
    assert "already holds a run" in stderr


@pytest.mark.ambient
def test_the_same_seed_gives_the_same_numbers(run, widebnn_here):
    _, again, _ = widebnn_here(*FAST, "--chains", "2", "--seed", "7", "--json")
    first, second = (json.loads(stdout.splitlines()[-1]) for stdout in (run[0].stdout, again))
    for name in ("acceptance_rate", "ess_per_step", "rhat", "test_rmse"):
        assert first[name] == second[name]


@pytest.mark.ambient
def test_the_chain_of_all_weights(widebnn_here):
    """--coordinates full counts all weights in the dimension and carries the test inputs."""
    code, stdout, stderr = widebnn_here(
        *FAST, "--coordinates", "full", "--sampler", "mala", "--step-size", 0.02, "--json"
    )
    assert code == 0, stderr
    summary = json.loads(stdout.splitlines()[-1])
    assert (summary["coordinates"], summary["carry"]) == ("full", True)
    assert summary["ess_per_step"]["predictions_min"] > 0


@pytest.mark.ambient
def test_regression_from_an_npz_file(tmp_path, widebnn_here):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    np.savez(tmp_path / "table.npz", x=x, y=100 + 5 * x[:, 0] + 0.1 * rng.normal(size=60))
    code, stdout, stderr = widebnn_here(
        "--data", tmp_path / "table.npz", "--n-train", 40, "--n-test", 20, "--width", 64, "--sampler", "hmc",
        "--step-size", 0.1, "--num-steps", 5, "--steps", 100, "--burn-in", 50, "--thin", 2, "--chains", 1,
        "--out", tmp_path / "run", "--json",
    )  # fmt: skip
    assert code == 0, stderr
    summary = json.loads(stdout.splitlines()[-1])
    assert summary["test_rmse"] < 2.0, "the error is in the units of the data, whose standard deviation is 5"
    assert "test_accuracy" not in summary
    assert summary["gradients_per_step"] == 5


@pytest.mark.ambient
def test_classes_from_a_csv_file(tmp_path, widebnn_here):
    """The same options and notes as widebnn fit: missing values, text, a column to drop, a class to predict."""
    rng = np.random.default_rng(0)
    rows = [(f"n{i}", rng.normal(), rng.choice(["red", "blue", ""])) for i in range(60)]
    lines = [f"{name},{size:.3f},{colour},{'big' if size > 0 else 'small'}" for name, size, colour in rows]
    (tmp_path / "table.csv").write_text("\n".join(["id,size,colour,kind", *lines]))
    common = ["--data", tmp_path / "table.csv", "--n-train", 40, "--n-test", 20, "--width", 16, "--sampler", "pcn",
              "--step-size", 0.3, "--steps", 100, "--burn-in", 50, "--chains", 1, "--json"]  # fmt: skip
    code, stdout, stderr = widebnn_here(*common, "--classify", "--drop", "id")
    assert code == 0, stderr
    assert json.loads(stdout.splitlines()[-1])["test_accuracy"] > 0.7
    code, _, stderr = widebnn_here(*common)
    assert code == 2 and "has 'big' in line" in stderr.replace("small", "big") and "add --classify" in stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "cifar10"], "cifar10 needs"),
        (["--data", "digitz"], "Did you mean 'digits'"),
        (["--data", "missing.npz"], "missing.npz"),
        (["--width", "0"], "width must be at least 1"),
        (["--sampler", "pcn", "--step-size", "2"], "step_size must be greater than 0 and at most 1"),
        (["--sampler", "nuts"], "Invalid value"),
        (["--dtype", "float16"], "dtype must be one of"),
        (["--noise", "-1"], "noise must be greater than 0"),
        (["--n-train", "5000"], "1797"),
        (["--friction", "2"], "friction"),
        (["--depth", "2", "--coordinates", "full"], "one hidden layer"),
        (["--carry", "--coordinates", "marginal"], "carry"),
        (["--burn-in", "0"], "needs a step_size, or a burn_in"),
        (["--thin", "5000"], "keeps nothing"),
        (["--out", "/dev/null/run"], "/dev/null"),
    ],
)
@pytest.mark.ambient
def test_bad_input_is_one_sentence_and_exit_code_two(arguments, message, widebnn_here):
    code, _, stderr = widebnn_here(*arguments)
    assert code == 2
    assert message in stderr


@pytest.mark.parametrize("arguments", [["--data", "cifar10"], ["--sampler", "pcn", "--step-size", "2"]])
def test_bad_input_in_a_real_process(arguments):
    done = widebnn(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


@pytest.fixture
def command(monkeypatch, capsys):
    """Any command in this process."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["widebnn", *map(str, arguments)])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code, *capsys.readouterr()

    return run


def test_version_and_short_help(command):
    assert command("--version") == (0, f"widebnn {importlib.metadata.version('widebnn')}\n", "")
    for name in ("sample", "resume", "demo", "fit", "predict", "evaluate", "download", "reproduce"):
        code, short, _ = command(name, "-h")
        assert code == 0 and short == command(name, "--help")[1]
        assert all(option in short for option in ("--quiet", "-q", "--verbose", "-v"))
    assert command("-h")[1] == command("--help")[1]


def test_shells_complete_commands_and_options():
    """What bash gets when somebody presses the tabulator."""
    for words, expected in (("widebnn re", {"resume", "reproduce"}), ("widebnn sample --ver", {"--verbose"})):
        environment = {**os.environ, "_WIDEBNN_COMPLETE": "complete_bash", "COMP_WORDS": words}
        environment["COMP_CWORD"] = str(len(words.split()) - 1)
        done = subprocess.run(COMMAND[:1], env=environment, capture_output=True, text=True, check=False, timeout=60)
        assert set(done.stdout.split()) == expected, done.stderr
    done = subprocess.run([COMMAND[0], "--help"], capture_output=True, text=True, check=True, timeout=60)
    assert "--install-completion" in done.stdout


def test_help_does_not_wait_for_jax():
    program = "import sys; sys.argv = ['widebnn', 'fit', '--help']\nfrom widebnn import cli\ntry: cli.main()\n"
    program += "except SystemExit: print(sorted({'jax', 'scipy', 'xarray', 'sklearn'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.ambient
def test_quiet_says_only_what_was_asked_for(command):
    code, stdout, stderr = command("sample", *FAST, "--quiet", "--json")
    assert code == 0 and set(json.loads(stdout)) and stderr == ""
    code, stdout, stderr = command("sample", *FAST, "-q")
    assert (code, stdout, stderr) == (0, "", "")
    code, _, stderr = command("sample", *FAST, "-q", "--noise", "-1")
    assert code == 2 and stderr.startswith("error: noise must be")
    code, _, stderr = command("sample", "-q", "-v")
    assert code == 2 and "cannot both be given" in stderr


@pytest.mark.ambient
def test_a_planted_link_is_not_followed(tmp_path, command):
    precious, out = tmp_path / "precious", tmp_path / "run"
    out.mkdir()
    names = ("draws.nc", "summary.json", "summary.png", "SHA256SUMS", "command")
    for name in names:
        (out / f".{name}.tmp").symlink_to(precious)
        (out / name).with_suffix(".tmp").unlink(missing_ok=True)
        (out / name).with_suffix(".tmp").symlink_to(precious)
    (out / "draws.nc").symlink_to(precious)
    (out / "SHA256SUMS").symlink_to(precious)
    code, _, stderr = command("sample", *FAST, "--out", out)
    assert code == 0, stderr
    assert not precious.exists() and not any((out / name).is_symlink() for name in names)


@pytest.mark.parametrize("place", ["file/below", "/proc/self"])
@pytest.mark.parametrize("name", ["sample", "demo", "reproduce", "fit", "predict", "evaluate"])
@pytest.mark.ambient
def test_where_nothing_can_be_written_is_one_sentence_before_any_work(name, place, tmp_path, command):
    (tmp_path / "file").touch()
    (tmp_path / "table.csv").write_text("a,y\n" + "".join(f"{i},{i % 7}\n" for i in range(20)))
    arguments = {
        "fit": [tmp_path / "table.csv", "--target", "y"],
        "predict": [tmp_path / "no model", tmp_path / "table.csv"],
        "evaluate": [tmp_path / "no model", tmp_path / "table.csv"],
    }
    code, _, stderr = command(name, *arguments.get(name, []), "--out", tmp_path / place / "out")
    assert code == 2 and "[Errno" not in stderr
    sentence = stderr.splitlines()[-1]
    assert re.fullmatch(r"error: .* cannot be written \([A-Z][a-z ]+\); choose another folder or make room\.", sentence)


@pytest.mark.ambient
def test_any_error_of_the_system_is_one_sentence(tmp_path, command, monkeypatch):
    def broken(*arguments, **options):
        raise OSError(5, "Input/output error", "disk")

    monkeypatch.setattr(cli, "begun", broken)
    code, _, stderr = command("resume", tmp_path)
    assert (code, stderr) == (
        2,
        "error: disk cannot be used (Input/output error); check its path and its permissions.\n",
    )


def test_help_teaches():
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=True)
    for word in ("--coordinates", "--step-size", "Example:"):
        assert word in done.stdout
