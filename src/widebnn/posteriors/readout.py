"""The conjugate Gaussian readout: everything that is known exactly once the features are.

With y = Psi theta + s e, theta and e standard normal, per output column:

    K     = Psi Psi' + s^2 I              (n x n)     evidence:  y ~ N(0, K)
    Sigma = (I + Psi' Psi / s^2)^-1       (p x p)     posterior: theta | y ~ N(mu, Sigma)
    mu    = Sigma Psi' y / s^2 = Psi' K^-1 y

Each quantity has a *dual* form that factors K and a *primal* form that factors I + Psi'Psi/s^2. They are
equal; the smaller matrix is used (``form="auto"``). The evidence, which a chain evaluates at every step, has its Gram
products in the dtype of Psi and everything after them in float64; the conditional and its root, which are asked for
once per draw, are in float64 throughout. Callers must be inside ``precision.double_precision()``.

Where every row has a noise of its own, s is a vector: Psi and y are divided by it row by row, and then s is 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax.linalg import cholesky, triangular_solve

from widebnn.noise import standard_normal
from widebnn.posteriors.products import double_product, lower_gram, lower_gram_of_columns, product
from widebnn.posteriors.target import Prediction


def choose_form(n: int, p: int) -> str:
    """``dual`` (n x n) or ``primal`` (p x p), whichever matrix is smaller."""
    return "dual" if n <= p else "primal"


def _gram(psi: jax.Array, form: str) -> jax.Array:
    """Psi Psi' or Psi' Psi in the dtype of Psi, cast to float64; only its lower triangle is to be read."""
    return (lower_gram(psi) if form == "dual" else lower_gram_of_columns(psi)).astype(jnp.float64)


def _lower(matrix: jax.Array) -> jax.Array:
    """Cholesky factor; NaN where the matrix is not positive definite, which a sampler then rejects."""
    return cholesky(matrix, symmetrize_input=False)


def _solve_lower(factor: jax.Array, b: jax.Array, *, transpose: bool = False) -> jax.Array:
    return triangular_solve(factor, b, left_side=True, lower=True, transpose_a=transpose)


def _inverse_of_lower(factor: jax.Array) -> jax.Array:
    """The inverse of a lower triangular matrix, mostly by products: faster than one triangular solve."""
    n = factor.shape[0]
    if n <= 128:
        return _solve_lower(factor, jnp.eye(n))
    h = n // 2
    first, last = _inverse_of_lower(factor[:h, :h]), _inverse_of_lower(factor[h:, h:])
    below = -last @ (factor[h:, :h] @ first)
    return jnp.block([[first, jnp.zeros((h, n - h))], [below, last]])


def _per_noise(rows: jax.Array, noise: Any) -> jax.Array:
    """Every row divided by its noise, in the dtype of the rows."""
    return rows * (1 / noise)[:, None].astype(rows.dtype)


class Conditional(NamedTuple):
    """The posterior of the readout given the features."""

    gain: Callable[[jax.Array], jax.Array]
    """r -> Psi' K^-1 r = Sigma Psi' r / s^2; applied to y it is the posterior mean mu."""
    variance: Callable[[jax.Array], jax.Array]
    """Psi* -> the diagonal of Psi* Sigma Psi*', the variance of the function at new features."""
    draw: Callable[[jax.Array], jax.Array]
    """key -> an exact draw of the readout, p x outputs."""
    predict: Callable[[jax.Array, jax.Array], Prediction]
    """(key, Psi*) -> a draw of the function at new features, its mean and variance."""


def condition(psi: jax.Array, y: jax.Array, noise: float | jax.Array, form: str = "auto") -> Conditional:
    """Condition the readout on the data.

    Draws use pathwise conditioning: theta = z + Psi' K^-1 (y - Psi z - s e) with z ~ N(0, I_p) and
    e ~ N(0, I_n) is exactly N(mu, Sigma), and no square root of Sigma is needed.
    """
    if jnp.ndim(noise):
        given = condition(_per_noise(psi, noise), _per_noise(y.astype(jnp.float64), noise), 1.0, form)
        return given._replace(gain=lambda r: given.gain(_per_noise(r, noise)))
    n, p = psi.shape
    form = choose_form(n, p) if form == "auto" else form
    y = y.astype(jnp.float64)
    wide = psi.astype(jnp.float64)
    gram = _gram(wide, form)
    if form == "dual":
        factor = _lower(gram + noise**2 * jnp.eye(n))

        def gain(r):
            return wide.T @ _solve_lower(factor, _solve_lower(factor, r), transpose=True)

        def variance(psi_new):
            new = psi_new.astype(jnp.float64)
            explained = _solve_lower(factor, wide @ new.T)
            return jnp.sum(new**2, axis=1) - jnp.sum(explained**2, axis=0)
    else:
        factor = _lower(gram / noise**2 + jnp.eye(p))

        def gain(r):
            return _solve_lower(factor, _solve_lower(factor, wide.T @ r / noise**2), transpose=True)

        def variance(psi_new):
            return jnp.sum(_solve_lower(factor, psi_new.astype(jnp.float64).T) ** 2, axis=0)

    def draw(key):
        z_key, e_key = jax.random.split(key)
        z = standard_normal(z_key, (p, y.shape[1]), jnp.float64)
        e = standard_normal(e_key, y.shape, jnp.float64)
        return z + gain(y - wide @ z - noise * e)

    def predict(key, psi_new):
        new = psi_new.astype(jnp.float64)
        parts = new @ draw(key), new @ gain(y), variance(psi_new)
        return Prediction(*(part.astype(psi.dtype) for part in parts))

    return Conditional(gain, variance, draw, predict)


class SquareRoot(NamedTuple):
    """The symmetric square root of Sigma and its inverse, as functions of a p x outputs array."""

    multiply: Callable[[jax.Array], jax.Array]
    divide: Callable[[jax.Array], jax.Array]


def square_root(psi: jax.Array, noise: float | jax.Array, form: str = "auto") -> SquareRoot:
    """Sigma^{1/2} and Sigma^{-1/2} from the eigenvectors of the smaller Gram matrix.

    The symmetric root (rather than a Cholesky factor) makes the coordinates the same whichever form
    computes them. With Psi Psi' = U diag(lam) U', in a form free of cancellation:

        Sigma^{1/2}  = I - Psi' U diag(1 / (t (t + s))) U' Psi,     t = sqrt(s^2 + lam)
        Sigma^{-1/2} = I + Psi' U diag(1 / (s (t + s))) U' Psi
    """
    if jnp.ndim(noise):
        psi, noise = _per_noise(psi, noise), 1.0
    n, p = psi.shape
    form = choose_form(n, p) if form == "auto" else form
    wide = psi.astype(jnp.float64)
    gram = _gram(wide, form)
    lam, vectors = jnp.linalg.eigh(gram, symmetrize_input=False)
    t = jnp.sqrt(noise**2 + jnp.maximum(lam, 0.0))
    if form == "dual":
        rotated = vectors.T @ wide

        def multiply(z):
            return z - rotated.T @ ((1.0 / (t * (t + noise)))[:, None] * (rotated @ z))

        def divide(z):
            return z + rotated.T @ ((1.0 / (noise * (t + noise)))[:, None] * (rotated @ z))
    else:

        def multiply(z):
            return vectors @ ((noise / t)[:, None] * (vectors.T @ z))

        def divide(z):
            return vectors @ ((t / noise)[:, None] * (vectors.T @ z))

    return SquareRoot(multiply, divide)


def _evidence(psi, y, noise, form, constant):
    """log N(y; 0, K) summed over outputs, and what its gradient needs."""
    n, p = psi.shape
    outputs = y.shape[1]
    y = y.astype(jnp.float64)
    if form == "dual":
        factor = _lower(_gram(psi, form) + constant**2 + noise**2 * jnp.eye(n))
        white = _solve_lower(factor, y)
        half_log_det = jnp.sum(jnp.log(jnp.diagonal(factor)))
        quadratic = jnp.sum(white**2)
        weights = _solve_lower(factor, white, transpose=True)
    else:
        factor = _lower(_gram(psi, form) / noise**2 + jnp.eye(p))
        mu = _solve_lower(factor, _solve_lower(factor, double_product(psi.T, y) / noise**2), transpose=True)
        residual = y - double_product(psi, mu)
        half_log_det = jnp.sum(jnp.log(jnp.diagonal(factor))) + n * jnp.log(noise)
        quadratic = jnp.sum(residual**2) / noise**2 + jnp.sum(mu**2)
        weights = residual / noise**2
    value = -outputs * half_log_det - 0.5 * quadratic - 0.5 * n * outputs * math.log(2 * math.pi)
    return value, (factor, weights)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _log_evidence(psi, y, noise, form, constant):
    return _evidence(psi, y, noise, form, constant)[0]


def _log_evidence_forward(psi, y, noise, form, constant):
    value, (factor, weights) = _evidence(psi, y, noise, form, constant)
    return value, (psi, y, noise, factor, weights)


def _log_evidence_backward(form, constant, saved, cotangent):
    """With a = K^-1 y:  dl/dPsi = (a a' - c K^-1) Psi,  dl/dy = -a,  dl/ds = s (|a|^2 - c tr K^-1)."""
    psi, y, noise, factor, a = saved
    n, p = psi.shape
    outputs = y.shape[1]
    # In the dtype of Psi: an error of a gradient costs a little acceptance, never exactness.
    inverse_factor = _inverse_of_lower(factor).astype(psi.dtype)
    inverse = product(inverse_factor.T, inverse_factor)
    if form == "dual":
        by_kernel = (a @ a.T - outputs * inverse).astype(psi.dtype)
        by_psi = product(by_kernel, psi)
        trace = jnp.trace(inverse)
    else:
        # K^-1 Psi = Psi Sigma / s^2 and Psi' a = mu, so no n x n matrix appears.
        mu = double_product(psi.T, a)
        whitened = product(psi, inverse)
        by_psi = (a @ mu.T - (outputs / noise**2) * whitened).astype(psi.dtype)
        trace = (n - p + jnp.trace(inverse)) / noise**2
    by_noise = noise * (jnp.sum(a**2) - outputs * trace)
    scale = cotangent.astype(psi.dtype)
    return scale * by_psi, (-cotangent * a).astype(y.dtype), (cotangent * by_noise).astype(noise.dtype)


_log_evidence.defvjp(_log_evidence_forward, _log_evidence_backward)


def log_evidence(
    psi: jax.Array, y: jax.Array, noise: float | jax.Array, form: str = "auto", constant: float = 0.0
) -> jax.Array:
    """log N(y; 0, Psi Psi' + s^2 I), summed over the columns of y, in float64.

    Differentiable in all three arguments; the gradient reuses the factorisation of the value. ``constant`` stands for
    one more column of Psi, all of whose entries it is: the dual form adds its square to K, and Psi need not be copied,
    nor, where its columns are divided over devices, moved.
    """
    n, p = psi.shape
    form = choose_form(n, p + (constant != 0)) if form == "auto" else form
    noise = jnp.asarray(noise, jnp.float64)
    if constant != 0 and (form == "primal" or noise.ndim):
        psi, constant = jnp.concatenate([psi, jnp.full((n, 1), constant, psi.dtype)], axis=1), 0.0
    if noise.ndim:
        y, outputs = y.astype(jnp.float64), y.shape[1]
        scaled = _log_evidence(_per_noise(psi, noise), _per_noise(y, noise), jnp.ones(()), form, constant)
        return scaled - outputs * jnp.sum(jnp.log(noise))
    return _log_evidence(psi, y, noise, form, constant)
