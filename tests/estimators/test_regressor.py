"""The regressor: calibrated on data with known noise, reproducible, shaped as scikit-learn expects."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError

import widebnn
from widebnn.errors import WidebnnError
from widebnn.estimators import WideBNNRegressor, chains
from widebnn.estimators.convergence import describe_convergence, diagnose
from widebnn.estimators.ensemble import Mixture, collect_networks, mixture_quantiles, predictive, to_ensemble
from widebnn.likelihoods.readout import condition
from widebnn.limits import gp_posterior
from widebnn.precision import double_precision

pytestmark = [pytest.mark.ambient, pytest.mark.xdist_group("regressor")]
NOISE = 0.3
SCALES = dict.fromkeys(["weight_std", "bias_std", "readout_weight_std", "readout_bias_std"], 1.0)
TINY = {"width": 8, "depth": 1, "activation": "erf", "noise": NOISE, "input_scales": False, **SCALES, "random_state": 0}
"""Nothing is left to choose."""


def truth(x):
    return 10 + 2 * np.sin(2 * x[:, 0]) + x[:, 1]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x, x_test = rng.uniform(-2, 2, size=(150, 2)), rng.uniform(-2, 2, size=(400, 2))
    return x, truth(x) + NOISE * rng.normal(size=150), x_test, truth(x_test) + NOISE * rng.normal(size=400)


@pytest.fixture(scope="module")
def fitted(data):
    plain = {"target_transform": "none", "noise_tails": "normal"}
    model = WideBNNRegressor(width=128, depth=1, activation="erf", target_ess=100, random_state=0, **plain)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        return model.fit(*data[:2])


def test_predictions_are_good_and_calibrated(fitted, data):
    _, _, x_test, y_test = data
    mean, std = fitted.predict(x_test, return_std=True)
    assert mean.shape == std.shape == (400,)
    assert fitted.score(x_test, y_test) > 0.9
    assert 0.5 * NOISE < fitted.noise_[0] < 2 * NOISE
    inside = np.mean(np.abs(mean - y_test) < norm.ppf(0.95) * std)
    assert 0.83 < inside < 0.97
    low, middle, high = fitted.predict_quantiles(x_test, [0.05, 0.5, 0.95])
    assert (low < middle).all() and (middle < high).all()
    assert abs(np.mean((low < y_test) & (y_test < high)) - inside) < 0.03


def test_samples_have_the_predictive_moments(fitted, data):
    x = data[2][:5]
    mean, std = fitted.predict(x, return_std=True)
    draws = fitted.sample_y(x, n_samples=4000, random_state=1)
    assert draws.shape == (5, 4000)
    np.testing.assert_allclose(draws.mean(axis=1), mean, atol=5 * std.max() / np.sqrt(400))
    np.testing.assert_allclose(draws.std(axis=1), std, rtol=0.1)
    assert (fitted.sample_y(x, 4000, noise=False).std(axis=1) < std).all()


def test_rows_of_a_sample_have_noise_of_their_own(fitted, data):
    """Given the function; where noise were shared, rows of a sample would be off together."""
    x = data[2][:40]
    noise = fitted.sample_y(x, 2000, random_state=1) - fitted.sample_y(x, 2000, random_state=1, noise=False)
    correlation = np.corrcoef(noise)[~np.eye(40, dtype=bool)]
    assert np.max(np.abs(correlation)) < 5 / np.sqrt(2000)
    np.testing.assert_allclose(noise.std(axis=1), fitted.noise_[0], rtol=0.1)


def test_diagnostics(fitted):
    found = fitted.diagnostics_
    assert found["ess"] >= 75 and found["rhat"] < 1.05 and 0 < found["acceptance_rate"] <= 1
    assert 0.5 < found["misfit"] < 1.2
    assert "posterior" in fitted.posterior_.children and "sample_stats" in fitted.posterior_.children
    assert "have converged" in fitted.report() and "infinite-width limit" in fitted.report()


def test_leave_one_out_is_that_of_left_out_rows(fitted, data):
    """The score without refitting is close to that of new rows, and no row has too much influence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about rows that are merely less reliable
        found = fitted.loo()
    assert found.elpd / 150 == pytest.approx(np.mean(fitted.log_density(*data[2:])), abs=3 * found.se / 150)
    assert float(found.pareto_k.quantile(0.99)) < 0.7
    assert found.elpd / 150 == pytest.approx(fitted.diagnostics_["limit_loo"], abs=0.05)


@pytest.mark.parametrize("bad", ["function", "new inputs", "distance", "likelihood", "noise"])
def test_diagnostics_are_those_of_the_worst_statistic(bad):
    """One statistic whose chains are apart and hardly move; all others are independent draws."""
    rng = np.random.default_rng(0)
    f, new = rng.normal(size=(2, 2, 200, 30, 1))
    noise = np.exp(0.1 * rng.normal(size=(2, 200)))
    slow = np.linspace(0, 3, 200) + np.array([[0.0], [5.0]])
    if bad == "function":
        direction = rng.normal(size=(30, 1))
        f = f + 3 * slow[..., None, None] * direction / np.linalg.norm(direction)
    elif bad == "new inputs":
        new[:, :, 3, 0] += slow
    elif bad == "distance":  # of the same size in all directions: no projection of the function is slow in its mean
        f = f * np.exp(slow / 2)[..., None, None]
    elif bad == "noise":
        noise = np.exp(slow)
    lp = slow if bad == "likelihood" else rng.normal(size=(2, 200))
    stats = {"lp": lp, "acceptance_rate": np.ones((2, 200)), "gradients": np.ones((2, 200))}
    found = diagnose(stats, {"f_train": f, "f_new": new, "noise_train": noise}, np.zeros((30, 1)))
    assert found["ess"] < 20 and found["rhat"] > 1.5
    f, new = rng.normal(size=(2, 2, 200, 30, 1))
    good = {"f_train": f, "f_new": new, "noise_train": np.exp(0.1 * rng.normal(size=(2, 200)))}
    stats["lp"] = rng.normal(size=(2, 200))
    found = diagnose(stats, good, np.zeros((30, 1)))
    assert found["ess"] > 150 and found["rhat"] < 1.05


def test_diagnostics_of_chains_that_never_moved():
    """Without a warning of NumPy; the report says that they have not converged."""
    still = np.zeros((2, 40, 3, 1))
    stats = {name: np.zeros((2, 40)) for name in ("lp", "acceptance_rate", "gradients")}
    found = diagnose(stats, {"f_train": still, "f_new": still}, np.zeros((3, 1)))
    found |= {"wanted": 100, "total_seconds": 1.0, "steps": 40}
    assert found["ess"] == 0 and found["mean_error"] == 0
    assert "have not converged" in describe_convergence(found)


@pytest.mark.long
def test_the_same_random_state_gives_the_same_predictions(data):
    x, y, x_test, _ = data
    short = {"chains": 1, "burn_in": 20, "target_ess": 10, "max_steps": 20}
    model = WideBNNRegressor(width=8, depth=1, activation="erf", noise=NOISE, random_state=3, **short)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        first, second = (clone(model).fit(x[:20], y[:20]).predict(x_test) for _ in range(2))
        both = clone(model).fit(x[:20], np.stack([y[:20], -y[:20]], axis=1))
    np.testing.assert_array_equal(first, second)
    assert both.predict(x_test).shape == (400, 2)
    np.testing.assert_allclose(both.hyperparameters_.noise * np.mean(both.y_scale_), NOISE)


def test_chains_that_are_too_short_are_said_to_be(data):
    model = WideBNNRegressor(**TINY, chains=2, burn_in=2, max_steps=4)
    with pytest.warns(ConvergenceWarning, match="effective draws of 100 wanted after 4 steps.*; raise max_steps"):
        model.fit(data[0][:20], data[1][:20])


def test_a_burn_in_that_takes_all_the_time_is_an_error(data):
    with pytest.raises(WidebnnError, match="max_minutes ended the burn-in"):
        WideBNNRegressor(**TINY, burn_in=4, max_minutes=1e-9).fit(data[0][:20], data[1][:20])


def test_fits_end_when_their_time_is_over(data, monkeypatch):
    """The first half is discarded where the chains have not settled yet."""
    monkeypatch.setattr(chains, "sample", lambda *a, **o: widebnn.sample(*a, **o | {"burn_in": 0, "step_size": 0.1}))
    model = WideBNNRegressor(**TINY, burn_in=4, max_minutes=1e-9)
    with pytest.warns(ConvergenceWarning, match="wanted after 10 steps.*; raise max_minutes .now 1e-09."):
        model.fit(data[0][:20], data[1][:20])
    assert model.diagnostics_["draws"] == 10


def test_draws_are_kept_where_the_time_is_over_before_step_sizes_are_tuned_again(data, monkeypatch):
    limits = iter([None, 0.0])
    monkeypatch.setattr(chains, "sample", lambda *a, **o: widebnn.sample(*a, **o | {"max_seconds": next(limits)}))
    monkeypatch.setattr(chains, "hardly_move", lambda rates: True)
    with pytest.warns(ConvergenceWarning, match="wanted after 20 steps"):
        model = WideBNNRegressor(**TINY, chains=2, burn_in=4, max_steps=100).fit(data[0][:20], data[1][:20])
    assert model.diagnostics_["draws"] == 2 * 10 and next(limits, "both were used") == "both were used"


def test_a_step_size_that_was_given_is_not_tuned_again(data, monkeypatch):
    calls = []
    monkeypatch.setattr(chains, "sample", lambda *a, **o: calls.append(1) or widebnn.sample(*a, **o))
    monkeypatch.setattr(chains, "hardly_move", lambda rates: True)
    with pytest.warns(ConvergenceWarning):
        WideBNNRegressor(**TINY, chains=2, burn_in=4, max_steps=40, step_size=0.2).fit(data[0][:20], data[1][:20])
    assert len(calls) == 1


def test_most_steps_end_a_run_that_is_too_short(data):
    short = {"width": 8, "activation": "erf", "noise": NOISE, "burn_in": 4, "target_ess": 80, "max_steps": 20}
    with pytest.warns(ConvergenceWarning, match="raise max_steps .now 20."):
        model = WideBNNRegressor(**short, random_state=0).fit(data[0][:20], data[1][:20])
    assert model.diagnostics_["steps"] == 20 and model.diagnostics_["draws"] == 20, "the first half is discarded"


def test_needs_to_be_fitted():
    with pytest.raises(NotFittedError):
        WideBNNRegressor().predict(np.zeros((1, 2)))


def test_ensemble_agrees_with_the_infinite_width_limit():
    """At large width the ensemble's mean and spread are those of the limit."""
    rng = np.random.default_rng(1)
    x, x_test = rng.normal(size=(20, 2)), rng.normal(size=(30, 2))
    y = np.sin(x[:, :1])
    network = widebnn.dense(2, [2048], activation="erf", bias_std=1.0)
    target = widebnn.posterior(network, x, y, noise=0.2)
    result = widebnn.sample(target, steps=100, burn_in=40, collect=collect_networks(target), seed=0)
    _, means, _, draws, _ = next(to_ensemble(result.draws, 1).at(network, x_test))
    limit = gp_posterior(network, x, y, 0.2, x_test)
    spread = np.sqrt(limit.variance)
    assert np.max(np.abs(means.mean(axis=0)[:, 0] - limit.mean[:, 0]) / spread) < 0.15
    np.testing.assert_allclose(draws[:, :, 0].std(axis=(0, 2)), spread, rtol=0.15)


@pytest.mark.parametrize("width", [8, 256])
def test_predictive_is_that_of_each_network(width):
    """Against normals with the variance of the function given the hidden layers of each network, not their mean."""
    rng = np.random.default_rng(1)
    x, x_test = rng.normal(size=(20, 2)), 2 * rng.normal(size=(30, 2))
    y = np.sin(x[:, :1])
    network = widebnn.dense(2, [width], activation="erf", bias_std=1.0)
    target = widebnn.posterior(network, x, y, noise=0.05)
    result = widebnn.sample(target, "pcn", step_size=0.4, steps=400, thin=4, collect=collect_networks(target), seed=0)
    ensemble = to_ensemble(result.draws, 1)
    function = next(ensemble.at(network, x_test))
    centres, std, weights = predictive(function)
    np.testing.assert_allclose(weights, 1 / len(function.means))

    def variance(hidden):
        psi, psi_test = (network.features(hidden, jnp.asarray(inputs)) for inputs in (x, x_test))
        return condition(psi, jnp.asarray(y), 0.05).variance(psi_test)

    with double_precision():
        each = np.sqrt(np.asarray(jax.lax.map(variance, ensemble.hidden)) + 0.05**2)[..., None]
    assert np.std(np.log(each), axis=0).mean() > (0.1 if width == 8 else 0.01), "all networks have the same variance"
    np.testing.assert_allclose(np.mean(std**2, axis=0), np.mean(each**2, axis=0), rtol=0.25)
    at = np.quantile(centres, [0.02, 0.2, 0.5, 0.8, 0.98], axis=0)[:, None]
    found, exact = (norm.cdf((at - centres) / scale).mean(axis=1) for scale in (std, each))
    np.testing.assert_allclose(found, exact, atol=0.05 if width == 8 else 0.02)


def test_mixture_quantiles_are_exact():
    levels = np.array([0.01, 0.3, 0.9])
    centres = np.array([[0.0], [0.0], [0.0]])
    np.testing.assert_allclose(
        mixture_quantiles(Mixture(centres, np.full((3, 1), 2.0), np.full(3, 1 / 3)), levels)[:, 0],
        2.0 * norm.ppf(levels),
        rtol=1e-9,
    )
    centres = np.array([-5.0, 5.0])[:, None]
    for weights in ([0.5, 0.5], [0.2, 0.8]):
        found = mixture_quantiles(Mixture(centres, np.ones((2, 1)), np.array(weights)), levels)[:, 0]
        below = weights[0] * norm.cdf(found + 5) + weights[1] * norm.cdf(found - 5)
        np.testing.assert_allclose(below, levels, rtol=1e-9)


def test_ctrl_c_before_there_are_draws_stops_the_fit(data, monkeypatch):
    def interrupted(target, *arguments, **options):
        result = widebnn.sample(target, *arguments, **options)
        none = {name: array[:, :0] for name, array in result.stats.items()}
        return dataclasses.replace(result, interrupted=True, stats=none)

    monkeypatch.setattr(chains, "sample", interrupted)
    with pytest.raises(KeyboardInterrupt):
        WideBNNRegressor(**TINY, burn_in=2, max_steps=4).fit(data[0][:20], data[1][:20])


@pytest.mark.long
def test_a_network_that_cannot_follow_the_targets_is_named(data):
    x, y, _, _ = data
    short = {"chains": 1, "burn_in": 20, "target_ess": 1, "max_steps": 10, "random_state": 0}
    model = WideBNNRegressor(width=2, depth=1, activation="erf", noise=0.01, **short)
    with pytest.warns(ConvergenceWarning, match=r"times the noise away .* network of width 2 cannot follow"):
        model.fit(x, y)
    assert model.diagnostics_["misfit"] > 4
