"""What the paper is about: with the width, acceptance of pCN rises and that of Langevin falls."""

import jax
import numpy as np
import pytest

import widebnn
from widebnn.data import load_dataset


def acceptance(sampler, step_size, width, space="reduced"):
    data = load_dataset("digits", 24, 0)
    target = widebnn.posterior(widebnn.dense(64, [width]), data.x_train, data.y_train, space=space)
    start = widebnn.sample(target, "pcnl", step_size=0.3, steps=200, seed=1, collect=lambda key, u: {})
    run = widebnn.sample(target, sampler, step_size=step_size, steps=400, initial=start.last, collect=lambda key, u: {})
    return run.acceptance_rate


def test_pcn_acceptance_rises_with_width():
    rates = [acceptance("pcn", 0.3, width) for width in (128, 512, 2048)]
    assert rates[0] + 0.1 < rates[1] < rates[2] - 0.05, rates


def test_langevin_acceptance_falls_with_width():
    """In the space of all weights, as in the paper."""
    rates = [acceptance("mala", 0.3, width, space="full") for width in (128, 512, 2048)]
    assert rates[0] - 0.05 > rates[1] > rates[2] + 0.05, rates


@pytest.fixture
def cifar(shared_data):
    return load_dataset("cifar10", 256, 0, data_dir=shared_data / "cifar10")


def test_stationary_pcn_acceptance_on_cifar10(cifar):
    """Published: .29 at width 1024, beta .1 (figure 1), after 20 000 steps of burn-in.

    The pCN chain itself decorrelates slowly; HMC visits the same posterior quickly. At each of its draws the
    acceptance probability of fresh pCN proposals is averaged, whose mean is the stationary acceptance rate.
    """
    target = widebnn.posterior(widebnn.dense(3072, [1024]), cifar.x_train, cifar.y_train)
    pcn = widebnn.samplers.pcn(target.log_likelihood, 0.1)

    def proposal_acceptance(key, u):
        state = pcn.init(u)
        rates = [pcn.step(k, state)[1].acceptance_rate for k in jax.random.split(key, 2)]
        return {"pcn": sum(rates) / len(rates)}

    result = widebnn.sample(
        target, "hmc", step_size=0.05, num_steps=10, steps=60, burn_in=15, collect=proposal_acceptance, seed=1
    )
    assert 0.5 < result.acceptance_rate < 1
    assert abs(result.draws["pcn"].mean() - 0.29) < 0.05


@pytest.mark.parametrize("depth", [1, 2])
def test_mixed_precision_on_cifar10(cifar, depth):
    """float32 features against all-float64: the log acceptance ratio differs by less than 1e-2."""
    network = widebnn.dense(3072, [1024] * depth)
    single, double = (
        widebnn.posterior(network, cifar.x_train, cifar.y_train, dtype=dtype) for dtype in ("float32", "float64")
    )
    u = jax.jit(single.sample_reference)(jax.random.key(0))
    v = jax.jit(single.sample_reference)(jax.random.key(1))
    v = jax.tree.map(lambda a, b: np.float32(np.sqrt(1 - 0.01)) * a + np.float32(0.1) * b, u, v)
    widen = lambda tree: jax.tree.map(lambda leaf: leaf.astype(np.float64), tree)  # noqa: E731
    mixed = single.log_likelihood(v) - single.log_likelihood(u)
    exact = double.log_likelihood(widen(v)) - double.log_likelihood(widen(u))
    assert abs(mixed - exact) < 1e-2
