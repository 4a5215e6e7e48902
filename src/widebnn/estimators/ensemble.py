"""The posterior as an ensemble of networks: all a prediction at new inputs needs, without the training data.

Per stored draw of the chain: the hidden weights (drawn exactly from their conditional), the mean of the readout given
them, and a few exact draws of it. Averaging means of the readout instead of draws (Rao-Blackwell) leaves the chain's
own Monte Carlo error only; the draws say how uncertain the function is. With the softmax likelihood the readout is part
of the chain: there is one draw of it, which is also the mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widebnn.likelihoods.gaussian import ConditionallyGaussian
from widebnn.likelihoods.input_noise import InputNoise
from widebnn.limits.kernel import normal_nodes
from widebnn.networks.dense import DenseNetwork, Layer
from widebnn.posteriors import Posterior
from widebnn.precision import double_precision
from widebnn.sampling.collect import Collect

ROWS = 256
"""Rows of new inputs evaluated at a time, so that memory is bounded and one program serves all."""
PROBES = 16
"""Inputs between the training inputs, and as many beyond them, at which convergence is monitored."""
READOUTS = 8
"""Draws of the readout per draw of the hidden weights, all outputs together."""


class Function(NamedTuple):
    """The function at some new inputs, on the scale of the standardised targets, in float64."""

    rows: slice
    """Which of the inputs these are."""
    means: np.ndarray
    """networks x rows x outputs: the mean given the hidden layers of each network."""
    variance: np.ndarray
    """rows: the variance given the hidden layers."""
    draws: np.ndarray
    """networks x rows x outputs x copies: draws around the means."""
    noise: np.ndarray
    """networks x rows, or networks x 1: the standard deviation of a new observation; softmax: 0."""


class Ensemble(NamedTuple):
    """Networks drawn from the posterior."""

    hidden: tuple[Layer, ...]
    """Hidden layers, each array with a leading axis of draws."""
    mean: np.ndarray
    """draws x features x outputs: the mean of the readout given the hidden layers."""
    readout: np.ndarray
    """draws x features x outputs x copies: exact draws of it."""
    noise: np.ndarray
    """draws: the standard deviation of a new observation; softmax: 0."""
    noise_readout: np.ndarray
    """draws x features: the logarithm of what multiplies it by input; no features where it is the same everywhere."""

    def at(self, network: DenseNetwork, x: np.ndarray) -> Iterator[Function]:
        """The function at inputs x, some rows after the other."""
        count, _, outputs = self.mean.shape
        copies = self.readout.shape[3]
        together = np.concatenate([self.mean[..., None], self.readout], axis=3)
        together = together.reshape(*together.shape[:2], -1)
        varies = self.noise_readout.shape[1] > 0
        if varies:
            together = np.concatenate([together, self.noise_readout[..., None]], axis=2)
        for first in range(0, len(x), ROWS):
            part = x[first : first + ROWS]
            padded = np.zeros((ROWS, x.shape[1]), np.float32)
            padded[: len(part)] = part
            values = np.asarray(_evaluate(network, self.hidden, together, padded), np.float64)[:, : len(part)]
            noise = np.asarray(self.noise, np.float64)[:, None]
            if varies:
                noise, values = noise * np.exp(values[..., -1]), values[..., :-1]
            values = values.reshape(count, len(part), outputs, 1 + copies)
            means, draws = values[..., 0], values[..., 1:]
            # By the draws of all networks together: wide networks hardly differ in it.
            variance = np.mean((draws - means[..., None]) ** 2, axis=(0, 2, 3))
            yield Function(slice(first, first + len(part)), means, variance, draws, noise)

    def sample(
        self, network: DenseNetwork, x: np.ndarray, count: int, random: np.random.RandomState
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws of the function jointly at inputs x, count x rows x outputs, and their noise, count x rows."""
        networks, copies = self.readout.shape[0], self.readout.shape[3]
        member, copy = np.divmod(random.randint(networks * copies, size=count), copies)
        parts = [
            (part.draws[member, :, :, copy], np.broadcast_to(part.noise[member], (count, part.means.shape[1])))
            for part in self.at(network, x)
        ]
        draws, noise = (np.concatenate(both, axis=1) for both in zip(*parts, strict=True))
        return draws, noise


def copies_of_readout(target: Posterior) -> int:
    """How many draws of the readout are kept per draw of the hidden weights."""
    return 1 if target.likelihood.name == "softmax" else max(1, READOUTS // target.y.shape[1])


def new_inputs(x: np.ndarray) -> np.ndarray:
    """Inputs between and beyond the training inputs, at which convergence is monitored: ``PROBES`` of each.

    The middle between two rows, and rows moved away from their mean by half as much again.
    """
    random = np.random.default_rng(0)
    first, second, far = random.integers(len(x), size=(3, PROBES))
    centre = x.mean(axis=0)
    return np.concatenate([(x[first] + x[second]) / 2, centre + 1.5 * (x[far] - centre)]).astype(np.float32)


def collect_networks(target: Posterior) -> Collect:
    """Keep networks, named as in ``to_ensemble``, and what convergence is judged by.

    That is the function at the training inputs (``f_train``) and at ``new_inputs`` (``f_new``), its readout averaged
    out; and with Gaussian noise ``log_left_out``, the log-density of each row given all others and the hidden layers,
    ``noise_train``, the geometric mean of the noise of the rows, and ``misfit``, the mean square of their residuals in
    units of it.
    """
    probes = jnp.asarray(new_inputs(np.asarray(target.x)))
    copies, outputs = copies_of_readout(target), target.y.shape[1]

    def readouts(key: Any, z: Any, psi: Any) -> Any:
        """(mean, draws) of the readout given the features."""
        # One factorisation serves all draws: copies of the outputs are more outputs.
        given = target.likelihood.condition(psi, jnp.tile(target.y, (1, copies)), z)
        draws = given.draw(key).reshape(psi.shape[1], copies, outputs)
        return given.mean[:, :outputs], jnp.moveaxis(draws, 1, 2)  # type: ignore[attr-defined]

    def collect(key: jax.Array, u: Any) -> dict[str, jax.Array]:
        hidden_key, readout_key = jax.random.split(key)
        likelihood, (_, z) = target.likelihood, target.parts(u)
        with double_precision():
            weights = target.to_weights(hidden_key, u)
            psi = target.network.features(weights.hidden, target.x)
            if likelihood.name == "softmax":
                mean, draws = weights.readout, weights.readout[..., None]
            else:
                mean, draws = readouts(readout_key, z, psi)
            kept = {f"w{i}": layer.w for i, layer in enumerate(weights.hidden)}
            kept |= {f"b{i}": layer.b for i, layer in enumerate(weights.hidden)}
            kept |= {"mean": mean, "readout": draws}
            if isinstance(likelihood, InputNoise):
                kept |= {"noise": likelihood.level.at(z.level), "noise_readout": likelihood.log_sd * z.weights}
            else:
                kept |= {"noise": jnp.asarray(likelihood.noise_at(z, new=True)), "noise_readout": jnp.zeros(0)}
            for name, at in {"f_train": psi, "f_new": target.network.features(weights.hidden, probes)}.items():
                kept[name] = at.astype(jnp.float64) @ mean.astype(jnp.float64)
            if isinstance(likelihood, ConditionallyGaussian):
                noise = jnp.reshape(likelihood.noise_at(z, psi), (-1, 1))
                kept["log_left_out"] = likelihood.log_left_out(psi, target.y, z)
                kept["noise_train"] = jnp.exp(jnp.mean(jnp.log(noise)))
                kept["misfit"] = jnp.mean(((target.y - kept["f_train"]) / noise) ** 2)
            if getattr(likelihood, "logit_scale", None) is not None:
                kept["logit_scale"] = likelihood.scale(z)
            return {name: array.astype(jnp.float32) for name, array in kept.items()}

    return collect


def to_ensemble(draws: dict[str, np.ndarray], layers: int) -> Ensemble:
    """From the draws of a run (chains x draws x ...), chains one after the other."""
    flat = {name: np.asarray(array).reshape(-1, *array.shape[2:]) for name, array in draws.items()}
    hidden = tuple(Layer(jnp.asarray(flat[f"w{i}"]), jnp.asarray(flat[f"b{i}"])) for i in range(layers))
    return Ensemble(hidden, *(flat[name] for name in Ensemble._fields[1:]))


def bytes_per_draw(target: Posterior) -> int:
    """What one draw of an ensemble takes."""
    shapes = jax.eval_shape(collect_networks(target), jax.random.key(0), target.sample_reference(jax.random.key(0)))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


@jax.jit(static_argnums=0)
def _evaluate(network: DenseNetwork, hidden: Any, readout: jax.Array, x: jax.Array) -> jax.Array:
    def one(member: Any) -> Any:
        layers, weights = member
        return jnp.matmul(network.features(layers, x), weights, precision="highest")

    return jax.lax.map(one, (hidden, readout))


class Mixture(NamedTuple):
    """A mixture of normals for every row and output, its components along the first axis."""

    centres: np.ndarray
    """components x rows x outputs."""
    std: np.ndarray
    """components x rows x 1."""
    weights: np.ndarray
    """components; they add up to 1."""

    def average(self, values: np.ndarray) -> np.ndarray:
        """Over the components."""
        return np.tensordot(self.weights, values, 1)


def predictive(function: Function, spread: float = 0.0, step: int = 1) -> Mixture:
    """New observations as a mixture of normals, with one component per network, or for every ``step``-th.

    Given the hidden layers the function at an input is N(mean, v) in every output, independently, so that nothing is
    gained by drawing it.
    With ``spread`` the log of the noise differs by so much from row to row, and every network has several components.
    """
    means, v, noise = function.means[::step], function.variance, function.noise[::step]
    z, weights = normal_nodes() if spread else (np.zeros(1), np.ones(1))
    factors = np.exp(spread * z - spread**2)  # their mean square is 1
    each = (noise[:, None] * factors[:, None]).reshape(-1, noise.shape[1])
    std = np.sqrt(each**2 + v)[..., None]
    return Mixture(np.repeat(means, len(z), axis=0), std, np.tile(weights, len(means)) / len(means))


def mixture_quantiles(mixture: Mixture, levels: np.ndarray) -> np.ndarray:
    """Quantiles of a mixture of normals.

    By bisection to float64 rounding; the result has the levels along its first axis.
    """
    from scipy.special import ndtr

    centres, std, _ = mixture
    levels = np.asarray(levels, np.float64).reshape(-1, *([1] * (centres.ndim - 1)))
    reach = 10.0 * std.max(axis=0)
    low = np.broadcast_to(centres.min(axis=0) - reach, (len(levels), *centres.shape[1:])).copy()
    high = np.broadcast_to(centres.max(axis=0) + reach, low.shape).copy()
    for _ in range(math.ceil(math.log2(1e12))):
        middle = 0.5 * (low + high)
        below = np.stack([mixture.average(ndtr((m - centres) / std)) for m in middle])
        right = below < levels
        low, high = np.where(right, middle, low), np.where(right, high, middle)
    return 0.5 * (low + high)


def argmax_probabilities(centres: np.ndarray, std: np.ndarray, nodes: int = 20) -> np.ndarray:
    """The probability that each of C normals is the largest, averaged over an equal mixture.

    ``centres`` is components x rows x C and ``std`` broadcasts to it, equal for all C; the result is rows x C. Given a
    component the probability is E[prod_j Phi(t + (f_c - f_j) / s)], t ~ N(0, 1), by Gauss-Hermite quadrature.
    """
    from scipy.special import ndtr

    t, weights = np.polynomial.hermite_e.hermegauss(nodes)
    total = np.zeros(centres.shape[1:])
    for scaled in centres / std:
        for c in range(scaled.shape[1]):
            others = np.delete(scaled[:, [c]] - scaled, c, axis=1)
            below = ndtr(t[:, None, None] + others).prod(axis=2)
            total[:, c] += weights @ below
    return total / total.sum(axis=1, keepdims=True)
