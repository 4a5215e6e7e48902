"""The mixing benchmark measures what it says, on a target whose answers are known."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mixing
import widebnn
from mixing import Contender, ess_per_step, measure, peer
from widebnn.samplers import build_sampler
from widebnn.samplers.tree import inner

DIMENSION = 20
TARGET = widebnn.Target(
    log_likelihood=lambda u: -1.5 * jnp.sum(u**2),  # with the prior: N(0, 1/4)
    sample_reference=lambda key: jax.random.normal(key, (DIMENSION,), jnp.float64),
)


def log_density(u):
    return TARGET.log_likelihood(u) - 0.5 * inner(u, u)


def collect(position):
    return {"projections": position[:2], "mean": position[2:5]}


@pytest.mark.some(1)
@pytest.mark.parametrize("name", ["ours", "BlackJAX"])
def test_draws_and_rates(name, monkeypatch):
    """Variance 1/4 in every coordinate, gradients counted, and effective samples near one per step."""
    # As many draws whatever the speed of the machine: every step, 400 per segment.
    monkeypatch.setattr(mixing, "DRAW_SECONDS", 0.0)
    monkeypatch.setattr(mixing, "LEAST_DRAWS", 400)
    if name == "ours":
        algorithm = build_sampler("hilbert_hmc", TARGET.log_likelihood, step_size=0.1, num_steps=8)
    else:
        algorithm = peer(blackjax.hmc(log_density, 0.1, jnp.ones(DIMENSION), 8), lambda info: 8)
    segments = measure(Contender(algorithm, 20), collect, TARGET.sample_reference(jax.random.key(0)), seconds=0.0)
    draws = np.concatenate([segment["draws"]["projections"] for segment in segments])
    assert abs(draws.var() - 0.25) < 0.05
    lp = np.concatenate([segment["draws"]["lp"] for segment in segments])
    np.testing.assert_allclose(lp.mean(), -1.5 * DIMENSION / 4, rtol=0.1)
    for segment in segments:
        assert segment["gradients_per_step"] == 8
        assert 0.9 < segment["acceptance_rate"] <= 1
        assert segment["ms_per_step"] > 0
    rates = ess_per_step(segments)
    assert 0.3 < rates["log-likelihood"] < 3, "a quarter turn gives nearly independent draws"
    assert rates["slowest projection"] <= 2 * rates["predictive mean"]
