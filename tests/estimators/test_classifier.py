"""The classifier: good, calibrated, reproducible, for both likelihoods."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression

from widebnn.errors import WidebnnError
from widebnn.estimators import WideBNNClassifier, classifier
from widebnn.estimators.ensemble import argmax_probabilities
from widebnn.posteriors import posterior

pytestmark = [pytest.mark.ambient, pytest.mark.xdist_group("classifier")]
QUICK = {"width": 64, "depth": 1, "activation": "gelu", "chains": 1, "burn_in": 60, "target_ess": 50, "max_steps": 100}


def log_odds(x):
    return 3 * np.sin(1.5 * x[:, 0]) + x[:, 1]


@pytest.fixture(scope="module")
def data():
    """Labels that are uncertain by a known amount."""
    rng = np.random.default_rng(0)
    x, x_test = rng.uniform(-2, 2, size=(100, 2)), rng.uniform(-2, 2, size=(1000, 2))
    draw = lambda x: np.where(rng.uniform(size=len(x)) < 1 / (1 + np.exp(-log_odds(x))), "yes", "no")  # noqa: E731
    return x, draw(x), x_test, draw(x_test)


@pytest.mark.some(1)
@pytest.mark.parametrize("likelihood", ["softmax", "regression"])
def test_probabilities_are_those_of_the_classes(data, likelihood):
    x, y, x_test, y_test = data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = WideBNNClassifier(likelihood=likelihood, random_state=0, **QUICK).fit(x, y)
    assert model.classes_.tolist() == ["no", "yes"]
    p = model.predict_proba(x_test)
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-6)
    truth = 1 / (1 + np.exp(-log_odds(x_test)))
    assert np.mean(np.abs(p[:, 1] - truth)) < 0.15
    best = np.mean(np.where(truth > 0.5, "yes", "no") == y_test)
    assert np.mean(model.predict(x_test) == y_test) > best - 0.06
    log_loss = -np.mean(np.log(np.where(y_test == "yes", p[:, 1], p[:, 0])))
    entropy = -np.mean(truth * np.log(truth) + (1 - truth) * np.log(1 - truth))
    assert log_loss < entropy + 0.12 < np.log(2)
    if likelihood == "softmax":
        scale = model.posterior_["posterior"]["logit_scale"].values
        assert np.ptp(scale) > 0 and 0.5 < scale.mean() < 20


@pytest.mark.long
def test_ten_classes():
    x, y = load_digits(return_X_y=True)
    model = WideBNNClassifier(likelihood="regression", random_state=0, **QUICK | {"max_steps": 30, "target_ess": 10})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x[:200], y[:200])
    linear = LogisticRegression(max_iter=2000).fit(x[:200] / 16, y[:200])
    assert model.score(x[200:700], y[200:700]) > linear.score(x[200:700] / 16, y[200:700]) - 0.05


def test_labels_without_noise_get_some(monkeypatch):
    """Classes that are far apart; the evidence alone would take next to none, in which chains hardly move."""
    monkeypatch.setattr(classifier, "posterior", lambda *data, **options: None)
    rng = np.random.default_rng(0)
    labels = np.arange(30) % 2
    x = 4.0 * labels[:, None] + 0.1 * rng.normal(size=(30, 2))
    model = WideBNNClassifier(likelihood="regression", **QUICK)
    with pytest.raises(AttributeError):  # nothing to sample
        model.fit(x, labels)
    assert model.hyperparameters_.noise == pytest.approx(classifier.LEAST_NOISE, rel=1e-6)


@pytest.mark.parametrize(("inputs", "coordinates"), [(2, "weights"), (30, "function")])
def test_softmax_has_the_cheaper_coordinates(monkeypatch, inputs, coordinates):
    """Both are the same posterior (tests/coordinates); a kernel's root pays where it saves rows of hidden weights."""
    seen = []
    monkeypatch.setattr(classifier, "posterior", lambda *data, **options: seen.append(posterior(*data, **options)))
    rng = np.random.default_rng(0)
    with pytest.raises(AttributeError):  # nothing to sample
        WideBNNClassifier(**QUICK, likelihood="softmax").fit(rng.normal(size=(20, inputs)), rng.integers(0, 2, 20))
    assert seen[0].coordinates.name == coordinates


def test_probability_of_the_largest():
    rng = np.random.default_rng(0)
    centres, std = rng.normal(size=(3, 2, 4)), np.array([0.3, 1.0, 2.0])
    noise = rng.normal(size=(20_000, *centres.shape)) * std[:, None, None]
    frequencies = np.mean(np.argmax(centres + noise, axis=3)[..., None] == np.arange(4), axis=(0, 1))
    np.testing.assert_allclose(argmax_probabilities(centres, std[:, None, None]), frequencies, atol=0.01)


@pytest.mark.parametrize(
    ("options", "y", "message"),
    [
        ({}, ["a"] * 4, "at least two classes; there is one class"),
        ({"likelihood": "probit"}, ["a", "b"] * 2, "likelihood must be one of regression, softmax"),
        ({"likelihood": "softmax", "noise": 0.1}, ["a", "b"] * 2, "belongs to likelihood='regression'"),
        ({"likelihood": "regression", "noise": "often"}, ["a", "b"] * 2, "noise, if not a number, must be one of"),
    ],
)
def test_bad_input(options, y, message):
    with pytest.raises(WidebnnError, match=message):
        WideBNNClassifier(**options).fit(np.eye(4), y)


def test_needs_to_be_fitted():
    with pytest.raises(NotFittedError):
        WideBNNClassifier().predict(np.zeros((1, 2)))
