"""Activations by name."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from widebnn.errors import check_choice


def gelu(x: jax.Array) -> jax.Array:
    """x Phi(x) with the exact normal distribution function, not the tanh approximation."""
    return jax.nn.gelu(x, approximate=False)


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": gelu,
    "relu": jax.nn.relu,
    "erf": jax.lax.erf,
    "tanh": jnp.tanh,
    "sin": jnp.sin,
}


def activation_function(name: str) -> Callable[[jax.Array], jax.Array]:
    """The activation called ``name``, or a clear error listing the names there are."""
    return ACTIVATIONS[check_choice("activation", name, ACTIVATIONS)]
