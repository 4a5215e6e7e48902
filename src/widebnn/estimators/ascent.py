"""A start near the bulk of the posterior: Adam uphill from a draw of the prior.

Where the data say much, a chain that starts in the prior climbs for hundreds of gradients in steps that are small
because the slope is steep. An optimiser climbs in a few dozen, and beyond the bulk, to which the chain then falls back
quickly along the steep directions. Chains forget where they started; this only makes it soon.

Noise that differs from row to row is equal for all rows meanwhile, with the same mean square, and then drawn given the
function. From a draw of the prior it is quicker to call most rows outliers than to find a function that explains them,
and chains would start from there.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widebnn.networks.network import apply
from widebnn.posteriors import Target
from widebnn.precision import double_precision, one_blas_thread

STEPS = 60
RATE = 0.03
"""The first step of every coordinate; later ones fall to zero along half a cosine."""


def ascend(target: Target, chains: int, seed: int) -> Any:
    """Positions of the chains after the climb, stacked, each the last where value and squared slope were finite.

    Where they are not, the climb goes half of its step back. A start where they are not stays where it is.
    """

    row_noise = getattr(target, "row_noise", None)

    def log_density(u):
        square = sum(jnp.sum(leaf.astype(jnp.float64) ** 2) for leaf in jax.tree.leaves(u))
        return target.log_likelihood(u) - square / 2

    def climb(u):
        def step(i, carry):
            u, good, mean, square = carry
            value, slope = jax.value_and_grad(log_density)(u)
            squares = [jnp.isfinite(leaf**2) for leaf in (value, *jax.tree.leaves(slope))]
            finite = jnp.all(jnp.stack([jnp.all(square) for square in squares]))
            good = jax.tree.map(lambda here, before: jnp.where(finite, here, before), u, good)
            slope = jax.tree.map(lambda leaf: jnp.where(finite, leaf, 0), slope)
            slope = slope if row_noise is None else slope._replace(z=jnp.zeros_like(slope.z))
            mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, slope)
            square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, square, slope)
            rate = RATE * 0.5 * (1 + jnp.cos(jnp.pi * i / STEPS))  # zero after the last step, where u is only judged
            shrink = jnp.sqrt(1 - 0.999 ** (i + 1)) / (1 - 0.9 ** (i + 1))  # both averages start at zero

            def move(x, x_good, m, s):
                further = x + rate * shrink * m / (jnp.sqrt(s) + 1e-8)
                return jnp.where(finite, further, 0.5 * x + 0.5 * x_good).astype(x.dtype)

            return jax.tree.map(move, u, good, mean, square), good, mean, square

        zeros = jax.tree.map(jnp.zeros_like, u)
        return jax.lax.fori_loop(0, STEPS + 1, step, (u, u, zeros, zeros))[1]

    def start(key):
        u = target.sample_reference(key)
        return u if row_noise is None else u._replace(z=jnp.full_like(u.z, row_noise.log_sd))

    with double_precision(), one_blas_thread():
        run = jax.jit(climb)
        keys = jax.random.split(jax.random.key(seed), chains)
        ends = [run(jax.jit(start)(key)) for key in keys]
        if row_noise is not None:
            finish = jax.jit(lambda key, u: u._replace(z=_noise_given_function(target, key, u)))
            ends = [finish(jax.random.fold_in(key, 1), u) for key, u in zip(keys, ends, strict=True)]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *ends)


def _noise_given_function(target: Any, key: jax.Array, u: Any) -> jax.Array:
    """The coordinates of the noise of every row, drawn on a grid from their law given a draw of the function."""
    weights_key, z_key = jax.random.split(key)
    f = apply(target.network, target.to_weights(weights_key, u), target.x)
    squares = jnp.sum((target.y.astype(jnp.float64) - f) ** 2, axis=1)
    grid = jnp.linspace(-5.0, 5.0, 401)
    noise = target.row_noise.at(grid)
    logs = -(grid**2) / 2 - f.shape[1] * jnp.log(noise) - squares[:, None] / (2 * noise**2)
    return grid[jax.random.categorical(z_key, logs, axis=1)].astype(u.z.dtype)
