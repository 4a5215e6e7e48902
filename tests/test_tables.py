"""fit, predict and evaluate, by command and in Python: real files, real runs, one sentence where it fails."""

import io
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from widebnn.estimators import WideBNNClassifier, WideBNNRegressor
from widebnn.estimators.models import load, save
from widebnn.runs.files import read_record
from widebnn.tables import evaluate_table, predict_table

pytestmark = [
    pytest.mark.ambient,
    pytest.mark.xdist_group("tables"),
    pytest.mark.filterwarnings("ignore::widebnn.errors.Note"),
]
COMMAND = str(Path(sys.executable).with_name("widebnn"))
FAST = [
    "--width", 16, "--depth", 1, "--activation", "erf", "--no-input-scales", "--chains", 1, "--burn-in", 20,
    "--target-ess", 2, "--max-steps", 20,
]  # fmt: skip
HEADER = ["size", "weight", "colour", "unit", "price", "kind"]


def table(path, rows, seed):
    """Numbers with gaps, text, a constant; a price and a kind that depend on them."""
    rng = np.random.default_rng(seed)
    size, weight, colour = rng.uniform(-2, 2, rows), rng.uniform(0, 1, rows), rng.choice(["red", "blue"], rows)
    price = 100 + 10 * np.sin(2 * size) + 5 * (colour == "red") + rng.normal(size=rows)
    kind = np.where(size + 0.3 * rng.normal(size=rows) > 0, "big", "small")
    weight[3] = np.nan
    return write(
        path, HEADER, zip(size.round(4), weight.round(4), colour, ["cm"] * rows, price.round(4), kind, strict=True)
    )


def write(path, header, rows):
    pd.DataFrame(list(rows), columns=header).to_csv(path, index=False)
    return path


def process(*arguments):
    """A real process."""
    return subprocess.run(
        [COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False, encoding="utf-8"
    )


@pytest.fixture
def refused(widebnn):
    """Runs a command that must fail with exit code 2 and one sentence, which it returns."""

    def run(*arguments):
        code, _, stderr = widebnn(*arguments)
        assert code == 2, stderr
        last = stderr.splitlines()[-1]
        assert last.startswith("error: ") and stderr.count("error") == 1 and "Traceback" not in stderr
        return last

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    table(folder / "train.csv", 60, seed=0)
    table(folder / "test.csv", 40, seed=1)
    return folder


@pytest.fixture(scope="module")
def regression(folder):
    done = process(
        "fit", folder / "train.csv", "--target", "price", "--drop", "kind", "--noise", 1.5,
        "--out", folder / "price", *FAST,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done, folder / "price"


@pytest.fixture(scope="module")
def classes(folder):
    done = process(
        "fit", folder / "train.csv", "--target", "kind", "--classify", "--likelihood", "regression", "--noise", 0.3,
        "--drop", "price", "--out", folder / "kind", "--max-minutes", "inf", *FAST,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done, folder / "kind"


@pytest.fixture
def copy(regression, tmp_path):
    return shutil.copy(regression[1], tmp_path / "copy")


@pytest.mark.long
def test_notes_are_few_unless_asked_for(tmp_path, widebnn, regression):
    """A target, a gap and an unknown column are three notes."""
    write(tmp_path / "new.csv", ["unknown", *HEADER], [[1, "", 0.5, "red", "cm", 100, "big"]] * 3)
    said = {}
    for option in (None, "--verbose", "--quiet"):
        options = [option] if option else []
        code, stdout, said[option] = widebnn("predict", regression[1], tmp_path / "new.csv", *options)
        assert code == 0 and stdout.startswith("mean,std")
    assert said["--verbose"].count("note: ") == 3 and "more notes" not in said["--verbose"]
    assert said[None].count("note: ") == 2 and "There are more notes: --verbose shows them" in said[None]
    assert said["--quiet"] == ""


def test_fit_says_what_it_did(regression, folder):
    done, place = regression
    for words in (
        "note: column 'weight' of",
        "lacks a value in 1 of 60 rows: the median",
        "note: column 'unit' of",
        "is 'cm' in all rows and left out",
        "Fitting 'price' to 60 rows, 3 columns, 5 inputs (size, weight, weight is missing, colour = blue, colour",
        "Draws end after 20 minutes, enough or not (--max-minutes)",
        "effective draws",
        "noise, in units of the target",
        "acceptance rate",
        "Importance of the columns (how much R2 falls if one is shuffled): size ",
        f"widebnn predict {place} new.csv",
    ):
        assert words in done.stdout + done.stderr
    model = load(place)
    assert isinstance(model, WideBNNRegressor) and (model.n_features_in_, model.max_minutes) == (5, 20.0)
    assert not place.with_name("price.run").exists()


def test_predict(regression, folder, tmp_path, widebnn):
    out = tmp_path / "new" / "predictions.csv"
    code, stdout, stderr = widebnn("predict", regression[1], folder / "test.csv", "--out", out)
    assert (code, stdout) == (0, "")
    assert "column 'price' of" in stderr and "is what the model predicts, and is ignored" in stderr
    assert f"Wrote 40 rows of mean, std, epistemic, aleatoric, q0.05, q0.5, q0.95 to {out}" in stderr
    rows = pd.read_csv(out)
    assert len(rows) == 40 and list(rows) == ["mean", "std", "epistemic", "aleatoric", "q0.05", "q0.5", "q0.95"]
    mean, std, epistemic, aleatoric, low, middle, high = rows.to_numpy().T
    np.testing.assert_allclose(std, np.hypot(epistemic, aleatoric), rtol=1e-6)
    assert (low < middle).all() and (middle < high).all() and (std > 1).all()
    truth = pd.read_csv(folder / "test.csv")["price"].to_numpy()
    assert np.sqrt(np.mean(np.delete(mean - truth, 3) ** 2)) < 0.3 * truth.std()
    assert std[3] > 3 * np.median(std)  # its weight is missing, and so is that of one training row only


def test_a_real_process_and_the_python_call_predict_the_same(regression, folder, widebnn):
    arguments = ["predict", regression[1], folder / "test.csv", "--quantiles", "0.25,0.75"]
    done, (code, stdout, _) = process(*arguments), widebnn(*arguments)
    assert (done.returncode, code) == (0, 0)
    assert (
        done.stdout == stdout
        and stdout.startswith("mean,std,epistemic,aleatoric,q0.25,q0.75\n")
        and stdout.count("\n") == 41
    )
    found = predict_table(regression[1], folder / "test.csv", quantiles=[0.25, 0.75])
    assert [f"{number:.10g}" for number in found["q0.75"]] == [line.split(",")[5] for line in stdout.splitlines()[1:]]


def test_evaluate(regression, folder, tmp_path, widebnn):
    code, stdout, stderr = widebnn(
        "evaluate", regression[1], folder / "test.csv", "--json", "--out", tmp_path / "evaluation"
    )
    assert code == 0, stderr
    scores = json.loads(stdout.splitlines()[-1])
    assert set(scores) == {"rows", "rmse", "r2", "nll", "coverage_50", "coverage_90"}
    assert load(regression[1]).table_["target"] == "price" and scores["rows"] == 40
    _, predicted, _ = widebnn("predict", regression[1], folder / "test.csv")
    rows, truth = pd.read_csv(io.StringIO(predicted)), pd.read_csv(folder / "test.csv")["price"]
    mean, low, high = rows["mean"], rows["q0.05"], rows["q0.95"]
    np.testing.assert_allclose(scores["rmse"], np.sqrt(np.mean((mean - truth) ** 2)), rtol=1e-6)
    np.testing.assert_allclose(scores["coverage_90"], np.mean((low <= truth) & (truth <= high)), atol=1e-9)
    assert 0 < scores["nll"] < 10 and 0 < scores["coverage_50"] < scores["coverage_90"]
    assert (tmp_path / "evaluation" / "calibration.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "evaluation" / "scores.json").read_text()) == scores
    assert "coverage_90" in stderr and evaluate_table(regression[1], folder / "test.csv") == scores


def test_classes(classes, folder, tmp_path, widebnn):
    model = load(classes[1])
    assert isinstance(model, WideBNNClassifier) and model.max_minutes is None
    assert "minutes, enough or not" not in classes[0].stderr and "how much accuracy falls" in classes[0].stderr
    code, stdout, _ = widebnn("predict", classes[1], folder / "test.csv")
    rows = pd.read_csv(io.StringIO(stdout))
    assert code == 0 and list(rows) == ["class", "p[big]", "p[small]"] and len(rows) == 40
    np.testing.assert_allclose(rows["p[big]"] + rows["p[small]"], 1, atol=1e-8)
    assert (rows["class"] == np.where(rows["p[big]"] >= rows["p[small]"], "big", "small")).all()
    code, stdout, stderr = widebnn("evaluate", classes[1], folder / "test.csv", "--json", "--out", tmp_path)
    assert code == 0, stderr
    scores = json.loads(stdout.splitlines()[-1])
    assert scores["accuracy"] == np.mean(rows["class"] == pd.read_csv(folder / "test.csv")["kind"]) > 0.7
    assert set(scores) == {"rows", "accuracy", "log_loss", "ece"} and scores["log_loss"] < np.log(2)
    assert (tmp_path / "calibration.png").stat().st_size > 10_000


def test_nothing_is_written_over(regression, folder, tmp_path, widebnn, refused):
    out = tmp_path / "p.csv"
    out.write_text("mine")
    assert "exists already; choose another --out" in refused(
        "predict", regression[1], folder / "test.csv", "--out", out
    )
    assert out.read_text() == "mine"
    assert widebnn("predict", regression[1], folder / "test.csv", "--out", out, "--force")[0] == 0
    assert out.read_text().startswith("mean,")
    inside = out / "new" / "p.csv"
    assert "cannot be written (Not a directory)" in refused(
        "predict", regression[1], folder / "test.csv", "--out", inside
    )
    (tmp_path / "scores.json").touch()
    assert "scores.json exists" in refused("evaluate", regression[1], folder / "test.csv", "--out", tmp_path)
    assert "exists already; choose another path for the model" in refused(
        "fit", folder / "train.csv", "--target", "price", "--out", regression[1], *FAST
    )


FIT = {
    "absent.csv --target y": "absent.csv; give the path of a CSV file",
    "train.csv --target prise": "got 'prise'. Did you mean 'price'?",
    "train.csv --target kind": "which is not a number: correct it or remove the row, or add --classify",
    "train.csv --target price --likelihood softmax": "add --classify or leave it out",
    "train.csv --target price --noise -1": "noise must be greater than 0",
    "train.csv --target price --max-minutes 0": "max_minutes must be greater than 0, got 0",
    "train.csv --target price --noise much": "noise must be a number, got 'much'",
    "train.csv --target kind --classify --tails heavy": "tails heavy is for numbers",
    "train.csv --target price --tails heavy --noise 1": "noise_tails='heavy' is not; leave one out",
    "train.csv --target kind --classify --transform asinh": "transform asinh is for numbers",
    "train.csv --target price --transform asinh --noise 1": "transform='asinh' changes them; leave one out",
    "train.csv --target price --drop colours": "Did you mean 'colour'?",
}


@pytest.mark.parametrize("arguments", FIT)
def test_what_cannot_be_fitted_is_explained(folder, tmp_path, refused, monkeypatch, arguments):
    monkeypatch.chdir(folder)
    assert FIT[arguments] in refused("fit", *arguments.split(), "--out", tmp_path / "model", *FAST)
    assert not list(tmp_path.iterdir())


def test_a_table_that_takes_far_too_long_is_refused_first(folder, tmp_path, refused):
    """With what it would take and how many rows would do; nothing is left behind."""
    rng = np.random.default_rng(0)
    large = write(tmp_path / "large.csv", ["a", "b", "y"], rng.normal(size=(3000, 3)).round(4).tolist())
    words = refused("fit", large, "--target", "y", "--out", tmp_path / "model", "--max-minutes", "0.001")
    assert "3000 rows at width 256: a gradient takes" in words and "more than max_minutes=0.001: " in words
    assert [path.name for path in tmp_path.iterdir()] == ["large.csv"]


def test_the_limit_of_infinite_width(folder, tmp_path, widebnn):
    arguments = folder / "train.csv", "--target", "price", *FAST, "--width", "inf"
    code, _, stderr = widebnn("fit", *arguments, "--out", tmp_path / "model")
    assert code == 0 and "exact posterior" in stderr and "Draws end" not in stderr
    code, stdout, _ = widebnn("predict", tmp_path / "model", folder / "train.csv")
    assert code == 0 and len(stdout.splitlines()) > 50
    code, _, stderr = widebnn("fit", *arguments[:-1], "wide", "--out", tmp_path / "other")
    assert code == 2 and "width must be a whole number or inf, got 'wide'" in stderr


PREDICT = {
    "missing column": ("size,weight\n1,2\n", "lacks colour of the 3 columns that the model needs; add what is lacking"),
    "huge": ("size,weight,colour\n1,2,red\n1e300,2,red\n", "column 'size' of new.csv has numbers as large as 1e+300"),
    "empty": ("", "must have a line of column names"),
}


@pytest.mark.parametrize("case", PREDICT)
def test_what_cannot_be_predicted_is_explained(regression, tmp_path, refused, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    text, message = PREDICT[case]
    Path("new.csv").write_text(text)
    assert message in refused("predict", regression[1], "new.csv", "--out", "new/p.csv")
    assert not Path("new").exists()


def test_predictions_that_are_not_finite_are_refused(regression, tmp_path, refused, monkeypatch):
    new = write(tmp_path / "new.csv", ["size", "weight", "colour"], [[1, 0.5, "red"], [2, 0.5, "red"]])
    monkeypatch.setattr(WideBNNRegressor, "predict", lambda *_, **__: (np.array([1.0, np.nan]), np.ones(2), np.ones(2)))
    assert "the row in line 3 of" in refused("predict", regression[1], new)


def test_what_cannot_be_evaluated_is_explained(regression, classes, folder, tmp_path, refused):
    rows = pd.read_csv(folder / "test.csv").to_numpy().tolist()
    untold = write(tmp_path / "untold.csv", HEADER[:4], [row[:4] for row in rows])
    assert "has no column 'price', which the model predicts" in refused("evaluate", regression[1], untold)
    rows[2][5] = "huge"
    other = write(tmp_path / "other.csv", HEADER, rows)
    assert "has 'huge' in line 4, which is not a class of the model (big, small)" in refused(
        "evaluate", classes[1], other
    )


@pytest.mark.parametrize("levels", ["0", "1", "0.5,1.5", "a", "0.5,", "nan"])
def test_bad_quantiles(regression, folder, refused, levels):
    assert "quantiles must be" in refused("predict", regression[1], folder / "test.csv", "--quantiles", levels)


def test_corrupted_models_are_refused(copy, folder, refused):
    whole = copy.read_bytes()
    copy.write_bytes(whole[: len(whole) // 2])
    assert str(copy) in refused("predict", copy, folder / "test.csv")
    copy.write_bytes(whole[:-1000] + b"x" + whole[-999:])
    assert "corrupted" in refused("evaluate", copy, folder / "test.csv", "--json")
    assert "is no file" in refused("predict", folder, folder / "test.csv")


def test_models_without_a_fitting_table_are_refused(regression, folder, refused, tmp_path):
    model = load(regression[1], posterior=False)
    model.single_output_ = False
    assert "do not fit its network" in refused("predict", save(model, tmp_path / "several"), folder / "test.csv")
    model.single_output_ = True
    model.table_["numbers"].pop("size")
    assert "do not fit its network" in refused("predict", save(model, tmp_path / "other"), folder / "test.csv")
    del model.table_
    assert "was not fitted to a table" in refused("predict", save(model, tmp_path / "python"), folder / "test.csv")


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_ctrl_c_while_fitting_is_one_sentence_and_resumes(tmp_path):
    path = table(tmp_path / "train.csv", 60, seed=0)
    fit = ["fit", path, "--target", "price", *FAST]
    command = [COMMAND, *map(str, fit), "--out", str(tmp_path / "model")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        for line in running.stderr:
            if line.startswith("Fitting"):
                break
        time.sleep(1.0)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "resumes the fit" in err and "Traceback" not in err
    assert not (tmp_path / "model").exists()
    done = process("resume", tmp_path / "model.run")
    assert done.returncode == 0, done.stderr
    whole = process(*fit, "--out", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    one, other = (read_record(tmp_path / name, "model").arrays for name in ("model", "whole"))
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)
    assert sorted(place.name for place in tmp_path.iterdir()) == ["model", "train.csv", "whole"]
