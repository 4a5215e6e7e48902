"""The infinite-width limit of a dense network: a Gaussian process (NNGP), and its exact posterior.

As all widths grow, the prior over readouts of :class:`DenseNetwork` becomes a Gaussian process with kernel

    K_1 = sw^2 x x' / m + sb^2,     K_{l+1} = sw^2 E[g(u) g(v)] + sb^2,   (u, v) ~ N(0, K_l),

where the last step uses the readout's scales (Neal, 1996; Lee et al., 2018). The expectation is known in
closed form for relu (Cho and Saul, 2009), erf (Williams, 1997), gelu (Tsuchida et al., 2021) and sin, and
by Gauss-Hermite quadrature for everything else. All results are NumPy arrays in float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.special

from widebnn.errors import WidebnnError, check_choice, check_integer, check_numbers, check_real
from widebnn.networks.activations import activation_function
from widebnn.networks.dense import DenseNetwork
from widebnn.precision import double_precision

Activation = str | Callable[[jax.Array], jax.Array]

QUADRATURE_ORDER = 100
# Values of g(u) g(v) held at once: bounds the memory of quadrature whatever the number of pairs.
_VALUES_PER_CHUNK = 2**20
# Nodes this unlikely cannot be seen in float64 unless g grows exponentially; there are many of them.
_NEGLIGIBLE_WEIGHT = 1e-30


# --- E[g(u) g(v)] with Var u = a, Var v = b, Cov(u, v) = c, in forms that stay accurate at correlation +-1.


@jax.jit
def _relu(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """(sqrt(ab - c^2) + c (pi - angle)) / (2 pi), angle = arccos(c / sqrt(ab)).

    With the angle from atan2 nothing is divided by a variance that may be 0, and an error in sqrt(ab - c^2),
    which cancellation makes large at correlation +-1, cancels to first order.
    """
    sine = jnp.sqrt(jnp.maximum(a * b - c**2, 0.0))
    return (sine + c * (math.pi - jnp.arctan2(sine, c))) / (2 * math.pi)


@jax.jit
def _erf(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """(2 / pi) arcsin(2c / sqrt((1 + 2a)(1 + 2b)))."""
    return (2 / math.pi) * jnp.arcsin(2 * c / jnp.sqrt((1 + 2 * a) * (1 + 2 * b)))


@jax.jit
def _sin(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """exp(-(a + b) / 2) sinh(c), with only negative exponents."""
    size = jnp.abs(c)
    return -0.5 * jnp.sign(c) * jnp.expm1(-2 * size) * jnp.exp(size - (a + b) / 2)


@jax.jit
def _gelu(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """c E[Phi(u) Phi(v)] + (c^2 + ab D) / (2 pi P sqrt(D)), P = (1 + a)(1 + b), D = P - c^2.

    E[Phi(u) Phi(v)] = 1/4 + arcsin(c / sqrt(P)) / (2 pi) is an orthant probability; the rest is Stein's
    identity applied twice. D = 1 + a + b + (ab - c^2) is at least 1: nothing degenerates at correlation +-1.
    """
    p = (1 + a) * (1 + b)
    d = 1 + (a + b) + jnp.maximum(a * b - c**2, 0.0)
    orthant = 0.25 + jnp.arcsin(c / jnp.sqrt(p)) / (2 * math.pi)
    return c * orthant + (c**2 + a * b * d) / (2 * math.pi * p * jnp.sqrt(d))


CLOSED_FORMS: dict[str, Callable[..., jax.Array]] = {"relu": _relu, "erf": _erf, "sin": _sin, "gelu": _gelu}


@functools.lru_cache(maxsize=8)
def _nodes(order: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes (z1, z2) and weights of the product Gauss-Hermite rule for N(0, I_2)."""
    z, w = scipy.special.roots_hermitenorm(order)
    w = w / np.sum(w)
    z1, z2 = np.meshgrid(z, z, indexing="ij")
    weights = np.outer(w, w)
    seen = weights > _NEGLIGIBLE_WEIGHT
    return z1[seen], z2[seen], weights[seen]


@functools.partial(jax.jit, static_argnames="g")
def _quadrature(g, nodes, a, b, c):
    """Gauss-Hermite quadrature along the principal axes of the correlation r,

        u = sqrt(a) (p z1 + q z2),   v = sqrt(b) (p z1 - q z2),   p = sqrt((1 + r) / 2),  q = sqrt((1 - r) / 2).

    Unlike the Cholesky parametrisation it treats u and v alike, and the sum is even in p and q, so that
    rounding in r close to +-1 does no harm.
    """
    z1, z2, weights = nodes

    def pair(moments):
        a, b, c = moments
        scale = jnp.sqrt(a * b)
        r = jnp.clip(c / jnp.where(scale > 0, scale, 1.0), -1.0, 1.0)
        along, across = jnp.sqrt((1 + r) / 2) * z1, jnp.sqrt((1 - r) / 2) * z2
        return weights @ (g(jnp.sqrt(a) * (along + across)) * g(jnp.sqrt(b) * (along - across)))

    return jax.lax.map(pair, (a, b, c), batch_size=max(1, _VALUES_PER_CHUNK // len(weights)))


def expected_product(
    activation: Activation,
    a: Any,
    b: Any,
    c: Any,
    *,
    method: str = "auto",
    quadrature_order: int = QUADRATURE_ORDER,
) -> np.ndarray:
    """E[g(u) g(v)] for centred Gaussians with Var u = ``a``, Var v = ``b``, Cov(u, v) = ``c`` (they broadcast).

    ``activation`` is a name, or any elementwise JAX function. ``method`` is ``closed``, ``quadrature`` or
    ``auto``: the closed form where there is one. Quadrature converges exponentially for smooth activations,
    but the slower the larger the variances: for tanh the default order leaves an error of 2e-8 at variance 2
    and 5e-4 at variance 10. Across kinks such as relu's the error falls like 1 / order only.
    """
    closed_form = _closed_form(activation, method)
    order = check_integer("quadrature_order", quadrature_order, 2)
    a, b, c = check_numbers("a", a), check_numbers("b", b), check_numbers("c", c)
    if np.any(a < 0) or np.any(b < 0):
        raise WidebnnError("a and b must not be negative: they are the variances of u and v.")
    if np.any(c**2 > a * b * (1 + 1e-9) + np.finfo(np.float64).tiny):
        raise WidebnnError("c must lie between -sqrt(a b) and sqrt(a b): it is the covariance of u and v.")
    with double_precision():
        if closed_form is not None:
            value = closed_form(a, b, c)
        else:
            g = activation if callable(activation) else activation_function(activation)
            a, b, c = np.broadcast_arrays(a, b, c)
            value = _quadrature(g, _nodes(order), a.ravel(), b.ravel(), c.ravel()).reshape(c.shape)
        return np.array(value)


def nngp_kernel(
    network: DenseNetwork,
    x1: Any,
    x2: Any = None,
    *,
    method: str = "auto",
    quadrature_order: int = QUADRATURE_ORDER,
) -> np.ndarray:
    """The prior covariance (rows of ``x1`` x rows of ``x2``) of an infinitely wide ``network``'s readout.

    The equation stands at the top of this module. The network's widths do not matter, only their number:
    without hidden layers the kernel is linear, sw_out^2 x x' / m + sb_out^2. With ``x2=None`` the matrix is
    of ``x1`` with itself and exactly symmetric. See :func:`expected_product` for the two options.
    """
    if not isinstance(network, DenseNetwork):
        raise WidebnnError(
            f"the infinite-width kernel is known for dense networks only, got {type(network).__name__}: "
            "build the network with widebnn.dense(...)."
        )
    _closed_form(network.activation, method)  # a wrong method is an error without hidden layers too
    x1 = _inputs("x1", x1, network.input_dim)
    other = x1 if x2 is None else _inputs("x2", x2, network.input_dim)
    # One triangle is enough for a symmetric matrix, and mirroring it makes the symmetry exact.
    shape = (len(x1), len(other))
    rows, columns = np.triu_indices(len(x1), 1) if x2 is None else np.ix_(*map(np.arange, shape))

    def propagate(a, b, c):
        # The quadrature error of the layer before can push a correlation past +-1.
        bound = np.sqrt(a * b)
        c = np.clip(c, -bound, bound)
        return expected_product(network.activation, a, b, c, method=method, quadrature_order=quadrature_order)

    variance1, variance2 = np.mean(x1**2, axis=1), np.mean(other**2, axis=1)
    covariance = (x1 @ other.T / network.input_dim)[rows, columns]
    hidden = [(network.weight_std, network.bias_std)] * len(network.widths)
    for layer, (weight_std, bias_std) in enumerate([*hidden, (network.readout_weight_std, network.readout_bias_std)]):
        if layer > 0:
            covariance = propagate(variance1[rows], variance2[columns], covariance)
            variance1, variance2 = (propagate(v, v, v) for v in (variance1, variance2))
        variance1, variance2, covariance = (
            weight_std**2 * moment + bias_std**2 for moment in (variance1, variance2, covariance)
        )
    kernel = np.zeros(shape)
    kernel[rows, columns] = covariance
    return kernel if x2 is not None else kernel + kernel.T + np.diag(variance1)


class GPPosterior(NamedTuple):
    """The exact posterior of a Gaussian process at test inputs, without observation noise."""

    mean: np.ndarray
    """test inputs x outputs."""
    covariance: np.ndarray
    """test inputs x test inputs, the same for every output."""
    log_evidence: float
    """log N(y; 0, K + s^2 I), summed over outputs."""

    @property
    def variance(self) -> np.ndarray:
        """The diagonal of the covariance; rounding below zero is cut off."""
        return np.maximum(np.diagonal(self.covariance), 0.0)


def gp_posterior(
    network: DenseNetwork | Callable[[np.ndarray], np.ndarray], x: Any, y: Any, noise: float, x_test: Any
) -> GPPosterior:
    """Condition the infinite-width limit of ``network`` on y = f(x) + noise e, e ~ N(0, I).

        mean = K_*x (K_xx + s^2 I)^-1 y,     covariance = K_** - K_*x (K_xx + s^2 I)^-1 K_x*

    ``y`` is n x outputs, or n. In place of a network any kernel will do: a function from inputs to the
    covariance matrix of their rows, such as ``functools.partial(nngp_kernel, network, method="quadrature")``.
    """
    kernel = network if callable(network) else functools.partial(nngp_kernel, network)
    noise = check_real("noise", noise, above=0, advice="It is the standard deviation of the observations.")
    x = _inputs("x", x, getattr(network, "input_dim", None))
    x_test = _inputs("x_test", x_test, x.shape[1])
    y = check_numbers("y", y)
    if y.ndim not in (1, 2):
        raise WidebnnError(f"y must have shape (n,) or (n, outputs); got {y.shape}.")
    if y.shape[0] != x.shape[0]:
        raise WidebnnError(f"x and y must have the same number of rows; got {x.shape[0]} and {y.shape[0]}.")
    y = y[:, None] if y.ndim == 1 else y
    n, outputs = y.shape

    k = np.asarray(kernel(np.concatenate([x, x_test])), np.float64)
    if k.shape != (n + len(x_test),) * 2:
        raise WidebnnError(f"the kernel of {n + len(x_test)} inputs must be square; it returned shape {k.shape}.")
    try:
        factor = scipy.linalg.cholesky(k[:n, :n] + noise**2 * np.eye(n), lower=True)
    except (scipy.linalg.LinAlgError, ValueError):
        raise WidebnnError(
            f"the kernel plus noise^2 = {noise**2:g} is not positive definite; "
            "use a larger noise, or a larger quadrature_order if the kernel comes from quadrature."
        ) from None
    white_y, white_k = (scipy.linalg.solve_triangular(factor, b, lower=True) for b in (y, k[:n, n:]))
    log_evidence = (
        -outputs * np.sum(np.log(np.diagonal(factor)))
        - 0.5 * np.sum(white_y**2)
        - 0.5 * n * outputs * math.log(2 * math.pi)
    )
    return GPPosterior(white_k.T @ white_y, k[n:, n:] - white_k.T @ white_k, float(log_evidence))


def _closed_form(activation: Activation, method: str) -> Callable[..., jax.Array] | None:
    """The closed form ``method`` asks for, None for quadrature."""
    check_choice("method", method, ("auto", "closed", "quadrature"))
    known = CLOSED_FORMS.get(activation) if isinstance(activation, str) else None
    if method == "closed" and known is None:
        raise WidebnnError(
            f"method='closed' needs one of the activations {', '.join(CLOSED_FORMS)}; got {activation!r}. "
            "Use method='quadrature'."
        )
    return None if method == "quadrature" else known


def _inputs(name: str, value: Any, columns: int | None) -> np.ndarray:
    """A finite float64 matrix with at least one row and the expected number of columns."""
    array = check_numbers(name, value)
    if array.ndim != 2:
        raise WidebnnError(f"{name} must be a 2-D array, rows are inputs; got shape {array.shape}. Try reshape(-1, 1).")
    if array.shape[0] == 0:
        raise WidebnnError(f"{name} is empty: at least one row is needed.")
    if columns is not None and array.shape[1] != columns:
        raise WidebnnError(f"{name} must have {columns} columns, one per input feature; got shape {array.shape}.")
    return array
