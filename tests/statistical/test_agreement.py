"""All coordinate systems describe one posterior over functions, and it tends to the Gaussian process limit."""

import agreement
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import X_TEST
from harness import ALPHA, compiled
from scipy.stats import ks_2samp

from problems import COORDINATES, small_target


@pytest.fixture(scope="module")
def truth():
    """Posterior means by importance sampling from the prior: no Markov chain at all."""
    with jax.enable_x64(True):
        moments = agreement.importance_moments()
    assert moments.ess > 2000, "importance sampling is unreliable here"
    return moments


@pytest.mark.long
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_predictive_moments_agree_with_importance_sampling(coordinates, truth):
    moments = agreement.regression_moments(coordinates, unknown_noise=False, steps=20_000)
    assert moments.ess > 300, "too few effective draws to show anything"
    p_values = agreement.p_values(moments, truth)
    assert p_values.size * p_values.min() > ALPHA


@pytest.mark.long
def test_posterior_approaches_the_gaussian_process_limit():
    distances = agreement.distances_to_the_limit((4, 64, 1024))
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


@pytest.mark.long
def test_class_probabilities_agree_between_coordinates():
    """Two chains that share nothing but the posterior: probabilities and their products at new inputs."""
    weights, function = (agreement.label_moments(coordinates, steps=2_000) for coordinates in ("weights", "function"))
    assert min(weights.ess, function.ess) > 300, "too few effective draws to show anything"
    p_values = agreement.p_values(weights, function)
    assert p_values.size * p_values.min() > ALPHA
    # The data are seen: the prior has probability 1/3 for every class.
    assert np.abs(function.mean[:9] - 1 / 3).max() > 0.1
