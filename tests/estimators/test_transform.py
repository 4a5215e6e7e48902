"""Targets on the asinh scale: exact moments, and a proper, calibrated predictive distribution in units of y."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from widebnn.estimators import WideBNNRegressor
from widebnn.estimators.transform import TargetScale, choose_asinh

pytestmark = [
    pytest.mark.ambient,
    pytest.mark.xdist_group("transform"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]
NETWORK = {"depths": (1,), "activations": ("erf",), "fixed": {}}
SMALL = {"width": 64, "depth": 1, "activation": "erf", "input_scales": False, "burn_in": 40}
SMALL |= {"target_ess": 20, "max_steps": 40}


def with_growing_errors(rows, seed):
    """Errors of 10 % of the target, which spans a factor of 400."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=(rows, 2))
    return x, np.exp(3 * x[:, 0] + 0.5 * np.sin(3 * x[:, 1]) + 0.1 * rng.normal(size=rows))


def with_equal_errors(rows, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=(rows, 2))
    return x, 3 + x[:, 0] + 0.5 * np.sin(3 * x[:, 1]) + 0.1 * rng.normal(size=rows)


@pytest.fixture(scope="module")
def fitted():
    short = {"width": 16, "burn_in": 20, "target_ess": 5, "max_steps": 20}
    return WideBNNRegressor(**SMALL | short, target_transform="asinh", random_state=0).fit(*with_growing_errors(60, 0))


@pytest.mark.parametrize("b", [None, np.array([0.3, 20.0])])
def test_forward_and_back(b):
    y = np.random.default_rng(0).normal(size=(50, 2)) * 10
    scale = TargetScale.of(y, b)
    np.testing.assert_allclose(
        [scale.forward(y).mean(axis=0), scale.forward(y).std(axis=0)], [[0, 0], [1, 1]], atol=1e-12
    )
    np.testing.assert_allclose(scale.inverse(scale.forward(y)), y, rtol=1e-12)
    step = 1e-6
    slope = (scale.forward(y + step) - scale.forward(y - step)) / (2 * step)
    np.testing.assert_allclose(slope, np.exp(scale.log_derivative(y)), rtol=1e-6)


@pytest.mark.parametrize("b", [None, np.array(0.7)])
@pytest.mark.parametrize(("centre", "std"), [(0.0, 0.5), (2.0, 0.1), (-3.0, 1.0)])
def test_moments_are_those_of_the_integral(centre, std, b):
    scale = TargetScale(b, np.array(0.2), np.array(1.1))
    mean, variance = scale.moments(np.array(centre), np.array(std))
    density = norm(centre, std).pdf
    ends = centre - 12 * std, centre + 14 * std
    np.testing.assert_allclose(mean, quad(lambda z: scale.inverse(z) * density(z), *ends)[0], rtol=1e-8, atol=1e-12)
    second = quad(lambda z: scale.inverse(z) ** 2 * density(z), *ends)[0]
    np.testing.assert_allclose(variance + mean**2, second, rtol=1e-8)
    noise = 0.3  # what is left of the variance where f ~ N(centre, std^2) is known
    left = quad(lambda f: scale.moments(np.array(f), np.array(noise))[1] * density(f), *ends)[0]
    np.testing.assert_allclose(
        scale.noise_variance(np.array(centre), np.array(std**2), np.array(noise)), left, rtol=1e-7
    )


def test_chosen_where_errors_grow_with_the_target():
    x, y = with_growing_errors(150, 0)
    b = choose_asinh(x, y[:, None], 0, always=False, **NETWORK)
    assert b is not None and 0.05 * np.median(y) < b[0] < 2 * np.median(y)
    # It is a scale: in other units it is the same.
    np.testing.assert_allclose(choose_asinh(x, 1e6 * y[:, None], 0, always=False, **NETWORK), 1e6 * b)


def test_not_chosen_where_they_do_not():
    x, y = with_equal_errors(150, 1)
    assert choose_asinh(x, y[:, None], 0, always=False, **NETWORK) is None
    assert choose_asinh(x, y[:, None], 0, always=True, **NETWORK) is not None
    assert choose_asinh(x, np.zeros((150, 1)), 0, always=True, **NETWORK) is None


@pytest.mark.long
def test_predictions_are_calibrated():
    fitted = WideBNNRegressor(**SMALL, random_state=0).fit(*with_growing_errors(150, 0))
    assert fitted.y_bend_ is not None
    x, y = with_growing_errors(400, 1)
    low, high = fitted.predict_quantiles(x, [0.05, 0.95])
    inside = (low < y) & (y < high)
    assert 0.84 < inside.mean() < 0.96
    small = y < np.median(y)
    assert abs(inside[small].mean() - inside[~small].mean()) < 0.1
    below = fitted.cdf(x, y)
    np.testing.assert_array_equal((below > 0.05) & (below < 0.95), inside)
    plain = WideBNNRegressor(**SMALL, target_transform="none", random_state=0).fit(*with_growing_errors(150, 0))
    assert fitted.log_density(x, y).mean() > plain.log_density(x, y).mean() + 0.3


def test_density_is_that_of_the_other_predictions(fitted):
    for row in with_growing_errors(3, 2)[0]:
        row = row[None]
        mean, std = (float(values[0]) for values in fitted.predict(row, return_std=True))
        grid = np.linspace(mean - 12 * std, mean + 20 * std, 4001)
        density = np.exp(fitted.log_density(np.repeat(row, len(grid), axis=0), grid))
        np.testing.assert_allclose(np.trapezoid(density, grid), 1, rtol=1e-3)
        np.testing.assert_allclose(np.trapezoid(density * grid, grid), mean, rtol=1e-3)
        np.testing.assert_allclose(np.trapezoid(density * (grid - mean) ** 2, grid), std**2, rtol=5e-3)
        draws = fitted.sample_y(row, n_samples=4000)[0]
        assert abs(draws.mean() - mean) < 5 * std / np.sqrt(400)
