"""``space="full"``: the paper's whole chain, hidden and readout weights, at the cost of the reduced one.

One hidden layer, reparametrised readout. The likelihood sees A = V' W only; everything else in the paper's chain
is N(0, I) under the posterior as under the prior, and moves along without influence on the likelihood. Samplers
whose acceptance depends on the dimension (random walk, MALA, HMC) see it through its norm alone. So beside A and
what carried inputs need, the position holds the whitened readout, a fixed set of linear functionals of the rest
of W, from which projections of all weights are computed, and what is left, tens of millions of coordinates, in
three numbers (lumped.py). The law of the chain, accept decisions included, is that of the chain on all weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widebnn.errors import WidebnnError
from widebnn.lumped import reference_draw
from widebnn.networks.dense import DenseNetwork
from widebnn.noise import standard_normal
from widebnn.precision import double_precision

TRACKED = 100
"""Number of fixed random directions of all weights that the chain follows."""


class Remainder(NamedTuple):
    """The hidden weights that neither the likelihood nor the carried inputs see."""

    sample: Callable[[jax.Array], tuple[jax.Array, Any]]
    """key -> the tracked numbers and the lumped rest, from N(0, I)."""
    project: Callable[[Any], jax.Array]
    """Position -> projections of all weights on ``TRACKED`` random directions of unit length."""


def remainder(network: DenseNetwork, basis: np.ndarray, carried: Any, outputs: int, dtype: Any) -> Remainder:
    """Track random directions a b' of the hidden and c d' of the readout coordinates, lump the rest.

    With U a basis of everything the position holds explicitly, a = U U'a + a_perp, and the hidden part of a projection
    is (U'a)' (U'W) b + a_perp' W b. The last terms are jointly Gaussian with covariance <a_perp_i, a_perp_j>
    <b_i, b_j> = (C C')_ij, so they are C t with t ~ N(0, I): the tracked numbers.
    """
    if len(network.widths) != 1:
        raise WidebnnError(
            "space='full' is exact for one hidden layer: a deeper layer's coordinates depend on the layer before, "
            "so no fixed set of them can be left out. Use space='reduced', or coordinates='reparametrised'."
        )
    explicit = basis if carried is None else np.hstack([basis, carried.basis])
    width = network.widths[0]
    count = (explicit.shape[0] - explicit.shape[1]) * width
    if count < TRACKED + 3:
        raise WidebnnError(
            f"space='full' leaves only {count} coordinates of the hidden weights out: nothing to gain. "
            "Use coordinates='reparametrised', which moves all weights."
        )
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(TRACKED, len(explicit))), rng.normal(size=(TRACKED, width))
    c, d = rng.normal(size=(TRACKED, network.feature_dim)), rng.normal(size=(TRACKED, outputs))
    along = a @ explicit
    across = a - along @ explicit.T
    mix = np.linalg.cholesky((across @ across.T) * (b @ b.T))
    length = np.sqrt(np.sum(a**2, 1) * np.sum(b**2, 1) + np.sum(c**2, 1) * np.sum(d**2, 1))
    with double_precision(), jax.ensure_compile_time_eval():
        parts = [jnp.asarray(part, dtype) for part in (along, b, c, d, mix, length)]

    def sample(key):
        tracked_key, ignored_key = jax.random.split(key)
        return standard_normal(tracked_key, (TRACKED,), dtype), reference_draw(ignored_key, count - TRACKED)

    def project(u):
        along, b, c, d, mix, length = parts
        first = jnp.concatenate([u.layers[0], *u.carried])
        hidden = jnp.sum(jnp.matmul(along, first, precision="highest") * b, axis=1) + mix @ u.tracked
        return (hidden + jnp.sum(jnp.matmul(c, u.readout, precision="highest") * d, axis=1)) / length

    return Remainder(sample, project)
