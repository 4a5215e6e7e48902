"""Class labels: y_i is class c with probability softmax(f(x_i))_c; the outputs f are logits.

The readout cannot be integrated out, so it is part of the position. Where the coordinates do not hold it, it is reduced
like a hidden layer (coordinates/function.py): the likelihood sees the readout only through f = Psi theta, whose columns
are N(0, Psi Psi') given the hidden layers. With more features than (distinct) inputs f = R B has the same
distribution, B standard normal with one row per input and

    Psi = U S V',     R = U S U' = (Psi Psi')^{1/2},     B = M' theta,     M = V U'.

M has orthonormal columns, so theta = M B + (I - M M') Z with a fresh standard normal Z is an exact draw of the readout.
No noise is added to Psi Psi', and for smooth activations and inputs in few dimensions it is singular up to rounding.
Hence the symmetric root: unlike a Cholesky factor it always exists and moves at most sqrt(2) times as far as Psi does.
Equal inputs are merged, so that the root has one row each, and their labels counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widebnn.errors import WidebnnError, check_integer, check_numbers
from widebnn.likelihoods.likelihood import Likelihood, Sizes
from widebnn.likelihoods.lognormal import LogNormal
from widebnn.likelihoods.readout import KnownReadout, Prediction
from widebnn.linalg import lower_gram, product
from widebnn.noise import standard_normal


class SoftmaxLatent(NamedTuple):
    """Coordinates that a softmax likelihood adds, all N(0, I) a priori; ``()`` for what is not needed."""

    readout: Any = ()
    """B, rows x classes, or all readout weights where there are no more of them than rows."""
    open: Any = ()
    """Z, the directions of the readout that B leaves open, where the chain carries inputs beyond the data."""
    scale: Any = ()
    """The coordinate of an unknown scale of the logits."""


@dataclass(frozen=True)
class Softmax(Likelihood):
    """P(y = c) = softmax(f)_c.

    Args:
        classes: Number of classes; by default the largest label + 1.
        logit_scale: Prior of a factor of all logits that is not known and is sampled with the chain. A known one is
            the network's ``readout_weight_std``.

    Raises:
        WidebnnError: If ``classes`` is below 2 or ``logit_scale`` is not a LogNormal.

    Examples:
        >>> Softmax(classes=3).name
        'softmax'
    """

    classes: int | None = None
    logit_scale: LogNormal | None = None
    name = "softmax"

    def __post_init__(self) -> None:
        if self.classes is not None:
            object.__setattr__(self, "classes", check_integer("classes", self.classes, 2))
        if not isinstance(self.logit_scale, LogNormal | None):
            raise WidebnnError(
                f"logit_scale must be the prior of an unknown scale, LogNormal(median, log_sd); got "
                f"{self.logit_scale!r}. A known scale is the network's readout_weight_std."
            )

    def targets(self, y: Any) -> Any:
        """Labels 0..C-1, or one-hot rows, as one-hot rows."""
        return one_hot_labels(y, self.classes)

    def prepare(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Distinct inputs, and how often each has been given each label."""
        rows, where = np.unique(np.asarray(x), axis=0, return_inverse=True)
        if len(rows) == len(x):
            return x, y
        with jax.ensure_compile_time_eval():
            distinct = jnp.asarray(rows, x.dtype)
        return distinct, jax.ops.segment_sum(y, where.reshape(-1), len(rows))

    def sample_latent(self, key: jax.Array, sizes: Sizes) -> SoftmaxLatent:
        """What the coordinates lack of the readout, and the scale of the logits if that is unknown."""
        readout_key, open_key, scale_key = jax.random.split(key, 3)
        is_reduced = sizes.features > sizes.rows
        z = SoftmaxLatent()
        if not sizes.holds_readout:
            shape = (min(sizes.rows, sizes.features), sizes.outputs)
            z = z._replace(readout=standard_normal(readout_key, shape, sizes.dtype))
            if is_reduced and sizes.carries_inputs:
                shape = (sizes.features, sizes.outputs)
                z = z._replace(open=standard_normal(open_key, shape, sizes.dtype))
        if self.logit_scale is not None:
            z = z._replace(scale=standard_normal(scale_key, (), sizes.dtype))
        return z

    def latent_from(self, z: Any, psi: jax.Array, readout: jax.Array, sizes: Sizes) -> SoftmaxLatent:
        """B of given readout weights; ``z`` is the coordinate of the unknown scale of the logits."""
        latent = SoftmaxLatent()
        if self.logit_scale is not None:
            latent = latent._replace(scale=jnp.asarray(z, sizes.dtype))
        if not sizes.holds_readout:
            readout = readout.astype(jnp.float64) / self.scale(latent)
            reduced = polar_factor(psi).T @ readout if sizes.features > sizes.rows else readout
            latent = latent._replace(readout=reduced.astype(sizes.dtype))
        return latent

    def scale(self, z: SoftmaxLatent) -> Any:
        """The unknown factor of the logits, or 1."""
        return 1.0 if self.logit_scale is None else self.logit_scale.at(z.scale)

    def log_likelihood(self, f: jax.Array, y: jax.Array, z: SoftmaxLatent, psi: Any = None) -> jax.Array:
        """sum_i log softmax(s f_i)[y_i]."""
        return softmax_log_likelihood(self.scale(z) * f.astype(jnp.float64), y)

    def log_evidence(self, psi: jax.Array, y: jax.Array, z: SoftmaxLatent, constant: float = 0.0) -> jax.Array:
        """The same at f = R B."""
        if constant != 0:
            psi = jnp.concatenate([psi, jnp.full((len(psi), 1), constant, psi.dtype)], axis=1)
        if psi.shape[1] > psi.shape[0]:
            return self.log_likelihood(kernel_root(psi) @ z.readout.astype(jnp.float64), y, z)
        return self.log_likelihood(product(psi, z.readout), y, z)

    def condition(self, psi: jax.Array, y: jax.Array, z: SoftmaxLatent) -> KnownReadout | ReducedReadout:
        """The readout weights that B and Z stand for."""
        if psi.shape[1] <= psi.shape[0]:
            return KnownReadout(self.scale(z) * z.readout.astype(jnp.float64))
        reduced = ReducedReadout(polar_factor(psi), z.readout.astype(jnp.float64), self.scale(z))
        return reduced if isinstance(z.open, tuple) else KnownReadout(reduced.fill(z.open))

    def observe(self, key: jax.Array, f: jax.Array, z: SoftmaxLatent, psi: Any = None) -> jax.Array:
        """One-hot labels drawn from the classes' probabilities."""
        return jax.nn.one_hot(jax.random.categorical(key, f), f.shape[1], dtype=f.dtype)


@dataclass(frozen=True, eq=False)
class ReducedReadout:
    """theta = s (M B + (I - M M') Z), Z ~ N(0, I)."""

    polar: jax.Array
    reduced: jax.Array
    scale: Any

    def fill(self, z: jax.Array) -> jax.Array:
        """theta for given Z."""
        z = z.astype(jnp.float64)
        return self.scale * (self.polar @ self.reduced + z - self.polar @ (self.polar.T @ z))

    def draw(self, key: jax.Array) -> jax.Array:
        """theta for a fresh Z."""
        return self.fill(standard_normal(key, (len(self.polar), self.reduced.shape[1]), jnp.float64))

    def predict(self, key: jax.Array, psi_new: jax.Array) -> Prediction:
        """The logits at new features."""
        return KnownReadout(self.draw(key)).predict(key, psi_new)


def softmax_log_likelihood(f: jax.Array, y: jax.Array) -> jax.Array:
    """sum_i log softmax(f_i)[y_i] for logits f and one-hot y (or counts of labels), inputs x classes, in float64."""
    f, y = f.astype(jnp.float64), y.astype(jnp.float64)
    return jnp.sum(y * f) - jnp.sum(jnp.sum(y, axis=1) * jax.scipy.special.logsumexp(f, axis=1))


def one_hot_labels(y: Any, classes: int | None) -> Any:
    """Class labels 0..C-1 (shape n), or one-hot rows (n x C), as one-hot rows; C = ``classes`` or the largest + 1."""
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


@jax.custom_vjp
def kernel_root(psi: jax.Array) -> jax.Array:
    """(Psi Psi')^{1/2} in float64; the kernel is formed in float64 too, because the root magnifies its rounding.

    Gram rounding e becomes sqrt(e) in directions that Psi hardly has.
    """
    return _kernel_root(psi)[0]


def _kernel_root(psi: jax.Array) -> tuple[jax.Array, Any]:
    lam, vectors = jnp.linalg.eigh(lower_gram(psi.astype(jnp.float64)), symmetrize_input=False)
    roots = jnp.sqrt(jnp.maximum(lam, 0.0))
    return (vectors * roots) @ vectors.T, (psi, vectors, roots)


def _kernel_root_backward(saved: Any, cotangent: jax.Array) -> tuple[jax.Array]:
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
