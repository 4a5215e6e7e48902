"""Fully connected networks in the NTK parametrisation (docs/mathematics.md, section 1)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from widebnn.errors import check_integer, check_real
from widebnn.networks.activations import activation_function
from widebnn.noise import standard_normal


class Layer(NamedTuple):
    """One hidden layer: weights (inputs x units) and biases (units), all N(0, 1) a priori."""

    w: jax.Array
    b: jax.Array


@dataclass(frozen=True)
class DenseNetwork:
    """A dense network; build it with ``dense``, which checks the arguments.

    f_1 = (sw / sqrt(m)) x W_1 + sb b_1,   f_{l+1} = (sw / sqrt(d_l)) g(f_l) W_{l+1} + sb b_{l+1},
    Psi = [(sw_out / sqrt(d_L)) g(f_L), sb_out 1].
    """

    input_dim: int
    widths: tuple[int, ...]
    activation: str
    weight_std: float
    bias_std: float
    readout_weight_std: float
    readout_bias_std: float

    @property
    def feature_dim(self) -> int:
        """Number of columns of Psi: the last width and the constant feature of the readout bias."""
        return (self.widths[-1] if self.widths else self.input_dim) + 1

    def sample_hidden(self, key: jax.Array, dtype: Any = jnp.float32) -> tuple[Layer, ...]:
        """Draw all hidden layers from N(0, 1)."""
        layers = []
        shapes = itertools.pairwise((self.input_dim, *self.widths))
        for layer_key, shape in zip(jax.random.split(key, max(len(self.widths), 1)), shapes, strict=False):
            w_key, b_key = jax.random.split(layer_key)
            layers.append(Layer(standard_normal(w_key, shape, dtype), standard_normal(b_key, shape[1:], dtype)))
        return tuple(layers)

    def activate(self, f: jax.Array) -> jax.Array:
        """g(f), elementwise."""
        return activation_function(self.activation)(f)

    def hidden_inputs(self, h: jax.Array) -> jax.Array:
        """[(sw / sqrt(d)) h, sb 1]: what a hidden layer multiplies its stacked weights [W; b] with."""
        return _with_constant(self.scaled(h), self.bias_std)

    def scaled(self, h: jax.Array) -> jax.Array:
        """The same without the constant."""
        return self.weight_std / math.sqrt(h.shape[1]) * h

    def readout_inputs(self, h: jax.Array) -> jax.Array:
        """[(sw_out / sqrt(d)) h, sb_out 1]: Psi, if h is the last hidden layer."""
        return _with_constant(self.scaled_readout(h), self.readout_bias_std)

    def scaled_readout(self, h: jax.Array) -> jax.Array:
        """The same without the constant."""
        return self.readout_weight_std / math.sqrt(h.shape[1]) * h

    def features(self, hidden: Sequence[Layer], x: jax.Array) -> jax.Array:
        """Psi, one row per input."""
        h = x
        for layer in hidden:
            scale = self.weight_std / math.sqrt(h.shape[1])
            f = scale * jnp.matmul(h, layer.w, precision="highest") + self.bias_std * layer.b[None, :]
            h = self.activate(f)
        return self.readout_inputs(h)


def _with_constant(h: jax.Array, constant: float) -> jax.Array:
    return jnp.concatenate([h, jnp.full((h.shape[0], 1), constant, h.dtype)], axis=1)


def dense(
    input_dim: int,
    widths: Sequence[int],
    activation: str = "gelu",
    *,
    weight_std: float = math.sqrt(2.0),
    bias_std: float = 0.1,
    readout_weight_std: float = 1.0,
    readout_bias_std: float = 0.1,
) -> DenseNetwork:
    """A dense network with ``len(widths)`` hidden layers; the defaults are the paper's.

    f_1 = (sw / sqrt(m)) x W_1 + sb b_1 and so on, all weights N(0, 1) a priori (NTK parametrisation).

    Args:
        input_dim: Number of input columns m.
        widths: Units of each hidden layer; ``[]`` is Bayesian linear regression.
        activation: ``gelu`` (exact), ``relu``, ``erf``, ``tanh`` or ``sin``.
        weight_std: sw, the scale of hidden weights.
        bias_std: sb, the scale of hidden biases.
        readout_weight_std: Scale of the readout weights.
        readout_bias_std: Scale of the readout bias.

    Returns:
        The network, for ``widebnn.posterior``.

    Raises:
        WidebnnError: If a number or the name of the activation is not one of these.

    Examples:
        >>> dense(8, [512, 512], "relu").feature_dim
        513
    """
    widths = (widths,) if isinstance(widths, int) else tuple(widths)
    activation_function(activation)
    return DenseNetwork(
        input_dim=check_integer("input_dim", input_dim, 1),
        widths=tuple(check_integer("each width", w, 1) for w in widths),
        activation=activation,
        weight_std=check_real("weight_std", weight_std, above=0),
        bias_std=check_real("bias_std", bias_std, at_least=0),
        readout_weight_std=check_real("readout_weight_std", readout_weight_std, above=0),
        readout_bias_std=check_real("readout_bias_std", readout_bias_std, at_least=0),
    )
