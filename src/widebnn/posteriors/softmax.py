"""Classification: y_i is class c with probability softmax(f(x_i))_c; the outputs f are logits.

The readout cannot be integrated out, so it is part of the position. In ``weights`` it is the readout itself. In
``function`` it is reduced like a hidden layer (function_space.py): the likelihood sees the readout only through
f = Psi theta, whose columns are N(0, Psi Psi') given the hidden layers. With more features than (distinct) inputs
f = R B has the same law, B standard normal with one row per input and

    Psi = U S V',     R = U S U' = (Psi Psi')^{1/2},     B = M' theta,     M = V U'.

M has orthonormal columns, so theta = M B + (I - M M') Z with a fresh standard normal Z is an exact draw of the readout.
No noise is added to Psi Psi', and for smooth activations and inputs in few dimensions it is singular up to rounding.
Hence the symmetric root: unlike a Cholesky factor it always exists and moves at most sqrt(2) times as far as Psi does.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widebnn.errors import WidebnnError, check_integer, check_numbers
from widebnn.networks.dense import DenseNetwork
from widebnn.networks.network import Network, Weights
from widebnn.networks.network import apply as apply_network
from widebnn.noise import standard_normal
from widebnn.posteriors.function_space import FunctionPosition, carry_inputs, function_space, unit_axes
from widebnn.posteriors.products import lower_gram, product
from widebnn.posteriors.target import NetworkTarget, Prediction
from widebnn.posteriors.weights import weights_target
from widebnn.precision import double_precision, in_double_precision


def softmax_log_likelihood(f: jax.Array, y: jax.Array) -> jax.Array:
    """sum_i log softmax(f_i)[y_i] for logits f and one-hot y, both inputs x classes, in float64."""
    f = f.astype(jnp.float64)
    return jnp.sum(y.astype(jnp.float64) * f) - jnp.sum(jax.scipy.special.logsumexp(f, axis=1))


def one_hot_labels(y: Any, classes: int | None = None) -> Any:
    """Class labels 0..C-1 (shape n), or one-hot rows (n x C), as one-hot rows; C = ``classes`` or the largest + 1."""
    classes = None if classes is None else check_integer("classes", classes, 2)
    traced = isinstance(y, jax.core.Tracer)
    if not traced:
        y = check_numbers("y", y)
    if y.ndim not in (1, 2):
        raise WidebnnError(
            f"y must be class labels of shape (n,) or one-hot rows of shape (n, classes); got {y.shape}."
        )
    if y.size == 0:
        raise WidebnnError("y is empty: at least one label is needed.")
    if y.ndim == 2:
        return _checked_one_hot(y, classes, traced)
    if traced:
        if classes is None:
            raise WidebnnError("the number of classes cannot be read off traced labels; pass classes=C.")
        return jax.nn.one_hot(y, classes, dtype=jnp.float32)
    if np.any(y != np.round(y)):
        raise WidebnnError(
            f"y must be whole numbers, the classes 0, 1, 2, ...; got {y[y != np.round(y)][0]:g}. "
            "Encode the classes, or use likelihood='gaussian' for regression."
        )
    least, most, distinct = int(y.min()), int(y.max()), len(np.unique(y))
    if least < 0:
        raise WidebnnError(f"y must be classes counted from 0; got the label {least}. Encode them as 0, 1, 2, ...")
    if classes is None and distinct == 1:
        raise WidebnnError(
            f"y must hold at least two classes; every label is {least}. If there are others, pass classes=C."
        )
    if classes is not None and most >= classes:
        raise WidebnnError(f"y must be below classes={classes}; got the label {most}. Count the classes from 0.")
    return (y[:, None] == np.arange(classes or most + 1)).astype(np.float64)


def _checked_one_hot(y: Any, classes: int | None, traced: bool) -> Any:
    if y.shape[1] == 1:
        raise WidebnnError(
            f"y must be labels of shape (n,) or at least two one-hot columns; got {y.shape}. Try y.ravel()."
        )
    if classes not in (None, y.shape[1]):
        raise WidebnnError(
            f"y has {y.shape[1]} one-hot columns but classes={classes}; leave classes out or make them equal."
        )
    if not traced and not (np.all((y == 0) | (y == 1)) and np.all(y.sum(axis=1) == 1)):
        raise WidebnnError(
            "a matrix y must have one-hot rows, a single 1 among zeros; other values came. Pass labels of shape (n,), "
            "or use likelihood='gaussian' for regression."
        )
    return y


def softmax_weights_target(network: Network, x: jax.Array, y: jax.Array) -> NetworkTarget:
    """The posterior over all weights given one-hot labels y."""

    @in_double_precision
    def log_likelihood(u):
        return softmax_log_likelihood(apply_network(network, u, x), y)

    target = weights_target(network, x, y, noise=0.0)  # only its likelihood is Gaussian
    return dataclasses.replace(target, log_likelihood=log_likelihood, likelihood="softmax")


@jax.custom_vjp
def kernel_root(psi: jax.Array) -> jax.Array:
    """(Psi Psi')^{1/2} in float64; the kernel is formed in float64 too, because the root magnifies its rounding.

    Gram rounding e becomes sqrt(e) in directions that Psi hardly has.
    """
    return _kernel_root(psi)[0]


def _kernel_root(psi):
    lam, vectors = jnp.linalg.eigh(lower_gram(psi.astype(jnp.float64)), symmetrize_input=False)
    roots = jnp.sqrt(jnp.maximum(lam, 0.0))
    return (vectors * roots) @ vectors.T, (psi, vectors, roots)


def _kernel_root_backward(saved, cotangent):
    """R dR + dR R = dK, hence in the eigenbasis dR_ij = dK_ij / (s_i + s_j); and dK = dPsi Psi' + Psi dPsi'."""
    psi, vectors, roots = saved
    rounding = roots[-1] * jnp.sqrt(roots.size * jnp.finfo(jnp.float64).eps)
    sums = jnp.maximum(roots[:, None] + roots, jnp.maximum(rounding, jnp.finfo(jnp.float64).tiny))
    by_kernel = vectors @ ((vectors.T @ (0.5 * (cotangent + cotangent.T)) @ vectors) / sums) @ vectors.T
    return ((2 * by_kernel @ psi.astype(jnp.float64)).astype(psi.dtype),)


kernel_root.defvjp(_kernel_root, _kernel_root_backward)


def polar_factor(psi: jax.Array) -> jax.Array:
    """M = V U', features x inputs, of a wide Psi = U S V': orthonormal columns, whatever the rank of Psi."""
    u, _, vt = jnp.linalg.svd(psi.astype(jnp.float64), full_matrices=False)
    return vt.T @ u.T


def softmax_function_target(
    network: DenseNetwork, x: jax.Array, y: jax.Array, carry: Any = None, full: bool = False
) -> NetworkTarget:
    """The posterior of a dense network over function values at the inputs, given one-hot labels y.

    u.layers are the hidden layers as for the Gaussian likelihood; u.readout is B, or the readout itself if there are
    no more features than distinct inputs.
    """
    if full:
        raise WidebnnError(
            "space='full' is the chain with a whitened readout, which needs likelihood='gaussian'; got 'softmax'. "
            "Use space='reduced', or coordinates='weights' to move all weights."
        )
    rows, where = np.unique(np.asarray(x), axis=0, return_inverse=True)
    repeated = len(rows) < len(x)
    with double_precision(), jax.ensure_compile_time_eval():
        distinct = jnp.asarray(rows, x.dtype) if repeated else x
    space = function_space(network, distinct)
    dtype, classes, features = x.dtype, y.shape[1], network.feature_dim
    is_reduced = features > len(rows)
    readout_shape = (len(rows) if is_reduced else features, classes)
    carried = None if carry is None else carry_inputs(network, space, carry, dtype)

    def normals(key, shapes):
        keys = jax.random.split(key, len(shapes))
        return tuple(standard_normal(k, shape, dtype) for k, shape in zip(keys, shapes, strict=True))

    @in_double_precision
    def log_likelihood(u):
        psi = space.psi(u.layers)
        f = kernel_root(psi) @ u.readout.astype(jnp.float64) if is_reduced else product(psi, u.readout)
        return softmax_log_likelihood(f[where.reshape(-1)] if repeated else f, y)

    def sample_reference(key):
        with double_precision():
            layers_key, readout_key, carried_key = jax.random.split(key, 3)
            u = FunctionPosition(normals(layers_key, space.shapes), readout=normals(readout_key, [readout_shape])[0])
            if carried is not None:
                free = [(features, classes)] if is_reduced else []
                u = u._replace(carried=normals(carried_key, [*carried.shapes, *free]))
            return u

    def open_readout(key):
        """Z: what fills the directions of the readout that B does not determine."""
        return standard_normal(key, (features, classes), dtype)

    def readout_weights(u, z):
        if not is_reduced:
            return u.readout.astype(jnp.float64)
        m, z = polar_factor(space.psi(u.layers)), z.astype(jnp.float64)
        return m @ u.readout.astype(jnp.float64) + z - m @ (m.T @ z)

    def to_weights(key, u):
        with double_precision():
            hidden_key, readout_key = jax.random.split(key)
            readout = readout_weights(u, open_readout(readout_key))
            return Weights(space.hidden_weights(hidden_key, u.layers), readout.astype(dtype))

    def from_weights(weights):
        if carry is not None:
            raise WidebnnError("weights do not determine what is carried; leave carry out.")
        with double_precision():
            layers, readout = space.from_hidden(weights.hidden), weights.readout
            if is_reduced:
                readout = (polar_factor(space.psi(layers)).T @ readout.astype(jnp.float64)).astype(dtype)
            return FunctionPosition(layers, readout=readout)

    def predict(key, u, x_new=None):
        if x_new is None and carried is None:
            raise WidebnnError("predict needs inputs: pass x, or carry them with posterior(..., carry=x_test).")
        with double_precision():
            hidden_key, readout_key = jax.random.split(key)
            if x_new is None:
                extension, free, z = carried.extension, u.carried[: len(network.widths)], u.carried[-1]
            else:
                extension, z = space.extend(x_new), open_readout(readout_key)
                free = normals(hidden_key, [(len(x_new), width) for width in network.widths])
            psi_new = space.at_new_inputs(u.layers, extension, free)
            f = (psi_new.astype(jnp.float64) @ readout_weights(u, z)).astype(dtype)
            return Prediction(f, f, jnp.zeros(f.shape[0], dtype))

    return NetworkTarget(
        log_likelihood=log_likelihood,
        sample_reference=sample_reference,
        coordinates="function",
        network=network,
        x=x,
        y=y,
        noise=0.0,
        to_weights=to_weights,
        from_weights=from_weights,
        predict=predict,
        carry=carry,
        unit_axes=unit_axes,
        likelihood="softmax",
    )
