"""The kernel of an infinitely wide dense network (Neal, 1996; Lee et al., 2018): see ``nngp_kernel``.

Its expectations have closed forms for relu (Cho and Saul, 2009), erf (Williams, 1997), gelu (Tsuchida et al., 2021) and
sin; everything else is integrated by Gauss-Hermite quadrature.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from widebnn.errors import WidebnnError, check_inputs, check_integer
from widebnn.networks.activations import activation_function
from widebnn.networks.dense import DenseNetwork
from widebnn.precision import double_precision

Activation = str | Callable[[jax.Array], jax.Array]
DualActivation = Callable[[Any, Any, Any], jax.Array]

QUADRATURE_ORDER = 100
# Values of g(u) g(v) held at once: bounds the memory of quadrature whatever the number of pairs.
_VALUES_PER_CHUNK = 2**20
# Nodes with smaller weights are invisible in float64 unless g grows exponentially, and there are many of them.
_NEGLIGIBLE_WEIGHT = 1e-30


# --- E[g(u) g(v)] with Var u = a, Var v = b, Cov(u, v) = c: accurate, with finite derivatives, at correlation +-1 too.


def _determinant(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """ab - c^2, not negative. At correlation 1, where repeated inputs stay at all scales, its derivative is 0."""
    return jnp.maximum(a * b - c**2, 0.0)


@jax.custom_jvp
def _relu(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """(s + c (pi - angle)) / (2 pi), s = sqrt(ab - c^2), angle = arccos(c / sqrt(ab)) by atan2: no division by 0."""
    s = jnp.sqrt(_determinant(a, b, c))
    return (s + c * (math.pi - jnp.arctan2(s, c))) / (2 * math.pi)


@_relu.defjvp
def _relu_jvp(primals: Any, tangents: Any) -> Any:
    """d/da = s / (4 pi a), d/db = s / (4 pi b), d/dc = (pi - angle) / (2 pi); term by term there would be 1 / s."""
    (a, b, c), (da, db, dc) = primals, tangents
    s = jnp.sqrt(_determinant(a, b, c))
    # A variance of 0 is 0 for all scales.
    relative = da / jnp.where(a > 0, a, jnp.inf) + db / jnp.where(b > 0, b, jnp.inf)
    return _relu(a, b, c), (0.5 * s * relative + (math.pi - jnp.arctan2(s, c)) * dc) / (2 * math.pi)


def _erf(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """(2 / pi) arcsin(2c / sqrt((1 + 2a)(1 + 2b))), by atan2, as the argument of arcsin can round to 1."""
    return (2 / math.pi) * jnp.arctan2(2 * c, jnp.sqrt(1 + 2 * (a + b) + 4 * _determinant(a, b, c)))


def _sin(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """exp(-(a + b) / 2) sinh(c), with only negative exponents."""
    size = jnp.abs(c)
    return -0.5 * jnp.sign(c) * jnp.expm1(-2 * size) * jnp.exp(size - (a + b) / 2)


def _gelu(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """c E[Phi(u) Phi(v)] + (c^2 + ab D) / (2 pi P sqrt(D)), P = (1 + a)(1 + b), D = P - c^2 >= 1.

    E[Phi(u) Phi(v)] = 1/4 + arcsin(c / sqrt(P)) / (2 pi); the rest is Stein's identity applied twice.
    """
    d = 1 + (a + b) + _determinant(a, b, c)
    orthant = 0.25 + jnp.arctan2(c, jnp.sqrt(d)) / (2 * math.pi)
    return c * orthant + (c**2 + a * b * d) / (2 * math.pi * (1 + a) * (1 + b) * jnp.sqrt(d))


CLOSED_FORMS: dict[str, DualActivation] = {
    "relu": jax.jit(_relu),
    "erf": jax.jit(_erf),
    "sin": jax.jit(_sin),
    "gelu": jax.jit(_gelu),
}
"""(a, b, c) -> E[g(u) g(v)] by the name of the activation g."""


def normal_nodes(count: int = 15) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of Gauss-Hermite quadrature: E[h(z)] is about sum_i w_i h(z_i) for z ~ N(0, 1)."""
    nodes, weights = scipy.special.roots_hermitenorm(count)
    return nodes, weights / np.sum(weights)


@functools.lru_cache(maxsize=8)
def _plane_nodes(order: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes (z1, z2) and weights of the product rule for N(0, I_2)."""
    z, w = normal_nodes(order)
    z1, z2 = np.meshgrid(z, z, indexing="ij")
    weights = np.outer(w, w)
    seen = weights > _NEGLIGIBLE_WEIGHT
    return z1[seen], z2[seen], weights[seen]


@functools.partial(jax.jit, static_argnums=0)
def _quadrature(
    g: Callable[[jax.Array], jax.Array], nodes: tuple[np.ndarray, ...], a: jax.Array, b: jax.Array, c: jax.Array
) -> jax.Array:
    """Gauss-Hermite quadrature along the principal axes of the correlation r,

        u = sqrt(a) (p z1 + q z2),   v = sqrt(b) (p z1 - q z2),   p = sqrt((1 + r) / 2),  q = sqrt((1 - r) / 2).

    The sum is even in p and q, so that rounding in r close to +-1 does no harm.
    """
    z1, z2, weights = nodes

    def pair(moments: Any) -> Any:
        a, b, c = moments
        scale = jnp.sqrt(a * b)
        # The quadrature error of the layer before can push a correlation past +-1.
        r = jnp.clip(c / jnp.where(scale > 0, scale, 1.0), -1.0, 1.0)
        along, across = jnp.sqrt((1 + r) / 2) * z1, jnp.sqrt((1 - r) / 2) * z2
        return weights @ (g(jnp.sqrt(a) * (along + across)) * g(jnp.sqrt(b) * (along - across)))

    moments = jnp.broadcast_arrays(a, b, c)
    flat = tuple(moment.ravel() for moment in moments)
    return jax.lax.map(pair, flat, batch_size=max(1, _VALUES_PER_CHUNK // len(weights))).reshape(moments[0].shape)


def dual_activation(activation: Activation, quadrature_order: int | None = None) -> DualActivation:
    """The function (a, b, c) -> E[g(u) g(v)] of centred Gaussians with Var u = a, Var v = b, Cov(u, v) = c.

    It works elementwise on arrays that broadcast, in the precision that JAX is allowed; closed forms are
    differentiable. Quadrature converges exponentially for smooth activations, but the slower the larger the variances:
    for tanh the default order leaves an error of 2e-8 at variance 2 and of 5e-4 at variance 10. Across kinks such as
    relu's the error only falls like 1 / order.

    Args:
        activation: name of an activation, or any elementwise JAX function g.
        quadrature_order: number of nodes in each of two directions, at least 2. None: the closed form where there is
            one, and 100 nodes otherwise.

    Returns:
        The dual activation.

    Raises:
        WidebnnError: if the activation is unknown, or the order is below 2.

    Examples:
        >>> float(dual_activation("relu")(1.0, 1.0, 1.0))
        0.5
    """
    if quadrature_order is None and isinstance(activation, str) and activation in CLOSED_FORMS:
        return CLOSED_FORMS[activation]
    order = QUADRATURE_ORDER if quadrature_order is None else check_integer("quadrature_order", quadrature_order, 2)
    g = activation if callable(activation) else activation_function(activation)
    return functools.partial(_quadrature, g, _plane_nodes(order))


def propagate(
    dual: DualActivation, scales: Sequence[tuple[Any, Any]], variances: Sequence[Any], covariance: Any, pairs: Any
) -> tuple[Any, Any]:
    """The layer recursion K_1 = sw^2 C + sb^2, K_{l+1} = sw^2 E[g(u) g(v)] + sb^2, from inputs to readout.

    Args:
        dual: the dual activation E[g(u) g(v)].
        scales: (sw, sb) of every layer, the readout last.
        variances: |x|^2 / m of the rows of the first and of the second set of inputs.
        covariance: C, the products x x' / m of the wanted pairs of rows.
        pairs: the indices of these pairs in the two sets, which broadcast to the shape of C.

    Returns:
        The prior variances of the readout at the first set of inputs, and its covariances at the pairs.
    """
    rows, columns = pairs
    first, second = variances
    for layer, (weight_std, bias_std) in enumerate(scales):
        if layer > 0:
            covariance = dual(first[rows], second[columns], covariance)
            first, second = dual(first, first, first), dual(second, second, second)
        first, second, covariance = (weight_std**2 * moment + bias_std**2 for moment in (first, second, covariance))
    return first, covariance


def nngp_kernel(network: DenseNetwork, x1: Any, x2: Any = None, *, quadrature_order: int | None = None) -> np.ndarray:
    """The prior covariance of the readout of ``network`` in the limit of infinite width.

        K_1 = sw^2 x x' / m + sb^2,     K_{l+1} = sw^2 E[g(u) g(v)] + sb^2,   (u, v) ~ N(0, K_l)

    The widths of the network do not matter, only their number: without hidden layers the kernel is linear.

    Args:
        network: a dense network.
        x1: inputs, n x features.
        x2: other inputs; None stands for ``x1``, and the matrix is then exactly symmetric.
        quadrature_order: see ``dual_activation``.

    Returns:
        The covariances, rows of ``x1`` x rows of ``x2``, in float64.

    Raises:
        WidebnnError: if the network is not dense, or the inputs do not fit it.

    Examples:
        >>> network = DenseNetwork(2, (8,), "relu", 1.0, 0.0, 1.0, 0.0)
        >>> float(nngp_kernel(network, [[1.0, 1.0]])[0, 0])
        0.5
    """
    if not isinstance(network, DenseNetwork):
        raise WidebnnError(
            f"the infinite-width kernel is known for dense networks only, got {type(network).__name__}: "
            "build the network with widebnn.dense(...)."
        )
    dual = dual_activation(network.activation, quadrature_order)
    x1 = check_inputs("x1", x1, network.input_dim)
    other = x1 if x2 is None else check_inputs("x2", x2, network.input_dim)
    # One triangle is enough for a symmetric matrix, and mirroring it makes the symmetry exact.
    pairs = np.triu_indices(len(x1), 1) if x2 is None else np.ix_(np.arange(len(x1)), np.arange(len(other)))
    variances = np.mean(x1**2, axis=1), np.mean(other**2, axis=1)
    kernel = x1 @ other.T / network.input_dim
    with double_precision():
        variance, covariance = propagate(dual, _scales(network), variances, kernel[pairs], pairs)
    kernel[pairs] = covariance
    if x2 is None:
        kernel = np.triu(kernel, 1)
        kernel += kernel.T + np.diag(variance)
    return kernel


def nngp_variance(network: DenseNetwork, x: np.ndarray) -> np.ndarray:
    """The diagonal of ``nngp_kernel(network, x)``, one number per row of x."""
    variance, rows = np.mean(x**2, axis=1), np.arange(len(x))
    with double_precision():
        dual = dual_activation(network.activation)
        return np.asarray(propagate(dual, _scales(network), (variance, variance), variance, (rows, rows))[0])


def _scales(network: DenseNetwork) -> list[tuple[float, float]]:
    """(weight_std, bias_std) of every layer, the readout last."""
    hidden = [(network.weight_std, network.bias_std)] * len(network.widths)
    return [*hidden, (network.readout_weight_std, network.readout_bias_std)]
