"""The one interface between posteriors and samplers: a density written against N(0, I)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from widebnn.networks.network import Network, Weights, apply
from widebnn.precision import double_precision


@dataclass(frozen=True)
class Target:
    """A distribution pi(u) du proportional to exp(log_likelihood(u)) N(u; 0, I) du.

    ``u`` is any pytree of arrays. This is all a sampler and the driver ask for, so any Gaussian-prior
    problem fits: whiten the prior, and pass the log-likelihood of the whitened variable.
    """

    log_likelihood: Callable[[Any], jax.Array]
    """log d(pi)/dN(0, I) at u, up to a constant."""
    sample_reference: Callable[[jax.Array], Any]
    """key -> u ~ N(0, I)."""


@dataclass(frozen=True)
class NetworkTarget(Target):
    """The posterior of a network in some coordinate system; built by :func:`widebnn.posterior`."""

    coordinates: str
    network: Network
    x: jax.Array
    y: jax.Array
    noise: float
    to_weights: Callable[[jax.Array, Any], Weights]
    """(key, u) -> all network weights; draws exactly whatever u leaves open."""
    from_weights: Callable[[Weights], Any]
    """The inverse: the coordinates of given network weights."""
    conditional_moments: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]]
    """(u, x) -> mean (inputs x outputs) and variance (inputs) of f(x) given u: averages over draws of u
    of these have no more Monte Carlo error than averages of f(x) itself."""

    def predict(self, key: jax.Array, u: Any, x: jax.Array) -> jax.Array:
        """A draw of the function values f(x) given u, jointly over inputs and without observation noise."""
        with double_precision():
            x = jnp.asarray(x, self.x.dtype)
            return apply(self.network, self.to_weights(key, u), x)

    @property
    def dimension(self) -> int:
        """Number of coordinates of u."""
        shapes = jax.eval_shape(self.sample_reference, jax.random.key(0))
        return sum(leaf.size for leaf in jax.tree.leaves(shapes))
