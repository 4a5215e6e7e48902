"""All coordinate systems describe one posterior over functions, and it tends to the Gaussian process limit.

Chains are compared with each other and with importance sampling in tests/reliability/test_proof.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import X_TEST
from harness import ALPHA, compiled
from scipy.stats import ks_2samp

import widebnn
from problems import small_data, small_target
from widebnn.limits import gp_posterior


@pytest.mark.long
def test_posterior_approaches_the_gaussian_process_limit():
    """Largest difference of posterior means and of standard deviations, per width."""
    x, y = small_data()
    distances = []
    for width in (4, 64, 1024):
        network = widebnn.dense(3, [width])
        limit = gp_posterior(network, x, y, 0.4, X_TEST)
        target = widebnn.posterior(network, x, y, noise=0.4, dtype="float64")

        def moments(key, u, target=target):
            _, mean, variance, _ = target.predict(key, u, X_TEST)
            return {"mean": mean, "square": mean**2 + variance[:, None]}

        result = widebnn.sample(target, "pcn", step_size=0.6, steps=4000, burn_in=300, thin=5, seed=2, collect=moments)
        mean, square = (result.draws[name].mean(axis=(0, 1)) for name in ("mean", "square"))
        std, limit_std = np.sqrt(square - mean**2), np.sqrt(limit.variance)[:, None]
        distances.append(np.array([np.abs(mean - limit.mean).max(), np.abs(std - limit_std).max()]))
    assert (distances[-1] < 0.03).all(), distances
    assert (distances[-1] < 0.25 * distances[0]).all(), distances


@pytest.mark.some(1)
@pytest.mark.parametrize("widths", [(4,), (5, 4), (4, 3, 5), (6, 6, 6)])
def test_function_space_has_the_law_of_the_weights(widths):
    """At every depth: the log-likelihood and the predictions have the same joint law under N(0, I).

    The likelihood is the same function of them, so the posteriors are the same too. The last rows weight by it.
    """
    laws = {}
    for seed, coordinates in enumerate(("function", "marginal")):
        target = small_target(coordinates, n=4, widths=widths)

        def draw(key, target=target):
            u_key, f_key = jax.random.split(key)
            u = target.sample_reference(u_key)
            f, mean, variance, _ = target.predict(f_key, u, X_TEST)
            log_likelihood = target.log_likelihood(u)
            weight = jnp.exp(log_likelihood)
            products = [f[0, 0] * f[1, 0], mean[0, 0] * mean[1, 1], f[0, 0] * log_likelihood]
            return jnp.stack(
                [log_likelihood, f[0, 0], mean[0, 0], variance[1], *products, weight * f[0, 0], weight * mean[1, 0]]
            )

        keys = jax.random.split(jax.random.key(seed), 20_000)
        laws[coordinates] = np.asarray(compiled(lambda k, draw=draw: jax.lax.map(draw, k, batch_size=1000))(keys))
    p_values = [ks_2samp(a, b).pvalue for a, b in zip(laws["function"].T, laws["marginal"].T, strict=True)]
    assert len(p_values) * min(p_values) > ALPHA
