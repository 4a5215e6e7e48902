"""The one interface between posteriors and samplers: a density written against N(0, I)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

from widebnn.lumped import is_lumped
from widebnn.networks.network import Network, Weights


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
    unit_axes: Callable[[Any], Any] | None = field(default=None, kw_only=True)
    """u -> for every array of u the axis that counts hidden units, -1 for none: what several devices can divide."""


class Prediction(NamedTuple):
    """The function at new inputs given one position of the chain."""

    f: jax.Array
    """A draw of f(x), inputs x outputs, jointly over inputs and without observation noise; softmax: the logits."""
    mean: jax.Array
    """The mean of f(x) over the readout, if the chain leaves it open (else f, as for softmax): an average of means has
    less Monte Carlo error than an average of draws."""
    variance: jax.Array
    """The variance that goes with the mean, one number per input; zero where the mean is f."""


@dataclass(frozen=True)
class NetworkTarget(Target):
    """The posterior of a network in some coordinate system; built by :func:`widebnn.posterior`."""

    coordinates: str
    network: Network
    x: jax.Array
    y: jax.Array
    """n x outputs; softmax: one-hot, n x classes."""
    noise: float
    """Standard deviation of the observations, the prior's median where it is unknown; softmax: 0."""
    to_weights: Callable[[jax.Array, Any], Weights]
    """(key, u) -> all network weights; draws exactly whatever u leaves open."""
    from_weights: Callable[[Weights], Any]
    """The inverse: the coordinates of given network weights."""
    predict: Callable[..., Prediction]
    """(key, u, x) -> the function at inputs x; draws exactly whatever u leaves open."""
    dtype: str = "float32"
    """``float32``, ``float64`` or ``mixed``."""
    in_double: Callable[[], NetworkTarget] | None = None
    """The same target, with the same numbers as data, in float64 throughout."""
    carry: Any = None
    """Inputs whose function values the chain carries: ``predict(key, u)`` is the function there."""
    projections: Callable[[Any], jax.Array] | None = None
    """u -> projections of all network weights on fixed random directions, where the chain follows them."""
    likelihood: str = "gaussian"
    """``gaussian`` or ``softmax``."""
    unknown_at: Callable[[Any], jax.Array] | None = None
    """u -> the scale that is sampled with the chain (unknown.py): the noise, or softmax: the scale of the logits."""

    row_noise: Any = None
    """The prior of the noise (a LogNormal), where every row has a noise of its own."""

    def noise_at(self, u: Any) -> Any:
        """The standard deviation of the observations at a position of the chain, one number or one for every row."""
        return self.noise if self.unknown_at is None or self.likelihood == "softmax" else self.unknown_at(u)

    def new_noise_at(self, u: Any) -> Any:
        """The standard deviation of new observations at a position of the chain, one number."""
        return self.noise_at(u) if self.row_noise is None else self.row_noise.root_mean_square

    @property
    def dimension(self) -> int:
        """Number of coordinates of u."""
        shapes = jax.eval_shape(self.sample_reference, jax.random.key(0))
        leaves = jax.tree.leaves(shapes, is_leaf=is_lumped)
        return sum(leaf.dimension if is_lumped(leaf) else leaf.size for leaf in leaves)
