"""All coordinate systems describe one posterior over functions, and it tends to the Gaussian process limit.

Chains are compared with each other and with importance sampling in tests/reliability/test_proof.py.
"""

import numpy as np
import pytest
from agreement import X_TEST

import widebnn
from problems import small_data
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
