"""Double precision and quiet BLAS threads, both switched on locally and put back afterwards.

Features are computed in the dtype of the position (float32 unless asked otherwise); the small dense
linear algebra behind the log-likelihood always runs in float64. JAX only allows float64 while
``jax.enable_x64`` is on, so it is entered as a context where it is needed: the caller's global JAX
configuration is never changed, and importing this package changes nothing at all.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
from threadpoolctl import threadpool_limits

from widebnn.errors import WidebnnError


def double_precision() -> AbstractContextManager[Any]:
    """Context in which JAX honours float64."""
    return jax.enable_x64(True)


def widest_float() -> jnp.dtype:
    """The widest float the surrounding context allows: what sums and log-densities are held in."""
    return jnp.dtype(jnp.float64 if jax.config.read("jax_enable_x64") else jnp.float32)


def in_double_precision(log_density: Callable[[Any], jax.Array]) -> Callable[[Any], jax.Array]:
    """Let a scalar function use float64 inside, whatever the caller's JAX configuration is.

    The value comes back in the widest float of the caller's context and the gradient in the dtype of the
    argument. Value and gradient are computed together, so that the expensive factorisation inside is done
    once. Reverse-mode differentiation only (what every gradient sampler uses).
    """

    def narrowed(value: jax.Array, dtype: jnp.dtype) -> jax.Array:
        return value.astype(dtype)

    @jax.custom_vjp
    def function(u: Any) -> jax.Array:
        outer = widest_float()
        with double_precision():
            return narrowed(log_density(u), outer)

    def forward(u: Any) -> tuple[jax.Array, Any]:
        outer = widest_float()
        with double_precision():
            value, gradient = jax.value_and_grad(log_density)(u)
            return narrowed(value, outer), gradient

    def backward(gradient: Any, cotangent: jax.Array) -> tuple[Any]:
        with double_precision():
            return (jax.tree.map(lambda g: (cotangent * g).astype(g.dtype), gradient),)

    function.defvjp(forward, backward)
    return functools.wraps(log_density)(reverse_mode_only(function))


def reverse_mode_only(function: Callable[[Any], jax.Array]) -> Callable[[Any], jax.Array]:
    """A function with a custom reverse-mode derivative, with one sentence for those who ask for another."""

    @functools.wraps(function)
    def called(u: Any) -> jax.Array:
        try:
            return function(u)
        except TypeError as error:
            if "forward-mode" not in str(error):
                raise
        raise WidebnnError(
            "log-likelihoods have derivatives in reverse mode only, not by jax.jvp or jax.jacfwd: "
            "use jax.grad, jax.vjp or jax.jacrev."
        )

    return called


def with_gradient_of(
    log_density: Callable[[Any], jax.Array], other: Callable[[Any], jax.Array], dtype: Any
) -> Callable[[Any], jax.Array]:
    """``log_density`` with the gradient of ``other``, which takes the same position in another dtype.

    Every sampler here accepts or rejects by the log-density and is exact whatever it follows instead of the gradient,
    as long as that is a function of the position. So the gradient may be that of float32 features, at their cost, where
    the log-density itself needs float64: its error costs a little acceptance and nothing else. Where a sampler asks for
    the gradient alone, as Hilbert-space HMC does on its way, the exact part is not computed at all.
    """

    @jax.custom_vjp
    def function(u: Any) -> jax.Array:
        return log_density(u)

    def forward(u: Any) -> tuple[jax.Array, Any]:
        return log_density(u), u

    def backward(u: Any, cotangent: jax.Array) -> tuple[Any]:
        slope = jax.grad(other)(jax.tree.map(lambda leaf: leaf.astype(dtype), u))
        return (jax.tree.map(lambda g, leaf: (cotangent * g).astype(leaf.dtype), slope, u),)

    function.defvjp(forward, backward)
    return reverse_mode_only(function)


_blas_lock = threading.Lock()
_blas_users = 0
_blas_limits: list[threadpool_limits] = []


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep LAPACK's threads from spinning.

    On CPUs JAX calls SciPy's LAPACK, whose worker threads busy-wait after every factorisation and take the
    cores from XLA's own thread pool. For the n x n matrices of a sampler step one thread is faster. The
    limit is lifted when the context ends, or, where several threads are inside, when the last of them leaves.
    """
    # The library JAX will call must be loaded before it can be limited, and JAX loads it late.
    import scipy.linalg.cython_lapack  # noqa: F401

    global _blas_users  # the limit belongs to the process, whatever the thread
    with _blas_lock:
        _blas_users += 1
        _blas_limits.append(threadpool_limits(limits=1, user_api="blas"))
    try:
        yield
    finally:
        with _blas_lock:
            _blas_users -= 1
            while _blas_limits and _blas_users == 0:
                _blas_limits.pop().restore_original_limits()
