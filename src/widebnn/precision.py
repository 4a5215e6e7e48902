"""Double precision and quiet BLAS threads, both switched on locally and put back afterwards.

Features are computed in the dtype of the position; the small dense linear algebra behind the log-likelihood always runs
in float64. JAX only allows float64 while ``jax.enable_x64`` is on, so it is entered where it is needed: the caller's
global JAX configuration is never changed, and importing this package changes nothing at all.
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


def double_precision() -> AbstractContextManager[Any]:
    """Context in which JAX honours float64."""
    return jax.enable_x64(True)


def widest_float() -> jnp.dtype:
    """The widest float the surrounding context allows: what sums and log-densities are held in."""
    return jnp.dtype(jnp.float64 if jax.config.read("jax_enable_x64") else jnp.float32)


def in_double_precision(log_density: Callable[[Any], jax.Array]) -> Callable[[Any], jax.Array]:
    """Let a scalar function use float64 inside, whatever the caller's JAX configuration is.

    The value comes back in the widest float of the caller's context and the gradient in the dtype of the argument, both
    computed together, so that the factorisation inside is done once. Reverse-mode differentiation only.
    """

    @functools.wraps(log_density)
    def plain(u: Any) -> jax.Array:
        outer = widest_float()
        with double_precision():
            return log_density(u).astype(outer)

    def forward(u: Any) -> tuple[jax.Array, Any]:
        outer = widest_float()
        with double_precision():
            value, gradient = jax.value_and_grad(log_density)(u)
            return value.astype(outer), gradient

    def backward(gradient: Any, cotangent: jax.Array) -> tuple[Any]:
        with double_precision():
            return (jax.tree.map(lambda g: (cotangent * g).astype(g.dtype), gradient),)

    function = jax.custom_vjp(plain)
    function.defvjp(forward, backward)
    return function


def with_gradient_of(
    log_density: Callable[[Any], jax.Array], other: Callable[[Any], jax.Array], dtype: Any
) -> Callable[[Any], jax.Array]:
    """``log_density`` with the gradient of ``other``, which takes the same position in another dtype.

    Every sampler here accepts or rejects by the log-density, and is exact whatever function of the position it follows
    instead of the gradient: that of float32 features costs a little acceptance and nothing else. Where a sampler asks
    for the gradient alone, as Hilbert-space HMC does on its way, the exact part is not computed at all.
    """

    def backward(u: Any, cotangent: jax.Array) -> tuple[Any]:
        slope = jax.grad(other)(jax.tree.map(lambda leaf: leaf.astype(dtype), u))
        return (jax.tree.map(lambda g, leaf: (cotangent * g).astype(leaf.dtype), slope, u),)

    function = jax.custom_vjp(lambda u: log_density(u))
    function.defvjp(lambda u: (log_density(u), u), backward)
    return function


_blas_lock = threading.Lock()
_blas_users = 0
_blas_limits: list[threadpool_limits] = []


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep LAPACK's threads from spinning until the last thread has left this context.

    On CPUs JAX calls SciPy's LAPACK, whose worker threads busy-wait after every factorisation and take the cores from
    XLA's own thread pool. For the n x n matrices of a sampler step one thread is faster.
    """
    # The library JAX will call must be loaded before it can be limited, and JAX loads it late.
    import scipy.linalg.cython_lapack  # noqa: F401

    global _blas_users  # the limit belongs to the process, but each thread has to set it
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
