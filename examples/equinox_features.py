"""A network written in Equinox, sampled by widebnn.

    python examples/equinox_features.py

An Equinox module is a pytree: ``eqx.partition`` takes its parameters out, ``eqx.combine`` puts others in. That is all
``widebnn.feature_map`` needs. The readout on top belongs to widebnn, which integrates it out; parameters are N(0, 1)
a priori, and scaled to the prior one wants before the module sees them.
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import widebnn


class Waves(eqx.Module):
    """A layer of sines and a dense layer on top of it."""

    first: eqx.nn.Linear
    second: eqx.nn.Linear

    def __init__(self, inputs: int, width: int, key: jax.Array):
        first_key, second_key = jax.random.split(key)
        self.first = eqx.nn.Linear(inputs, width, key=first_key)
        self.second = eqx.nn.Linear(width, width, key=second_key)

    def __call__(self, x: jax.Array) -> jax.Array:
        """The features of one input."""
        return jax.nn.gelu(self.second(jnp.sin(self.first(x))))


def prior_scale(parameter: jax.Array) -> jax.Array:
    """From N(0, 1) to the prior: weights N(0, 2 / fan-in), biases N(0, 1). Equinox's weights are outputs x inputs."""
    return parameter * math.sqrt(2 / parameter.shape[1]) if parameter.ndim == 2 else parameter


def waves(inputs: int, width: int) -> widebnn.networks.Network:
    """The module as a network for :func:`widebnn.posterior`."""
    parameters, rest = eqx.partition(Waves(inputs, width, jax.random.key(0)), eqx.is_inexact_array)

    def features(p: Waves, x: jax.Array) -> jax.Array:
        h = jax.vmap(eqx.combine(jax.tree.map(prior_scale, p), rest))(x)
        return jnp.concatenate([h / math.sqrt(width), jnp.ones((len(h), 1), h.dtype)], axis=1)

    return widebnn.feature_map(parameters, features)


def main(width: int = 32, steps: int = 200, burn_in: int = 100) -> tuple[np.ndarray, np.ndarray, float]:
    """Posterior mean and standard deviation of the function at new inputs, and the acceptance rate."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(24, 1))
    y = np.sin(2 * x) + 0.2 * rng.normal(size=x.shape)
    x_new = np.linspace(-1.8, 1.8, 7)[:, None]
    target = widebnn.posterior(waves(1, width), x, y, noise=0.2)
    result = widebnn.sample(target, steps=steps, burn_in=burn_in, collect=widebnn.track(target, x_new))
    mean = result.draws["mean_test"].mean(axis=(0, 1))[:, 0]
    std = result.draws["f_test"].std(axis=(0, 1))[:, 0]
    rows = {"x": x_new[:, 0], "sin(2 x)": np.sin(2 * x_new[:, 0]), "mean": mean, "std": std}
    for name, values in rows.items():
        print(f"{name:9}", *(f"{value:6.2f}" for value in values))
    print(f"acceptance {result.acceptance_rate:.2f}")
    return mean, std, result.acceptance_rate


if __name__ == "__main__":
    main()
