"""A noise for every row, so that errors have heavy tails (a log-normal mixture of normals).

An outlier is a row whose noise the chain finds to be large, and does not bend the function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from numpy.polynomial.hermite_e import hermegauss

from widebnn.likelihoods.gaussian import ConditionallyGaussian
from widebnn.likelihoods.likelihood import Sizes, Start
from widebnn.likelihoods.lognormal import LogNormal
from widebnn.noise import standard_normal

GRID = (-5.0, 5.0, 401)
"""Coordinates on which the noise of a row is drawn given its residual, for the start of a chain."""
NODES = 15
"""Of the quadrature over the noise of a row."""


@dataclass(frozen=True)
class HeavyTails(ConditionallyGaussian):
    """y_i ~ N(f_i, s_i^2), where log s_i ~ N(log(median), log_sd^2), independently for every row.

    Args:
        median: Median of the noise.
        log_sd: Standard deviation of its logarithm from row to row.

    Raises:
        WidebnnError: If one of them is not positive.

    Examples:
        >>> HeavyTails(0.1, log_sd=0.8).name
        'heavy_tails'
    """

    median: float = 0.1
    log_sd: float = 1.0
    name = "heavy_tails"

    def __post_init__(self) -> None:
        for name in ("median", "log_sd"):
            object.__setattr__(self, name, getattr(self.prior, name))

    @property
    def prior(self) -> LogNormal:
        """Of the noise of a row."""
        return LogNormal(self.median, self.log_sd)

    def noise_at(self, z: Any, psi: Any = None, new: bool = False, constant: float = 0.0) -> Any:
        """The noise of every row; that of a new row is not known, so its root mean square."""
        return self.prior.root_mean_square if new else self.prior.at(z)

    def log_left_out(self, psi: jax.Array, y: jax.Array, z: Any) -> jax.Array:
        """log p(y_i | all other rows, Psi, the noise of the others): the noise of row i is integrated out, too."""
        noise = self.noise_at(z)
        errors, variance = self.condition(psi, y, z).leave_one_out()  # both in units of the noise of the row
        of_function = (variance - 1) * noise**2
        nodes, weights = hermegauss(NODES)
        std = jnp.sqrt(of_function[:, None] + self.prior.at(jnp.asarray(nodes)) ** 2)[..., None]
        logs = jax.scipy.stats.norm.logpdf((errors * noise[:, None])[:, None], 0.0, std).sum(axis=2)
        return jax.scipy.special.logsumexp(logs, axis=1, b=weights / weights.sum())

    def sample_latent(self, key: jax.Array, sizes: Sizes) -> jax.Array:
        """One number for every row."""
        return standard_normal(key, (sizes.rows,), sizes.dtype)

    def latent_from(self, z: Any, psi: jax.Array, readout: jax.Array, sizes: Sizes) -> jax.Array:
        """Weights say nothing about the noise: its coordinates are given, one for all rows or one for each."""
        return jnp.broadcast_to(jnp.asarray(z, sizes.dtype), (sizes.rows,))

    def observe(self, key: jax.Array, f: jax.Array, z: Any, psi: jax.Array) -> jax.Array:
        """f_i + s_i e_i with a fresh noise s_i from the prior: new rows are not those of the data."""
        noise = self.prior.at(standard_normal(jax.random.fold_in(key, 1), (len(f), 1), jnp.float64))
        return f + noise.astype(f.dtype) * standard_normal(key, f.shape, f.dtype)

    def start(self, z: jax.Array, entries: int) -> Start:
        """The same noise for all rows, with the mean square of the prior, held there.

        From a prior draw it is quicker to call most rows outliers than to find a function that explains them, and the
        chain would start from there.
        """
        return Start(jnp.full_like(z, self.log_sd), True, 1.0)

    def settle(self, key: jax.Array, f: jax.Array, y: jax.Array, z: jax.Array) -> jax.Array:
        """A draw of the noise of every row given its residual, on a grid."""
        squares = jnp.sum((y.astype(jnp.float64) - f) ** 2, axis=1)
        grid = jnp.linspace(*GRID)
        noise = self.prior.at(grid)
        logs = -(grid**2) / 2 - f.shape[1] * jnp.log(noise) - squares[:, None] / (2 * noise**2)
        return grid[jax.random.categorical(key, logs, axis=1)].astype(z.dtype)
