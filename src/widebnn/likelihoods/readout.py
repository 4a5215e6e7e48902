"""The conjugate Gaussian readout: everything that is known exactly once the features are.

With y = Psi theta + s e, theta and e standard normal, per output column:

    K     = Psi Psi' + s^2 I              (n x n)     evidence:  y ~ N(0, K)
    Sigma = (I + Psi' Psi / s^2)^-1       (p x p)     posterior: theta | y ~ N(mu, Sigma)
    mu    = Sigma Psi' y / s^2 = Psi' K^-1 y

Each quantity has a *dual* form that factors K and a *primal* form that factors I + Psi'Psi/s^2. They are equal; the
smaller matrix is used (``form="auto"``). The evidence, which a chain evaluates at every step, has its dual Gram product
in the dtype of Psi and everything after it in float64; the conditional, which is asked for once per draw, is in float64
throughout. Callers must be inside ``precision.double_precision()``. Where every row has its own noise, s is a vector:
Psi and y are divided by it row by row, and then s is 1.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from widebnn.linalg import (
    double_product,
    inverse_of_lower,
    lower_factor,
    lower_gram,
    lower_gram_of_columns,
    product,
    solve_lower,
)
from widebnn.noise import standard_normal


class Prediction(NamedTuple):
    """The function at new inputs given one position of the chain."""

    f: jax.Array
    """A draw of f(x), inputs x outputs, jointly over inputs and without observation noise; softmax: the logits."""
    mean: jax.Array
    """The mean of f(x) over the readout where the chain integrates it out, else f: an average of means has less Monte
    Carlo error than an average of draws."""
    variance: jax.Array
    """The variance that goes with the mean, one number per input; zero where the mean is f."""
    psi: jax.Array
    """The features at the inputs."""


class Readout(Protocol):
    """The distribution of the readout weights given everything else in a position."""

    def draw(self, key: jax.Array) -> jax.Array:
        """An exact draw, features x outputs, in float64."""

    def predict(self, key: jax.Array, psi_new: jax.Array) -> Prediction:
        """The function at new features."""


@dataclass(frozen=True, eq=False)
class KnownReadout:
    """Readout weights that are part of the position."""

    weights: jax.Array

    def draw(self, key: jax.Array) -> jax.Array:
        """The weights."""
        return self.weights

    def predict(self, key: jax.Array, psi_new: jax.Array) -> Prediction:
        """f = Psi* theta."""
        f = product(psi_new.astype(self.weights.dtype), self.weights).astype(psi_new.dtype)
        return Prediction(f, f, jnp.zeros(f.shape[0], f.dtype), psi_new)


def choose_form(n: int, p: int) -> str:
    """``dual`` (n x n) or ``primal`` (p x p), whichever matrix is smaller."""
    return "dual" if n <= p else "primal"


def _gram(psi: jax.Array, form: str) -> jax.Array:
    """Psi Psi' in the dtype of Psi, or Psi' Psi, as float64; only the lower triangle is meant to be read.

    With more rows than features there is little noise as a rule, and rounding of Psi' Psi in float32 would decide what
    a chain accepts; with fewer the product is most of a step.
    """
    return lower_gram(psi).astype(jnp.float64) if form == "dual" else lower_gram_of_columns(psi.astype(jnp.float64))


def _per_noise(rows: jax.Array, noise: Any) -> jax.Array:
    """Every row divided by its noise, in the dtype of the rows."""
    return rows * (1 / noise)[:, None].astype(rows.dtype)


@dataclass(frozen=True, eq=False)
class ConjugateReadout:
    """The posterior N(mu, Sigma) of the readout given the features; built by ``condition``."""

    psi: jax.Array
    """Features, every row divided by its own noise where rows differ."""
    y: jax.Array
    """Targets in float64, divided likewise."""
    noise: Any
    """One number; 1 where rows were divided."""
    form: str

    @functools.cached_property
    def _wide(self) -> jax.Array:
        return self.psi.astype(jnp.float64)

    @functools.cached_property
    def _factor(self) -> jax.Array:
        n, p = self.psi.shape
        gram = _gram(self._wide, self.form)
        return lower_factor(
            gram + self.noise**2 * jnp.eye(n) if self.form == "dual" else gram / self.noise**2 + jnp.eye(p)
        )

    def gain(self, r: jax.Array) -> jax.Array:
        """r -> Psi' K^-1 r = Sigma Psi' r / s^2, for r divided by the noise of its rows as y is."""
        if self.form == "dual":
            return self._wide.T @ solve_lower(self._factor, solve_lower(self._factor, r), transpose=True)
        return solve_lower(self._factor, solve_lower(self._factor, self._wide.T @ r / self.noise**2), transpose=True)

    @property
    def mean(self) -> jax.Array:
        """mu, features x outputs."""
        return self.gain(self.y)

    def variance(self, psi_new: jax.Array) -> jax.Array:
        """The diagonal of Psi* Sigma Psi*', the variance of the function at new features."""
        new = psi_new.astype(jnp.float64)
        if self.form == "primal":
            return jnp.sum(solve_lower(self._factor, new.T) ** 2, axis=0)
        explained = solve_lower(self._factor, self._wide @ new.T)
        return jnp.sum(new**2, axis=1) - jnp.sum(explained**2, axis=0)

    def leave_one_out(self) -> tuple[jax.Array, jax.Array]:
        """What the other rows say of each row: errors y_i - E[y_i | others], n x outputs, and Var[y_i | others], n.

        With K = Psi Psi' + s^2 I they are (K^-1 y)_i / (K^-1)_ii and 1 / (K^-1)_ii; divided by the noise, as y is.
        """
        s2 = self.noise**2
        if self.form == "dual":
            inverse = inverse_of_lower(self._factor)
            precision, weights = jnp.sum(inverse**2, axis=0), inverse.T @ (inverse @ self.y)
        else:
            precision = (1 - jnp.sum(solve_lower(self._factor, self._wide.T) ** 2, axis=0) / s2) / s2
            weights = (self.y - self._wide @ self.mean) / s2
        return weights / precision[:, None], 1 / precision

    def draw(self, key: jax.Array) -> jax.Array:
        """theta = z + Psi' K^-1 (y - Psi z - s e), z ~ N(0, I_p), e ~ N(0, I_n): exactly N(mu, Sigma), without a root.

        (Pathwise conditioning: Wilson et al. 2021.)
        """
        z_key, e_key = jax.random.split(key)
        z = standard_normal(z_key, (self.psi.shape[1], self.y.shape[1]), jnp.float64)
        e = standard_normal(e_key, self.y.shape, jnp.float64)
        return z + self.gain(self.y - self._wide @ z - self.noise * e)

    def predict(self, key: jax.Array, psi_new: jax.Array) -> Prediction:
        """A draw of the function at new features, its mean and variance."""
        new = psi_new.astype(jnp.float64)
        parts = new @ self.draw(key), new @ self.mean, self.variance(psi_new)
        f, mean, variance = (part.astype(self.psi.dtype) for part in parts)
        return Prediction(f, mean, variance, psi_new)

    @functools.cached_property
    def _spectrum(self) -> tuple[jax.Array, jax.Array]:
        """t = sqrt(s^2 + lam) for the eigenvalues lam of the Gram matrix, and what maps to its eigenbasis."""
        lam, vectors = jnp.linalg.eigh(_gram(self._wide, self.form), symmetrize_input=False)
        t = jnp.sqrt(self.noise**2 + jnp.maximum(lam, 0.0))
        return t[:, None], vectors.T @ self._wide if self.form == "dual" else vectors.T

    def unwhiten(self, phi: jax.Array) -> jax.Array:
        """theta = mu + Sigma^{1/2} phi, with the symmetric root.

        It is the same whichever form computes it. With Psi Psi' = U diag(lam) U', free of cancellation,

            Sigma^{1/2} = I - Psi' U diag(1 / (t (t + s))) U' Psi,     t = sqrt(s^2 + lam).
        """
        (t, turn), s, phi = self._spectrum, self.noise, phi.astype(jnp.float64)
        if self.form == "primal":
            return self.mean + turn.T @ (s / t * (turn @ phi))
        return self.mean + phi - turn.T @ (turn @ phi / (t * (t + s)))

    def whiten(self, theta: jax.Array) -> jax.Array:
        """phi = Sigma^{-1/2} (theta - mu);  Sigma^{-1/2} = I + Psi' U diag(1 / (s (t + s))) U' Psi."""
        (t, turn), s, centred = self._spectrum, self.noise, theta.astype(jnp.float64) - self.mean
        if self.form == "primal":
            return turn.T @ (t / s * (turn @ centred))
        return centred + turn.T @ (turn @ centred / (s * (t + s)))


def condition(psi: jax.Array, y: jax.Array, noise: float | jax.Array, form: str = "auto") -> ConjugateReadout:
    """Condition the readout on the data.

    Args:
        psi: Features Psi, n x p.
        y: Targets, n x outputs.
        noise: Standard deviation of the observations, one number or one for every row.
        form: ``dual``, ``primal`` or ``auto``, the smaller of the two.

    Returns:
        The posterior of the readout weights.
    """
    form = choose_form(*psi.shape) if form == "auto" else form
    y = y.astype(jnp.float64)
    if jnp.ndim(noise):
        return ConjugateReadout(_per_noise(psi, noise), _per_noise(y, noise), 1.0, form)
    return ConjugateReadout(psi, y, noise, form)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _log_evidence(psi: jax.Array, y: jax.Array, noise: jax.Array, form: str, constant: float) -> jax.Array:
    return _log_evidence_forward(psi, y, noise, form, constant)[0]


def _log_evidence_forward(
    psi: jax.Array, y: jax.Array, noise: jax.Array, form: str, constant: float
) -> tuple[jax.Array, Any]:
    """log N(y; 0, K) summed over outputs, and what its gradient needs."""
    (n, p), outputs, wide = psi.shape, y.shape[1], y.astype(jnp.float64)
    mu: Any = ()
    if form == "dual":
        factor = lower_factor(_gram(psi, form) + constant**2 + noise**2 * jnp.eye(n))
        white = solve_lower(factor, wide)
        half_log_det = jnp.sum(jnp.log(jnp.diagonal(factor)))
        quadratic = jnp.sum(white**2)
        weights = solve_lower(factor, white, transpose=True)
    else:
        factor = lower_factor(_gram(psi, form) / noise**2 + jnp.eye(p))
        mu = solve_lower(factor, solve_lower(factor, double_product(psi.T, wide) / noise**2), transpose=True)
        residual = wide - double_product(psi, mu)
        half_log_det = jnp.sum(jnp.log(jnp.diagonal(factor))) + n * jnp.log(noise)
        quadratic = jnp.sum(residual**2) / noise**2 + jnp.sum(mu**2)
        weights = residual / noise**2
    value = -outputs * half_log_det - 0.5 * quadratic - 0.5 * n * outputs * math.log(2 * math.pi)
    return value, (psi, y, noise, factor, weights, mu)


def _log_evidence_backward(form: str, constant: float, saved: Any, cotangent: jax.Array) -> tuple[jax.Array, ...]:
    """With a = K^-1 y:  dl/dPsi = (a a' - c K^-1) Psi,  dl/dy = -a,  dl/ds = s (|a|^2 - c tr K^-1)."""
    psi, y, noise, factor, a, mu = saved
    (n, p), outputs = psi.shape, y.shape[1]
    # In the dtype of Psi: an error of a gradient costs a little acceptance, never exactness.
    inverse_factor = inverse_of_lower(factor.astype(psi.dtype))
    inverse = product(inverse_factor.T, inverse_factor)
    if form == "dual":
        by_kernel = (a @ a.T - outputs * inverse).astype(psi.dtype)
        by_psi = product(by_kernel, psi)
        trace = jnp.trace(inverse)
    else:
        # K^-1 Psi = Psi Sigma / s^2 and Psi' a = mu, so no n x n matrix appears.
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

    Differentiable in the first three arguments; the gradient reuses the factorisation of the value.

    Args:
        psi: Features Psi, n x p.
        y: Targets, n x outputs.
        noise: s, one number or one for every row.
        form: ``dual``, ``primal`` or ``auto``, the smaller of the two.
        constant: The value of one more column of Psi, the same in all rows. The dual form adds its square to K, so
            that Psi need not be copied, nor moved where its columns are divided over devices.

    Returns:
        The log evidence; NaN where K is not positive definite.
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
