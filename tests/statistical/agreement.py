"""One posterior over functions, reached in every coordinate system: long chains, compared with each other.

The chains share nothing but the data. Means of statistics of the function at new inputs (values, squares, products) are
compared by z-scores, whose errors come from effective sample sizes; and with importance sampling from the prior, which
has no Markov chain at all.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from harness import compiled
from scipy.stats import norm

import widebnn
from problems import COORDINATES, NOISE, small_target
from widebnn.diagnostics import ess

X_TEST = np.random.default_rng(11).normal(size=(4, 3))
RUNS = {
    "weights": ("hmc", {"step_size": 0.05, "num_steps": 16}),  # small: so is the noise at times, where it is unknown
    "reparametrised": ("pcnl", {"step_size": 0.6}),
    "marginal": ("pcn", {"step_size": 0.5}),
    "function": ("auto", {}),
}
UNKNOWN_NOISE = widebnn.LogNormal(NOISE, log_sd=0.5)


class Moments(NamedTuple):
    """Means over a posterior, their standard errors, and the effective sample size of the worst."""

    mean: np.ndarray
    error: np.ndarray
    ess: float


def statistics(f: jax.Array) -> jax.Array:
    """Values at the new inputs, squares, products of neighbouring inputs and of outputs."""
    parts = [f, f**2, f * jnp.roll(f, 1, axis=0), f * jnp.roll(f, 1, axis=1)]
    return jnp.concatenate([part.ravel() for part in parts])


def chain_moments(
    target: Any, sampler: str, options: dict[str, Any], collect: Callable, *, steps: int, thin: int = 5, seed: int = 1
) -> Moments:
    """Of the numbers that ``collect(key, u)`` returns, by two chains."""
    values = widebnn.sample(
        target, sampler, steps=steps, burn_in=500, thin=thin, chains=2, seed=seed, progress=False, **options,
        collect=lambda key, u: {"values": collect(key, u)},
    ).draws["values"]  # fmt: skip
    size = ess(values, "mean")
    return Moments(values.mean(axis=(0, 1)), values.std(axis=(0, 1)) / np.sqrt(size), float(size.min()))


def regression_moments(coordinates: str, unknown_noise: bool, steps: int) -> Moments:
    """Of the function, and of the noise if it is not known."""
    target = regression_target(coordinates, unknown_noise)

    def collect(key, u):
        values = statistics(target.predict(key, u, X_TEST).f)
        return jnp.append(values, jnp.stack([u.z, u.z**2])) if unknown_noise else values

    sampler, options = RUNS[coordinates]
    seed = 10 * unknown_noise + list(COORDINATES).index(coordinates)
    return chain_moments(target, sampler, options, collect, steps=steps, seed=seed)


def regression_target(coordinates: str, unknown_noise: bool) -> Any:
    return small_target(coordinates, noise=UNKNOWN_NOISE if unknown_noise else NOISE)


def label_moments(coordinates: str, steps: int) -> Moments:
    """Class probabilities at new inputs, and their products."""
    rng = np.random.default_rng(0)
    x, y, x_new = rng.normal(size=(6, 2)), np.array([0, 1, 2, 1, 0, 1]), rng.normal(size=(3, 2))
    network = widebnn.dense(2, [8], readout_weight_std=3.0)
    target = widebnn.posterior(network, x, y, likelihood="softmax", coordinates=coordinates, dtype="float64")
    sampler, thin = {"weights": ("hilbert_hmc", 3), "function": ("pcn", 5)}[coordinates]

    def collect(key, u):
        p = jax.nn.softmax(target.predict(key, u, x_new).f)
        return jnp.concatenate([p, p[:, :1] * p, p[:1] * p]).ravel()

    seed = 20 + list(COORDINATES).index(coordinates)
    return chain_moments(target, sampler, {}, collect, steps=steps * thin, thin=thin, seed=seed)


def importance_moments(unknown_noise: bool, draws: int) -> Moments:
    """The same means by weighting draws of the prior with their likelihood."""
    target = regression_target("marginal", unknown_noise)

    def weighted(key):
        u_key, f_key = jax.random.split(key)
        u = target.sample_reference(u_key)
        values = statistics(target.predict(f_key, u, X_TEST).f)
        values = jnp.append(values, jnp.stack([u.z, u.z**2])) if unknown_noise else values
        return target.log_likelihood(u), values

    keys = jax.random.split(jax.random.key(0), draws)
    log_weights, values = compiled(lambda k: jax.lax.map(weighted, k, batch_size=5000))(keys)
    weights = np.exp(np.asarray(log_weights) - np.max(log_weights))
    weights /= weights.sum()
    values = np.asarray(values)
    mean = weights @ values
    return Moments(mean, np.sqrt(weights**2 @ (values - mean) ** 2), float(1 / np.sum(weights**2)))


def p_values(first: Moments, second: Moments) -> np.ndarray:
    """That both estimate the same means; a mean or an error that is not finite has p-value 0."""
    z = (first.mean - second.mean) / np.hypot(first.error, second.error)
    return np.where(np.isfinite(z), 2 * norm.sf(np.abs(z)), 0.0)


def pairs(moments: dict[str, Moments]) -> dict[str, np.ndarray]:
    """All of them against each other."""
    return {f"{a}, {b}": p_values(moments[a], moments[b]) for a, b in itertools.combinations(moments, 2)}
