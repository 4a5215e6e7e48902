"""ESS and R-hat on chains whose answers are known."""

import numpy as np
import pytest

from problems import autoregression
from widebnn.diagnostics import ess, rhat


def chains(rho, draws=20_000):
    """Four chains of three statistics."""
    return np.swapaxes(autoregression(rho, draws, 4, 3), 0, 1)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_ess_of_an_autoregression(rho):
    x = chains(rho)
    expected = x.shape[0] * x.shape[1] * (1 - rho) / (1 + rho)
    np.testing.assert_allclose(ess(x), expected, rtol=0.1)
    assert np.all(rhat(x) < 1.01)


def test_rhat_sees_chains_that_disagree():
    x = chains(0.3)
    x[0, :, 1] += 1.0
    values = rhat(x)
    assert values[1] > 1.05 and values[0] < 1.01


def test_constant_and_short_chains_are_nan():
    x = chains(0.3, draws=50)
    x[..., 0] = 2.0
    assert np.isnan(ess(x)[0]) and np.isnan(rhat(x)[0])
    assert np.isfinite(ess(x)[1:]).all()
    assert np.isnan(ess(x[:, :3])).all()
    with pytest.raises(ValueError, match="chains, draws"):
        ess(np.zeros(3))
