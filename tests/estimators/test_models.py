"""Models come back from disk bit for bit, and nothing else comes back as a model."""

import shutil
import warnings

import numpy as np
import pandas as pd
import pytest
import xarray
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from widebnn.errors import WidebnnError
from widebnn.estimators import WideBNNClassifier, WideBNNRegressor
from widebnn.estimators.models import load, save
from widebnn.runs import files as durable
from widebnn.runs.files import read_record, write_record

pytestmark = [pytest.mark.ambient, pytest.mark.xdist_group("models")]
TINY = {
    "width": 4, "depth": 1, "activation": "erf", "input_scales": False, "chains": 1, "burn_in": 8, "target_ess": 4,
    "max_steps": 8, "random_state": 0,
}  # fmt: skip
RNG = np.random.default_rng(0)
X, X_NEW = RNG.normal(size=(12, 3)), RNG.normal(size=(300, 3))


def fitted(model, x, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(x, y)


@pytest.fixture(scope="module")
def regressor(tmp_path_factory):
    model = fitted(WideBNNRegressor(noise=0.5, **TINY), X, np.stack([X[:, 0], 100 * X[:, 1]], axis=1))
    model.table_ = {"columns": ["a", "é"], "number": 0.1}
    return model, save(model, tmp_path_factory.mktemp("models") / "regressor")


@pytest.fixture
def copy(regressor, tmp_path):
    return shutil.copy(regressor[1], tmp_path / "copy")


def refused(path):
    """The one sentence with which a file is refused."""
    with pytest.raises(WidebnnError) as caught:
        load(path)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message and message.endswith(".")
    return message


def test_a_regressor_comes_back_bit_for_bit(regressor):
    model, path = regressor
    again = load(path)
    assert again.table_ == model.table_
    assert type(again) is WideBNNRegressor and again.get_params() == model.get_params()
    for one, other in zip(model.predict(X_NEW, return_std=True), again.predict(X_NEW, return_std=True), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(model.predict_quantiles(X_NEW[:5]), again.predict_quantiles(X_NEW[:5]))
    np.testing.assert_array_equal(model.sample_y(X_NEW[:5], 3), again.sample_y(X_NEW[:5], 3))
    assert again.hyperparameters_ == model.hyperparameters_ and again.network_ == model.network_
    assert again.diagnostics_ == model.diagnostics_
    assert set(vars(again)) == set(vars(model)), "every attribute"
    for group in ("posterior", "sample_stats", "observed_data"):
        xarray.testing.assert_identical(*(one.posterior_[group].to_dataset().drop_attrs() for one in (again, model)))
    assert again.posterior_.attrs == model.posterior_.attrs
    assert not hasattr(load(path, posterior=False), "posterior_")


@pytest.mark.long
@pytest.mark.parametrize(("kind", "options"), [(str, {}), (object, {"likelihood": "regression", "noise": 0.5})])
def test_a_classifier_comes_back_bit_for_bit(options, kind, tmp_path):
    """Labels and names of columns are text, of either of NumPy's types."""
    labels = np.array(["no", "yes", "naïve"]).astype(kind)[np.arange(12) % 3]
    model = fitted(WideBNNClassifier(**options, **TINY), pd.DataFrame(X, columns=["a", "é", "long name"]), labels)
    again = load(save(model, tmp_path / "model"))
    new = pd.DataFrame(X_NEW, columns=["a", "é", "long name"])
    np.testing.assert_array_equal(model.predict_proba(new), again.predict_proba(new))
    np.testing.assert_array_equal(model.predict(new), again.predict(new))
    assert again.classes_.tolist() == ["naïve", "no", "yes"] and again.classes_.dtype == model.classes_.dtype


def test_nothing_is_overwritten(regressor, tmp_path):
    model, path = regressor
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    for place in (path, tmp_path / "folder", tmp_path / "link"):
        with pytest.raises(WidebnnError, match="exists already"):
            save(model, place)
    assert load(save(model, tmp_path / "new" / "deep")).width == 4


def test_a_failure_leaves_nothing_behind(regressor, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(durable.os, "replace", fail)
    with pytest.raises(WidebnnError, match=r"cannot be written \(no space left"):
        save(regressor[0], tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise": object()}, "noise must be plain data to be saved, got object"),
        ({"odd_": np.array([object()])}, "odd_ must hold numbers or text"),
        ({"odd_": [object()]}, "plain data"),
    ],
)
def test_what_is_not_plain_data_is_not_saved(regressor, tmp_path, change, message):
    model = load(regressor[1])
    vars(model).update(change)
    with pytest.raises(WidebnnError, match=message):
        save(model, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_saved(tmp_path):
    with pytest.raises(NotFittedError):
        save(WideBNNRegressor(), tmp_path / "model")
    with pytest.raises(WidebnnError, match="only WideBNNRegressor and WideBNNClassifier can be saved, got dict"):
        save({}, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_generators_are_not_kept_and_what_is_not_finite_is(regressor, tmp_path):
    model = load(regressor[1])
    model.random_state, model.max_minutes = np.random.RandomState(0), np.inf
    model.diagnostics_["rhat"] = np.nan
    again = load(save(model, tmp_path / "model"))
    assert again.random_state is None and again.max_minutes == np.inf and np.isnan(again.diagnostics_["rhat"])


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.99])
def test_corrupted_files_are_refused(copy, share):
    whole = copy.read_bytes()
    at = int(share * len(whole))
    for data in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x20]) + whole[at + 1 :], whole + b" "):
        copy.write_bytes(data)
        assert "corrupted" in refused(copy)


def test_other_files_are_no_models(copy, tmp_path):
    assert "is no file" in refused(tmp_path)
    assert "is no file" in refused(tmp_path / "absent")
    write_record(copy, {"kind": "draws"}, {})
    assert "is no model" in refused(copy)


def rewrite(path, change):
    """What somebody does who knows the format: the checksum is right."""
    header, arrays, _ = read_record(path, "model")
    change(header, arrays)
    write_record(path, header, arrays)


def test_rewriting_as_such_is_allowed(copy):
    rewrite(copy, lambda header, arrays: header["parameters"].update(width=77))
    assert load(copy).width == 77


def test_newer_formats_are_refused(copy):
    rewrite(copy, lambda header, arrays: header.update(version=2))
    assert "upgrade widebnn" in refused(copy)


def setting(section, **values):
    return lambda header, arrays: header[section].update(values)


def without(section, name):
    return lambda header, arrays: header[section].pop(name)


def with_arrays(**changes):
    return lambda header, arrays: arrays.update({name.replace("__", "/", 1): value for name, value in changes.items()})


TAMPERED = {
    "kind of other attributes": lambda header, _: header.update(estimator="WideBNNClassifier"),
    "unknown estimator": lambda header, _: header.update(estimator="os"),
    "unknown parameter": setting("parameters", shell="rm"),
    "sections of another type": lambda header, _: header.update(parameters=[]),
    "no section": lambda header, _: header.pop("fitted"),
    "no attribute": without("fitted", "single_output_"),
    "method": setting("fitted", predict=1),
    "class": setting("fitted", __class__="os"),
    "other number of inputs": setting("fitted", n_features_in_=4),
    "other number of outputs": setting("fitted", single_output_=True),
    "unknown hyperparameter": setting("hyperparameters", exec=1),
    "hyperparameter of another type": setting("hyperparameters", noise="0.1"),
    "tuple of another length": setting("hyperparameters", row_noise=[0.1]),
    "no hyperparameter": without("hyperparameters", "depth"),
    "other widths": setting("network", widths=[5]),
    "negative scale of the network": setting("network", weight_std=-1.0),
    "unknown activation": setting("network", activation="__import__"),
    "no array": lambda _, arrays: arrays.pop("ensemble/mean"),
    "one array more": with_arrays(ensemble__more=np.zeros(3)),
    "another shape": with_arrays(ensemble__mean=np.zeros((8, 5, 3), np.float32)),
    "whole numbers": with_arrays(ensemble__noise=np.ones(8, np.int64)),
    "NaN": with_arrays(ensemble__noise=np.full(8, np.nan)),
    "short vector": with_arrays(fitted__x_mean_=np.ones(1)),
    "negative scale": with_arrays(fitted__x_scale_=-np.ones(3)),
    "bend of another shape": with_arrays(fitted__y_bend_=np.ones(5)),
    "no text": lambda header, arrays: (header["text"].update({"fitted/odd_": "str"}),
                                       arrays.update({"fitted/odd_": np.full((2, 3), 2**31, np.uint32)})),
    "no part of a run": lambda _, arrays: arrays.pop("observed_data/y"),
}  # fmt: skip


@pytest.mark.parametrize("case", TAMPERED)
def test_models_that_contradict_themselves_are_refused(copy, case):
    rewrite(copy, TAMPERED[case])
    assert "holds no model that widebnn wrote" in refused(copy)
