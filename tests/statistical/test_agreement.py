"""All coordinate systems describe one posterior over functions, and it tends to the Gaussian process limit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import ALPHA, compiled
from scipy.stats import ks_2samp

import widebnn
from problems import small_data, small_target
from widebnn.diagnostics import ess
from widebnn.networks.nngp import gp_posterior
from widebnn.posteriors import COORDINATES

X_TEST = np.random.default_rng(11).normal(size=(4, 3))
RUNS = {
    "weights": ("hmc", {"step_size": 0.15, "num_steps": 8}),
    "reparametrised": ("pcnl", {"step_size": 0.6}),
    "marginal": ("pcn", {"step_size": 0.5}),
    "function": ("auto", {}),
}


@pytest.fixture(scope="module")
def truth():
    """Posterior mean and second moment of f by importance sampling from the prior: no Markov chain at all."""
    with jax.enable_x64(True):
        target = small_target("marginal")

        def weighted(key):
            u = target.sample_reference(key)
            _, mean, variance = target.predict(key, u, X_TEST)
            return target.log_likelihood(u), jnp.stack([mean, mean**2 + variance[:, None]])

        keys = jax.random.split(jax.random.key(0), 200_000)
        log_weights, values = compiled(lambda k: jax.lax.map(weighted, k, batch_size=5000))(keys)
        weights = np.exp(np.asarray(log_weights) - np.max(log_weights))
        weights /= weights.sum()
        values = np.asarray(values)
        moments = np.einsum("i,i...->...", weights, values)
        error = np.sqrt(np.einsum("i,i...->...", weights**2, (values - moments) ** 2))
        assert 1 / np.sum(weights**2) > 2000, "importance sampling is unreliable here"
        return moments, error


@pytest.mark.parametrize("coordinates", COORDINATES)
def test_predictive_moments_agree_with_importance_sampling(coordinates, truth):
    moments, error = truth
    target = small_target(coordinates)
    sampler, options = RUNS[coordinates]
    result = widebnn.sample(
        target, sampler, steps=20_000, burn_in=500, thin=5, chains=2, seed=1, **options,
        collect=lambda key, u: {"f": target.predict(key, u, X_TEST).f},
    )  # fmt: skip
    f = result.draws["f"]
    values = np.stack([f, f**2], axis=2)
    mcse = values.std(axis=(0, 1)) / np.sqrt(ess(values))
    z = (values.mean(axis=(0, 1)) - moments) / np.sqrt(mcse**2 + error**2)
    assert np.isfinite(z).all()
    # 16 statistics: |z| > 4.5 has probability 1e-4 over all of them.
    assert np.abs(z).max() < 4.5
    assert ess(values).min() > 300, "too few effective draws to show anything"


@pytest.mark.long
def test_posterior_approaches_the_gaussian_process_limit():
    x, y = small_data()
    distances = []
    for width in (4, 64, 1024):
        network = widebnn.dense(3, [width])
        limit = gp_posterior(network, x, y, 0.4, X_TEST)
        target = widebnn.posterior(network, x, y, noise=0.4, dtype="float64")

        def moments(key, u, target=target):
            _, mean, variance = target.predict(key, u, X_TEST)
            return {"mean": mean, "square": mean**2 + variance[:, None]}

        result = widebnn.sample(target, "pcn", step_size=0.6, steps=4000, burn_in=300, thin=5, seed=2, collect=moments)
        mean = result.draws["mean"].mean(axis=(0, 1))
        variance = result.draws["square"].mean(axis=(0, 1)) - mean**2
        distances.append(
            [np.abs(mean - limit.mean).max(), np.abs(np.sqrt(variance) - np.sqrt(limit.variance)[:, None]).max()]
        )
    distances = np.array(distances)
    assert (distances[-1] < 0.03).all(), distances
    assert (distances[-1] < 0.25 * distances[0]).all(), distances


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
            f, mean, variance = target.predict(f_key, u, X_TEST)
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
