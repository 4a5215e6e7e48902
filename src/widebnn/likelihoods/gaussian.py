"""Gaussian observations: the noise known, or one more coordinate of the chain (``LogNormal``)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from widebnn.errors import WidebnnError, check_numbers, check_real
from widebnn.likelihoods.likelihood import Likelihood, Sizes, Start
from widebnn.likelihoods.lognormal import LogNormal
from widebnn.likelihoods.readout import ConjugateReadout, condition, log_evidence
from widebnn.noise import standard_normal


class ConditionallyGaussian(Likelihood):
    """What likelihoods share that are Gaussian once the latent is known; they say what the noise is."""

    def targets(self, y: Any) -> Any:
        """Real numbers, n or n x outputs, as n x outputs."""
        y = y if isinstance(y, jax.core.Tracer) else check_numbers("y", y)
        if y.ndim == 1:
            y = y[:, None]
        if y.ndim != 2:
            raise WidebnnError(f"y must have shape (n,) or (n, outputs); got {y.shape}.")
        return y

    def log_likelihood(self, f: jax.Array, y: jax.Array, z: Any, psi: jax.Array) -> jax.Array:
        """log N(y; f, s^2) over all entries, summed in float64."""
        noise, residual = self.noise_at(z, psi), y.astype(jnp.float64) - f.astype(jnp.float64)
        if jnp.ndim(noise):
            residual, log_noise = residual / jnp.reshape(noise, (-1, 1)), y.shape[1] * jnp.sum(jnp.log(noise))
        else:
            residual, log_noise = residual / noise, y.size * jnp.log(noise)
        return -0.5 * jnp.sum(residual**2) - log_noise - 0.5 * y.size * math.log(2 * math.pi)

    def log_evidence(self, psi: jax.Array, y: jax.Array, z: Any, constant: float = 0.0) -> jax.Array:
        """log N(y; 0, Psi Psi' + s^2), the readout integrated out."""
        return log_evidence(psi, y, self.noise_at(z, psi, constant=constant), constant=constant)

    def condition(self, psi: jax.Array, y: jax.Array, z: Any) -> ConjugateReadout:
        """N(mu, Sigma), see ``widebnn.likelihoods.readout``."""
        return condition(psi, y, self.noise_at(z, psi))

    def log_left_out(self, psi: jax.Array, y: jax.Array, z: Any) -> jax.Array:
        """log p(y_i | all other rows, Psi, z) of every row, all outputs together, the readout integrated out."""
        errors, variance = self.condition(psi, y, z).leave_one_out()
        noise = self.noise_at(z, psi)
        if jnp.ndim(noise):  # both are in units of the noise of the row
            errors, variance = errors * noise[:, None], variance * noise**2
        return jnp.sum(jax.scipy.stats.norm.logpdf(errors, 0.0, jnp.sqrt(variance)[:, None]), axis=1)

    def observe(self, key: jax.Array, f: jax.Array, z: Any, psi: jax.Array) -> jax.Array:
        """f + s e, e ~ N(0, I)."""
        noise = jnp.reshape(self.noise_at(z, psi), (-1, 1)).astype(f.dtype)
        return f + noise * standard_normal(key, f.shape, f.dtype)

    def start(self, z: Any, entries: int) -> Start:
        """The median of the prior, held there: an optimiser that may lower the noise overfits."""
        return Start(jax.tree.map(jnp.zeros_like, z), True, self.latent_width(z, entries))

    def latent_width(self, z: Any, entries: int) -> Any:
        """About how wide the posterior of the latent is."""
        return jax.tree.map(lambda _: 1.0, z)


@dataclass(frozen=True)
class Gaussian(ConditionallyGaussian):
    """y ~ N(f, noise^2 I).

    Args:
        noise: Standard deviation of the observations; a ``LogNormal`` is the prior of noise that is not known and
            is sampled with the chain.

    Raises:
        WidebnnError: If the noise is not positive.

    Examples:
        >>> Gaussian(noise=LogNormal(0.1)).name
        'gaussian'
    """

    noise: float | LogNormal = 0.1
    name = "gaussian"

    def __post_init__(self) -> None:
        if not isinstance(self.noise, LogNormal):
            advice = "It is the standard deviation of the observations."
            object.__setattr__(self, "noise", check_real("noise", self.noise, above=0, advice=advice))

    def noise_at(self, z: Any, psi: Any = None, new: bool = False, constant: float = 0.0) -> Any:
        """The noise at the coordinate z."""
        return self.noise.at(z) if isinstance(self.noise, LogNormal) else self.noise

    def sample_latent(self, key: jax.Array, sizes: Sizes) -> Any:
        """One number if the noise is unknown."""
        return standard_normal(key, (), sizes.dtype) if isinstance(self.noise, LogNormal) else ()

    def latent_from(self, z: Any, psi: jax.Array, readout: jax.Array, sizes: Sizes) -> Any:
        """Weights say nothing about the noise: its coordinate is given."""
        return jnp.asarray(z, sizes.dtype) if isinstance(self.noise, LogNormal) else ()

    def latent_width(self, z: Any, entries: int) -> Any:
        """That of the noise given the residuals."""
        return self.noise.scale_given(entries) if isinstance(self.noise, LogNormal) else ()
