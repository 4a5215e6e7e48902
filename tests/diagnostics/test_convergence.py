"""ESS and R-hat on chains whose answers are known."""

import numpy as np
import pytest

from widebnn.diagnostics import ess, rhat


def autoregressive(rho, chains=4, draws=20_000, statistics=3, seed=0):
    """AR(1) chains: the integrated autocorrelation time is (1 + rho) / (1 - rho)."""
    rng = np.random.default_rng(seed)
    x = np.empty((chains, draws, statistics))
    x[:, 0] = rng.normal(size=(chains, statistics))
    for t in range(1, draws):
        x[:, t] = rho * x[:, t - 1] + np.sqrt(1 - rho**2) * rng.normal(size=(chains, statistics))
    return x


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_ess_of_an_autoregression(rho):
    x = autoregressive(rho)
    expected = x.shape[0] * x.shape[1] * (1 - rho) / (1 + rho)
    np.testing.assert_allclose(ess(x), expected, rtol=0.1)
    assert np.all(rhat(x) < 1.01)


def test_rhat_sees_chains_that_disagree():
    x = autoregressive(0.3)
    x[0, :, 1] += 1.0
    values = rhat(x)
    assert values[1] > 1.05 and values[0] < 1.01


def test_constant_and_short_chains_are_nan():
    x = autoregressive(0.3, draws=50)
    x[..., 0] = 2.0
    assert np.isnan(ess(x)[0]) and np.isnan(rhat(x)[0])
    assert np.isfinite(ess(x)[1:]).all()
    assert np.isnan(ess(x[:, :3])).all()
    with pytest.raises(ValueError, match="chains, draws"):
        ess(np.zeros(3))
