"""The posterior as an ensemble of networks: all a prediction at new inputs needs, without the training data.

Per stored draw of the chain: the hidden weights (drawn exactly from their conditional), the mean of the readout given
them, and a few exact draws of it. Averaging means of the readout instead of draws (Rao-Blackwell) leaves the chain's
own Monte Carlo error only; the draws say how uncertain the function is.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widebnn.networks.dense import DenseNetwork, Layer
from widebnn.posteriors.readout import condition
from widebnn.posteriors.target import NetworkTarget
from widebnn.precision import double_precision
from widebnn.sampling.collect import Collect

ROWS = 256
"""Rows of new inputs evaluated at a time, so that memory is bounded and one program serves all."""
READOUTS = 8
"""Draws of the readout per draw of the hidden weights."""


class Ensemble(NamedTuple):
    """Networks drawn from the posterior."""

    hidden: tuple[Layer, ...]
    """Hidden layers, each array with a leading axis of draws."""
    mean: np.ndarray
    """draws x features x outputs: the mean of the readout given the hidden layers."""
    readout: np.ndarray
    """draws x features x outputs x READOUTS: exact draws of it."""


def collect_networks(target: NetworkTarget, count: int = READOUTS) -> Collect:
    """Keep networks, named as in :func:`to_ensemble`, and the function at the training inputs for diagnostics."""
    outputs = target.y.shape[1]

    def collect(key: jax.Array, u: Any) -> dict[str, jax.Array]:
        hidden_key, readout_key = jax.random.split(key)
        with double_precision():
            hidden = target.to_weights(hidden_key, u).hidden
            psi = target.network.features(hidden, target.x)
            # One factorisation serves all draws: copies of the outputs are more outputs.
            copies = condition(psi, jnp.tile(target.y, (1, count)), target.noise)
            readout = copies.draw(readout_key).reshape(psi.shape[1], count, outputs)
            mean = copies.gain(target.y.astype(jnp.float64))
            kept = {f"w{i}": layer.w for i, layer in enumerate(hidden)}
            kept |= {f"b{i}": layer.b for i, layer in enumerate(hidden)}
            kept |= {"mean": mean, "readout": jnp.moveaxis(readout, 1, 2), "f_train": psi.astype(jnp.float64) @ mean}
            return {name: array.astype(jnp.float32) for name, array in kept.items()}

    return collect


def to_ensemble(draws: dict[str, np.ndarray], layers: int) -> Ensemble:
    """From the draws of a run (chains x draws x ...), chains one after the other."""
    flat = {name: np.asarray(array).reshape(-1, *array.shape[2:]) for name, array in draws.items()}
    hidden = tuple(Layer(jnp.asarray(flat[f"w{i}"]), jnp.asarray(flat[f"b{i}"])) for i in range(layers))
    return Ensemble(hidden, flat["mean"], flat["readout"])


def bytes_per_draw(network: DenseNetwork, outputs: int, count: int = READOUTS, item: int = 4) -> int:
    """What one draw of an ensemble takes."""
    sizes = (network.input_dim, *network.widths)
    weights = sum((before + 1) * width for before, width in zip(sizes, network.widths, strict=False))
    return item * (weights + network.feature_dim * outputs * (1 + count))


def evaluate(network: DenseNetwork, ensemble: Ensemble, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(means, draws) of the function at inputs x: draws x rows x outputs, and draws x rows x outputs x READOUTS."""
    count, outputs = ensemble.mean.shape[0], ensemble.mean.shape[2]
    copies = ensemble.readout.shape[3]
    means = np.empty((count, len(x), outputs), np.float32)
    draws = np.empty((count, len(x), outputs, copies), np.float32)
    together = np.concatenate([ensemble.mean[..., None], ensemble.readout], axis=3)
    together = together.reshape(*together.shape[:2], -1)
    for first in range(0, len(x), ROWS):
        part = x[first : first + ROWS]
        padded = np.zeros((ROWS, x.shape[1]), np.float32)
        padded[: len(part)] = part
        values = np.asarray(_evaluate(network, ensemble.hidden, together, padded))[:, : len(part)]
        values = values.reshape(count, len(part), outputs, 1 + copies)
        means[:, first : first + ROWS], draws[:, first : first + ROWS] = values[..., 0], values[..., 1:]
    return means, draws


@jax.jit(static_argnums=0)
def _evaluate(network: DenseNetwork, hidden: Any, readout: jax.Array, x: jax.Array) -> jax.Array:
    def one(member):
        layers, weights = member
        return jnp.matmul(network.features(layers, x), weights, precision="highest")

    return jax.lax.map(one, (hidden, readout))


def mixture_quantiles(centres: np.ndarray, std: float | np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Quantiles of an equal mixture of normals: ``centres`` has the components along its first axis.

    By bisection to float64 rounding; the result has the levels along its first axis.
    """
    from scipy.special import ndtr

    levels = np.asarray(levels, np.float64).reshape(-1, *([1] * (centres.ndim - 1)))
    reach = 10.0 * np.asarray(std)
    low = np.broadcast_to(centres.min(axis=0) - reach, (len(levels), *centres.shape[1:])).copy()
    high = np.broadcast_to(centres.max(axis=0) + reach, low.shape).copy()
    for _ in range(math.ceil(math.log2(1e12))):
        middle = 0.5 * (low + high)
        below = np.stack([ndtr((m - centres) / std).mean(axis=0) for m in middle])
        right = below < levels
        low, high = np.where(right, middle, low), np.where(right, high, middle)
    return 0.5 * (low + high)
