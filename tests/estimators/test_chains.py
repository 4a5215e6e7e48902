"""The target that a fit samples: the posterior in coordinates in which what the data know well is of size 1."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widebnn
from widebnn.estimators.chains import _with_scaled_latent
from widebnn.samplers.tree import inner

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 2))
Y = X[:, :1] + 0.3 * RNG.normal(size=(400, 1))
NOISE = widebnn.LogNormal(0.3, log_sd=1.5)
LIKELIHOODS = {
    "known noise": widebnn.Gaussian(0.3),
    "unknown noise": widebnn.Gaussian(NOISE),
    "noise by input": widebnn.InputNoise(NOISE, log_sd=0.5),
    "heavy tails": widebnn.HeavyTails(0.3, 0.5),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_it_is_the_same_distribution(name):
    """Densities against Lebesgue measure differ by a constant, l(v) - |v|^2 / 2 = l(u) - |u|^2 / 2 + c."""
    posterior = widebnn.posterior(widebnn.dense(2, [8]), X, Y, likelihood=LIKELIHOODS[name], dtype="float64")
    target, unwhiten, whiten = _with_scaled_latent(posterior)
    differences = []
    for seed in range(4):
        u = posterior.sample_reference(jax.random.key(seed))
        v = whiten(u)
        for a, b in zip(jax.tree.leaves(unwhiten(v)), jax.tree.leaves(u), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
        of_v, of_u = (t.log_likelihood(w) - inner(w, w) / 2 for t, w in ((target, v), (posterior, u)))
        differences.append(float(of_v - of_u))
    np.testing.assert_allclose(differences, differences[0], atol=1e-6)


def test_noise_that_the_data_know_does_not_decide_the_step_size():
    """400 residuals know the logarithm of the noise to 3.5 %: that coordinate has the curvature 1800, scaled 0."""
    posterior = widebnn.posterior(widebnn.dense(2, [8]), X, Y, likelihood=LIKELIHOODS["unknown noise"], dtype="float64")
    target, _, whiten = _with_scaled_latent(posterior)

    def curvature(target, u, h=1e-3):
        slope = jax.grad(target.log_likelihood)
        return -float(slope(u._replace(z=u.z + h)).z - slope(u._replace(z=u.z - h)).z) / (2 * h)

    u = posterior.sample_reference(jax.random.key(0))._replace(z=jnp.zeros(()))
    assert curvature(posterior, u) > 500
    assert abs(curvature(target, whiten(u))) < 5
