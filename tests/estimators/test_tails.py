"""Noise that differs from row to row: chosen where errors have heavy tails, and proper in everything predicted."""

import numpy as np
import pytest

from widebnn.estimators import WideBNNRegressor
from widebnn.estimators.ensemble import Function, Mixture, mixture_quantiles, predictive
from widebnn.estimators.models import load
from widebnn.limits import choose_hyperparameters
from widebnn.limits.kernel import normal_nodes

pytestmark = [
    pytest.mark.ambient,
    pytest.mark.xdist_group("tails"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]
SMALL = {"width": 64, "depth": 1, "activation": "erf", "input_scales": False, "burn_in": 40, "target_transform": "none"}
SMALL |= {"target_ess": 20, "max_steps": 40}
SPREAD = 0.9


def table(rows, seed, spread=SPREAD):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=(rows, 2))
    f = 3 + x[:, 0] + 0.5 * np.sin(3 * x[:, 1])
    return x, f + 0.1 * np.exp(spread * rng.normal(size=rows)) * rng.normal(size=rows)


@pytest.fixture(scope="module")
def fitted():
    short = {"width": 16, "burn_in": 20, "target_ess": 5, "max_steps": 20}
    return WideBNNRegressor(**SMALL | short, noise_tails="heavy", random_state=0).fit(*table(80, 0))


def test_spread_is_found():
    x, y = table(600, 3)
    chosen = choose_hyperparameters(x, (y - y.mean()) / y.std(), depths=1, activations="erf", row_noise=None)
    median, spread = chosen.row_noise
    assert abs(spread - SPREAD) < 0.2 and abs(median * y.std() - 0.1) < 0.02
    fixed = choose_hyperparameters(
        x, (y - y.mean()) / y.std(), depths=1, activations="erf", row_noise=None, fixed={"noise": 0.1}
    )
    assert fixed.row_noise is None


def test_not_chosen_where_tails_are_normal():
    x, y = table(300, 4, spread=0.0)
    y = (y - y.mean()) / y.std()
    assert choose_hyperparameters(x, y, depths=1, activations="erf", row_noise=None).row_noise is None
    assert choose_hyperparameters(x, y, depths=1, activations="erf").row_noise is None
    forced = choose_hyperparameters(x, y, depths=1, activations="erf", row_noise=True).row_noise
    assert forced is not None and forced[1] < 0.4


@pytest.mark.long
def test_better_than_normal_tails():
    fitted = WideBNNRegressor(**SMALL, noise_tails="auto", random_state=0).fit(*table(250, 0))
    assert fitted.hyperparameters_.row_noise is not None
    x, y = table(600, 1)
    plain = WideBNNRegressor(**SMALL, noise_tails="normal", random_state=0).fit(*table(250, 0))
    assert fitted.log_density(x, y).mean() > plain.log_density(x, y).mean() + 0.1
    low, high = fitted.predict_quantiles(x, [0.25, 0.75])
    inside = (low < y) & (y < high)
    assert 0.42 < inside.mean() < 0.58
    below = fitted.cdf(x, y)
    np.testing.assert_array_equal((below > 0.25) & (below < 0.75), inside)
    assert np.mean((plain.cdf(x, y) > 0.25) & (plain.cdf(x, y) < 0.75)) > 0.6


def test_density_is_that_of_the_other_predictions(fitted):
    for row in table(2, 2)[0]:
        row = row[None]
        mean, std = (float(values[0]) for values in fitted.predict(row, return_std=True))
        grid = np.linspace(mean - 60 * std, mean + 60 * std, 40_001)
        density = np.exp(fitted.log_density(np.repeat(row, len(grid), axis=0), grid))
        np.testing.assert_allclose(np.trapezoid(density, grid), 1, rtol=1e-3)
        np.testing.assert_allclose(np.trapezoid(density * grid, grid), mean, rtol=1e-3)
        np.testing.assert_allclose(np.trapezoid(density * (grid - mean) ** 2, grid), std**2, rtol=1e-2)
        draws = fitted.sample_y(row, n_samples=20_000)[0]
        quartiles = fitted.predict_quantiles(row, [0.25, 0.75])[:, 0]
        np.testing.assert_allclose(np.quantile(draws, [0.25, 0.75]), quartiles, atol=0.02)
    # Of new observations: noise_ is their standard deviation, given the function.
    assert float(fitted.noise_[0]) < std < 2 * float(fitted.noise_[0])


def test_components_of_the_noise():
    function = Function(slice(0, 2), np.zeros((3, 2, 1)), np.zeros(2), np.zeros((3, 2, 1, 4)), np.full((3, 1), 0.5))
    mixture = predictive(function, spread=0.6)
    assert isinstance(mixture, Mixture) and len(mixture.centres) == 3 * len(normal_nodes()[0])
    np.testing.assert_allclose(mixture.weights.sum(), 1)
    np.testing.assert_allclose(mixture.average(mixture.std**2), 0.25, rtol=1e-6)
    z = np.random.default_rng(0).normal(size=(2, 400_000))
    sampled = 0.5 * np.exp(0.6 * z[0] - 0.36) * z[1]
    levels = [0.01, 0.1, 0.4, 0.9, 0.995]
    found = mixture_quantiles(mixture, np.array(levels))[:, 0, 0]
    np.testing.assert_allclose(found, np.quantile(sampled, levels), rtol=0.02, atol=0.002)


def test_saved_and_loaded(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    again = load(tmp_path / "model")
    x, y = table(20, 5)
    assert again.hyperparameters_.row_noise == fitted.hyperparameters_.row_noise
    np.testing.assert_array_equal(again.log_density(x, y), fitted.log_density(x, y))
