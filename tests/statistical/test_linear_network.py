"""Conservation where the posterior is known in closed form: a network without hidden layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import ALPHA, OPTIONS, compiled
from scipy.stats import chi2, kstest

import widebnn
from widebnn.networks import Weights
from widebnn.samplers import SAMPLERS

CHAINS = 20_000
STEP_SIZES = {"rwmh": 0.3, "pcn": 0.4, "pcnl": 0.4, "mala": 0.4, "underdamped": 0.4, "hmc": 0.25, "hilbert_hmc": 0.25}


def exact_problem():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 2)), rng.normal(size=(4, 1))
    target = widebnn.posterior(widebnn.dense(2, []), x, y, noise=0.5, coordinates="weights", dtype="float64")
    psi = np.asarray(target.network.features((), target.x))
    sigma = np.linalg.inv(np.eye(3) + psi.T @ psi / 0.25)
    return target, sigma @ psi.T @ y / 0.25, np.linalg.cholesky(sigma)


def smallest_p_value(sampler_of, steps=12):
    """Start at exact posterior draws, run the kernel, whiten: every projection must still be N(0, 1)."""
    target, mean, root = exact_problem()
    algorithm = sampler_of(target.log_likelihood)

    def chain(key):
        start_key, momentum_key, key = jax.random.split(key, 3)
        start = jnp.asarray(mean) + jnp.asarray(root) @ jax.random.normal(start_key, (3, 1))
        state = algorithm.init(Weights((), start))
        if hasattr(state, "momentum"):
            momentum = Weights((), jax.random.normal(momentum_key, (3, 1)))
            state = state._replace(momentum=momentum, has_momentum=jnp.asarray(True))
        state, _ = jax.lax.scan(lambda s, k: (algorithm.step(k, s)[0], None), state, jax.random.split(key, steps))
        return state.position.readout, jnp.mean((state.position.readout - start) ** 2)

    end, moved = compiled(jax.vmap(chain))(jax.random.split(jax.random.key(1), CHAINS))
    white = np.linalg.solve(root, (np.asarray(end)[:, :, 0] - mean[:, 0]).T).T
    directions = np.vstack([np.eye(3), np.random.default_rng(2).normal(size=(5, 3))])
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    p_values = [kstest(white @ direction, "norm").pvalue for direction in directions]
    p_values.append(kstest(np.sum(white**2, axis=1), chi2(3).cdf).pvalue)
    return min(1.0, len(p_values) * min(p_values)), float(np.mean(moved) / np.mean(np.diag(root @ root.T)))


@pytest.mark.some(1)
@pytest.mark.parametrize("name", SAMPLERS)
def test_exact_posterior_is_conserved(name):
    options = OPTIONS.get(name, {}) | ({"step_size": STEP_SIZES[name]} if name in STEP_SIZES else {})
    p_value, moved = smallest_p_value(lambda log_likelihood: SAMPLERS[name](log_likelihood, **options))
    assert moved > 0.3
    assert p_value > ALPHA


def test_a_slightly_wrong_kernel_is_noticed():
    """Power: a random walk whose ratio forgets a fifth of the prior, with 4 data points, is caught."""

    def wrong(log_likelihood):
        return SAMPLERS["rwmh"](lambda u: log_likelihood(u) + 0.1 * jnp.sum(u.readout**2), 0.3)

    assert smallest_p_value(wrong)[0] < ALPHA
