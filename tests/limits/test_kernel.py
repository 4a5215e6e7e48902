"""The infinite-width kernel against quadrature, brute-force integrals and wide random networks; its derivatives."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

from widebnn.errors import WidebnnError
from widebnn.limits import dual_activation, nngp_kernel
from widebnn.limits import kernel as kernel_module
from widebnn.networks import dense, feature_map

SMOOTH = ("gelu", "erf", "sin")
CLOSED = (*SMOOTH, "relu")
ALL = (*CLOSED, "tanh")

SCALAR = {
    "gelu": lambda t: t * scipy.special.ndtr(t),
    "erf": scipy.special.erf,
    "sin": math.sin,
    "relu": lambda t: max(t, 0.0),
    "tanh": math.tanh,
}


def covariances(correlations=(-1.0, -0.95, -0.3, 0.0, 0.5, 0.999, 1.0)):
    """Variances up to 2, the scale of standardised inputs, zero included; unequal ones on purpose."""
    grid = [(a, b, r) for a, b in [(0.3, 1.0), (2.0, 2.0), (1.7, 0.05), (0.0, 1.0)] for r in correlations]
    a, b, r = np.array(grid).T
    return a, b, r * np.sqrt(a * b)


def inputs(n=7, m=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n, m))


# --- E[g(u) g(v)]


@pytest.mark.parametrize("name", SMOOTH)
def test_closed_form_equals_quadrature(name):
    a, b, c = covariances()
    np.testing.assert_allclose(dual_activation(name, 128)(a, b, c), dual_activation(name)(a, b, c), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("a", "b", "c"), [(0.7, 1.9, -0.8), (1.0, 0.4, 0.55)])
def test_equals_brute_force_integral(name, a, b, c):
    g = SCALAR[name]
    det = a * b - c**2

    def integrand(v, u):
        density = math.exp(-0.5 * (b * u**2 - 2 * c * u * v + a * v**2) / det) / (2 * math.pi * math.sqrt(det))
        return g(u) * g(v) * density

    low = 0.0 if name == "relu" else -8.0
    expected, _ = scipy.integrate.dblquad(
        integrand, low * math.sqrt(a), 8 * math.sqrt(a), low * math.sqrt(b), 8 * math.sqrt(b), epsabs=1e-8, epsrel=1e-8
    )
    assert float(dual_activation(name)(a, b, c)) == pytest.approx(expected, abs=2e-8)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_perfect_correlation(name, sign):
    """v = sign sqrt(b/a) u leaves a one-dimensional integral; rounding past +-1 must not matter."""
    a, b = 0.9, 1.6
    g = SCALAR[name]
    slope = sign * math.sqrt(b)

    def integrand(z):
        return g(math.sqrt(a) * z) * g(slope * z) * math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)

    expected = sum(scipy.integrate.quad(integrand, *ends, epsabs=1e-12)[0] for ends in [(-12, 0), (0, 12)])
    c = sign * math.sqrt(a * b)
    slightly_off = c * (1 + np.array([-1e-14, 0.0, 1e-14]))
    np.testing.assert_allclose(dual_activation(name)(a, b, slightly_off), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", CLOSED)
def test_large_variances(name):
    """The limit of each form at a = b = c = 1e6, where a plain sinh would overflow."""
    limit = {"gelu": 0.5e6, "relu": 0.5e6, "erf": 1.0, "sin": 0.5}[name]
    assert float(dual_activation(name)(1e6, 1e6, 1e6)) == pytest.approx(limit, rel=2e-3)


def test_quadrature_of_another_function():
    """cos has E[cos u cos v] = exp(-(a + b) / 2) cosh(c) and cos(0) is not 0, unlike the named activations."""
    a, b, c = covariances()
    expected = np.exp(-(a + b) / 2) * np.cosh(c)
    np.testing.assert_allclose(dual_activation(jnp.cos)(a, b, c), expected, rtol=0, atol=1e-13)


def test_quadrature_is_chunked(monkeypatch):
    """Chunks, the incomplete last one included, do not change values; memory does not grow with the pairs."""
    a, b, c = covariances()
    whole = dual_activation(lambda t: jnp.tanh(t))(a, b, c)
    nodes = kernel_module._plane_nodes(kernel_module.QUADRATURE_ORDER)
    pairs = jax.ShapeDtypeStruct((10**6,), jnp.float64)
    compiled = kernel_module._quadrature.lower(jnp.tanh, nodes, pairs, pairs, pairs).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 2e8 < 8 * 10**6 * len(nodes[0])
    monkeypatch.setattr(kernel_module, "_VALUES_PER_CHUNK", 5 * len(nodes[0]))
    assert len(c) % 5 != 0
    np.testing.assert_allclose(dual_activation(lambda t: jnp.tanh(t))(a, b, c), whole, rtol=0, atol=1e-14)


# --- derivatives


@pytest.mark.parametrize("name", CLOSED)
def test_derivatives_are_finite_at_correlation_one(name):
    """Up to variances that gelu and relu reach after several layers with large weights: arcsin would see 1."""
    gradient = jax.jit(jax.value_and_grad(dual_activation(name), argnums=(0, 1, 2)))
    for variance in (0.0, 1e-8, 1.0, 1e8, 1e17, 1e30):
        for c in (variance, -variance):
            value, derivatives = gradient(variance, variance, c)
            assert np.isfinite(value)
            assert np.all(np.isfinite(derivatives))
            # E[g(u) g(+-u)] as a function of the variance is nowhere steeper than erf's at 0.
            slope = float(derivatives[0] + derivatives[1] + math.copysign(1.0, c) * derivatives[2])
            assert abs(slope) <= 4 / math.pi + 1e-6


def test_relu_derivatives_at_the_edge():
    """d/dc is the probability that u and v are both positive; the direction that keeps correlation 1 has 1/2."""
    gradient = jax.grad(dual_activation("relu"), argnums=(0, 1, 2))
    np.testing.assert_allclose(gradient(2.0, 2.0, 2.0), [0, 0, 0.5], rtol=0, atol=1e-7)
    np.testing.assert_allclose(gradient(2.0, 2.0, -2.0), [0, 0, 0], rtol=0, atol=1e-7)
    np.testing.assert_allclose(gradient(4.0, 1.0, 0.0), np.array([2 / 4, 2 / 1, math.pi]) / (4 * math.pi))
    assert np.all(np.isfinite(gradient(0.0, 1.0, 0.0)))
    assert np.all(np.isfinite(gradient(0.0, 0.0, 0.0)))


# --- the kernel


@pytest.mark.some(5)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("depth", [1, 3])
def test_kernel_is_symmetric_positive_and_consistent(name, depth):
    network = dense(3, [4] * depth, name)
    x = inputs()
    x[3] = 2 * x[1]
    x[4] = -x[1]
    x[5] = x[1]
    x[6] = 0.0
    kernel = nngp_kernel(network, x)
    assert kernel.dtype == np.float64
    np.testing.assert_array_equal(kernel, kernel.T)
    assert np.linalg.eigvalsh(kernel)[0] > -1e-12
    np.testing.assert_allclose(kernel[5], kernel[1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(nngp_kernel(network, x, x), kernel, rtol=0, atol=1e-12)
    np.testing.assert_allclose(nngp_kernel(network, x[:2], x[2:]), kernel[:2, 2:], rtol=0, atol=1e-12)
    np.testing.assert_allclose(nngp_kernel(network, x[:1]), kernel[:1, :1], rtol=0, atol=1e-12)


def test_kernel_of_a_zero_input_without_bias():
    """bias_std = 0 and a zero input: a variance of exactly 0 in every layer."""
    for name in ALL:
        network = dense(2, [3, 3], name, bias_std=0.0, readout_bias_std=0.3)
        kernel = nngp_kernel(network, [[0.0, 0.0], [1.0, 2.0]])
        np.testing.assert_allclose(kernel[0], 0.09, rtol=0, atol=1e-14)
        assert kernel[1, 1] > 0.1


def test_kernel_written_out_for_two_layers():
    """The recursion with four distinct scales, one entry at a time, in closed form for erf."""
    network = dense(3, [5, 6], "erf", weight_std=1.3, bias_std=0.4, readout_weight_std=0.8, readout_bias_std=0.7)
    x1, x2 = inputs(1), inputs(1, seed=1)

    def layer(k, weight, bias):
        (a, c), (_, b) = k

        def e(p, q, r):
            return 2 / math.pi * math.asin(2 * r / math.sqrt((1 + 2 * p) * (1 + 2 * q)))

        return [
            [weight**2 * e(a, a, a) + bias**2, weight**2 * e(a, b, c) + bias**2],
            [0, weight**2 * e(b, b, b) + bias**2],
        ]

    both = np.concatenate([x1, x2])
    k = 1.3**2 * both @ both.T / 3 + 0.4**2
    k = layer(layer(k, 1.3, 0.4), 0.8, 0.7)
    np.testing.assert_allclose(nngp_kernel(network, both)[[0, 0, 1], [0, 1, 1]], [k[0][0], k[0][1], k[1][1]])


def test_kernel_without_hidden_layers_is_the_linear_kernel():
    network = dense(3, [], readout_weight_std=1.7, readout_bias_std=0.6)
    x = inputs()
    psi = np.asarray(network.features((), jnp.asarray(x)))
    np.testing.assert_allclose(nngp_kernel(network, x), psi @ psi.T, rtol=1e-13)
    np.testing.assert_allclose(nngp_kernel(network, x, x[:2]), psi @ psi[:2].T, rtol=1e-13)


def test_correlations_pushed_past_one_by_coarse_quadrature():
    """An even activation, too few nodes: after one layer correlations exceed 1, the next must still be defined."""
    one, two = (
        dataclasses.replace(dense(2, [1] * depth, weight_std=5.0), activation=lambda t: jnp.tanh(t) ** 2)
        for depth in (1, 2)
    )
    angle = np.linspace(0, 1, 8)
    x = 2 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    kernel = nngp_kernel(one, x, quadrature_order=11)
    assert np.max(kernel / np.sqrt(np.outer(np.diag(kernel), np.diag(kernel)))) > 1.1
    assert np.all(np.isfinite(nngp_kernel(two, x, quadrature_order=11)))


def empirical_kernels(network, x, draws, seed):
    """Psi Psi' of independent random networks, draws x n x n; float32 is far below the Monte Carlo error.

    NumPy draws the weights: compiling JAX's generator for every width would take most of this file's time.
    """
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda key: network.sample_hidden(key, jnp.float32), jax.random.key(0))
    hidden = jax.tree.map(lambda leaf: rng.standard_normal((draws, *leaf.shape), np.float32), shapes)
    features = jax.jit(jax.vmap(network.features, in_axes=(0, None)))
    psi = np.asarray(features(hidden, jnp.asarray(x, jnp.float32)), np.float64)
    return psi @ np.swapaxes(psi, 1, 2)


@pytest.mark.some(3)
@pytest.mark.parametrize("name", ALL)
def test_one_hidden_layer_is_unbiased_at_any_width(name):
    """E[Psi Psi'] is the kernel exactly: z-scores by MCSE, Bonferroni over 10 entries and 5 activations."""
    network = dense(3, [200], name, bias_std=0.5, readout_weight_std=1.2, readout_bias_std=0.4)
    x = inputs(4)
    kernels = empirical_kernels(network, x, draws=2000, seed=len(name))
    upper = np.triu_indices(4)
    mcse = np.std(kernels, axis=0)[upper] / math.sqrt(len(kernels))
    threshold = scipy.stats.norm.isf(1e-3 / (2 * 10 * 5))

    def worst_z(kernel):
        return np.max(np.abs(np.mean(kernels, axis=0) - kernel)[upper] / mcse)

    assert worst_z(nngp_kernel(network, x)) < threshold
    # The same test must notice a hidden bias that is 10 % off.
    wrong = dense(3, [200], name, bias_std=0.55, readout_weight_std=1.2, readout_bias_std=0.4)
    assert worst_z(nngp_kernel(wrong, x)) > threshold


@pytest.mark.some(1)
@pytest.mark.parametrize("name", ["gelu", "tanh"])
def test_two_hidden_layers_approach_the_kernel_like_one_over_root_width(name):
    x = inputs(3)
    kernel = nngp_kernel(dense(3, [1, 1], name), x)
    deviation = [
        np.sqrt(np.mean((empirical_kernels(dense(3, [width, width], name), x, draws, width) - kernel) ** 2))
        for width, draws in ((16, 4000), (64, 1500), (256, 400))
    ]
    ratios = np.array(deviation[:-1]) / np.array(deviation[1:])
    assert np.all((ratios > 1.7) & (ratios < 2.4)), ratios


# --- bad input, precision


def test_bad_input():
    with pytest.raises(WidebnnError, match=r"x2 must have 3 columns"):
        nngp_kernel(dense(3, [1]), inputs(2), np.ones((2, 2)))
    with pytest.raises(WidebnnError, match="quadrature_order must be at least 2"):
        nngp_kernel(dense(3, [1], "tanh"), inputs(2), quadrature_order=1)
    with pytest.raises(WidebnnError, match=r"dense networks only, got FeatureMap.*widebnn.dense"):
        nngp_kernel(feature_map((1,), lambda p, x: x), inputs(2))
    with pytest.raises(WidebnnError, match="activation must be one of"):
        dual_activation("swish")


@pytest.mark.ambient
@pytest.mark.parametrize("order", [None, 100])
def test_float64_inside_whatever_the_configuration(order):
    assert not jax.config.jax_enable_x64
    network = dense(3, [1], "sin", weight_std=1.0, bias_std=0.0, readout_weight_std=1.0, readout_bias_std=0.0)
    x = inputs(5)
    gram = x @ x.T / 3
    expected = np.exp(-(np.diag(gram)[:, None] + np.diag(gram)) / 2) * np.sinh(gram)
    kernel = nngp_kernel(network, x, quadrature_order=order)
    assert type(kernel) is np.ndarray and kernel.dtype == np.float64
    np.testing.assert_allclose(kernel, expected, rtol=0, atol=1e-13)
    assert jnp.ones(1).dtype == jnp.float32 and not jax.config.jax_enable_x64
