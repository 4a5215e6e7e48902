"""One pCN step by the published recipe: weight space, Hron et al.'s reparametrisation, float64 throughout.

The yardstick of ``steps.py``, written from the equations and independent of widebnn's samplers and
posteriors. It keeps what makes the recipe expensive - all weights are coordinates, the (d+1) x (d+1)
matrix Sigma^-1 is formed and factored in every step - and leaves out the faults of the published code
(docs/mathematics.md, section 3): the acceptance ratio has its prior and its determinant. It is also spared
what a careful implementation need not pay: the log-density of the current position is cached.

The position phi is ``(hidden, readout)``: hidden is a sequence of ``(weights, biases)``, one pair per
hidden layer, and readout the (d+1) x c matrix phi_out. The readout weights of the network are

    theta_out = mu + L^-T phi_out,     L L' = Sigma^-1 = I + Psi' Psi / s^2,     mu = Sigma Psi' y / s^2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jax.scipy.stats import norm


class Setting(NamedTuple):
    """The data (float64) and the constants of the model; the defaults are the paper's."""

    x: jax.Array
    y: jax.Array
    noise: float = 0.1
    weight_std: float = math.sqrt(2.0)
    bias_std: float = 0.1
    readout_weight_std: float = 1.0
    readout_bias_std: float = 0.1


class State(NamedTuple):
    """Position, its log-density against N(0, I), and how many steps were accepted so far."""

    phi: Any
    log_density: jax.Array
    accepted: jax.Array


class Recipe(NamedTuple):
    """Of one problem: l(phi), the log posterior density minus log N(phi; 0, I) up to a constant, and the chain."""

    log_density: Callable[[Any], jax.Array]
    init: Callable[[Any], State]
    step: Callable[[jax.Array, State], State]


def sample_prior(key: jax.Array, input_dim: int, widths: Iterable[int], outputs: int) -> Any:
    """phi ~ N(0, I), in float64."""
    hidden = []
    for width in widths:
        key, w_key, b_key = jax.random.split(key, 3)
        w = jax.random.normal(w_key, (input_dim, width), jnp.float64)
        hidden.append((w, jax.random.normal(b_key, (width,), jnp.float64)))
        input_dim = width
    return tuple(hidden), jax.random.normal(key, (input_dim + 1, outputs), jnp.float64)


def features(setting: Setting, hidden: Iterable[tuple[jax.Array, jax.Array]]) -> jax.Array:
    """Psi, n x (d+1): the scaled activations of the last layer and the constant of the readout bias."""
    h = setting.x
    for w, b in hidden:
        h = setting.weight_std / math.sqrt(h.shape[1]) * (h @ w) + setting.bias_std * b
        h = jax.nn.gelu(h, approximate=False)
    h = setting.readout_weight_std / math.sqrt(h.shape[1]) * h
    return jnp.hstack([h, jnp.full((h.shape[0], 1), setting.readout_bias_std)])


def pcn_recipe(setting: Setting, step_size: float) -> Recipe:
    """pCN on phi:  phi* = sqrt(1 - b^2) phi + b w,  accepted with probability min(1, exp(l(phi*) - l(phi)))."""
    b = step_size
    a = math.sqrt(1 - b * b)

    def log_density(phi):
        hidden, phi_out = phi
        psi = features(setting, hidden)
        precision = jnp.eye(psi.shape[1]) + psi.T @ psi / setting.noise**2
        chol = jnp.linalg.cholesky(precision)
        white = solve_triangular(chol, psi.T @ setting.y / setting.noise**2, lower=True)
        theta_out = solve_triangular(chol, white, trans="T", lower=True)
        theta_out = theta_out + solve_triangular(chol, phi_out, trans="T", lower=True)
        log_likelihood = jnp.sum(norm.logpdf(setting.y, psi @ theta_out, setting.noise))
        log_det = -phi_out.shape[1] * jnp.sum(jnp.log(jnp.diagonal(chol)))
        # The hidden weights are the same in both coordinate systems: their prior is their reference.
        return log_likelihood + jnp.sum(norm.logpdf(theta_out)) + log_det - jnp.sum(norm.logpdf(phi_out))

    def init(phi):
        return State(phi, log_density(phi), jnp.zeros((), jnp.int64))

    def step(key, state):
        noise_key, accept_key = jax.random.split(key)
        keys = iter(jax.random.split(noise_key, len(jax.tree.leaves(state.phi))))
        proposal = jax.tree.map(lambda u: a * u + b * jax.random.normal(next(keys), u.shape, u.dtype), state.phi)
        proposed = log_density(proposal)
        accept = jnp.log(jax.random.uniform(accept_key)) < proposed - state.log_density
        phi = jax.tree.map(lambda new, old: jnp.where(accept, new, old), proposal, state.phi)
        return State(phi, jnp.where(accept, proposed, state.log_density), state.accepted + accept)

    return Recipe(log_density, init, step)


def disagreement(
    log_density: Callable[[Any], jax.Array], reference: Callable[[Any], jax.Array], positions: Iterable[Any]
) -> float:
    """The spread of the difference of two log-densities; zero, up to rounding, means that they accept alike."""
    difference = jax.jit(lambda phi: log_density(phi) - reference(phi))
    values = [float(difference(phi)) for phi in positions]
    return max(values) - min(values)
