"""Coordinates ``marginal``: the readout integrated out, u = the hidden weights, l = log N(y; 0, K).

The readout is not part of the chain: whenever weights or predictions are wanted it is drawn exactly, and
independently each time, from its Gaussian conditional (Theorem 3.1's marginal-conditional decomposition).
"""

from __future__ import annotations

import jax.numpy as jnp

from widebnn.networks.network import Network, Weights
from widebnn.posteriors.readout import condition, log_evidence
from widebnn.posteriors.target import NetworkTarget
from widebnn.precision import double_precision, in_double_precision


def marginal_target(network: Network, x, y, noise: float, form: str = "auto") -> NetworkTarget:
    """The posterior over hidden weights alone."""

    @in_double_precision
    def log_likelihood(u):
        return log_evidence(network.features(u, x), y, noise, form)

    def sample_reference(key):
        with double_precision():
            return network.sample_hidden(key, x.dtype)

    def to_weights(key, u):
        with double_precision():
            readout = condition(network.features(u, x), y, noise, form).draw(key)
            return Weights(u, readout.astype(x.dtype))

    def predict(key, u, x_new):
        with double_precision():
            psi_new = network.features(u, jnp.asarray(x_new, x.dtype))
            return condition(network.features(u, x), y, noise, form).predict(key, psi_new)

    return NetworkTarget(
        log_likelihood=log_likelihood,
        sample_reference=sample_reference,
        coordinates="marginal",
        network=network,
        x=x,
        y=y,
        noise=noise,
        to_weights=to_weights,
        from_weights=lambda weights: weights.hidden,
        predict=predict,
    )
