"""What to keep of a draw. A collect function maps (key, position) to a dictionary of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from widebnn.posteriors import Posterior
from widebnn.precision import double_precision
from widebnn.sampling.projections import random_projections

Collect = Callable[[jax.Array, Any], dict[str, jax.Array]]


def everything(key: jax.Array, position: Any) -> dict[str, jax.Array]:
    """Keep the whole position, one entry per array of the pytree."""
    leaves = jax.tree_util.tree_leaves_with_path(position)
    return {jax.tree_util.keystr(path, simple=True, separator="_") or "u": leaf for path, leaf in leaves}


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
        f, mean, _ = target.predict(train_key, position, inputs)
        if carried:
            test = target.predict(test_key, position)
            f, mean = jnp.concatenate([f, test.f]), jnp.concatenate([mean, test.mean])
        y = target.likelihood.observe(noise_key, f, target.parts(position)[1])
        kept = {"weights": project(position), "y": y[:n]}
        if len(f) > n:
            kept |= {"f_test": f[n:], "y_test": y[n:], "mean_test": mean[n:]}
        return kept

    return collect
