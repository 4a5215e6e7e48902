"""What the paper is about: with the width, acceptance of pCN rises and that of Langevin falls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widebnn
from widebnn.data import load_dataset


def acceptance(sampler, step_size, width, coordinates="function"):
    """Mean acceptance rate of proposals made at draws from the posterior."""
    data = load_dataset("digits", 24, 0)
    target = widebnn.posterior(widebnn.dense(64, [width]), data.x_train, data.y_train, coordinates=coordinates)
    kernel = widebnn.samplers.SAMPLERS[sampler](target.log_likelihood, step_size)

    def rate(key, u):
        return {"rate": kernel.step(key, kernel.init(u))[1].acceptance_rate}

    result = widebnn.sample(target, "pcnl", step_size=0.3, burn_in=200, steps=300, thin=3, seed=1, collect=rate)
    return result.draws["rate"].mean()


@pytest.mark.long
def test_pcn_acceptance_rises_with_width():
    rates = [acceptance("pcn", 0.3, width) for width in (128, 512, 2048)]
    assert rates[0] + 0.1 < rates[1] < rates[2] - 0.05, rates


@pytest.mark.long
def test_langevin_acceptance_falls_with_width():
    """In the space of all weights, as in the paper."""
    rates = [acceptance("mala", 0.3, width, coordinates="full") for width in (128, 512, 2048)]
    assert rates[0] - 0.05 > rates[1] > rates[2] + 0.05, rates


@pytest.fixture
def cifar(shared_data):
    return load_dataset("cifar10", 256, 0, data_dir=shared_data / "cifar10")


@pytest.mark.long
def test_stationary_pcn_acceptance_on_cifar10(cifar):
    """Published: .29 at width 1024, beta .1 (figure 1), after 20 000 steps of burn-in.

    The pCN chain itself decorrelates slowly; HMC visits the same posterior quickly. At each of its draws the
    acceptance probability of fresh pCN proposals is averaged, whose mean is the stationary acceptance rate.
    """
    target = widebnn.posterior(widebnn.dense(3072, [1024]), cifar.x_train, cifar.y_train)
    pcn = widebnn.samplers.pcn(target.log_likelihood, 0.1)

    def proposal_acceptance(key, u):
        state = pcn.init(u)
        noises = [target.sample_reference(k) for k in jax.random.split(key, 3)]
        noises += [jax.tree.map(jnp.negative, w) for w in noises]
        rates = [jnp.exp(jnp.minimum(0.0, pcn.propose(state, w).log_ratio)) for w in noises]
        return {"pcn": sum(rates) / len(rates)}

    result = widebnn.sample(
        target, "hmc", step_size=0.05, num_steps=10, steps=50, burn_in=15, collect=proposal_acceptance, seed=1
    )
    assert 0.5 < result.acceptance_rate < 1
    rates = result.draws["pcn"]
    assert rates.std() / np.sqrt(rates.size) < 0.02, "too few proposals to tell"
    assert abs(rates.mean() - 0.29) < 0.05


PRECISION_CASES = [("marginal", 1, 1024), ("function", 1, 1024)]
PRECISION_CASES += [("function", depth, width) for depth in (1, 2, 3) for width in (512, 8192)]


@pytest.mark.some(2)
@pytest.mark.parametrize(("coordinates", "depth", "width"), PRECISION_CASES)
def test_mixed_precision_on_cifar10(cifar, coordinates, depth, width):
    """float32 features against all-float64: the log acceptance ratio of pCN differs by less than 1e-2."""
    network = widebnn.dense(3072, [width] * depth)
    single, double = (
        widebnn.posterior(network, cifar.x_train, cifar.y_train, coordinates=coordinates, dtype=dtype)
        for dtype in ("float32", "float64")
    )
    reference = jax.jit(single.sample_reference)
    u, w = reference(jax.random.key(0)), reference(jax.random.key(1))
    v = jax.tree.map(lambda a, b: np.float32(np.sqrt(1 - 0.01)) * a + np.float32(0.1) * b, u, w)
    widen = lambda tree: jax.tree.map(lambda leaf: leaf.astype(np.float64), tree)  # noqa: E731
    mixed, exact = jax.jit(single.log_likelihood), jax.jit(double.log_likelihood)
    ratio = exact(widen(v)) - exact(widen(u))
    assert abs(ratio) > 1e-2, "the proposals differ too little to show anything"
    assert abs(mixed(v) - mixed(u) - ratio) < 1e-2
