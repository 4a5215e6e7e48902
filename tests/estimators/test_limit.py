"""The infinite-width limit behind the interface of the estimators: the exact Gaussian process, nothing else."""

import copy
import math

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from widebnn.errors import WidebnnError
from widebnn.estimators import WideBNNClassifier, WideBNNRegressor, limit, load
from widebnn.limits import gp_posterior, nngp_kernel

pytestmark = [pytest.mark.ambient, pytest.mark.xdist_group("limit")]
SETTINGS = {"width": math.inf, "depth": 1, "activation": "erf", "random_state": 0}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(60, 2))
    return x, 10 + 2 * np.sin(2 * x[:, 0]) + x[:, 1] + 0.3 * rng.normal(size=60), rng.uniform(-2, 2, size=(300, 2))


@pytest.fixture(scope="module")
def model(data):
    return WideBNNRegressor(**SETTINGS, target_transform="none").fit(*data[:2])


def test_predictions_are_those_of_the_gaussian_process(model, data):
    x, y, x_new = data
    chosen = model.hyperparameters_
    standard = (values - model.x_mean_ for values in (x, x_new))
    inputs, new = (values / model.x_scale_ for values in standard)
    exact = gp_posterior(chosen.network(2, 7), inputs, (y - y.mean()) / y.std(), chosen.noise, new)
    mean, std = model.predict(x_new, return_std=True)
    np.testing.assert_allclose(mean, exact.mean[:, 0] * y.std() + y.mean(), rtol=1e-9)
    np.testing.assert_allclose(std, np.sqrt(exact.variance + chosen.noise**2) * y.std(), rtol=1e-7)
    low, high = model.predict_quantiles(x_new, [0.1, 0.9])
    np.testing.assert_allclose(high - low, 2 * norm.ppf(0.9) * std, rtol=1e-6)
    np.testing.assert_allclose(model.log_density(x_new, mean), norm.logpdf(0, 0, std), rtol=1e-6)


def test_samples_are_joint(model, data):
    """Close inputs have nearly the same value of the function, and samples have the predictive moments."""
    x = np.repeat(data[2][:3], 2, axis=0) + np.tile([[0.0], [1e-3]], (3, 1))
    f = model.sample_y(x, n_samples=4000, random_state=1, noise=False)
    y = model.sample_y(x, n_samples=4000, random_state=1)
    mean, std = model.predict(x, return_std=True)
    assert np.abs(f[0::2] - f[1::2]).max() < 0.02
    np.testing.assert_allclose(y.mean(axis=1), mean, atol=4 * std.max() / math.sqrt(4000))
    np.testing.assert_allclose(y.std(axis=1), std, rtol=0.06)


def test_leave_one_out_is_brute_force(model, data):
    x, y, _ = data
    inputs = (x - model.x_mean_) / model.x_scale_
    covariance = nngp_kernel(model.network_, inputs) + model.hyperparameters_.noise**2 * np.eye(60)
    z = (y - y.mean()) / y.std()
    whole = multivariate_normal.logpdf(z, np.zeros(60), covariance)
    logs = []
    for i in range(60):
        rest = np.delete(np.arange(60), i)
        logs.append(whole - multivariate_normal.logpdf(z[rest], np.zeros(59), covariance[np.ix_(rest, rest)]))
    assert model.diagnostics_["loo"] == pytest.approx(np.mean(logs) - math.log(y.std()), rel=1e-6)
    assert "exact" in model.report() and f"{model.diagnostics_['loo']:.3f}" in model.report()
    with pytest.raises(WidebnnError, match="finite widths"):
        model.loo()


def test_saved_and_copied(model, data, tmp_path):
    model.save(tmp_path / "model")
    for again in (load(tmp_path / "model"), copy.deepcopy(model)):
        assert (again.predict(data[2]) == model.predict(data[2])).all() and again.width == math.inf


def test_classes(data):
    x, _, x_new = data
    labels = np.array(["low", "middle", "high"])[(x[:, 0] > 0).astype(int) + (x[:, 1] > 1)]
    model = WideBNNClassifier(**SETTINGS).fit(x, labels)
    probabilities = model.predict_proba(x_new)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    truth = np.array(["low", "middle", "high"])[(x_new[:, 0] > 0).astype(int) + (x_new[:, 1] > 1)]
    assert model.score(x_new, truth) > 0.85


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (WideBNNRegressor(width=math.inf, noise="sample"), "needs a finite width"),
        (WideBNNRegressor(width=math.inf, noise_tails="heavy"), "needs a finite width"),
        (WideBNNClassifier(width=math.inf, likelihood="softmax"), "needs a finite width"),
        (WideBNNRegressor(width=2.5), "width must be a whole number"),
    ],
)
def test_what_it_cannot_do_is_said_first(estimator, message, data):
    with pytest.raises(WidebnnError, match=message):
        estimator.fit(data[0], (data[1] > 10).astype(int))


def test_memory_is_refused_before_the_search(data, monkeypatch):
    monkeypatch.setattr(limit, "physical_memory", lambda: 10_000)
    with pytest.raises(WidebnnError, match=r"fit at most 17 rows"):
        WideBNNRegressor(**SETTINGS).fit(*data[:2])
