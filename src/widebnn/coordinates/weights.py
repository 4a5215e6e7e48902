"""Coordinates ``weights``: u = all network weights, l = the log-likelihood of the data. The baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from widebnn.likelihoods.likelihood import Likelihood
from widebnn.likelihoods.readout import KnownReadout
from widebnn.networks.network import Network, Weights, apply
from widebnn.noise import standard_normal


@dataclass(frozen=True, eq=False)
class WeightCoordinates:
    """All weights of any network, N(0, I) a priori."""

    network: Network
    x: jax.Array
    outputs: int
    name = "weights"
    holds_readout = True
    carries_inputs = False

    def sample(self, key: jax.Array) -> Weights:
        """All weights from their N(0, 1) prior."""
        hidden_key, readout_key = jax.random.split(key)
        hidden = self.network.sample_hidden(hidden_key, self.x.dtype)
        features = jax.eval_shape(self.network.features, hidden, self.x).shape[1]
        return Weights(hidden, standard_normal(readout_key, (features, self.outputs), self.x.dtype))

    def features(self, c: Weights) -> jax.Array:
        """Psi at the training inputs."""
        return self.network.features(c.hidden, self.x)

    def log_density(self, likelihood: Likelihood, y: jax.Array, c: Weights, z: Any) -> jax.Array:
        """log p(y | f, z)."""
        return likelihood.log_likelihood(apply(self.network, c, self.x), y, z)

    def readout(self, likelihood: Likelihood, psi: jax.Array, y: jax.Array, c: Weights, z: Any) -> KnownReadout:
        """The readout is part of the position."""
        return KnownReadout(jnp.asarray(likelihood.scale(z), c.readout.dtype) * c.readout)

    def at_new_inputs(self, key: jax.Array, c: Weights, x_new: Any) -> jax.Array:
        """Psi at new inputs."""
        return self.network.features(c.hidden, jnp.asarray(x_new, self.x.dtype))

    def hidden(self, key: jax.Array, c: Weights) -> Any:
        """The hidden weights."""
        return c.hidden

    def from_weights(self, likelihood: Likelihood, y: jax.Array, weights: Weights, z: Any) -> Weights:
        """The inverse of all that."""
        scale = jnp.asarray(likelihood.scale(z), weights.readout.dtype)
        return Weights(weights.hidden, weights.readout / scale)
