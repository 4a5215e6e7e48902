"""Coordinates scaled by the curvature: the same density, exactly, and a better conditioned one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import ALPHA, joint_test, make_sampler, make_target

import widebnn
from widebnn.posteriors.preconditioned import preconditioned, rescale, row_precision

P = np.array([[3.0, 0.5, 0.0], [0.5, 1.5, 0.2], [0.0, 0.2, 2.0]])


def stiff_target(noise=0.05, dtype="float64"):
    """An input that matters much more than the other."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2)) * [4.0, 0.2]
    y = np.sin(x[:, :1])
    return widebnn.posterior(widebnn.dense(2, [64], "erf"), x, y, noise=noise, dtype=dtype)


def test_the_density_is_the_same():
    target = stiff_target()
    other = preconditioned(target, [P])
    values = []
    for key in jax.random.split(jax.random.key(0), 3):
        u = target.sample_reference(key)
        v = rescale([P], 0.5, u)
        np.testing.assert_allclose(rescale([P], -0.5, v).layers[0], u.layers[0], atol=1e-12)
        size = [0.5 * float(jnp.sum(position.layers[0] ** 2)) for position in (u, v)]
        values.append(float(target.log_likelihood(u)) - size[0] - (float(other.log_likelihood(v)) - size[1]))
    np.testing.assert_allclose(values, 0, atol=1e-9)
    weights = target.to_weights(jax.random.key(1), u)
    np.testing.assert_allclose(other.to_weights(jax.random.key(1), v).readout, weights.readout, atol=1e-9)
    np.testing.assert_allclose(other.from_weights(weights).layers[0], v.layers[0], atol=1e-9)
    x = np.zeros((2, 2))
    new, old = other.predict(jax.random.key(2), v, x), target.predict(jax.random.key(2), u, x)
    np.testing.assert_allclose(new.mean, old.mean, atol=1e-9)
    np.testing.assert_allclose(other.in_double().log_likelihood(v), other.log_likelihood(v), rtol=1e-12)


@pytest.mark.parametrize("sampler", ["pcn", "hilbert_hmc"])
def test_conservation_and_geweke(sampler):
    outcome = joint_test(
        lambda y: preconditioned(make_target("function")(y), [P]), make_sampler(sampler), cycles=3, replicates=4_000
    )
    assert outcome.accepted > 0.1
    assert outcome.conservation > ALPHA
    assert outcome.geweke > ALPHA


def test_curvature_is_measured_where_the_chain_is():
    target = stiff_target()
    pilot = widebnn.sample(target, "hilbert_hmc", num_steps=6, steps=1, burn_in=80, seed=0)
    position = jax.tree.map(lambda leaf: leaf[0], pilot.last)
    (precision,) = row_precision(target, position)
    values = np.linalg.eigvalsh(precision)
    assert values.min() >= 1 - 1e-9 and values.max() > 2
    # In its own coordinates the same measurement is near the identity.
    (after,) = row_precision(preconditioned(target, [precision]), rescale([precision], 0.5, position))
    assert np.linalg.eigvalsh(after).max() < 1.5


def test_layers_of_few_units_are_left_alone():
    target = widebnn.posterior(widebnn.dense(2, [16, 4]), np.eye(2), np.ones(2), dtype="float64")
    u = target.sample_reference(jax.random.key(0))
    found = row_precision(target, u)
    assert [p is None for p in found] == [False, True]
    other = preconditioned(target, found)
    assert np.isfinite(float(other.log_likelihood(rescale(found, 0.5, u))))
