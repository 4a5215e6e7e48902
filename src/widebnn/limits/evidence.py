"""The evidence of hyperparameters in the limit of infinite width, and its gradient, in closed form."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widebnn.errors import check_inputs, check_targets
from widebnn.limits.gp import factored, log_normal
from widebnn.limits.kernel import CLOSED_FORMS, propagate
from widebnn.networks.dense import DenseNetwork, dense
from widebnn.precision import double_precision, one_blas_thread


class ScalePrior(NamedTuple):
    """log scale ~ N(log median, log_sd^2), and the interval in which the scale is searched."""

    median: float
    log_sd: float
    low: float
    high: float


SCALES = {
    "weight_std": ScalePrior(math.sqrt(2.0), 1.0, 0.05, 20.0),
    "bias_std": ScalePrior(0.1, 1.5, 1e-3, 20.0),
    "readout_weight_std": ScalePrior(1.0, 1.0, 0.01, 100.0),
    "readout_bias_std": ScalePrior(0.1, 1.5, 1e-3, 20.0),
    "noise": ScalePrior(0.1, 1.5, 1e-3, 10.0),
}
"""The five scales in the order of the vectors of their logs. The medians are the defaults of ``widebnn.dense``."""
INPUT_SCALE = ScalePrior(1.0, 1.0, 0.01, 100.0)
"""An input that does not matter gets a small scale. In vectors, scales of the inputs follow the five."""


@dataclass(frozen=True)
class Hyperparameters:
    """A depth, an activation and their scales, with their evidence: what ``choose_hyperparameters`` found."""

    depth: int
    """Number of hidden layers."""
    activation: str
    weight_std: float
    """Of all hidden layers, like ``bias_std``."""
    bias_std: float
    readout_weight_std: float
    readout_bias_std: float
    noise: float
    """Standard deviation of the observations."""
    log_evidence: float
    """log N(y; 0, K + noise^2 I) of all rows used, summed over outputs, without the prior of the scales."""
    candidates: tuple[tuple[int, str, float], ...]
    """(depth, activation, log evidence with its best scales) of everything tried, given the rows of the comparison."""
    input_scales: tuple[float, ...] | None = None
    """What each column of x is multiplied with before it enters the network; None: nothing."""
    row_noise: tuple[float, float] | None = None
    """Median and spread of the log of noise that differs from row to row, if that was asked for and fits better."""

    def network(self, input_dim: int, width: int) -> DenseNetwork:
        """The dense network with these hyperparameters, every hidden layer ``width`` wide."""
        scales = {name: getattr(self, name) for name in SCALES if name != "noise"}
        return dense(input_dim, [width] * self.depth, self.activation, **scales)


class Candidate(NamedTuple):
    """Data, a depth and an activation: all that the evidence needs but the scales."""

    inputs: np.ndarray
    """x where every input has its own scale; otherwise x x' / m, which is then computed once."""
    y: np.ndarray
    depth: int
    activation: str

    def covariance(self, log_scales: np.ndarray) -> jax.Array:
        """K + noise^2 I."""
        return _covariance(log_scales, self.inputs, self.depth, self.activation)

    def log_evidence(self, log_scales: np.ndarray) -> tuple[float, np.ndarray]:
        """Value, and gradient in the logs of the scales; NaN where rounding makes the covariance indefinite."""
        value, derivative = log_normal(self.covariance(log_scales), self.y)
        return value, np.asarray(_pull_back(log_scales, self.inputs, self.depth, self.activation, derivative))


@functools.partial(jax.jit, static_argnums=(2, 3))
def _covariance(log_scales: jax.Array, inputs: jax.Array, depth: int, activation: str) -> jax.Array:
    weight_std, bias_std, readout_weight_std, readout_bias_std, noise = jnp.exp(log_scales[: len(SCALES)])
    gram = inputs
    if len(log_scales) > len(SCALES):
        scaled = inputs * jnp.exp(log_scales[len(SCALES) :])
        gram = scaled @ scaled.T / inputs.shape[1]
    scales = [(weight_std, bias_std)] * depth + [(readout_weight_std, readout_bias_std)]
    rows = jnp.arange(len(gram))
    _, kernel = propagate(CLOSED_FORMS[activation], scales, [jnp.diagonal(gram)] * 2, gram, (rows[:, None], rows[None]))
    return kernel + noise**2 * jnp.eye(len(kernel))


@functools.partial(jax.jit, static_argnums=(2, 3))
def _pull_back(log_scales: Any, inputs: Any, depth: Any, activation: Any, derivative: Any) -> Any:
    """The gradient in the logs of the scales, given that in the covariance; recomputing K is cheap."""
    return jax.vjp(lambda logs: _covariance(logs, inputs, depth, activation), log_scales)[1](derivative)[0]


def log_evidence(hyperparameters: Hyperparameters, x: Any, y: Any) -> float:
    """The evidence of given hyperparameters, log N(y; 0, K + noise^2 I), summed over the columns of y.

    Args:
        hyperparameters: depth, activation and scales; the noise is the same for every row.
        x: inputs, n x features, not yet multiplied with ``input_scales``.
        y: targets, n x outputs, or n.

    Returns:
        The log evidence of all rows; NaN if rounding makes the covariance indefinite.

    Raises:
        WidebnnError: if x and y do not fit together.

    Examples:
        >>> found = Hyperparameters(1, "relu", 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, ())
        >>> round(log_evidence(found, [[2.0]], [0.0]), 6)  # the variance of y is 4 / 2 + 1
        -1.468245
    """
    x = check_inputs("x", x)
    y = check_targets(y, len(x))
    x = x if hyperparameters.input_scales is None else x * np.array(hyperparameters.input_scales)
    with double_precision(), one_blas_thread(), np.errstate(divide="ignore"):
        logs = np.log([getattr(hyperparameters, name) for name in SCALES])
        candidate = Candidate(x @ x.T / x.shape[1], y, hyperparameters.depth, hyperparameters.activation)
        return factored(candidate.covariance(logs), y)[2]
