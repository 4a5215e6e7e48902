"""What to keep of a draw. A collect function maps (key, position) to a dictionary of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from widebnn.posteriors import Posterior
from widebnn.precision import double_precision
from widebnn.samplers.tree import named_leaves

Collect = Callable[[jax.Array, Any], dict[str, jax.Array]]


def everything(key: jax.Array, position: Any) -> dict[str, jax.Array]:
    """Keep the whole position, one entry per array of the pytree."""
    return named_leaves(position, "u")


def track(target: Posterior, x_test: Any = None, *, projections: int = 100, seed: int = 0) -> Collect:
    """Keep predictions and a summary of the weights, whatever the width.

    Args:
        target: The posterior that is sampled.
        x_test: Test inputs, rows x features; those that the chain carries if not given.
        projections: Number of random directions.
        seed: Of the directions.

    Returns:
        A function for ``sample(collect=...)`` that keeps

        - ``weights``: projections of the position on fixed random directions, each N(0, 1) under the reference (for
          coordinates ``full`` the directions of all weights that the chain follows);
        - ``y``: replicated observations at the training inputs (posterior predictive; one-hot for softmax);
        - ``f_test``, ``y_test``: the function and new observations at the test inputs;
        - ``mean_test``: the mean of f there given the chain's coordinates (Rao-Blackwellised).

    Examples:
        >>> widebnn.sample(target, steps=1000, collect=widebnn.track(target, x_test))  # doctest: +SKIP
    """
    own = getattr(target.coordinates, "project", None)
    project = own or random_projections(target.sample_reference, projections, seed)
    n = target.x.shape[0]
    carried = x_test is None and target.coordinates.carries_inputs
    with double_precision():
        inputs = target.x if x_test is None else jnp.concatenate([target.x, jnp.asarray(x_test, target.x.dtype)])

    def collect(key: Any, position: Any) -> Any:
        train_key, test_key, noise_key = jax.random.split(key, 3)
        found = target.predict(train_key, position, inputs)
        if carried:
            found = jax.tree.map(lambda *parts: jnp.concatenate(parts), found, target.predict(test_key, position))
        f, mean, _, psi = found
        y = target.likelihood.observe(noise_key, f, target.parts(position)[1], psi)
        kept = {"weights": project(position), "y": y[:n]}
        if len(f) > n:
            kept |= {"f_test": f[n:], "y_test": y[n:], "mean_test": mean[n:]}
        return kept

    return collect


def random_projections(
    sample_reference: Callable[[jax.Array], Any], count: int, seed: int = 0
) -> Callable[[Any], jax.Array]:
    """``count`` linear functionals of a position, each N(0, 1) when the position is N(0, I).

    A direction is a random vector for each vector of the pytree and a random rank-one matrix a b' for each matrix (so
    that a d x e weight matrix takes d + e numbers and not d e), scaled to unit length as a whole.
    """
    leaves = jax.tree.leaves(jax.eval_shape(sample_reference, jax.random.key(0)))
    with double_precision():
        keys = jax.random.split(jax.random.key(seed), len(leaves))
        factors = []
        squared_length = jnp.zeros(count, jnp.float64)
        for key, leaf in zip(keys, leaves, strict=True):
            rows = leaf.shape[0] if leaf.ndim > 1 and leaf.size else 1
            columns = leaf.size // rows
            row_key, column_key = jax.random.split(key)
            left = jax.random.normal(row_key, (count, rows), jnp.float64) if rows > 1 else jnp.ones((count, 1))
            right = jax.random.normal(column_key, (count, columns), jnp.float64)
            squared_length += jnp.sum(left**2, axis=1) * jnp.sum(right**2, axis=1)
            factors.append((left.astype(leaf.dtype), right.astype(leaf.dtype)))
        scale = (1 / jnp.sqrt(squared_length)).astype(leaves[0].dtype)

    def project(position: Any) -> jax.Array:
        total = jnp.zeros(count, scale.dtype)
        for (left, right), leaf in zip(factors, jax.tree.leaves(position), strict=True):
            matrix = leaf.reshape(left.shape[1], right.shape[1])
            total = total + jnp.sum(jnp.matmul(left, matrix, precision="highest") * right, axis=1)
        return total * scale

    return project
