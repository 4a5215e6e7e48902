"""Our normals are JAX's normals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widebnn.noise import WORTH_IT, standard_normal


@pytest.mark.parametrize("shape", [(WORTH_IT,), (300, 77), (3, 128, 64), (10,)])
@pytest.mark.parametrize("seed", [0, 12345])
def test_the_same_numbers_as_jax(shape, seed):
    key = jax.random.fold_in(jax.random.key(seed), 3)
    ours = jax.jit(lambda k: standard_normal(k, shape, jnp.float32))(key)
    theirs = jax.jit(lambda k: jax.random.normal(k, shape, jnp.float32))(key)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


def test_vmap_over_keys():
    keys = jax.random.split(jax.random.key(0), 3)
    ours = jax.vmap(lambda k: standard_normal(k, (WORTH_IT,), jnp.float32))(keys)
    theirs = jax.vmap(lambda k: jax.random.normal(k, (WORTH_IT,), jnp.float32))(keys)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_other_generators_and_precisions_go_to_jax(impl):
    key = jax.random.key(0, impl=impl)
    np.testing.assert_array_equal(
        standard_normal(key, (WORTH_IT,), jnp.float32), jax.random.normal(key, (WORTH_IT,), jnp.float32)
    )
    key = jax.random.key(0)
    np.testing.assert_array_equal(
        standard_normal(key, (WORTH_IT,), jnp.float64), jax.random.normal(key, (WORTH_IT,), jnp.float64)
    )
