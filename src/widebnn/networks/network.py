"""What the rest of the package knows of a network.

Its parameters are N(0, 1) a priori, and so are the readout weights in which its output is linear: all scales live in
the features Psi, f(x) = Psi(hidden, x) @ readout. Anything with the two methods of ``Network`` can be sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from widebnn.errors import WidebnnError
from widebnn.noise import standard_normal

HOW_TO_SELECT = "Keep the parameters only, for Equinox with eqx.partition(module, eqx.is_inexact_array)."


class Weights(NamedTuple):
    """All weights of a network: the hidden parameters (a pytree) and the readout, features x outputs."""

    hidden: Any
    readout: jax.Array


@runtime_checkable
class Network(Protocol):
    """The two things a posterior asks of a network."""

    def sample_hidden(self, key: jax.Array, dtype: Any) -> Any:
        """Draw the hidden parameters, a pytree of independent N(0, 1) arrays."""

    def features(self, hidden: Any, x: jax.Array) -> jax.Array:
        """Scaled features Psi, one row per input; a readout bias is one constant column."""


class FeatureMap(NamedTuple):
    """A ``Network`` made of two functions; see ``feature_map``."""

    sample_hidden: Callable[[jax.Array, Any], Any]
    features: Callable[[Any, jax.Array], jax.Array]


def feature_map(shapes: Any, features: Callable[[Any, jax.Array], jax.Array]) -> FeatureMap:
    """A network from the shapes of its parameters and any JAX function ``features(hidden, x)``.

    Args:
        shapes: A pytree of shapes, or of arrays whose shapes count: the parameters of a Flax or Equinox module as they
            are (``jax.eval_shape(module.init, key, x)``, ``eqx.partition(module, eqx.is_inexact_array)[0]``).
        features: Every parameter is N(0, 1) a priori, so this scales them, weights by 1 / sqrt(fan-in) as a rule. It
            returns one row per input, scaled by 1 / sqrt(width), and a constant column if the readout has a bias.

    Returns:
        The network, for ``widebnn.posterior``.

    Raises:
        WidebnnError: If ``shapes`` holds something else.

    Examples:
        >>> net = feature_map({"w": (2, 8)}, lambda p, x: jnp.cos(x @ p["w"]) / 8**0.5)
    """
    leaves, structure = _parameter_shapes(shapes)

    def sample_hidden(key: jax.Array, dtype: Any) -> Any:
        keys = jax.random.split(key, len(leaves))
        draws = [standard_normal(k, shape, dtype) for k, shape in zip(keys, leaves, strict=True)]
        return jax.tree.unflatten(structure, draws)

    return FeatureMap(sample_hidden, features)


def _parameter_shapes(shapes: Any) -> tuple[list[tuple[int, ...]], Any]:
    """Shapes and structure of a pytree whose leaves are all shapes, or all arrays (or stand for arrays)."""
    are_arrays = any(hasattr(leaf, "shape") for leaf in jax.tree.leaves(shapes))
    is_shape = lambda node: isinstance(node, tuple) and all(isinstance(i, int) for i in node)  # noqa: E731
    leaves, structure = jax.tree.flatten(shapes, is_leaf=None if are_arrays else is_shape)
    for leaf in leaves:
        if not are_arrays and not is_shape(leaf):
            raise WidebnnError(f"shapes must hold tuples of whole numbers, or arrays; got {leaf!r}. {HOW_TO_SELECT}")
        if are_arrays and not (hasattr(leaf, "shape") and jnp.issubdtype(leaf.dtype, jnp.floating)):
            kind = f"an array of {leaf.dtype}" if hasattr(leaf, "shape") else repr(leaf)
            raise WidebnnError(
                f"shapes holds arrays, so all of it must be arrays of floats; got {kind}. {HOW_TO_SELECT}"
            )
    return [tuple(leaf.shape) if are_arrays else leaf for leaf in leaves], structure


def apply(network: Network, weights: Weights, x: jax.Array) -> jax.Array:
    """The network's outputs f(x), inputs x outputs."""
    return jnp.matmul(network.features(weights.hidden, x), weights.readout, precision="highest")
