"""``dtype="mixed"``: the value of float64, the gradient of float32, and nothing of float64 where only that is asked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widebnn
from problems import COORDINATES
from widebnn.precision import double_precision, with_gradient_of
from widebnn.samplers import hilbert_hmc

RNG = np.random.default_rng(0)
X, Y = (RNG.normal(size=(12, m)).astype(np.float32) for m in (3, 2))
NETWORK = widebnn.dense(3, [6], "erf")


def target(dtype, coordinates="function", noise=0.2):
    return widebnn.posterior(NETWORK, X, Y, noise=noise, coordinates=coordinates, dtype=dtype)


@pytest.mark.some(1)
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_value_of_double_and_gradient_of_single(coordinates):
    mixed, double, single = (target(dtype, coordinates) for dtype in ("mixed", "float64", "float32"))
    with double_precision():
        u = mixed.sample_reference(jax.random.key(1))
        narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), u)
        value, slope = jax.value_and_grad(mixed.log_likelihood)(u)
        assert value == double.log_likelihood(u)
        assert mixed.log_likelihood(u) == value
        expected, exact = jax.grad(single.log_likelihood)(narrow), jax.jit(jax.grad(double.log_likelihood))(u)
        for a, b, c in zip(*map(jax.tree.leaves, (slope, expected, exact)), strict=True):
            assert a.dtype == jnp.float64
            np.testing.assert_array_equal(a, np.asarray(b, np.float64))
            np.testing.assert_allclose(a, c, rtol=1e-3, atol=1e-3)
        assert any(not np.array_equal(a, c) for a, c in zip(*map(jax.tree.leaves, (slope, exact)), strict=True))


@pytest.mark.some(1)
@pytest.mark.parametrize("widths", [[6], [20], [6, 20]])
def test_inputs_that_depend_on_one_another(widths):
    """Rounding breaks the dependence: float32 and float64 must see the same number of directions all the same."""
    x = np.hstack([X, X @ np.array([[0.1], [0.7], [1 / 3]]), np.full((12, 1), 0.1)])
    mixed = widebnn.posterior(widebnn.dense(5, widths, "erf"), x, Y, noise=0.2, dtype="mixed")
    result = widebnn.sample(mixed, "hilbert_hmc", step_size=0.1, num_steps=3, steps=20)
    assert result.acceptance_rate > 0.5


@pytest.mark.some(2)
@pytest.mark.parametrize("steps", [1, 4, 21])
def test_the_way_of_hmc_is_without_double_precision(steps):
    """One log-likelihood in float64, at the end of a trajectory, however long that is."""
    double, seen = target("float64"), []

    def counted(u):
        value = double.log_likelihood(u)
        nothing = jax.ShapeDtypeStruct((), jnp.float32)
        return value + jax.pure_callback(lambda _: seen.append(1) or np.float32(0), nothing, value.astype(jnp.float32))

    mixed = with_gradient_of(counted, target("float32").log_likelihood, "float32")
    with double_precision():
        algorithm = hilbert_hmc(mixed, 0.1, steps)
        state = jax.jit(algorithm.init)(double.sample_reference(jax.random.key(0)))
        jax.block_until_ready(state)
        seen.clear()
        jax.block_until_ready(jax.jit(algorithm.propose)(state, state.position))
    assert len(seen) == 1
