"""Coordinates scaled by the curvature: the same density, exactly, and a better conditioned one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import ALPHA, Edited, joint_test, make_sampler, make_target

import widebnn
from widebnn.samplers.preconditioning import Scaling

P = np.array([[3.0, 0.5, 0.0], [0.5, 1.5, 0.2], [0.0, 0.2, 2.0]])


def stiff_target(noise=0.05, dtype="float64"):
    """An input that matters much more than the other."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2)) * [4.0, 0.2]
    y = np.sin(x[:, :1])
    return widebnn.posterior(widebnn.dense(2, [64], "erf"), x, y, noise=noise, dtype=dtype)


def test_the_density_is_the_same():
    target = stiff_target()
    scaling = Scaling((P,))
    other = scaling.apply(target)
    values = []
    for key in jax.random.split(jax.random.key(0), 3):
        u = target.sample_reference(key)
        v = scaling.to_v(u)
        np.testing.assert_allclose(scaling.to_u(v).layers[0], u.layers[0], atol=1e-12)
        size = [0.5 * float(jnp.sum(position.layers[0] ** 2)) for position in (u, v)]
        values.append(float(target.log_likelihood(u)) - size[0] - (float(other.log_likelihood(v)) - size[1]))
    np.testing.assert_allclose(values, 0, atol=1e-9)


@pytest.mark.some(1)
@pytest.mark.parametrize("sampler", ["pcn", "hilbert_hmc"])
def test_conservation_and_geweke(sampler):
    scaling = Scaling((P,))

    def target_of(y):
        target = make_target("function")(y)
        return Edited(
            target,
            log_likelihood=scaling.apply(target).log_likelihood,
            to_weights=lambda key, v: target.to_weights(key, scaling.to_u(v)),
            from_weights=lambda weights: scaling.to_v(target.from_weights(weights)),
        )

    outcome = joint_test(target_of, make_sampler(sampler), cycles=3, replicates=4_000)
    assert outcome.accepted > 0.1
    assert outcome.conservation > ALPHA
    assert outcome.geweke > ALPHA


def test_curvature_is_measured_where_the_chain_is():
    target = stiff_target()
    pilot = widebnn.sample(target, "hilbert_hmc", num_steps=6, steps=1, burn_in=80, seed=0)
    position = jax.tree.map(lambda leaf: leaf[0], pilot.last)
    scaling = Scaling.by_curvature(target, position)
    values = np.linalg.eigvalsh(scaling.precisions[0])
    assert values.min() >= 1 - 1e-9 and values.max() > 2
    # In its own coordinates the same measurement is near the identity.
    (after,) = Scaling.by_curvature(scaling.apply(target), scaling.to_v(position)).precisions
    assert np.linalg.eigvalsh(after).max() < 1.5


def test_layers_of_few_units_are_left_alone():
    target = widebnn.posterior(widebnn.dense(2, [16, 4]), np.eye(2), np.ones(2), dtype="float64")
    u = target.sample_reference(jax.random.key(0))
    scaling = Scaling.by_curvature(target, u)
    assert [p is None for p in scaling.precisions] == [False, True]
    assert np.isfinite(float(scaling.apply(target).log_likelihood(scaling.to_v(u))))
