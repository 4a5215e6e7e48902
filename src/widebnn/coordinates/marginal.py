"""Coordinates ``marginal``: the readout integrated out, u = the hidden weights, l = log p(y | Psi).

The readout is not part of the chain: whenever weights or predictions are wanted it is drawn exactly, and
independently each time, from its conditional distribution (the marginal-conditional decomposition of Theorem 3.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from widebnn.likelihoods.likelihood import Likelihood
from widebnn.likelihoods.readout import Readout
from widebnn.networks.network import Network, Weights


@dataclass(frozen=True, eq=False)
class MarginalCoordinates:
    """Hidden weights of any network, N(0, I) a priori."""

    network: Network
    x: jax.Array
    outputs: int
    name = "marginal"
    holds_readout = False
    carries_inputs = False

    def sample(self, key: jax.Array) -> Any:
        """Hidden weights from their N(0, I) prior."""
        return self.network.sample_hidden(key, self.x.dtype)

    def features(self, c: Any) -> jax.Array:
        """Psi at the training inputs."""
        return self.at_new_inputs(None, c, self.x)

    def log_density(self, likelihood: Likelihood, y: jax.Array, c: Any, z: Any) -> jax.Array:
        """log p(y | Psi, z)."""
        return likelihood.log_evidence(self.features(c), y, z)

    def readout(self, likelihood: Likelihood, psi: jax.Array, y: jax.Array, c: Any, z: Any) -> Readout:
        """The conditional distribution of the readout."""
        return likelihood.condition(psi, y, z)

    def at_new_inputs(self, key: jax.Array | None, c: Any, x_new: Any) -> jax.Array:
        """Psi at new inputs."""
        return self.network.features(self.hidden(key, c), jnp.asarray(x_new, self.x.dtype))

    def hidden(self, key: jax.Array | None, c: Any) -> Any:
        """The hidden weights."""
        return c

    def from_weights(self, likelihood: Likelihood, y: jax.Array, weights: Weights, z: Any) -> Any:
        """The hidden weights."""
        return weights.hidden
