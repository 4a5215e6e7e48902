"""The coordinate systems: each against the definition, and all against each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.flatten_util import ravel_pytree

import widebnn
from problems import COORDINATES, NOISE, naive_log_likelihood, numpy_features, small_target
from widebnn.networks import apply


@pytest.mark.some(10)
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("activation", ["gelu", "relu", "erf", "tanh", "sin"])
@pytest.mark.parametrize("widths", [(4,), (3, 6, 2)])
def test_log_likelihood_against_scipy(coordinates, activation, widths):
    target = small_target(coordinates, widths=widths, activation=activation)
    u = jax.jit(target.sample_reference)(jax.random.key(1))
    if coordinates == "function":
        psi = numpy_features(target.network, jax.jit(target.to_weights)(jax.random.key(2), u).hidden, target.x)
    else:
        psi = numpy_features(target.network, u if coordinates == "marginal" else u.hidden, target.x)
    y = np.asarray(target.y)
    if coordinates == "weights":
        expected = scipy.stats.norm(psi @ np.asarray(u.readout), NOISE).logpdf(y).sum()
    else:
        k = psi @ psi.T + NOISE**2 * np.eye(len(psi))
        expected = scipy.stats.multivariate_normal(np.zeros(len(k)), k).logpdf(y.T).sum()
    # In function space the weights come back through a factor that dead ReLU units make ill-conditioned.
    rtol = 1e-8 if coordinates == "function" else 1e-11
    np.testing.assert_allclose(jax.jit(target.log_likelihood)(u), expected, rtol=rtol)


@pytest.mark.some(4)
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("n", [3, 12])
def test_gradient_against_plain_autodiff(coordinates, n):
    target = small_target(coordinates, n=n)
    u = jax.jit(target.sample_reference)(jax.random.key(1))
    ours, plain = (
        ravel_pytree(jax.jit(jax.grad(f))(u))[0] for f in (target.log_likelihood, naive_log_likelihood(target))
    )
    np.testing.assert_allclose(ours, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.some(1)
@pytest.mark.parametrize("n", [3, 12])
def test_reparametrised_likelihood_ignores_the_readout(n):
    target = small_target("reparametrised", n=n)
    u = target.sample_reference(jax.random.key(1))
    moved = u._replace(readout=u.readout + 5.0)
    assert target.log_likelihood(u) == target.log_likelihood(moved)
    assert not np.any(jax.grad(target.log_likelihood)(u).readout)
    marginal = small_target("marginal", n=n)
    np.testing.assert_allclose(target.log_likelihood(u), marginal.log_likelihood(u.hidden), rtol=1e-13)


@pytest.mark.some(1)
@pytest.mark.parametrize("n", [3, 12])
def test_reparametrisation_is_the_change_of_variables_it_claims(n):
    """posterior density of theta x |det d theta / d phi| = posterior density of phi, for every theta."""
    target, weights = small_target("reparametrised", n=n), small_target("weights", n=n)
    log_ratios = []
    for seed in range(4):
        u = target.sample_reference(jax.random.key(seed))
        theta = target.to_weights(jax.random.key(0), u)

        def readout(phi, hidden=u.hidden, shape=u.readout.shape):
            mapped = target.to_weights(jax.random.key(0), widebnn.Weights(hidden, phi.reshape(shape)))
            return mapped.readout.ravel()

        jacobian = jax.jit(jax.jacfwd(readout))(u.readout.ravel())
        log_posterior_theta = weights.log_likelihood(theta) - 0.5 * jnp.sum(theta.readout**2)
        log_posterior_phi = target.log_likelihood(u) - 0.5 * jnp.sum(u.readout**2)
        log_ratios.append(log_posterior_theta + jnp.linalg.slogdet(jacobian)[1] - log_posterior_phi)
    np.testing.assert_allclose(log_ratios, log_ratios[0], atol=1e-9)


@pytest.mark.some(4)
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("n", [3, 12])
def test_map_and_inverse_round_trip(coordinates, n):
    target = small_target(coordinates, n=n)
    u = target.sample_reference(jax.random.key(2))
    back = jax.jit(lambda u: target.from_weights(target.to_weights(jax.random.key(0), u)))(u)
    for a, b in zip(jax.tree.leaves(u), jax.tree.leaves(back), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)


@pytest.mark.parametrize("coordinates", COORDINATES)
def test_predictions_are_the_network_at_its_weights(coordinates):
    target = small_target(coordinates)
    u, key = target.sample_reference(jax.random.key(2)), jax.random.key(5)
    x_new = np.random.default_rng(3).normal(size=(6, 3))
    expected = apply(target.network, target.to_weights(key, u), jnp.asarray(x_new))
    np.testing.assert_allclose(target.predict(key, u, x_new).f, expected, atol=1e-12)


@pytest.mark.parametrize("coordinates", COORDINATES)
def test_mean_and_variance_are_those_of_the_draws(coordinates):
    target = small_target(coordinates)
    u = target.sample_reference(jax.random.key(2))
    x_new = np.random.default_rng(3).normal(size=(4, 3))
    _, mean, variance, _ = target.predict(jax.random.key(0), u, x_new)
    keys = jax.random.split(jax.random.key(0), 20_000)
    f = np.asarray(jax.jit(jax.vmap(lambda key: target.predict(key, u, x_new).f))(keys))
    error = np.sqrt(variance[:, None] / len(f)) + 1e-9
    assert np.max(np.abs(f.mean(0) - mean) / error) < 4.5
    np.testing.assert_allclose(f.var(0), np.broadcast_to(variance[:, None], mean.shape), rtol=0.06, atol=1e-9)
