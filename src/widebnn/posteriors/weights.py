"""Coordinates ``weights``: u = all network weights, l = the Gaussian log-likelihood of the data."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from widebnn.networks.network import Network, Weights, apply
from widebnn.noise import standard_normal
from widebnn.posteriors.target import NetworkTarget, Prediction
from widebnn.precision import double_precision, in_double_precision


def gaussian_log_likelihood(f: jax.Array, y: jax.Array, noise: float | jax.Array) -> jax.Array:
    """log N(y; f, s^2 I) over all entries, summed in float64; s is one number, or one for every row."""
    residual = y.astype(jnp.float64) - f.astype(jnp.float64)
    if jnp.ndim(noise):
        residual, log_noise = residual / jnp.reshape(noise, (-1, 1)), y.shape[1] * jnp.sum(jnp.log(noise))
    else:
        residual, log_noise = residual / noise, y.size * jnp.log(noise)
    return -0.5 * jnp.sum(residual**2) - log_noise - 0.5 * y.size * math.log(2 * math.pi)


def sample_weights(network: Network, x: jax.Array, outputs: int, key: jax.Array) -> Weights:
    """All weights from their N(0, 1) prior."""
    hidden_key, readout_key = jax.random.split(key)
    hidden = network.sample_hidden(hidden_key, x.dtype)
    features = jax.eval_shape(network.features, hidden, x)
    return Weights(hidden, standard_normal(readout_key, (features.shape[1], outputs), x.dtype))


def weights_target(network: Network, x: jax.Array, y: jax.Array, noise: float) -> NetworkTarget:
    """The posterior over all weights against their prior."""

    @in_double_precision
    def log_likelihood(u):
        return gaussian_log_likelihood(apply(network, u, x), y, noise)

    def sample_reference(key):
        with double_precision():
            return sample_weights(network, x, y.shape[1], key)

    def predict(key, u, x_new):
        with double_precision():
            f = apply(network, u, jnp.asarray(x_new, x.dtype))
            return Prediction(f, f, jnp.zeros(f.shape[0], f.dtype))

    return NetworkTarget(
        log_likelihood=log_likelihood,
        sample_reference=sample_reference,
        coordinates="weights",
        network=network,
        x=x,
        y=y,
        noise=noise,
        to_weights=lambda key, u: u,
        from_weights=lambda weights: weights,
        predict=predict,
    )
