"""What to keep of a draw. A collect function maps (key, position) to a dictionary of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from widebnn.posteriors.target import NetworkTarget
from widebnn.sampling.projections import random_projections

Collect = Callable[[jax.Array, Any], dict[str, jax.Array]]


def everything(key: jax.Array, position: Any) -> dict[str, jax.Array]:
    """Keep the whole position, one entry per array of the pytree."""
    leaves = jax.tree_util.tree_leaves_with_path(position)
    return {jax.tree_util.keystr(path, simple=True, separator="_") or "u": leaf for path, leaf in leaves}


def _track_carried(target: NetworkTarget, projections: int, seed: int) -> Collect:
    """The same as ``track`` for the inputs that the chain carries."""
    project = target.projections or random_projections(target.sample_reference, projections, seed)

    def collect(key, position):
        train_key, test_key, noise_key = jax.random.split(key, 3)
        f, f_test = target.predict(train_key, position, target.x).f, target.predict(test_key, position)
        values = jnp.concatenate([f, f_test.f])
        y = values + target.noise * jax.random.normal(noise_key, values.shape, values.dtype)
        n = target.x.shape[0]
        kept = {"weights": project(position), "y": y[:n], "f_test": f_test.f, "y_test": y[n:]}
        return kept | {"mean_test": f_test.mean}

    return collect


def track(target: NetworkTarget, x_test: Any = None, *, projections: int = 100, seed: int = 0) -> Collect:
    """Keep predictions and a summary of the weights, whatever the width.

    - ``weights``: projections of the position on fixed random directions, each N(0, 1) under the reference (for
      ``space="full"`` the directions of all weights that the chain follows);
    - ``y``: replicated observations at the training inputs (posterior predictive);
    - ``f_test``, ``y_test``: the function and new observations at ``x_test``, if given;
    - ``mean_test``: the mean of f at ``x_test`` given the chain's coordinates (Rao-Blackwellised).
    """
    if x_test is None and target.carry is not None:
        return _track_carried(target, projections, seed)
    project = target.projections or random_projections(target.sample_reference, projections, seed)
    n = target.x.shape[0]
    inputs = target.x if x_test is None else jnp.concatenate([target.x, jnp.asarray(x_test, target.x.dtype)])

    def collect(key, position):
        weights_key, noise_key = jax.random.split(key)
        f, mean, _ = target.predict(weights_key, position, inputs)
        y = f + target.noise * jax.random.normal(noise_key, f.shape, f.dtype)
        kept = {"weights": project(position), "y": y[:n]}
        if x_test is not None:
            kept |= {"f_test": f[n:], "y_test": y[n:], "mean_test": mean[n:]}
        return kept

    return collect
