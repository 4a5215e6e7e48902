"""What a posterior asks of a likelihood. One likelihood is one file beside this one.

A likelihood is the distribution of the observations y given the function values f = Psi theta, where theta ~ N(0, I)
are the readout weights. What it does not know, such as the noise, is a *latent* z, N(0, I) a priori like all other
coordinates, which the chain moves along. Where the readout can be integrated out given z, ``log_evidence`` does so;
where it cannot, it is part of z.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax

from widebnn.likelihoods.readout import Readout


class Sizes(NamedTuple):
    """What the shape of the latent may depend on."""

    rows: int
    """Rows of the prepared data."""
    features: int
    """Columns of Psi."""
    outputs: int
    dtype: Any
    holds_readout: bool
    """Whether the coordinates already hold all readout weights."""
    carries_inputs: bool
    """Whether the chain carries the function at inputs beyond the data."""


class Start(NamedTuple):
    """Of a latent, for an optimiser that looks for the bulk of the posterior, and for chains from there."""

    latent: Any
    is_held: bool
    """Whether the optimiser must leave it there."""
    width: Any
    """About how wide its posterior is; a priori it is 1."""


class Likelihood(Protocol):
    """The distribution of observations given the function; methods that return something need not be overridden."""

    name: str

    def targets(self, y: Any) -> Any:
        """Check y and return it as an array, rows x outputs."""

    def prepare(self, x: Any, y: Any) -> tuple[Any, Any]:
        """The rows that the posterior is computed from; equal ones may be merged."""
        return x, y

    def sample_latent(self, key: jax.Array, sizes: Sizes) -> Any:
        """z ~ N(0, I), a pytree; ``()`` where nothing is unknown."""

    def latent_from(self, z: Any, psi: jax.Array, readout: jax.Array, sizes: Sizes) -> Any:
        """The latent of given readout weights; ``z`` is the coordinate of an unknown scale, 0 for its median."""

    def log_likelihood(self, f: jax.Array, y: jax.Array, z: Any, psi: jax.Array) -> jax.Array:
        """log p(y | f, z) in float64, for explicit readout weights that ``scale`` has not yet multiplied."""

    def log_evidence(self, psi: jax.Array, y: jax.Array, z: Any, constant: float = 0.0) -> jax.Array:
        """log p(y | Psi, z) in float64; ``constant`` is the value of one more column of Psi."""

    def condition(self, psi: jax.Array, y: jax.Array, z: Any) -> Readout:
        """The distribution of the readout weights given Psi, y and z."""

    def scale(self, z: Any) -> Any:
        """What explicit readout weights are multiplied with."""
        return 1.0

    def observe(self, key: jax.Array, f: jax.Array, z: Any, psi: jax.Array) -> jax.Array:
        """New observations at function values f and features Psi."""

    def noise_at(self, z: Any, psi: Any = None, new: bool = False, constant: float = 0.0) -> Any:
        """Standard deviation of the observations at features Psi, one number or one for every row.

        ``new``: of new rows, not of the data; ``constant``: value of one more column of Psi.
        """
        return 0.0

    def start(self, z: Any, entries: int) -> Start:
        """Where to start from a prior draw z, given so many numbers as data."""
        return Start(z, False, jax.tree.map(lambda _: 1.0, z))

    def settle(self, key: jax.Array, f: jax.Array, y: jax.Array, z: Any) -> Any:
        """The latent after the optimiser has found a function f, and left the latent at z."""
        return z
