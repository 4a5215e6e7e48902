"""What a coordinate system is; as it stands, ``marginal``: the hidden weights, with the readout integrated out.

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
class Coordinates:
    """How hidden layers, and in some systems the readout, are written as numbers c ~ N(0, I).

    In this class c are the hidden weights of any network; other systems override what they write otherwise. ``y`` and
    ``z`` are the prepared targets and the latent of the likelihood.
    """

    network: Network
    x: jax.Array
    """Training inputs; equal ones may have been merged by the likelihood."""
    outputs: int
    name = "marginal"
    holds_readout = False
    """Whether c holds all readout weights, in some form."""

    @property
    def carries_inputs(self) -> bool:
        """Whether the chain carries the function at inputs beyond the data."""
        return False

    def sample(self, key: jax.Array) -> Any:
        """c ~ N(0, I)."""
        return self.network.sample_hidden(key, self.x.dtype)

    def features(self, c: Any) -> jax.Array:
        """Psi at the training inputs."""
        return self.at_new_inputs(None, c, self.x)

    def log_density(self, likelihood: Likelihood, y: jax.Array, c: Any, z: Any) -> jax.Array:
        """log d(posterior)/dN(0, I) up to a constant: here log p(y | Psi, z)."""
        return likelihood.log_evidence(self.features(c), y, z)

    def readout(self, likelihood: Likelihood, psi: jax.Array, y: jax.Array, c: Any, z: Any) -> Readout:
        """The distribution of the readout weights given the position and its features Psi."""
        return likelihood.condition(psi, y, z)

    def at_new_inputs(self, key: Any, c: Any, x_new: Any) -> jax.Array:
        """Psi at new inputs; whatever c leaves open is drawn exactly."""
        return self.network.features(self.hidden(key, c), jnp.asarray(x_new, self.x.dtype))

    def hidden(self, key: Any, c: Any) -> Any:
        """The hidden weights; whatever c leaves open is drawn exactly."""
        return c

    def from_weights(self, likelihood: Likelihood, y: jax.Array, weights: Weights, z: Any) -> Any:
        """The coordinates of given weights."""
        return weights.hidden
