"""The prior of an unknown positive number, such as the noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from widebnn.errors import check_real


@dataclass(frozen=True)
class LogNormal:
    """A positive number whose logarithm is N(log(median), log_sd^2).

    With z ~ N(0, 1) it is median exp(log_sd z), so that z joins the other coordinates of a chain.

    Args:
        median: The median.
        log_sd: Standard deviation of the logarithm.

    Raises:
        WidebnnError: If one of them is not positive.

    Examples:
        >>> LogNormal(0.1, log_sd=1.0).median
        0.1
    """

    median: float
    log_sd: float = 1.0

    def __post_init__(self) -> None:
        for name in ("median", "log_sd"):
            object.__setattr__(self, name, check_real(name, getattr(self, name), above=0))

    def at(self, z: jax.Array) -> jax.Array:
        """The number at the coordinate z, which is N(0, 1) a priori; in float64."""
        return self.median * jnp.exp(self.log_sd * jnp.asarray(z).astype(jnp.float64))

    def scale_given(self, residuals: int) -> float:
        """Standard deviation of z given so many residuals: their log-density has the curvature 2 log_sd^2 each."""
        return 1 / math.sqrt(1 + 2 * residuals * self.log_sd**2)

    @property
    def root_mean_square(self) -> float:
        """Of the number: the standard deviation of an observation whose noise it is."""
        return self.median * math.exp(self.log_sd**2)
