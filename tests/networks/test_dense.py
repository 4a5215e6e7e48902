"""Dense networks against NumPy, and their priors."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import widebnn
from problems import numpy_features, worst_z_of_normals
from widebnn.networks import Weights, apply
from widebnn.networks.activations import ACTIVATIONS


@pytest.mark.some(6)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("widths", [(), (5,), (4, 3, 6)])
def test_features_against_numpy(activation, widths):
    network = widebnn.dense(
        3, widths, activation, weight_std=1.2, bias_std=0.3, readout_weight_std=0.7, readout_bias_std=0.4
    )
    hidden = network.sample_hidden(jax.random.key(0), jnp.float64)
    x = np.random.default_rng(0).normal(size=(6, 3))
    psi = network.features(hidden, jnp.asarray(x))
    assert psi.shape == (6, network.feature_dim)
    np.testing.assert_allclose(psi, numpy_features(network, hidden, x), atol=1e-13)
    readout = jax.random.normal(jax.random.key(1), (network.feature_dim, 2))
    np.testing.assert_allclose(apply(network, Weights(hidden, readout), jnp.asarray(x)), psi @ readout, atol=1e-13)


def test_hidden_parameters_are_independent_standard_normals():
    network = widebnn.dense(4, [3, 5])
    draws = jax.vmap(lambda key: jax.flatten_util.ravel_pytree(network.sample_hidden(key, jnp.float64))[0])(
        jax.random.split(jax.random.key(0), 20_000)
    )
    assert draws.shape[1] == 4 * 3 + 3 + 3 * 5 + 5
    assert worst_z_of_normals(np.asarray(draws)) < 5


def test_default_dtype_is_single():
    assert widebnn.dense(2, [3]).sample_hidden(jax.random.key(0))[0].w.dtype == jnp.float32
