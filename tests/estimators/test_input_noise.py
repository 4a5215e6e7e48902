"""Noise that depends on the inputs, from the likelihood to saved models."""

import numpy as np
import pytest

from widebnn.errors import WidebnnError
from widebnn.estimators import WideBNNClassifier, WideBNNRegressor, load

pytestmark = [pytest.mark.ambient, pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")]
NARROW, WIDE = 0.05, 0.5
"""The noise at the left and at the right end."""


def noise_at(x):
    return NARROW * (WIDE / NARROW) ** ((x + 1) / 2)


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=300)
    y = 5 + np.sin(3 * x) + noise_at(x) * rng.normal(size=300)
    options = {"width": 32, "noise": "inputs", "target_transform": "none", "target_ess": 20, "max_steps": 80}
    return WideBNNRegressor(**options, random_state=0).fit(x[:, None], y)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_noise_is_found_where_it_is(model, tmp_path):
    x = np.linspace(-0.8, 0.8, 9)
    _, std = model.predict(x[:, None], return_std=True)
    np.testing.assert_allclose(std, noise_at(x), rtol=0.4)
    _, epistemic, aleatoric = model.predict(x[:, None], parts=True)
    np.testing.assert_allclose(np.hypot(epistemic, aleatoric), std, rtol=1e-9)
    np.testing.assert_allclose(aleatoric, noise_at(x), rtol=0.4)
    assert np.all(epistemic < aleatoric)
    draws = model.sample_y(x[:, None], 4000, random_state=1)
    np.testing.assert_allclose(draws.std(axis=1), std, rtol=0.1)
    low, high = model.predict_quantiles(x[:, None], [0.1, 0.9])
    np.testing.assert_allclose((high - low) / (2 * 1.2816), std, rtol=0.15)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict(x[:, None], return_std=True)[1], std)


@pytest.mark.parametrize("refused", [WideBNNClassifier(noise="inputs"), WideBNNRegressor(np.inf, noise="inputs")])
def test_where_there_is_none(refused):
    with pytest.raises(WidebnnError, match="noise='inputs'"):
        refused.fit(np.eye(4), [0, 1, 0, 1])
