"""Noise that depends on the inputs: its logarithm is a second readout of the same network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from widebnn.errors import WidebnnError, check_real
from widebnn.likelihoods.gaussian import ConditionallyGaussian
from widebnn.likelihoods.likelihood import Sizes
from widebnn.likelihoods.lognormal import LogNormal
from widebnn.noise import standard_normal


class NoiseLatent(NamedTuple):
    """What is not known about the noise, all N(0, I) a priori."""

    level: jax.Array
    """One number."""
    weights: jax.Array
    """v, one number for every feature."""


@dataclass(frozen=True)
class InputNoise(ConditionallyGaussian):
    """y ~ N(f(x), s(x)^2) where log s(x) = log(level) + log_sd Psi(x) v, v ~ N(0, I).

    Args:
        level: Prior of the noise where Psi(x) v is zero.
        log_sd: How much the logarithm of the noise varies, relative to the outputs of the network.

    Raises:
        WidebnnError: If ``log_sd`` is not positive.

    Examples:
        >>> InputNoise(LogNormal(0.1), log_sd=0.5).name
        'input_noise'
    """

    level: LogNormal = field(default_factory=lambda: LogNormal(0.1))
    log_sd: float = 1.0
    name = "input_noise"

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_sd", check_real("log_sd", self.log_sd, above=0))

    def noise_at(self, z: Any, psi: Any = None, new: bool = False, constant: float = 0.0) -> Any:
        """The noise of every row of features; ``constant`` is the value of their last column where psi lacks it."""
        if psi is None:
            raise WidebnnError("noise that depends on the inputs needs their features.")
        weights = z.weights.astype(jnp.float64)
        slope = psi.astype(jnp.float64) @ weights[: psi.shape[1]] + constant * weights[-1]
        return self.level.at(z.level) * jnp.exp(self.log_sd * slope)

    def sample_latent(self, key: jax.Array, sizes: Sizes) -> NoiseLatent:
        """The level, and one weight for every feature."""
        level_key, weights_key = jax.random.split(key)
        weights = standard_normal(weights_key, (sizes.features,), sizes.dtype)
        return NoiseLatent(standard_normal(level_key, (), sizes.dtype), weights)

    def latent_from(self, z: Any, psi: jax.Array, readout: jax.Array, sizes: Sizes) -> NoiseLatent:
        """Weights say nothing about the noise: its level is given and the same everywhere, or all of z is given."""
        if isinstance(z, NoiseLatent):
            return jax.tree.map(lambda leaf: jnp.asarray(leaf, sizes.dtype), z)
        return NoiseLatent(jnp.asarray(z, sizes.dtype), jnp.zeros(sizes.features, sizes.dtype))

    def latent_width(self, z: NoiseLatent, entries: int) -> NoiseLatent:
        """The level is known as well as noise that is the same everywhere; the weights as a priori."""
        return NoiseLatent(self.level.scale_given(entries), 1.0)  # type: ignore[arg-type]
