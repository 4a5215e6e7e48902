"""Coordinates ``reparametrised`` (Hron et al. 2022): the readout theta becomes phi = Sigma^{-1/2} (theta - mu).

Given the hidden weights the posterior of the readout is N(mu, Sigma), so phi is N(0, I) under the posterior as under
the reference: the log-likelihood does not depend on phi at all, and equals log N(y; 0, K). Exactly, at every width.
"""

from __future__ import annotations

from typing import Any

import jax

from widebnn.coordinates.weights import WeightCoordinates
from widebnn.likelihoods.likelihood import Likelihood
from widebnn.likelihoods.readout import KnownReadout
from widebnn.networks.network import Weights


class ReparametrisedCoordinates(WeightCoordinates):
    """Hidden weights and whitened readout; c = Weights(hidden, phi)."""

    name = "reparametrised"

    def log_density(self, likelihood: Likelihood, y: jax.Array, c: Weights, z: Any) -> jax.Array:
        """log p(y | Psi, z)."""
        return likelihood.log_evidence(self.features(c), y, z)

    def readout(self, likelihood: Likelihood, psi: jax.Array, y: jax.Array, c: Weights, z: Any) -> KnownReadout:
        """theta = mu + Sigma^{1/2} phi."""
        theta = likelihood.condition(psi, y, z).unwhiten(c.readout)  # type: ignore[attr-defined]
        return KnownReadout(theta.astype(c.readout.dtype))

    def from_weights(self, likelihood: Likelihood, y: jax.Array, weights: Weights, z: Any) -> Weights:
        """phi of given readout weights."""
        phi = likelihood.condition(self.features(weights), y, z).whiten(weights.readout)  # type: ignore[attr-defined]
        return Weights(weights.hidden, phi.astype(weights.readout.dtype))
