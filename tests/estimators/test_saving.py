"""Models come back from disk bit for bit, and nothing else comes back as a model."""

import io
import json
import shutil
import warnings
import zipfile

import numpy as np
import pytest
import xarray
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from hostile_archives import PROGRAMS, Evil
from widebnn.errors import WidebnnError
from widebnn.estimators import WideBNNClassifier, WideBNNRegressor, saving
from widebnn.estimators.saving import load, load_with_extra, save

pytestmark = [pytest.mark.ambient, pytest.mark.xdist_group("saving")]
TINY = {
    "width": 4, "depth": 1, "activation": "erf", "input_scales": False, "chains": 1, "burn_in": 8, "target_ess": 4,
    "max_steps": 8, "random_state": 0,
}  # fmt: skip
RNG = np.random.default_rng(0)
X, X_NEW = RNG.normal(size=(12, 3)), RNG.normal(size=(300, 3))
FILES = ("model.json", "ensemble.npz", "posterior.nc")
EXTRA = {"table": {"columns": ["a", "é"]}, "number": 0.1}


def fitted(model, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, y)


@pytest.fixture(scope="module")
def regressor(tmp_path_factory):
    model = fitted(WideBNNRegressor(noise=0.5, **TINY), np.stack([X[:, 0], 100 * X[:, 1]], axis=1))
    return model, save(model, tmp_path_factory.mktemp("saving") / "regressor", EXTRA)


@pytest.fixture
def copy(regressor, tmp_path):
    return shutil.copytree(regressor[1], tmp_path / "copy")


def refused(folder):
    """The one sentence with which a folder is refused."""
    with pytest.raises(WidebnnError) as caught:
        load(folder)
    message = str(caught.value)
    assert "\n" not in message and str(folder) in message and message.endswith(".")
    return message


def test_a_regressor_comes_back_bit_for_bit(regressor):
    model, folder = regressor
    again, extra = load_with_extra(folder)
    assert extra == EXTRA
    assert type(again) is WideBNNRegressor and again.get_params() == model.get_params()
    for one, other in zip(model.predict(X_NEW, return_std=True), again.predict(X_NEW, return_std=True), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(model.predict_quantiles(X_NEW[:5]), again.predict_quantiles(X_NEW[:5]))
    np.testing.assert_array_equal(model.sample_y(X_NEW[:5], 3), again.sample_y(X_NEW[:5], 3))
    assert again.hyperparameters_ == model.hyperparameters_ and again.network_ == model.network_
    assert again.diagnostics_ == model.diagnostics_
    assert {name for name in vars(again)} == {name for name in vars(model)}, "every attribute"
    for name in ("posterior/f_train", "sample_stats/lp"):
        np.testing.assert_array_equal(again.posterior_[name], model.posterior_[name])
    assert not hasattr(load(folder, posterior=False), "posterior_")


@pytest.mark.parametrize("options", [{}, {"likelihood": "regression", "noise": 0.5}], ids=["softmax", "regression"])
def test_a_classifier_comes_back_bit_for_bit(options, tmp_path):
    labels = np.array(["no", "yes", "naïve"])[np.arange(12) % 3]
    model = fitted(WideBNNClassifier(**options, **TINY), labels)
    again = load(save(model, tmp_path / "model"))
    np.testing.assert_array_equal(model.predict_proba(X_NEW), again.predict_proba(X_NEW))
    np.testing.assert_array_equal(model.predict(X_NEW), again.predict(X_NEW))
    assert again.classes_.tolist() == ["naïve", "no", "yes"]


def test_the_files_are_open(regressor):
    """Without this package: JSON, and NumPy arrays without pickle."""
    model, folder = regressor
    document = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    assert (document["format"], document["version"], document["kind"]) == ("widebnn-model", 2, "regressor")
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    with np.load(folder / "ensemble.npz", allow_pickle=False) as arrays:
        assert set(arrays.files) == set(document["arrays"])
        np.testing.assert_array_equal(arrays["hidden.0.w"], model.ensemble_.hidden[0].w)


def test_nothing_is_written_over(regressor, tmp_path):
    model, folder = regressor
    with pytest.raises(WidebnnError, match="already holds a model"):
        save(model, folder)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    for place in (tmp_path / "full", tmp_path / "full" / "thesis.txt"):
        with pytest.raises(WidebnnError, match="must be a new or an empty folder"):
            save(model, place)
    (tmp_path / "empty").mkdir()
    assert load(save(model, tmp_path / "empty")).width == 4
    assert load(save(model, tmp_path / "new" / "deep")).width == 4


def test_a_failure_leaves_nothing_behind(regressor, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(saving.os, "rename", fail)
    with pytest.raises(WidebnnError, match=r"cannot be written \(no space left"):
        save(regressor[0], tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_saved(regressor, tmp_path):
    with pytest.raises(NotFittedError):
        save(WideBNNRegressor(), tmp_path / "model")
    with pytest.raises(WidebnnError, match="only WideBNNRegressor and WideBNNClassifier can be saved, got dict"):
        save({}, tmp_path / "model")
    with pytest.raises(WidebnnError, match="extra must be plain JSON"):
        save(regressor[0], tmp_path / "model", {"x": X})
    assert not list(tmp_path.iterdir())


def test_generators_are_not_kept_and_odd_values_are(regressor, tmp_path):
    model, folder = load(regressor[1]), tmp_path / "model"
    model.random_state = np.random.RandomState(0)
    model.odd_ = {"nan": float("nan"), "inf": -np.inf, "list": [1, (2, "x")], "array": np.array([[True], [False]])}
    model.odd_["objects"], model.odd_["nothing"] = np.array(["a", 1], dtype=object), None
    again = load(save(model, folder))
    assert again.random_state is None
    assert np.isnan(again.odd_["nan"]) and again.odd_["inf"] == -np.inf and again.odd_["list"] == [1, (2, "x")]
    np.testing.assert_array_equal(again.odd_["array"], [[True], [False]])
    assert again.odd_["objects"].tolist() == ["a", 1] and again.odd_["nothing"] is None
    model.odd_ = object()
    with pytest.raises(WidebnnError, match="attribute cannot be saved: object is not plain data"):
        save(model, tmp_path / "other")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.7, 0.99])
def test_damaged_files_are_refused(copy, name, share):
    path = copy / name
    whole = path.read_bytes()
    at = int(share * len(whole))
    path.write_bytes(whole[:at])
    refused(copy)
    for flip in (0x01, 0x20, 0xFF):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
        refused(copy)
    path.write_bytes(whole + b" ")
    refused(copy)
    path.unlink()
    refused(copy)
    path.mkdir()
    refused(copy)


def test_every_bit_of_the_document_counts(copy):
    path = copy / "model.json"
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        refused(copy)


def test_other_folders_are_no_models(copy, tmp_path):
    assert "is no saved model" in refused(tmp_path)
    assert "is no saved model" in refused(tmp_path / "absent")
    for text in ("[]", "{}", '{"format": "other"}', "null"):
        (copy / "model.json").write_text(text)
        assert "does not describe a widebnn-model" in refused(copy)
    (copy / "model.json").write_text("[" * 100_000)
    assert "not JSON" in refused(copy)
    (copy / "model.json").write_text('{"format": "widebnn-model", "version": 1, "sha256": "é"}', encoding="utf-8")
    assert "its checksum is wrong" in refused(copy)


def rewrite(folder, change, files=()):
    """What somebody does who knows the format: the checksums are right."""
    document = json.loads((folder / "model.json").read_text())
    change(document)
    document["sha256"] = saving.UNSET
    for name in files:
        with (folder / name).open("rb") as file:
            document["files"][name] = saving._fingerprint(file)
    (folder / "model.json").write_bytes(saving._signed(document))


def test_the_first_format_is_read(regressor, copy):
    """It had neither ``noise_tails`` nor ``row_noise``: noise is equal then."""

    def as_it_was(document):
        document.update(version=1)
        del document["parameters"]["noise_tails"], document["hyperparameters"]["row_noise"]

    rewrite(copy, as_it_was)
    again = load(copy)
    assert again.hyperparameters_.row_noise is None
    np.testing.assert_array_equal(again.predict(X_NEW), regressor[0].predict(X_NEW))


@pytest.mark.parametrize("row_noise", [[0.1], [0.1, -1.0], [0.1, "a"], 0.5, [0.1, 0.2, 0.3]])
def test_strange_noise_is_refused(copy, row_noise):
    value = {"$tuple": row_noise} if isinstance(row_noise, list) else row_noise
    rewrite(copy, lambda d: d["hyperparameters"].update(row_noise=value))
    assert "row_noise" in refused(copy)


@pytest.mark.parametrize("version", [3, 10**30])
def test_newer_formats_are_refused(copy, version):
    rewrite(copy, lambda d: d.update(version=version))
    assert "newer widebnn, and this one reads version 2 at most; upgrade widebnn" in refused(copy)


def test_rewriting_as_such_is_allowed(copy):
    rewrite(copy, lambda d: d["parameters"].update(width=77), FILES[1:])
    assert load(copy).width == 77
    (copy / ".DS_Store").touch()
    assert load(copy).width == 77


def set_in(*keys, value):
    def change(document):
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = value

    return change


def vector(*values):
    return {"$array": {"dtype": "float64", "shape": [len(values)], "values": list(values)}}


TAMPERED = {
    "version zero": set_in("version", value=0),
    "version true": set_in("version", value=True),
    "kind": set_in("kind", value="os"),
    "kind of other attributes": set_in("kind", value="classifier"),
    "parameter": set_in("parameters", "shell", value="rm"),
    "parameters": set_in("parameters", value=[]),
    "no fitted": lambda d: d.pop("fitted"),
    "no attribute": lambda d: d["fitted"].pop("x_mean_"),
    "class": set_in("fitted", "__class__", value="os"),
    "method": set_in("fitted", "predict", value=1),
    "private": set_in("fitted", "_evaluate_", value=1),
    "apart": set_in("fitted", "network_", value=1),
    "inputs": set_in("fitted", "n_features_in_", value=4),
    "short": set_in("fitted", "x_mean_", value=vector(1.0)),
    "scale": set_in("fitted", "x_scale_", value=vector(1.0, -1.0, 1.0)),
    "texts": set_in("fitted", "x_mean_", value={"$array": {"dtype": "str", "shape": [3], "values": ["a", "b", "c"]}}),
    "dtype": set_in("fitted", "x_mean_", value={"$array": {"dtype": "O8,f4", "shape": [3], "values": [1, 2, 3]}}),
    "shape": set_in("fitted", "x_mean_", value={"$array": {"dtype": "float64", "shape": [10**15], "values": [1]}}),
    "float": set_in("fitted", "y_mean_", value={"$float": "1e5"}),
    "outputs": set_in("fitted", "single_output_", value=True),
    "hyperparameter": set_in("hyperparameters", "exec", value=1),
    "text": set_in("hyperparameters", "noise", value="0.1"),
    "no hyperparameter": lambda d: d["hyperparameters"].pop("depth"),
    "widths": set_in("network", "widths", value={"$tuple": [5]}),
    "negative": set_in("network", "weight_std", value=-1),
    "activation": set_in("network", "activation", value="__import__"),
    "no array": lambda d: d["arrays"].pop("mean"),
    "large array": set_in("arrays", "mean", "shape", value=[10**15]),
    "objects": set_in("arrays", "mean", "dtype", value="object"),
    "other file": set_in("files", value={"../../etc/passwd": {}}),
    "extra": set_in("extra", value=3),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_documents_that_contradict_themselves_are_refused(copy, case):
    rewrite(copy, TAMPERED[case])
    refused(copy)


def replaced(**changes):
    """The archive with some arrays replaced or added."""

    def write(path):
        with np.load(path) as archive:
            arrays = dict(archive) | changes
        np.savez(path, **arrays)

    return write


def compressed(path):
    with np.load(path) as archive:
        arrays = dict(archive)
    np.savez_compressed(path, **arrays)


def false_header(path):
    """A member that claims terabytes."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**12,)})
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, header.getvalue() if name == "mean.npy" else content)


ARCHIVES = {
    "pickle": replaced(mean=np.array([Evil(print, "never")], dtype=object)),
    "no archive": lambda path: path.write_bytes(PROGRAMS["os.system, protocol 2"]),
    "one more": replaced(more=np.zeros(3)),
    "another dtype": replaced(mean=np.zeros((8, 5, 2))),
    "another shape": replaced(mean=np.zeros((8, 5, 3), np.float32)),
    "NaN": lambda path: replaced(mean=np.full_like(np.load(path)["mean"], np.nan))(path),
    "compressed": compressed,
    "false header": false_header,
}


@pytest.mark.parametrize("case", ARCHIVES)
def test_archives_that_are_not_what_they_should_be_are_refused(copy, case, capsys):
    ARCHIVES[case](copy / "ensemble.npz")
    rewrite(copy, lambda document: None, ["ensemble.npz"])
    assert "holds no model that widebnn wrote" in refused(copy)
    assert "never" not in capsys.readouterr().out


def test_the_run_for_other_programs_is_never_read(regressor, copy):
    with xarray.open_datatree(copy / "posterior.nc", engine="h5netcdf") as tree:
        for group in ("posterior", "sample_stats", "observed_data"):
            xarray.testing.assert_equal(tree[group].dataset, load(copy).posterior_[group].dataset)
        assert tree.attrs["steps"] == load(copy).posterior_.attrs["steps"] == 8
    (copy / "posterior.nc").write_bytes(b"\x89HDF nothing")
    refused(copy)
    rewrite(copy, lambda document: None, ["posterior.nc"])
    np.testing.assert_array_equal(
        load(copy).posterior_["posterior/f_train"], regressor[0].posterior_["posterior/f_train"]
    )
    rewrite(copy, lambda document: document["files"].pop("posterior.nc"))
    assert load(copy).width == 4, "it is optional"


def texts(*values):
    return {"$array": {"dtype": "str", "shape": [len(values)], "values": list(values)}}


def test_texts_that_would_take_much_more_memory_than_the_document_are_refused(copy, regressor, tmp_path):
    rewrite(copy, lambda d: d["fitted"].update(odd_=texts("x" * 20, *["y"] * 500)))
    assert load(copy).odd_.shape == (501,)
    rewrite(copy, lambda d: d["fitted"].update(odd_=texts("x" * 50_000, *["y"] * 5000)))
    assert "texts that are too long" in refused(copy)
    model = load(regressor[1])
    model.odd_ = np.array(["x" * 50_000, *["y"] * 5000])
    with pytest.raises(WidebnnError, match="short texts with a very long one"):
        save(model, tmp_path / "model")
