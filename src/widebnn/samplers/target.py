"""The one interface between posteriors and samplers: a density written against N(0, I)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True, eq=False)
class Target:
    """A distribution pi(u) du proportional to exp(log_likelihood(u)) N(u; 0, I) du.

    This is all that samplers and ``widebnn.sample`` ask for, so any Gaussian-prior problem fits: whiten the prior,
    and pass the log-likelihood of the whitened variable (``widebnn.gaussian_target`` does both).

    Args:
        log_likelihood: log d(pi)/dN(0, I) at u up to a constant, a scalar; u is any pytree of arrays.
        sample_reference: key -> u ~ N(0, I).

    Examples:
        >>> Target(lambda u: -jnp.sum((u - 1) ** 2), lambda key: jax.random.normal(key, (3,)))  # doctest: +SKIP
    """

    log_likelihood: Callable[[Any], jax.Array]
    sample_reference: Callable[[jax.Array], Any]
