"""Coordinate systems: the same posterior over functions, written in different numbers that are N(0, I) a priori."""

from __future__ import annotations

from typing import Any, Protocol

import jax

from widebnn.coordinates.full import FullCoordinates
from widebnn.coordinates.function import FunctionCoordinates, FunctionPosition
from widebnn.coordinates.marginal import MarginalCoordinates
from widebnn.coordinates.reparametrised import ReparametrisedCoordinates
from widebnn.coordinates.weights import WeightCoordinates
from widebnn.likelihoods.likelihood import Likelihood
from widebnn.likelihoods.readout import Readout
from widebnn.networks.network import Network, Weights

__all__ = ["COORDINATES", "Coordinates", "FunctionPosition"]


class Coordinates(Protocol):
    """How hidden layers, and in some systems the readout, are written as numbers c ~ N(0, I).

    ``y`` and ``z`` are the prepared targets and the latent of the likelihood.
    """

    name: str

    @property
    def network(self) -> Network:
        """The network."""

    @property
    def x(self) -> jax.Array:
        """Training inputs; equal ones may have been merged by the likelihood."""

    holds_readout: bool
    """Whether c holds all readout weights, in some form."""

    @property
    def carries_inputs(self) -> bool:
        """Whether the chain carries the function at inputs beyond the data."""

    def sample(self, key: jax.Array) -> Any:
        """c ~ N(0, I)."""

    def features(self, c: Any) -> jax.Array:
        """Psi at the training inputs."""

    def log_density(self, likelihood: Likelihood, y: jax.Array, c: Any, z: Any) -> jax.Array:
        """log d(posterior)/dN(0, I) up to a constant."""

    def readout(self, likelihood: Likelihood, psi: jax.Array, y: jax.Array, c: Any, z: Any) -> Readout:
        """The distribution of the readout weights given the position and its features Psi."""

    def at_new_inputs(self, key: jax.Array, c: Any, x_new: Any) -> jax.Array:
        """Psi at new inputs; whatever c leaves open is drawn exactly."""

    def hidden(self, key: jax.Array, c: Any) -> Any:
        """The hidden weights; whatever c leaves open is drawn exactly."""

    def from_weights(self, likelihood: Likelihood, y: jax.Array, weights: Weights, z: Any) -> Any:
        """The coordinates of given weights."""


COORDINATES: dict[str, type] = {
    "weights": WeightCoordinates,
    "reparametrised": ReparametrisedCoordinates,
    "marginal": MarginalCoordinates,
    "function": FunctionCoordinates,
    "full": FullCoordinates,
}
