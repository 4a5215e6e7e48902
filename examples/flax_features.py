"""A network written in Flax, sampled by widebnn: linen and NNX modules.

    python examples/flax_features.py

``widebnn.feature_map`` takes the parameters of a module and a function that turns them and x into features; the
readout on top of them belongs to widebnn, which integrates it out. All that is left to say is the prior: widebnn's
parameters are N(0, 1), so the function scales them before the module sees them.
"""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import widebnn


class Residual(nn.Module):
    """Two dense layers with a skip over the second, and a normaliser: not among widebnn's own networks."""

    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """One row of features per input."""
        h = nn.Dense(self.width)(x)
        h = h + nn.Dense(self.width)(nn.gelu(h))
        return nn.gelu(nn.LayerNorm(use_bias=False, use_scale=False)(h))


class ResidualNNX(nnx.Module):
    """The same in NNX."""

    def __init__(self, inputs: int, width: int, rngs: nnx.Rngs):
        self.first = nnx.Linear(inputs, width, rngs=rngs)
        self.second = nnx.Linear(width, width, rngs=rngs)
        self.norm = nnx.LayerNorm(width, use_bias=False, use_scale=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """One row of features per input."""
        h = self.first(x)
        h = h + self.second(nnx.gelu(h))
        return nnx.gelu(self.norm(h))


def prior_scale(parameter: jax.Array) -> jax.Array:
    """From N(0, 1) to the prior: kernels N(0, 2 / fan-in), biases N(0, 1). Flax's kernels are inputs x outputs."""
    return parameter * math.sqrt(2 / parameter.shape[0]) if parameter.ndim == 2 else parameter


def readout_inputs(h: jax.Array) -> jax.Array:
    """Scaled so that the width does not matter, and a constant column for the readout's bias."""
    return jnp.concatenate([h / math.sqrt(h.shape[1]), jnp.ones((len(h), 1), h.dtype)], axis=1)


def linen_network(x: np.ndarray, width: int) -> Any:
    """The shapes come from ``init``, without computing anything."""
    module = Residual(width)
    shapes = jax.eval_shape(module.init, jax.random.key(0), x)
    return widebnn.feature_map(shapes, lambda p, x: readout_inputs(module.apply(jax.tree.map(prior_scale, p), x)))


def nnx_network(x: np.ndarray, width: int) -> Any:
    """The module is split into its parameters and the rest, and merged where it is called."""
    module = nnx.eval_shape(lambda: ResidualNNX(x.shape[1], width, nnx.Rngs(0)))
    graph, parameters, rest = nnx.split(module, nnx.Param, ...)
    return widebnn.feature_map(
        parameters, lambda p, x: readout_inputs(nnx.merge(graph, jax.tree.map(prior_scale, p), rest)(x))
    )


def main(width: int = 32, steps: int = 200, burn_in: int = 100) -> dict[str, tuple[np.ndarray, float]]:
    """Posterior mean of the function at new inputs, and the acceptance rate, by both modules."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(24, 1))
    y = np.sin(2 * x) + 0.2 * rng.normal(size=x.shape)
    x_new = np.linspace(-1.8, 1.8, 7)[:, None]
    print(f"{'x':14}", *(f"{value:6.2f}" for value in x_new[:, 0]))
    print(f"{'sin(2 x)':14}", *(f"{value:6.2f}" for value in np.sin(2 * x_new[:, 0])))
    found = {}
    for name, network in {"nnx": nnx_network(x, width), "linen": linen_network(x, width)}.items():
        target = widebnn.posterior(network, x, y, noise=0.2)
        result = widebnn.sample(target, steps=steps, burn_in=burn_in, collect=widebnn.track(target, x_new))
        mean = result.draws["mean_test"].mean(axis=(0, 1))[:, 0]
        found[name] = mean, result.acceptance_rate
        print(f"{name:14}", *(f"{value:6.2f}" for value in mean), f"  acceptance {result.acceptance_rate:.2f}")
    return found


if __name__ == "__main__":
    main()
