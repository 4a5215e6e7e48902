"""The one interface between posteriors and samplers: a density written against N(0, I)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widebnn.errors import WidebnnError, check_numbers
from widebnn.samplers.tree import inner, named_leaves


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


@dataclass(frozen=True, eq=False)
class GaussianTarget(Target):
    """A Gaussian-prior posterior in whitened coordinates; built by ``widebnn.gaussian_target``."""

    unwhiten: Callable[[Any], Any]
    """u -> x = mean + L u, the variable as the user knows it."""

    def collect(self, key: jax.Array, u: Any) -> dict[str, jax.Array]:
        """Keep x instead of u: ``sample(target, collect=target.collect)``; a single array is called ``x``."""
        return named_leaves(self.unwhiten(u), "x")


def gaussian_target(
    log_likelihood: Callable[[Any], jax.Array],
    mean: Any,
    scale: Any = None,
    *,
    covariance: Any = None,
    includes_prior: bool = False,
) -> GaussianTarget:
    """The distribution proportional to exp(log_likelihood(x)) N(x; mean, C), for every sampler of this package.

    Args:
        log_likelihood: A function of x.
        mean: An array or a pytree of arrays, such as a dictionary of latent variables; gives x its shape and dtype
            (NumPy arrays are float64 as a rule, JAX arrays float32).
        scale: The prior's scale, one for all or one for each array of ``mean``: standard deviations that broadcast to
            its shape; or a square matrix L where it is a vector, C = L L'; or a linear function u -> L u.
        covariance: Instead of ``scale``: the matrix C, for each vector.
        includes_prior: ``log_likelihood`` is the log-density of the posterior, likelihood and prior together, as
            BlackJAX and NumPyro have it. The prior is then divided out; L must be invertible, and need not be the
            prior's: any Gaussian near the distribution will do.

    Returns:
        A ``Target`` whose ``unwhiten(u)`` is x.

    Raises:
        WidebnnError: If the prior is not given once, or does not have the shape of ``mean``.

    Examples:
        >>> target = gaussian_target(lambda x: -jnp.sum((x - 1) ** 2), mean=np.zeros(3), scale=2.0)
    """
    if (scale is None) == (covariance is None):
        raise WidebnnError(
            "give the prior's scale (standard deviations, or L with L L' = C) or its covariance, one of them."
        )
    leaves, structure = jax.tree.flatten(mean)
    means = [_floating(leaf) for leaf in leaves]
    try:
        given = jax.tree.leaves(jax.tree.broadcast(covariance if scale is None else scale, mean))
    except ValueError:
        raise WidebnnError(
            f"the prior must be one for all of mean, or have its structure {structure}. Lists are trees: use arrays."
        ) from None
    given = given if covariance is None else [_cholesky(leaf) for leaf in given]
    scales = [leaf if callable(leaf) else _check_scale(leaf, m) for leaf, m in zip(given, means, strict=True)]

    def unwhiten(u: Any) -> Any:
        parts = zip(means, scales, jax.tree.leaves(u), strict=True)
        return jax.tree.unflatten(structure, [(m + _apply(s, leaf)).astype(leaf.dtype) for m, s, leaf in parts])

    def whitened(u: Any) -> jax.Array:
        value = log_likelihood(unwhiten(u))
        return value + 0.5 * inner(u, u) if includes_prior else value

    def sample_reference(key: jax.Array) -> Any:
        keys = jax.random.split(key, len(means))
        dtypes = [jax.dtypes.canonicalize_dtype(m.dtype) for m in means]
        draws = [jax.random.normal(k, m.shape, dtype) for k, m, dtype in zip(keys, means, dtypes, strict=True)]
        return jax.tree.unflatten(structure, draws)

    return GaussianTarget(whitened, sample_reference, unwhiten)


def _apply(scale: Any, u: jax.Array) -> jax.Array:
    """L u for one array."""
    if callable(scale):
        return scale(u)
    scale = jnp.asarray(scale, u.dtype)
    return jnp.matmul(scale, u, precision="highest") if scale.ndim > u.ndim else scale * u


def _floating(mean: Any) -> np.ndarray:
    """A NumPy array in the dtype that u will have: constants become JAX arrays where sample() allows float64."""
    dtype = getattr(mean, "dtype", np.float64)
    return check_numbers("mean", mean).astype(dtype if jnp.issubdtype(dtype, jnp.floating) else np.float64)


def _cholesky(covariance: Any) -> np.ndarray:
    covariance = check_numbers("covariance", covariance)
    with contextlib.suppress(ValueError, np.linalg.LinAlgError):
        if np.allclose(covariance, covariance.T, rtol=1e-6, atol=1e-12):
            return np.linalg.cholesky(covariance)
    raise WidebnnError(
        f"covariance must be a symmetric positive definite matrix, got shape {covariance.shape}; add a little to its "
        "diagonal, or give standard deviations or a matrix L as scale."
    )


def _check_scale(scale: Any, mean: np.ndarray) -> np.ndarray:
    scale = check_numbers("scale", scale)
    if mean.ndim == 1 and scale.shape == (mean.size, mean.size):
        return scale
    with contextlib.suppress(ValueError):
        if np.all(np.broadcast_to(scale, mean.shape) > 0):
            return scale
    raise WidebnnError(
        f"scale must be positive and broadcast to the shape {mean.shape} of mean, or be a square matrix if mean is a "
        f"vector; got {np.array2string(scale, threshold=5)} of shape {scale.shape}."
    )
