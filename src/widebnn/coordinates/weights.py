"""Coordinates ``weights``: u = all network weights, l = the log-likelihood of the data. The baseline."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from widebnn.coordinates.marginal import Coordinates
from widebnn.likelihoods.likelihood import Likelihood
from widebnn.likelihoods.readout import KnownReadout
from widebnn.networks.network import Weights
from widebnn.noise import standard_normal


class WeightCoordinates(Coordinates):
    """All weights of any network, N(0, I) a priori."""

    name = "weights"
    holds_readout = True

    def sample(self, key: jax.Array) -> Weights:
        """All weights from their N(0, I) prior."""
        hidden_key, readout_key = jax.random.split(key)
        hidden = self.network.sample_hidden(hidden_key, self.x.dtype)
        features = jax.eval_shape(self.network.features, hidden, self.x).shape[1]
        return Weights(hidden, standard_normal(readout_key, (features, self.outputs), self.x.dtype))

    def log_density(self, likelihood: Likelihood, y: jax.Array, c: Weights, z: Any) -> jax.Array:
        """log p(y | f, z)."""
        psi = self.network.features(c.hidden, self.x)
        return likelihood.log_likelihood(jnp.matmul(psi, c.readout, precision="highest"), y, z, psi)

    def readout(self, likelihood: Likelihood, psi: jax.Array, y: jax.Array, c: Weights, z: Any) -> KnownReadout:
        """The readout is part of the position."""
        return KnownReadout(jnp.asarray(likelihood.scale(z), c.readout.dtype) * c.readout)

    def hidden(self, key: Any, c: Weights) -> Any:
        """The hidden weights."""
        return c.hidden

    def from_weights(self, likelihood: Likelihood, y: jax.Array, weights: Weights, z: Any) -> Weights:
        """The readout divided by its unknown scale, if it has one."""
        scale = jnp.asarray(likelihood.scale(z), weights.readout.dtype)
        return Weights(weights.hidden, weights.readout / scale)
