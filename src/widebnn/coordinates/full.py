"""Coordinates ``full``: the paper's whole chain, hidden and readout weights, at the cost of function coordinates.

One hidden layer, reparametrised readout. The likelihood sees A = V' W only; everything else in the paper's chain is
N(0, I) under the posterior too, and samplers see it through its norm alone. So beside A and what carried inputs need,
the position holds the whitened readout, a fixed set of linear functionals of the rest of W, for projections of all
weights, and what is left in three numbers (lumped.py): the chain on all weights in distribution, decisions included.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widebnn.coordinates.function import FunctionCoordinates
from widebnn.coordinates.lumped import Lumped
from widebnn.coordinates.reparametrised import ReparametrisedCoordinates
from widebnn.errors import WidebnnError
from widebnn.likelihoods.likelihood import Likelihood
from widebnn.networks.network import Weights
from widebnn.noise import standard_normal
from widebnn.precision import double_precision

TRACKED = 100
"""Number of fixed random directions of all weights that the chain follows."""


class FullPosition(NamedTuple):
    """Coordinates, all N(0, I) a priori; only ``layers`` enters the likelihood."""

    layers: tuple[jax.Array, ...]
    carried: tuple[jax.Array, ...]
    readout: jax.Array
    """The whitened readout, features x outputs."""
    tracked: jax.Array
    """Linear functionals of the remaining hidden weights."""
    ignored: Lumped
    """The remaining hidden weights."""


class FullCoordinates(FunctionCoordinates):
    """All weights of a network with one hidden layer, in distribution."""

    name = "full"
    holds_readout = True
    readout = ReparametrisedCoordinates.readout  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.network.widths) != 1:
            raise WidebnnError(
                "coordinates='full' are exact for one hidden layer: a deeper layer's coordinates depend on the layer "
                "before, so no fixed set of them can be left out. Use coordinates='function' or 'reparametrised'."
            )
        explicit = self.space.basis if self.carried is None else np.hstack([self.space.basis, self.carried.basis])
        count = (explicit.shape[0] - explicit.shape[1]) * self.network.widths[0]
        if count < TRACKED + 3:
            raise WidebnnError(
                f"coordinates='full' leave only {count} coordinates of the hidden weights out: nothing to gain. "
                "Use coordinates='reparametrised', which moves all weights."
            )
        object.__setattr__(self, "_ignored", count - TRACKED)
        object.__setattr__(self, "_directions", self._random_directions(explicit))

    def _random_directions(self, explicit: np.ndarray) -> list[jax.Array]:
        """Random directions a b' of the hidden and c d' of the readout coordinates.

        With U a basis of everything the position holds explicitly, a = U U'a + a_perp, and the hidden part of a
        projection is (U'a)' (U'W) b + a_perp' W b. The last terms are jointly Gaussian with covariance
        <a_perp_i, a_perp_j> <b_i, b_j> = (C C')_ij, so they are C t with t ~ N(0, I): the tracked numbers.
        """
        rng = np.random.default_rng(0)
        a, b = rng.normal(size=(TRACKED, len(explicit))), rng.normal(size=(TRACKED, self.network.widths[0]))
        c, d = rng.normal(size=(TRACKED, self.network.feature_dim)), rng.normal(size=(TRACKED, self.outputs))
        along = a @ explicit
        across = a - along @ explicit.T
        mix = np.linalg.cholesky((across @ across.T) * (b @ b.T))
        length = np.sqrt(np.sum(a**2, 1) * np.sum(b**2, 1) + np.sum(c**2, 1) * np.sum(d**2, 1))
        with double_precision(), jax.ensure_compile_time_eval():
            return [jnp.asarray(part, self.x.dtype) for part in (along, b, c, d, mix, length)]

    def sample(self, key: jax.Array) -> FullPosition:  # type: ignore[override]
        """All coordinates from N(0, I)."""
        function_key, readout_key, tracked_key, ignored_key = jax.random.split(key, 4)
        part = super().sample(function_key)
        (readout,) = self.space.normals(readout_key, [(self.network.feature_dim, self.outputs)])
        tracked = standard_normal(tracked_key, (TRACKED,), self.x.dtype)
        return FullPosition(*part, readout, tracked, Lumped.sample(ignored_key, self._ignored))  # type: ignore[attr-defined]

    def from_weights(self, likelihood: Likelihood, y: jax.Array, weights: Weights, z: Any) -> Any:
        """Not possible."""
        raise WidebnnError("weights do not determine what is lumped together; use coordinates='function'.")

    def project(self, c: FullPosition) -> jax.Array:
        """Projections of all weights on ``TRACKED`` random directions of unit length."""
        along, b, left, right, mix, length = self._directions  # type: ignore[attr-defined]
        first = jnp.concatenate([c.layers[0], *c.carried])
        hidden = jnp.sum(jnp.matmul(along, first, precision="highest") * b, axis=1) + mix @ c.tracked
        return (hidden + jnp.sum(jnp.matmul(left, c.readout, precision="highest") * right, axis=1)) / length
