"""Any problem with a Gaussian prior as a ``Target``: the prior N(m, C) is whitened, x = m + L u with L L' = C."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widebnn.errors import WidebnnError, check_numbers
from widebnn.samplers.target import Target
from widebnn.samplers.tree import inner


@dataclass(frozen=True, eq=False)
class GaussianTarget(Target):
    """A Gaussian-prior posterior in whitened coordinates; built by ``widebnn.gaussian_target``."""

    unwhiten: Callable[[Any], Any]
    """u -> x = mean + L u, the variable as the user knows it."""

    def collect(self, key: jax.Array, u: Any) -> dict[str, jax.Array]:
        """Keep x instead of u: ``sample(target, collect=target.collect)``; a single array is called ``x``."""
        x = self.unwhiten(u)
        leaves = jax.tree_util.tree_leaves_with_path(x)
        return {jax.tree_util.keystr(path, simple=True, separator="_") or "x": leaf for path, leaf in leaves}


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
    means, structure = jax.tree.flatten(mean)
    means = [_check_mean(leaf) for leaf in means]
    name, given = ("covariance", covariance) if scale is None else ("scale", scale)
    scales = [
        _check_scale(_factor(leaf) if scale is None else leaf, centre)
        for leaf, centre in zip(_broadcast(name, given, mean), means, strict=True)
    ]

    def unwhiten(u: Any) -> Any:
        leaves = zip(means, scales, jax.tree.leaves(u), strict=True)
        return jax.tree.unflatten(structure, [(m + _apply(s, leaf)).astype(leaf.dtype) for m, s, leaf in leaves])

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


def _broadcast(name: str, given: Any, mean: Any) -> list[Any]:
    """One entry of ``given`` for each array of ``mean``."""
    try:
        return jax.tree.leaves(jax.tree.broadcast(given, mean))
    except ValueError:
        raise WidebnnError(
            f"{name} must be one for all of mean, or have the structure {jax.tree.structure(mean)} of mean; "
            f"got {jax.tree.structure(given)}. Lists are trees of numbers: use arrays."
        ) from None


def _check_mean(mean: Any) -> np.ndarray:
    """A NumPy array in the dtype that u will have: constants become JAX arrays where sample() allows float64."""
    dtype = getattr(mean, "dtype", np.float64)
    return check_numbers("mean", mean).astype(dtype if jnp.issubdtype(dtype, jnp.floating) else np.float64)


def _factor(covariance: Any) -> np.ndarray:
    """The Cholesky factor of a covariance matrix."""
    covariance = check_numbers("covariance", covariance)
    if covariance.ndim != 2 or covariance.shape[0] != covariance.shape[1]:
        raise WidebnnError(
            f"covariance must be a square matrix, got shape {covariance.shape}; standard deviations are scale."
        )
    if not np.allclose(covariance, covariance.T, rtol=1e-6, atol=1e-12):
        raise WidebnnError("covariance must be symmetric; got a matrix that is not. For L with L L' = C use scale.")
    try:
        return np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        least = np.linalg.eigvalsh(covariance)[0]
        raise WidebnnError(
            f"covariance must be positive definite, its least eigenvalue is {least:.2g}; add a little to the diagonal."
        ) from None


def _check_scale(scale: Any, mean: np.ndarray) -> Any:
    if callable(scale):
        found = jax.eval_shape(scale, jax.ShapeDtypeStruct(mean.shape, mean.dtype))
        if getattr(found, "shape", None) != mean.shape:
            raise WidebnnError(f"scale must keep the shape {mean.shape} of mean; it returns {found}.")
        return scale
    scale = check_numbers("scale", scale)
    if scale.ndim == 2 and mean.ndim == 1:
        if scale.shape != (mean.size, mean.size):
            raise WidebnnError(f"scale must be a {mean.size} x {mean.size} matrix like mean, got shape {scale.shape}.")
        return scale
    try:
        fits = np.broadcast_shapes(scale.shape, mean.shape) == mean.shape
    except ValueError:
        fits = False
    if not fits:
        raise WidebnnError(
            f"scale must broadcast to the shape {mean.shape} of mean (or be a matrix where mean is a vector); "
            f"got shape {scale.shape}."
        )
    if np.any(scale <= 0):
        raise WidebnnError(f"scale must be positive, it holds standard deviations; got {scale.min():g}.")
    return scale
