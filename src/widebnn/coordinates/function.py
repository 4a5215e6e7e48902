"""Coordinates ``function``: the network at the inputs, instead of its weights; the default for dense networks.

The same posterior over functions in a fraction of the coordinates, exactly (function_space.py). The chain can carry the
function at inputs known in advance, too (``carry``), so that predictions there move with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widebnn.coordinates.function_space import Extension, FunctionSpace, row_space
from widebnn.coordinates.marginal import Coordinates
from widebnn.likelihoods.likelihood import Likelihood
from widebnn.networks.dense import DenseNetwork
from widebnn.networks.network import Weights
from widebnn.precision import double_precision


class FunctionPosition(NamedTuple):
    """Coordinates, all N(0, I) a priori; only ``layers`` enters the likelihood."""

    layers: tuple[jax.Array, ...]
    """(A_1, ..., A_L), hidden units along the columns."""
    carried: tuple[jax.Array, ...] = ()
    """What the carried inputs add to each layer, hidden units along the columns."""


class CarriedInputs(NamedTuple):
    """Inputs whose function values the chain carries along."""

    extension: Extension
    shapes: tuple[tuple[int, int], ...]
    basis: np.ndarray
    """Q: the directions of R^(m+1) that they add to the training inputs."""


def carry_inputs(space: FunctionSpace, x_carry: Any) -> CarriedInputs:
    """Prepare inputs known in advance; ones that depend linearly on others add no coordinates to the first layer."""
    network, dtype = space.network, space.x.dtype
    with double_precision(), jax.ensure_compile_time_eval():
        new = np.asarray(network.hidden_inputs(jnp.asarray(x_carry, jnp.float64)))
        along = new @ space.basis
        across = new - along @ space.basis.T
        root, basis = row_space(across, np.linalg.norm(new, axis=1).max())
        extension = Extension(jnp.asarray(along, dtype), jnp.asarray(root, dtype))
    rows = [root.shape[1]] + [len(new)] * (len(network.widths) - 1)
    return CarriedInputs(extension, tuple(zip(rows, network.widths, strict=True)), basis)


@dataclass(frozen=True, eq=False)
class FunctionCoordinates(Coordinates):
    """Function values of a dense network at the training inputs, and at inputs that are carried."""

    network: DenseNetwork
    carry: Any = None
    space: FunctionSpace = field(init=False)
    carried: CarriedInputs | None = field(init=False)
    name = "function"

    def __post_init__(self) -> None:
        object.__setattr__(self, "space", FunctionSpace(self.network, self.x))
        carried = None if self.carry is None else carry_inputs(self.space, self.carry)
        object.__setattr__(self, "carried", carried)

    @property
    def carries_inputs(self) -> bool:
        """Whether the chain carries the function at inputs beyond the data."""
        return self.carry is not None

    def sample(self, key: jax.Array) -> FunctionPosition:
        """All coordinates from N(0, I)."""
        layers_key, carried_key = jax.random.split(key)
        u = FunctionPosition(self.space.normals(layers_key, self.space.shapes))
        if self.carried is not None:
            u = u._replace(carried=self.space.normals(carried_key, self.carried.shapes))
        return u

    def features(self, c: Any) -> jax.Array:
        """Psi at the training inputs."""
        return self.space.psi(c.layers)

    def log_density(self, likelihood: Likelihood, y: jax.Array, c: Any, z: Any) -> jax.Array:
        """log p(y | Psi, z); the constant column of Psi stays a number."""
        scaled = self.network.scaled_readout(self.space.last_layer(c.layers))
        return likelihood.log_evidence(scaled, y, z, constant=self.network.readout_bias_std)

    def at_new_inputs(self, key: Any, c: Any, x_new: Any = None) -> jax.Array:
        """Psi at new inputs from its exact conditional, or at those that are carried."""
        if x_new is None:
            assert self.carried is not None
            return self.space.at_new_inputs(c.layers, self.carried.extension, c.carried)
        free = self.space.normals(key, [(len(x_new), width) for width in self.network.widths])
        return self.space.at_new_inputs(c.layers, self.space.extend(x_new), free)

    def hidden(self, key: Any, c: Any) -> Any:
        """Hidden weights from their exact conditional."""
        return self.space.hidden_weights(key, c.layers)

    def from_weights(self, likelihood: Likelihood, y: jax.Array, weights: Weights, z: Any) -> FunctionPosition:
        """The coordinates of given hidden weights."""
        return FunctionPosition(self.space.from_hidden(weights.hidden))
