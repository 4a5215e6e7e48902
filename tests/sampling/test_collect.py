"""What track() keeps: observations, independent from row to row, and random projections."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import widebnn
from widebnn.likelihoods import Gaussian, HeavyTails, LogNormal
from widebnn.sampling.collect import random_projections

ROWS, DRAWS = 12, 4000
RNG = np.random.default_rng(0)
X, X_TEST = RNG.normal(size=(5, 2)), RNG.normal(size=(ROWS, 2))
Y = RNG.normal(size=(5, 2))


def kept_at_one_position(y, likelihood, **options):
    """Draws of functions and observations at test inputs, draws x rows x outputs."""
    target = widebnn.posterior(widebnn.dense(2, [16]), X, y, likelihood=likelihood, dtype="float64", **options)
    collect = jax.jit(widebnn.track(target, X_TEST))
    position = target.sample_reference(jax.random.key(0))
    kept = jax.lax.map(lambda key: collect(key, position), jax.random.split(jax.random.key(1), DRAWS))
    return np.asarray(kept["f_test"]), np.asarray(kept["y_test"]), target, position


def residuals(likelihood):
    """Draws of y - f, the target and the position."""
    f, y, *others = kept_at_one_position(Y, likelihood)
    return y - f, *others


def assert_uncorrelated(values):
    """All columns of draws x columns."""
    correlation = np.corrcoef(values, rowvar=False)[~np.eye(values.shape[1], dtype=bool)]
    assert np.max(np.abs(correlation)) < 5 / np.sqrt(DRAWS)


@pytest.mark.parametrize("likelihood", [Gaussian(0.3), Gaussian(LogNormal(0.5, log_sd=1.0))])
def test_noise_is_that_of_the_position(likelihood):
    noise, target, position = residuals(likelihood)
    np.testing.assert_allclose(noise.std(axis=0), float(target.noise_at(position)), rtol=0.06)
    assert_uncorrelated(noise.reshape(DRAWS, -1))


def test_noise_of_every_row():
    """Its log is normal, independently for every row and draw: also the sizes of the errors are uncorrelated."""
    noise = residuals(HeavyTails(0.4, log_sd=0.6))[0]
    logs = np.log(np.mean(noise**2, axis=2)) / 2
    assert_uncorrelated(noise.reshape(DRAWS, -1))
    assert_uncorrelated(logs)
    # Of N(0, s^2) with log s ~ N(log m, t^2): the root mean square is m exp(t^2), and log |.| has the variance t^2
    # beside that of log of a mean of two squares of standard normals, pi^2 / 24.
    np.testing.assert_allclose(np.sqrt(np.mean(noise**2, axis=(0, 1))), 0.4 * np.exp(0.6**2), rtol=0.06)
    np.testing.assert_allclose(logs.var(axis=0), 0.6**2 + np.pi**2 / 24, rtol=0.15)


def test_labels_have_their_probabilities():
    """One-hot rows; with all weights in the position f is always the same."""
    f, y, _, _ = kept_at_one_position([0, 1, 2, 1, 0], "softmax", coordinates="weights")
    assert ((y == 0) | (y == 1)).all() and (y.sum(axis=2) == 1).all() and np.ptp(f, axis=0).max() == 0
    p = np.asarray(jax.nn.softmax(f[0]))
    assert np.abs((y.mean(axis=0) - p) / np.sqrt(p * (1 - p) / DRAWS)).max() < 5


def reference(key):
    a, b = jax.random.split(key)
    return {"w": jax.random.normal(a, (6, 5)), "b": jax.random.normal(b, (7,))}


def test_projections_are_linear_and_of_unit_length():
    project = random_projections(reference, 4)
    shapes = reference(jax.random.key(0))
    flat, unravel = jax.flatten_util.ravel_pytree(shapes)
    matrix = jax.jacfwd(lambda v: project(unravel(v)))(jnp.zeros_like(flat))
    np.testing.assert_allclose(jnp.linalg.norm(matrix, axis=1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(project(shapes), matrix @ flat, rtol=1e-6, atol=1e-12)


def test_directions_of_a_wide_network_stay_small():
    """100 directions in 25 million dimensions would be 10 GB as plain vectors."""
    network = widebnn.dense(3072, [8192])
    project = random_projections(lambda key: network.sample_hidden(key), 100)
    factors = project.__closure__[[c for c in project.__code__.co_freevars].index("factors")].cell_contents
    assert sum(part.nbytes for pair in factors for part in pair) < 20e6
