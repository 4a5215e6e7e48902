"""The command line as a user meets it: options, exit codes, one JSON line, no traceback."""

import importlib.metadata
import inspect
import json
import os
import re
import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
import xarray

from pages import process
from widebnn import experiments, names, tables
from widebnn.coordinates import COORDINATES
from widebnn.data import download, load_dataset
from widebnn.errors import WidebnnError
from widebnn.estimators import WideBNNClassifier, WideBNNRegressor
from widebnn.limits.kernel import CLOSED_FORMS
from widebnn.networks.activations import ACTIVATIONS
from widebnn.posteriors import DTYPES
from widebnn.reproduction import SCALES
from widebnn.reproduction.engines import engine_named
from widebnn.reproduction.reproduce import reproduce
from widebnn.samplers import ALIASES, SAMPLERS

pytestmark = [pytest.mark.ambient, pytest.mark.xdist_group("cli")]  # one worker, which makes the fixture once
COMMANDS = ("sample", "resume", "demo", "fit", "predict", "evaluate", "download", "reproduce")
FAST = ["--n-train", 20, "--n-test", 10, "--width", 8, "--steps", 40, "--burn-in", 10, "--thin", 4]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "run"
    done = process("sample", *FAST, "--chains", "2", "--seed", "7", "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), out


# --- sample


def test_summary_and_files_of_a_run(run):
    summary, out = run
    assert {
        "acceptance_rate", "ms_per_step", "gradients_per_step", "rhat", "test_rmse", "test_accuracy", "versions",
    } <= set(summary)  # fmt: skip
    assert summary["dimension"] == 20 * 8, "function values at 20 inputs, 8 units"
    assert (summary["steps"], summary["chains"], summary["seed"], summary["sampler"]) == (40, 2, 7, "auto")
    ess = summary["ess_per_step"]
    assert set(ess) == {"lp", "predictions", "predictions_min", "weights", "weights_min"}
    assert 0 < ess["predictions_min"] <= ess["predictions"]
    assert json.loads((out / "summary.json").read_text()) == summary
    with xarray.open_datatree(out / "draws.nc", engine="h5netcdf") as tree:
        assert tree["posterior"]["weights"].shape == (2, 10, 100)
        assert tree["predictions"]["f_test"].shape == (2, 10, 10, 10)
        np.testing.assert_allclose(tree["sample_stats"]["acceptance_rate"].mean(), summary["acceptance_rate"])
    assert (out / "summary.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_is_not_overwritten(run, widebnn):
    code, _, stderr = widebnn("sample", *FAST, "--out", run[1])
    assert code == 2 and "already holds a run" in stderr


@pytest.mark.long
def test_the_python_call_gives_the_same_numbers(run):
    found = experiments.Experiment(n_train=20, n_test=10, width=8, steps=40, burn_in=10, thin=4, seed=7).run()
    for name in ("acceptance_rate", "ess_per_step", "rhat", "test_rmse"):
        assert found[name] == run[0][name]


@pytest.mark.long
def test_the_chain_of_all_weights(widebnn):
    """--coordinates full carries the test inputs."""
    options = ["--coordinates", "full", "--sampler", "mala", "--step-size", 0.02, "--json"]
    code, stdout, stderr = widebnn("sample", *FAST, *options)
    assert code == 0, stderr
    summary = json.loads(stdout)
    assert (summary["coordinates"], summary["carry"]) == ("full", True)
    assert summary["ess_per_step"]["predictions_min"] > 0


def test_regression_from_an_npz_file(tmp_path, widebnn):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    np.savez(tmp_path / "table.npz", x=x, y=100 + 5 * x[:, 0] + 0.1 * rng.normal(size=60))
    code, stdout, stderr = widebnn(
        "sample", "--data", tmp_path / "table.npz", "--n-train", 40, "--n-test", 20, "--width", 64, "--sampler", "hmc",
        "--step-size", 0.1, "--num-steps", 5, "--steps", 100, "--burn-in", 50, "--thin", 2, "--chains", 1,
        "--out", tmp_path / "run", "--json",
    )  # fmt: skip
    assert code == 0, stderr
    summary = json.loads(stdout)
    assert summary["test_rmse"] < 2.0, "the error is in the units of the data, whose standard deviation is 5"
    assert "test_accuracy" not in summary
    assert summary["gradients_per_step"] == 5


def test_classes_from_a_csv_file(tmp_path, widebnn):
    """The same options as widebnn fit: missing values, text, a column to drop, a class to predict."""
    rng = np.random.default_rng(0)
    rows = [(f"n{i}", rng.normal(), rng.choice(["red", "blue", ""])) for i in range(60)]
    lines = [f"{name},{size:.3f},{colour},{'big' if size > 0 else 'small'}" for name, size, colour in rows]
    (tmp_path / "table.csv").write_text("\n".join(["id,size,colour,kind", *lines]))
    common = ["sample", "--data", tmp_path / "table.csv", "--n-train", 40, "--n-test", 20, "--width", 16, "--json",
              "--sampler", "pcn", "--step-size", 0.3, "--steps", 100, "--burn-in", 50, "--chains", 1]  # fmt: skip
    code, stdout, stderr = widebnn(*common, "--classify", "--drop", "id")
    assert code == 0, stderr
    assert json.loads(stdout)["test_accuracy"] > 0.7
    code, _, stderr = widebnn(*common, "--drop", "id")
    assert code == 2 and "has 'big' in line" in stderr.replace("small", "big") and "add --classify" in stderr


# --- bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "cifar10"], "cifar10 needs"),
        (["--data", "digitz"], "Did you mean 'digits'"),
        (["--data", "missing.npz"], "missing.npz"),
        (["--width", "0"], "width must be at least 1"),
        (["--sampler", "pcn", "--step-size", "2"], "step_size must be greater than 0 and at most 1"),
        (["--sampler", "nuts"], "Invalid value"),
        (["--dtype", "float16"], "Invalid value"),
        (["--noise", "-1"], "noise must be greater than 0"),
        (["--n-train", "5000"], "1797"),
        (["--friction", "2"], "friction"),
        (["--depth", "2", "--coordinates", "full"], "one hidden layer"),
        (["--carry", "--coordinates", "marginal"], "carry"),
        (["--burn-in", "0"], "needs a step_size, or a burn_in"),
        (["--thin", "5000"], "keeps nothing"),
        (["-q", "-v"], "cannot both be given"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_two(arguments, message, widebnn):
    code, _, stderr = widebnn("sample", *arguments)
    assert code == 2
    assert message in stderr


@pytest.mark.parametrize("place", ["file/below", "/proc/self"])
@pytest.mark.parametrize("name", ["sample", "demo", "reproduce", "fit", "predict", "evaluate"])
def test_where_nothing_can_be_written_is_one_sentence_before_any_work(name, place, tmp_path, widebnn):
    (tmp_path / "file").touch()
    (tmp_path / "table.csv").write_text("a,y\n" + "".join(f"{i},{i % 7}\n" for i in range(20)))
    arguments = {
        "fit": [tmp_path / "table.csv", "--target", "y"],
        "predict": [tmp_path / "no model", tmp_path / "table.csv"],
        "evaluate": [tmp_path / "no model", tmp_path / "table.csv"],
    }
    code, _, stderr = widebnn(name, *arguments.get(name, []), "--out", tmp_path / place / "out")
    assert code == 2 and "[Errno" not in stderr
    pattern = r"error: .* cannot be written \([A-Z][a-z ]+\); choose another folder or make room\.\n"
    assert re.fullmatch(pattern, stderr), "one line, and none before it that says what is being done"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(5, "Input/output error", "disk"), "disk cannot be used (Input/output error); check its path"),
        (MemoryError(), "this machine has not enough memory for that"),
    ],
)
def test_errors_of_the_system_are_one_sentence(error, sentence, tmp_path, widebnn, monkeypatch):
    def broken(*arguments, **options):
        raise error

    monkeypatch.setattr(experiments, "begun", broken)
    code, _, stderr = widebnn("resume", tmp_path)
    assert code == 2 and stderr.startswith(f"error: {sentence}") and stderr.count("\n") == 1


def test_a_planted_link_is_not_followed(tmp_path, widebnn):
    precious, out = tmp_path / "precious", tmp_path / "run"
    out.mkdir()
    outputs = ("draws.nc", "summary.json", "summary.png", "SHA256SUMS", "command")
    for name in outputs:
        (out / f".{name}.tmp").symlink_to(precious)
    (out / "draws.nc").symlink_to(precious)
    (out / "SHA256SUMS").symlink_to(precious)
    assert widebnn("sample", *FAST, "--quiet", "--out", out) == (0, "", "")
    assert not precious.exists() and not any((out / name).is_symlink() for name in outputs)


# --- help


def test_names_are_those_of_the_registries():
    pairs = {
        names.Activation: ACTIVATIONS,
        names.ClosedFormActivation: CLOSED_FORMS,
        names.Coordinates: COORDINATES,
        names.Sampler: [*SAMPLERS, *ALIASES],
        names.Dtype: DTYPES,
        names.Scale: SCALES,
    }
    for literal, registry in pairs.items():
        assert set(get_args(literal)) == set(registry)


def _fit(estimator):
    return estimator.fit(np.arange(20.0).reshape(10, 2), np.arange(10) % 2)


@pytest.mark.parametrize(
    ("literal", "others", "call"),
    [
        (names.Transform, [], lambda: _fit(WideBNNRegressor(target_transform="?"))),
        (names.Tails, [], lambda: _fit(WideBNNRegressor(noise_tails="?"))),
        (names.ClassLikelihood, [], lambda: _fit(WideBNNClassifier(likelihood="?"))),
        (names.ClosedFormActivation, [], lambda: _fit(WideBNNRegressor(activation="?"))),
        (names.Dtype, [], lambda: experiments.Experiment(dtype="?")),
        (names.Download, [], lambda: download("?", "data")),
        (names.Download, ["digits", "PATH.npz", "PATH.csv"], lambda: load_dataset("?")),
        (names.Reproduction, [], lambda: reproduce("?")),
        (names.Scale, [], lambda: reproduce(scale="?")),
        (names.Engine, [], lambda: engine_named("?")),
    ],
)
def test_what_the_library_accepts_is_what_the_types_say(literal, others, call):
    with pytest.raises(WidebnnError, match=r"must be one of .*; got '\?'") as refused:
        call()
    listed = re.search("must be one of (.*); got", str(refused.value))[1].split(", ")
    assert set(listed) == {*get_args(literal), *others}


def test_version_help_and_what_they_teach(widebnn):
    assert widebnn("--version") == (0, f"widebnn {importlib.metadata.version('widebnn')}\n", "")
    assert widebnn("-h")[1] == widebnn("--help")[1] and "--install-completion" in widebnn("-h")[1]
    for name in COMMANDS:
        code, short, _ = widebnn(name, "-h")
        assert code == 0 and short == widebnn(name, "--help")[1]
        assert all(option in short for option in ("--quiet", "-q", "--verbose", "-v"))
        assert f"Example: widebnn {name} " in short


@pytest.mark.parametrize(
    ("name", "library"),
    [("sample", experiments.Experiment), ("fit", tables.TableFit), ("predict", tables.predict_table)],
)
def test_every_parameter_of_the_library_is_an_option(name, library, widebnn, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = widebnn(name, "--help")[1]
    for parameter in inspect.signature(library).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name != "progress":
            assert f"--{parameter.name.replace('_', '-')} " in text


def test_shells_complete_commands_and_options():
    """What bash gets when somebody presses the tabulator."""
    for words, expected in (("widebnn re", {"resume", "reproduce"}), ("widebnn sample --ver", {"--verbose"})):
        environment = {**os.environ, "_WIDEBNN_COMPLETE": "complete_bash", "COMP_WORDS": words}
        environment["COMP_CWORD"] = str(len(words.split()) - 1)
        done = process(env=environment)
        assert set(done.stdout.split()) == expected, done.stderr


def test_help_does_not_wait_for_jax():
    program = "import sys; sys.argv = ['widebnn', 'fit', '--help']\nfrom widebnn import cli\ntry: cli.main()\n"
    program += "except SystemExit: print(sorted({'jax', 'scipy', 'xarray', 'sklearn', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


def test_quiet_says_only_what_was_asked_for(widebnn):
    code, stdout, stderr = widebnn("sample", *FAST, "-q", "--json")
    assert code == 0 and set(json.loads(stdout)) and stderr == ""
    code, _, stderr = widebnn("sample", *FAST, "-q", "--noise", "-1")
    assert code == 2 and stderr.startswith("error: noise must be")
