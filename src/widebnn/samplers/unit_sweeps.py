"""Sweeps over the hidden units of a network with one hidden layer: each moves given all the others.

In function space the features are Psi = [psi(a_1), ..., psi(a_d), constant], one column per hidden unit, and the units
are independent N(0, I) a priori. A pCN proposal a' for one unit changes the kernel by two rank-one terms,

    K' = K + U D U',   U = [psi(a), psi(a')],   D = diag(-1, 1),

so that with G = U'K^-1 U, b = U'K^-1 y and C = (I + D G)^-1 D the log acceptance ratio of y ~ N(0, K) is

    -(outputs / 2) log det(I + D G) + trace(b' C b) / 2:

two by two matrices. A unit of many has little influence, so large moves are accepted, where moving all units at once
allows small ones only. A block of units shares the products with K^-1: decisions are made one after the other on its
small matrices, then K^-1 is updated once. A sweep costs about as much as one gradient of the log-likelihood and
replaces most of the network. K^-1 is computed afresh at its beginning, from the smaller of the two Gram matrices:

    dual:    K^-1 itself;     primal, if n is larger:  K^-1 v = (v - Psi S^-1 Psi' v) / s^2,   S = s^2 I + Psi'Psi.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from widebnn.errors import WidebnnError
from widebnn.posteriors.target import NetworkTarget
from widebnn.precision import double_precision
from widebnn.samplers.algorithm import Info, SamplingAlgorithm, State, step_size_in

SMALLEST = 0.05
"""The smallest step size of a unit, as a part of the largest."""
BLOCK = 32
"""Units that share the products with K^-1."""


class _Dual(NamedTuple):
    """K^-1 y and K^-1."""

    alpha: jax.Array
    inverse: jax.Array

    def solve(self, u: jax.Array, noise: Any) -> jax.Array:
        return self.inverse @ u

    def update(self, old, new, first, accepted, solved, core, noise) -> _Dual:
        """``core`` is (I + D G)^-1 D of the block, with D zero for units that stay."""
        b = jnp.concatenate([old, new], axis=1).T @ self.alpha
        return _Dual(self.alpha - solved @ (core @ b), self.inverse - solved @ (core @ solved.T))


class _Primal(NamedTuple):
    """K^-1 y, Psi and S^-1."""

    alpha: jax.Array
    psi: jax.Array
    inverse: jax.Array

    def solve(self, u: jax.Array, noise: Any) -> jax.Array:
        return (u - self.psi @ (self.inverse @ (self.psi.T @ u))) / noise**2

    def update(self, old, new, first, accepted, solved, core, noise) -> _Primal:
        """Psi' = Psi + Delta E': S' = S + W [[Delta'Delta, I], [I, 0]] W', W = [E, Psi'Delta]."""
        b = jnp.concatenate([old, new], axis=1).T @ self.alpha
        units = len(accepted)
        delta = (new - old) * accepted
        crossed = self.psi.T @ delta
        columns = jax.lax.dynamic_slice_in_dim(self.inverse, first, units, axis=1)
        solved_w = jnp.concatenate([columns, self.inverse @ crossed], axis=1)
        rows = jax.lax.dynamic_slice_in_dim(solved_w, first, units, axis=0)
        inner = jnp.concatenate([rows, crossed.T @ solved_w])
        eye, zero = jnp.eye(units), jnp.zeros((units, units))
        inner = inner + jnp.block([[zero, eye], [eye, -delta.T @ delta]])
        inverse = self.inverse - solved_w @ jnp.linalg.solve(inner, solved_w.T)
        before = jax.lax.dynamic_slice_in_dim(self.psi, first, units, axis=1)
        psi = jax.lax.dynamic_update_slice_in_dim(self.psi, before + delta, first, axis=1)
        return _Primal(self.alpha - solved @ (core @ b), psi, inverse)


def unit_sweeps(target: NetworkTarget, step_size: float) -> SamplingAlgorithm:
    """pCN for one hidden unit after the other, ``step_size`` as for pCN; a step is a sweep over all units.

    For targets in reduced function coordinates of dense networks with one hidden layer, Gaussian likelihood and known
    noise. ``acceptance_rate`` is the mean over units, and a step counts as accepted if any unit moved.
    """
    if target.columns is None:
        raise WidebnnError(
            "sweeps over units need coordinates='function' of a dense network with one hidden layer, the Gaussian "
            "likelihood, known noise and nothing carried; use sampler='auto' for this target."
        )
    size = step_size_in(step_size, at_most=1.0, advice="1 proposes a new unit from the prior.")
    columns_of, noise, bias = target.columns, target.noise, target.network.readout_bias_std  # type: ignore[attr-defined]
    n, outputs = target.y.shape

    def init(position):
        return State(position, target.log_likelihood(position))

    def prepare(psi):
        """The inverse at the beginning of a sweep."""
        y = target.y.astype(jnp.float64)
        if n <= psi.shape[1]:
            factor = jnp.linalg.cholesky(psi @ psi.T + noise**2 * jnp.eye(n))
            inverse = _symmetric_inverse(factor)
            return _Dual(inverse @ y, inverse)
        factor = jnp.linalg.cholesky(psi.T @ psi + noise**2 * jnp.eye(psi.shape[1]))
        inverse = _symmetric_inverse(factor)
        return _Primal((y - psi @ (inverse @ (psi.T @ y))) / noise**2, psi, inverse)

    def step(key, state):
        with double_precision():
            return sweep(key, state)

    def sweep(key, state):
        a = state.position.layers[0]
        rows, width = a.shape
        units = min(BLOCK, width)
        blocks = math.ceil(width / units)
        psi = columns_of(a).astype(jnp.float64)
        # Units that only fill the last block have no feature and stay what they are.
        padding = blocks * units - width
        psi = jnp.concatenate([psi, jnp.zeros((n, padding)), jnp.full((n, 1), bias)], axis=1)
        padded = jnp.concatenate([a, jnp.zeros((rows, padding), a.dtype)], axis=1)

        def block(carry, i):
            a, solver, log_likelihood = carry
            first = i * units
            noise_key, accept_key, size_key = jax.random.split(jax.random.fold_in(key, i), 3)
            is_unit = first + jnp.arange(units) < width
            here = jax.lax.dynamic_slice_in_dim(a, first, units, axis=1)
            fresh = jax.random.normal(noise_key, here.shape, a.dtype)
            # Most units may be drawn anew; the few that matter a lot move in small steps.
            beta = size * jnp.exp(
                math.log(SMALLEST) * jnp.maximum(0.0, jax.random.uniform(size_key, (units,), minval=-1))
            )
            there = (jnp.sqrt(1 - beta**2) * here + beta * fresh).astype(a.dtype)
            old, new = (columns_of(part).astype(jnp.float64) * is_unit for part in (here, there))
            both = jnp.concatenate([old, new], axis=1)
            solved = solver.solve(both, noise)
            gram, b = both.T @ solved, both.T @ solver.alpha
            uniforms = jax.random.uniform(accept_key, (units,))

            def decide(j, carry):
                gram, b, accepted, rates, log_likelihood = carry
                pair = jnp.stack([j, units + j])
                g, b_j = gram[pair], b[pair]
                moved = jnp.eye(2) + jnp.array([[-1.0], [1.0]]) * g[:, pair]
                determinant = moved[0, 0] * moved[1, 1] - moved[0, 1] * moved[1, 0]
                core = jnp.array([[-moved[1, 1], -moved[0, 1]], [moved[1, 0], moved[0, 0]]]) / determinant
                log_ratio = 0.5 * (jnp.sum(b_j * (core @ b_j)) - outputs * jnp.log(determinant))
                log_ratio = jnp.where(jnp.isnan(log_ratio), -jnp.inf, log_ratio)
                accept = (jnp.log(uniforms[j]) < log_ratio) & is_unit[j]
                weight = jnp.where(accept, 1.0, 0.0)
                gram = gram - weight * g.T @ (core @ g)
                b = b - weight * g.T @ (core @ b_j)
                rate = jnp.where(is_unit[j], jnp.exp(jnp.minimum(log_ratio, 0.0)), 0.0)
                log_likelihood = log_likelihood + jnp.where(accept, log_ratio, 0.0)
                return gram, b, accepted.at[j].set(weight), rates + rate, log_likelihood

            start = (gram, b, jnp.zeros(units), jnp.zeros(()), log_likelihood)
            _, _, accepted, rates, log_likelihood = jax.lax.fori_loop(0, units, decide, start)
            signs = jnp.concatenate([-accepted, accepted])
            core = jnp.linalg.solve(jnp.eye(2 * units) + signs[:, None] * gram, jnp.diag(signs))
            solver = solver.update(old, new, first, accepted, solved, core, noise)
            a = jax.lax.dynamic_update_slice_in_dim(a, jnp.where(accepted > 0, there, here), first, axis=1)
            return (a, solver, log_likelihood), (rates, jnp.sum(accepted))

        start = (padded, prepare(psi), state.log_likelihood.astype(jnp.float64))
        (a, _, _), (rates, moved) = jax.lax.scan(block, start, jnp.arange(blocks))
        position = state.position._replace(layers=(a[:, :width],))
        # The log-likelihood afresh: what is stored is not the sum of many roundings.
        new = init(position)
        kept = jnp.isfinite(new.log_likelihood)
        new = jax.tree.map(lambda after, before: jnp.where(kept, after, before), new, state)
        return new, Info(jnp.sum(rates) / width, (jnp.sum(moved) > 0) & kept, kept, 0)

    return SamplingAlgorithm(init, step)


def _symmetric_inverse(factor: jax.Array) -> jax.Array:
    inverse = jax.scipy.linalg.solve_triangular(factor, jnp.eye(len(factor)), lower=True)
    return inverse.T @ inverse
