"""Fixed random directions: unit length, linear, and small."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

import widebnn
from widebnn.sampling.collect import random_projections


def reference(key):
    a, b = jax.random.split(key)
    return {"w": jax.random.normal(a, (6, 5)), "b": jax.random.normal(b, (7,))}


def test_projections_of_standard_normals_are_standard_normal():
    project = random_projections(reference, 3)
    values = jax.vmap(lambda key: project(reference(key)))(jax.random.split(jax.random.key(0), 50_000))
    z_mean = values.mean(0) * np.sqrt(len(values))
    z_variance = (jnp.mean(values**2, axis=0) - 1) * np.sqrt(len(values) / 2)
    assert np.abs(z_mean).max() < 4.5
    assert np.abs(z_variance).max() < 4.5


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
