"""A scale sampled with the chain is found; test_exactness.py has the joint tests."""

import numpy as np
import pytest
from grid import NOISE_PRIOR
from harness import NETWORK, X

import widebnn


def test_noise_is_found():
    """With many rows the posterior of the noise is at the truth, whatever the prior's median."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(80, 1))
    y = np.sin(2 * x) + 0.2 * rng.normal(size=x.shape)
    network = widebnn.dense(1, [32], "erf", weight_std=2.0, bias_std=1.0)
    target = widebnn.posterior(network, x, y, noise=widebnn.LogNormal(0.5, 0.7), dtype="float64")
    noise = widebnn.sample(
        target, steps=200, burn_in=100, collect=lambda key, u: {"noise": target.noise_at(u)}, seed=1
    ).draws["noise"]
    assert abs(noise.mean() - 0.2) < 0.05 and 0.005 < noise.std() < 0.04


def test_bad_input():
    with pytest.raises(widebnn.WidebnnError, match="log_sd must be greater than 0"):
        widebnn.LogNormal(1.0, log_sd=0.0)
    with pytest.raises(widebnn.WidebnnError, match="coordinates='full' need known noise"):
        widebnn.posterior(NETWORK, X, X[:, :1], noise=NOISE_PRIOR, coordinates="full")
    with pytest.raises(widebnn.WidebnnError, match="logit_scale must be the prior"):
        widebnn.posterior(NETWORK, X, [0, 1, 0], likelihood=widebnn.Softmax(logit_scale=2.0))
