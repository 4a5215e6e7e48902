"""The climb before the first step: to the bulk or beyond it, reproducible, never to a non-finite place."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widebnn
from widebnn.estimators.ascent import STEPS, ascend
from widebnn.precision import double_precision

pytestmark = pytest.mark.ambient


@pytest.fixture(scope="module")
def target():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(60, 2))
    y = np.sin(3 * x[:, :1]) + 0.02 * rng.normal(size=(60, 1))
    return widebnn.posterior(
        widebnn.dense(2, [128], "erf", weight_std=3.0, bias_std=2.0), x, y, noise=0.02, dtype="float64"
    )


def test_it_climbs_faster_than_a_chain(target):
    ends = ascend(target, 2, seed=0)
    heights = [float(target.log_likelihood(jax.tree.map(lambda leaf, i=i: leaf[i], ends))) for i in range(2)]
    prior = [float(target.log_likelihood(target.sample_reference(jax.random.key(i)))) for i in range(20)]
    trajectories = {"num_steps": 6, "steps": 1, "burn_in": 2 * STEPS // 6}
    chain = widebnn.sample(target, "hilbert_hmc", **trajectories, chains=2, collect=lambda key, u: {})
    assert min(heights) > max(prior)
    assert min(heights) > chain.stats["lp"].max()  # which took twice the gradients
    assert heights[0] != heights[1]
    # Nothing may still run when LAPACK's threads are let loose again: results would depend on them.
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(ends))
    again = ascend(target, 2, seed=0)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(ends), jax.tree.leaves(again), strict=True))


def test_a_slope_that_is_not_finite_moves_nothing():
    cliff = widebnn.Target(
        log_likelihood=lambda u: jnp.where(jnp.sum(u) < 1e9, jnp.nan, 1.0) * jnp.sum(u),
        sample_reference=lambda key: jax.random.normal(key, (5,)),
    )
    ends = ascend(cliff, 1, seed=0)
    with double_precision():
        start = cliff.sample_reference(jax.random.split(jax.random.key(0), 1)[0])
    np.testing.assert_array_equal(ends[0], start)
