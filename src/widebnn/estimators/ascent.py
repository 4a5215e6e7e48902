"""A start near the bulk of the posterior: Adam uphill from a draw of the prior.

Where the data say much, a chain that starts in the prior climbs for hundreds of gradients in steps that are small
because the slope is steep. An optimiser takes one gradient a step, and goes beyond the bulk, to which the chain then
falls back quickly along the steep directions. Chains forget where they started; this only makes it soon.

The likelihood says where its latent starts, whether it stays there, and what it is once the function is found.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from widebnn.networks.network import apply
from widebnn.posteriors import Position, Posterior
from widebnn.precision import double_precision, one_blas_thread
from widebnn.sampling.placement import cores

STEPS = 400
RATE = 0.03
"""The first step of every coordinate; later ones fall to zero along half a cosine."""


def ascend(target: Posterior, chains: int, seed: int) -> Any:
    """Positions of the chains after the climb, stacked, each the last where the squared slope was finite.

    Where it is not, the climb goes half of its step back. A start where it is not stays where it is.

    Args:
        target: What to climb.
        chains: Number of positions.
        seed: Of the prior draws that it starts from.

    Returns:
        Positions with a leading axis of chains.
    """
    adam = optax.adam(optax.cosine_decay_schedule(RATE, STEPS))

    def start(key: Any) -> Any:
        u = target.sample_reference(key)
        return u._replace(z=target.likelihood.start(u.z, target.y.size).latent) if isinstance(u, Position) else u

    def cost(u: Any) -> Any:
        square = sum(jnp.sum(leaf.astype(jnp.float64) ** 2) for leaf in jax.tree.leaves(u))
        return square / 2 - target.log_likelihood(u)

    def step(_: Any, carry: Any) -> Any:
        u, good, memory = carry
        slope = jax.grad(cost)(u)
        squares = [jnp.isfinite(leaf**2) for leaf in jax.tree.leaves(slope)]
        finite = jnp.all(jnp.stack([jnp.all(square) for square in squares]))
        good = jax.tree.map(lambda here, before: jnp.where(finite, here, before), u, good)
        slope = jax.tree.map(lambda leaf: jnp.where(finite, leaf, 0), slope)
        if isinstance(u, Position) and target.likelihood.start(u.z, target.y.size).is_held:
            slope = slope._replace(z=jax.tree.map(jnp.zeros_like, slope.z))
        change, memory = adam.update(slope, memory)

        def move(x: Any, x_good: Any, d: Any) -> Any:
            return jnp.where(finite, x + d, 0.5 * x + 0.5 * x_good).astype(x.dtype)

        return jax.tree.map(move, u, good, change), good, memory

    def climb(key: Any) -> Any:
        u = start(key)
        good = jax.lax.fori_loop(0, STEPS + 1, step, (u, u, adam.init(u)))[1]
        if not isinstance(good, Position):
            return good
        weights_key, z_key = jax.random.split(jax.random.fold_in(key, 1))
        f = apply(target.network, target.to_weights(weights_key, good), target.x)
        return good._replace(z=target.likelihood.settle(z_key, f, target.y, good.z))

    with double_precision(), one_blas_thread():
        keys = list(jax.random.split(jax.random.key(seed), chains))
        compiled = jax.jit(climb).lower(keys[0]).compile()

    def run(key: Any) -> Any:
        with double_precision():
            return jax.tree.map(np.asarray, compiled(key))

    with one_blas_thread(), ThreadPoolExecutor(cores()) as threads:  # as the chains afterwards, each on a core
        return jax.tree.map(lambda *leaves: np.stack(leaves), *threads.map(run, keys))
