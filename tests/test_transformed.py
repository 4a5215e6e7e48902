"""Targets inside jax.jit, with and without a program-wide float64, and in forward mode."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widebnn
from problems import small_data
from widebnn.errors import WidebnnError

X, Y = small_data(n=6, m=8, outputs=1)
X_NEW = np.random.default_rng(1).normal(size=(4, 8))
CASES = {
    "function": {},
    "full": {"coordinates": "full"},
    "carried": {"carry": X_NEW},
    "weights": {"coordinates": "weights"},
    "reparametrised": {"coordinates": "reparametrised"},
    "marginal": {"coordinates": "marginal"},
    "unknown noise": {"noise": widebnn.LogNormal(0.3)},
    "softmax": {"likelihood": "softmax"},
    "softmax weights": {"likelihood": "softmax", "coordinates": "weights"},
}


def build(case, dtype, widths=(8, 8)):
    widths = (80,) if case == "full" else widths
    y = (Y[:, 0] > np.median(Y)).astype(int) if case.startswith("softmax") else Y
    return widebnn.posterior(widebnn.dense(8, widths), X, y, dtype=dtype, **CASES[case])


@pytest.mark.some(2)
@pytest.mark.ambient
@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "mixed"])
@pytest.mark.parametrize("case", CASES)
def test_predictions_and_weights_inside_jit(case, dtype, x64):
    """The numbers of the call outside; inputs are an argument of the compiled function or a constant of it."""
    target = build(case, dtype)
    tolerance = {"rtol": 2e-3, "atol": 2e-3} if dtype == "float32" else {"rtol": 1e-4, "atol": 1e-4}
    key = jax.random.key(1)

    def everything(key, u, x_new):
        inputs = () if case == "carried" else (x_new,)
        constant = () if case == "carried" else (X_NEW,)
        return target.predict(key, u, *inputs), target.predict(key, u, *constant), target.to_weights(key, u)

    with jax.enable_x64(True) if x64 else contextlib.nullcontext():
        u = target.sample_reference(jax.random.key(0))
        inside = jax.jit(everything)(key, u, X_NEW)
        outside = everything(key, u, X_NEW)
    for a, b in zip(*map(jax.tree.leaves, (inside, outside)), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, **tolerance)


@pytest.mark.some(4)
@pytest.mark.ambient
@pytest.mark.parametrize("case", [case for case in CASES if case != "full"])  # whose lengths are float64 always
def test_works_in_a_program_without_double_precision(case):
    """Called from plain float32 JAX, l still comes from a float64 factorisation; jit, grad and vmap work."""
    target, exact = (build(case, dtype, widths=(7,)) for dtype in ("float32", "float64"))
    key, u = jax.random.key(0), target.sample_reference(jax.random.key(1))
    inputs = () if case == "carried" else (X_NEW,)

    @jax.jit
    def everything(key, u):
        value, gradient = jax.value_and_grad(target.log_likelihood)(u)
        return value, gradient, target.to_weights(key, u), target.predict(key, u, *inputs)

    value, *others = everything(key, u)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves((value, others)))
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), u)
        expected = float(jax.jit(exact.log_likelihood)(wide))
        assert all(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves((exact.x, exact.sample_reference(key))))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    stacked = jax.jit(jax.vmap(target.sample_reference))(jax.random.split(jax.random.key(2), 3))
    assert jax.jit(jax.vmap(target.log_likelihood))(stacked).shape == (3,)


def test_sampling_inside_a_transformation_is_refused_in_one_sentence():
    target = build("function", "float32")
    initial = jax.vmap(target.sample_reference)(jax.random.split(jax.random.key(0), 1))
    with pytest.raises(WidebnnError, match=r"cannot be called inside jax\.jit.* call it outside"):
        jax.jit(lambda: widebnn.sample(target, steps=1).draws)()
    with pytest.raises(WidebnnError, match=r"cannot be called inside"):
        jax.grad(lambda u: widebnn.sample(target, steps=1, initial=u).stats["lp"].sum())(initial)
