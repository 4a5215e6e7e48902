"""The published pCNL potential, reproduced: the law of the misfit under N(0, I), and that it is another posterior."""

import jax
import jax.numpy as jnp
import numpy as np
from harness import ALPHA, compiled
from scipy.stats import ks_2samp

import widebnn
from widebnn.coordinates import FunctionPosition
from widebnn.reproduction.published_pcnl import published_pcnl_target

RNG = np.random.default_rng(0)
X, Y, X_TEST = RNG.normal(size=(5, 3)), RNG.normal(size=(5, 2)), RNG.normal(size=(3, 3))
NETWORK = widebnn.dense(3, [6])
NOISE = 0.5


def test_law_of_misfit_and_predictions():
    """Against weights made the paper's way: theta = mu + Sigma^{1/2} phi in reparametrised coordinates."""
    target = published_pcnl_target(NETWORK, X, Y, NOISE, X_TEST)
    plain = widebnn.posterior(NETWORK, X, Y, noise=NOISE, coordinates="reparametrised", dtype="float64")

    def ours(key):
        u = target.sample_reference(key)
        f = target.predict(key, u).f
        return jnp.stack([target.log_likelihood(u), f[0, 0], f[0, 0] * f[1, 0], f[2, 1]])

    def theirs(key):
        weights = plain.to_weights(key, plain.sample_reference(key))
        at_data, f = (widebnn.networks.apply(NETWORK, weights, jnp.asarray(x)) for x in (X, X_TEST))
        misfit = jnp.sum((jnp.asarray(Y) - at_data) ** 2) / (2 * NOISE**2)
        return jnp.stack([-misfit, f[0, 0], f[0, 0] * f[1, 0], f[2, 1]])

    laws = []
    for seed, draw in enumerate((ours, theirs)):
        draws = compiled(lambda keys, draw=draw: jax.lax.map(draw, keys, batch_size=1000))
        laws.append(np.asarray(draws(jax.random.split(jax.random.key(seed), 10_000))))
    p_values = [ks_2samp(a, b).pvalue for a, b in zip(*(law.T for law in laws), strict=True)]
    assert len(p_values) * min(p_values) > ALPHA


def test_it_is_not_the_posterior():
    """The two log densities against N(0, I) differ by more than a constant."""
    target = published_pcnl_target(NETWORK, X, Y, NOISE, X_TEST)
    right = widebnn.posterior(NETWORK, X, Y, noise=NOISE)
    differences = []
    for seed in range(20):
        u = target.sample_reference(jax.random.key(seed))
        differences.append(float(target.log_likelihood(u) - right.log_likelihood(FunctionPosition(u.layers))))
    assert np.std(differences) > 0.1
