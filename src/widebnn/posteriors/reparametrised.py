"""Coordinates ``reparametrised`` (Hron et al. 2022): the readout theta becomes Sigma^{-1/2} (theta - mu).

Given the hidden weights the posterior of the readout is N(mu, Sigma), so the new readout coordinates phi
are N(0, I) under the posterior as under the reference: the log-likelihood does not depend on phi at all,
and equals log N(y; 0, K). Exactly, at every width.
"""

from __future__ import annotations

import jax.numpy as jnp

from widebnn.networks.network import Network, Weights, apply
from widebnn.posteriors.readout import condition, log_evidence, square_root
from widebnn.posteriors.target import NetworkTarget, Prediction
from widebnn.posteriors.weights import sample_weights
from widebnn.precision import double_precision, in_double_precision


def reparametrised_target(network: Network, x, y, noise: float, form: str = "auto") -> NetworkTarget:
    """The posterior over hidden weights and whitened readout; u = Weights(hidden, phi)."""

    @in_double_precision
    def log_likelihood(u):
        return log_evidence(network.features(u.hidden, x), y, noise, form)

    def sample_reference(key):
        with double_precision():
            return sample_weights(network, x, y.shape[1], key)

    def to_weights(key, u):
        with double_precision():
            psi = network.features(u.hidden, x)
            mu = condition(psi, y, noise, form).gain(y.astype(jnp.float64))
            theta = mu + square_root(psi, noise, form).multiply(u.readout.astype(jnp.float64))
            return Weights(u.hidden, theta.astype(u.readout.dtype))

    def from_weights(weights):
        with double_precision():
            psi = network.features(weights.hidden, x)
            mu = condition(psi, y, noise, form).gain(y.astype(jnp.float64))
            phi = square_root(psi, noise, form).divide(weights.readout.astype(jnp.float64) - mu)
            return Weights(weights.hidden, phi.astype(weights.readout.dtype))

    def predict(key, u, x_new):
        with double_precision():
            f = apply(network, to_weights(key, u), jnp.asarray(x_new, x.dtype))
            return Prediction(f, f, jnp.zeros(f.shape[0], f.dtype))

    return NetworkTarget(
        log_likelihood=log_likelihood,
        sample_reference=sample_reference,
        coordinates="reparametrised",
        network=network,
        x=x,
        y=y,
        noise=noise,
        to_weights=to_weights,
        from_weights=from_weights,
        predict=predict,
    )
