"""Convolutional and residual networks against loops in NumPy, their priors, and their posteriors."""

import functools
import math

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import widebnn
from problems import NOISE, NUMPY_ACTIVATIONS, naive_log_likelihood
from widebnn.data import load_dataset
from widebnn.limits import dual_activation, nngp_kernel
from widebnn.networks import ConvLayer, Layer, Network, conv, convolutional, resnet

SCALES = {"weight_std": 1.2, "bias_std": 0.3, "readout_weight_std": 0.7, "readout_bias_std": 0.4}


def numpy_convolution(h, w, stride, padding="zeros"):
    """Loops over everything; zeros around the image, or copies of it; half of the padding comes before it."""
    h, w = np.asarray(h, np.float64), np.asarray(w, np.float64)
    n, height, width, _ = h.shape
    k, _, _, channels = w.shape
    rows, columns = math.ceil(height / stride), math.ceil(width / stride)
    above = max((rows - 1) * stride + k - height, 0) // 2
    left = max((columns - 1) * stride + k - width, 0) // 2
    out = np.zeros((n, rows, columns, channels))
    for r, c, i, j in np.ndindex(rows, columns, k, k):
        y, x = r * stride + i - above, c * stride + j - left
        if padding == "circular" or (0 <= y < height and 0 <= x < width):
            out[:, r, c] += h[:, y % height, x % width] @ w[i, j]
    return out


def numpy_layer(network, h, layer, stride):
    k, _, inputs, _ = layer.w.shape
    scale = network.weight_std / np.sqrt(k * k * inputs)
    return scale * numpy_convolution(h, layer.w, stride, network.padding) + network.bias_std * np.asarray(layer.b)


def numpy_readout(network, h):
    psi = network.readout_weight_std / np.sqrt(h.shape[1]) * h
    return np.hstack([psi, np.full((len(h), 1), network.readout_bias_std)])


def numpy_conv_features(network, hidden, x):
    h = x
    for layer, stride in zip(hidden, network.strides, strict=True):
        h = NUMPY_ACTIVATIONS[network.activation](numpy_layer(network, h, layer, stride))
    return numpy_readout(network, h.mean(axis=(1, 2)) if network.pooling == "mean" else h.reshape(len(h), -1))


def numpy_resnet_features(network, hidden, x):
    g, a = NUMPY_ACTIVATIONS[network.activation], network.branch_scale
    h = numpy_layer(network, x, hidden.stem, 1)
    blocks = iter(hidden.blocks)
    for group, count in enumerate(network.blocks):
        for number in range(count):
            block = next(blocks)
            stride = 2 if group > 0 and number == 0 else 1
            branch = numpy_layer(network, g(numpy_layer(network, g(h), block.first, stride)), block.second, 1)
            if block.projection is not None:
                h = h[:, ::stride, ::stride] @ np.asarray(block.projection[0, 0]) / np.sqrt(h.shape[3])
            h = np.sqrt(1 - a**2) * h + a * branch
    assert next(blocks, None) is None
    return numpy_readout(network, g(h).mean(axis=(1, 2)))


def images(shape, n=4, seed=0):
    return np.random.default_rng(seed).normal(size=(n, *shape))


@functools.cache
def shapes(network):
    return jax.eval_shape(lambda: network.sample_hidden(jax.random.key(0), jnp.float64))


def draw(network, rng=None):
    """Hidden parameters by NumPy, which has nothing to compile."""
    rng = rng or np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), shapes(network))


def features(network, hidden, x, dtype=None):
    return jax.jit(network.features)(hidden, jnp.asarray(x, dtype))


def prior_variance(network, x, draws):
    """Var f(x) = E |Psi(x)|^2 by Monte Carlo over the hidden parameters: the mean and its standard error."""
    rng, psi = np.random.default_rng(1), jax.jit(network.features)
    values = np.array([np.sum(np.asarray(psi(draw(network, rng), x)) ** 2, axis=1) for _ in range(draws)])
    return values.mean(axis=0), values.std(axis=0) / np.sqrt(draws)


# --- The forward pass


@pytest.mark.parametrize("padding", ["zeros", "circular"])
@pytest.mark.parametrize("method", ["xla", "product"])
@pytest.mark.parametrize(("kernel_size", "stride"), [(1, 2), (2, 1), (3, 1), (3, 2), (4, 3), (5, 2)])
def test_convolution_against_loops(monkeypatch, method, kernel_size, stride, padding):
    """Both methods, though convolve() has only one of them here."""
    chosen = getattr(convolutional, f"convolve_by_{method}")
    monkeypatch.setattr(convolutional, "convolve_by_xla", chosen)
    monkeypatch.setattr(convolutional, "convolve_by_product", chosen)
    h = images((5, 8, 3))
    w = np.random.default_rng(1).normal(size=(kernel_size, kernel_size, 3, 2))
    # A function of its own for each case: JAX would remember the other method for the same function.
    value = jax.jit(lambda h, w: convolutional.convolve(h, w, stride, padding))(h, w)
    np.testing.assert_allclose(value, numpy_convolution(h, w, stride, padding), atol=1e-12)


@pytest.mark.parametrize("pooling", ["mean", "flatten"])
@pytest.mark.parametrize(
    ("shape", "channels", "kernel_size", "strides", "activation"),
    [
        ((4, 5, 2), (3,), 3, 1, "gelu"),
        ((6, 5, 1), (4, 3, 2), 3, (1, 2, 1), "relu"),
        ((6, 6, 3), (3, 4), 2, 2, "tanh"),
    ],
)
def test_conv_features_against_numpy(shape, channels, kernel_size, strides, activation, pooling):
    network = conv(shape, channels, activation, kernel_size=kernel_size, strides=strides, pooling=pooling, **SCALES)
    hidden = draw(network)
    x = images(shape)
    psi = features(network, hidden, x)
    assert psi.shape == (4, network.feature_dim)
    np.testing.assert_allclose(psi, numpy_conv_features(network, hidden, x), atol=1e-13)


@pytest.mark.parametrize(
    ("shape", "channels", "blocks", "options"),
    [
        ((4, 5, 2), (3,), 2, {"branch_scale": 0.6}),
        ((8, 7, 1), (2, 3, 3), (1, 2, 1), {"branch_scale": 0.8, "activation": "relu"}),
        ((4, 4, 2), (2, 2), 1, {"branch_scale": 1.0, "kernel_size": 1}),
        ((4, 3, 2), (2, 3), 1, {"padding": "circular"}),
    ],
)
def test_resnet_features_against_numpy(shape, channels, blocks, options):
    network = resnet(shape, channels, blocks, **options, **SCALES)
    hidden = draw(network)
    x = images(shape)
    psi = features(network, hidden, x)
    assert psi.shape == (4, network.feature_dim)
    np.testing.assert_allclose(psi, numpy_resnet_features(network, hidden, x), atol=1e-13)


@pytest.mark.parametrize("pooling", ["mean", "flatten"])
def test_one_pixel_is_a_dense_network(pooling):
    network = conv((1, 1, 3), (5, 4), kernel_size=1, pooling=pooling, **SCALES)
    dense = widebnn.dense(3, (5, 4), **SCALES)
    hidden = draw(network)
    x = jnp.asarray(images((3,)))
    psi = features(network, hidden, x)
    expected = dense.features([Layer(layer.w[0, 0], layer.b) for layer in hidden], x)
    assert psi.shape[1] == network.feature_dim == dense.feature_dim
    np.testing.assert_allclose(psi, expected, atol=1e-14)


def test_without_branches_the_skip_is_left():
    """Zero branches: each block multiplies by sqrt(1 - a^2), and projects between groups."""
    a = 0.6
    network = resnet((6, 6, 2), (3, 4), (2, 3), branch_scale=a)
    hidden = draw(network)
    zero = functools.partial(jax.tree.map, np.zeros_like)
    blocks = tuple(b._replace(first=zero(b.first), second=zero(b.second)) for b in hidden.blocks)
    x = images((6, 6, 2))
    psi = features(network, hidden._replace(blocks=blocks), x)
    assert [b.projection is None for b in blocks] == [True, True, False, True, True]
    stem = numpy_layer(network, x, hidden.stem, 1)
    skip = stem[:, ::2, ::2] @ np.asarray(blocks[2].projection[0, 0]) / np.sqrt(3) * (1 - a**2) ** (5 / 2)
    expected = numpy_readout(network, NUMPY_ACTIVATIONS["relu"](skip).mean(axis=(1, 2)))
    np.testing.assert_allclose(psi, expected, atol=1e-13)


@pytest.mark.parametrize("build", [conv, functools.partial(resnet, blocks=1)])
def test_images_and_flattened_images_agree(build):
    shape, x = (4, 6, 3), images((4, 6, 3))
    by_layout = {}
    for layout, given in (("hwc", x), ("chw", np.moveaxis(x, 3, 1))):
        network = build(shape, (2, 3), layout=layout)
        hidden = draw(network)
        by_layout[layout] = features(network, hidden, given)
        flattened = features(network, hidden, given.reshape(4, network.input_dim))
        np.testing.assert_array_equal(flattened, by_layout[layout])
    np.testing.assert_allclose(by_layout["hwc"], by_layout["chw"], atol=1e-14)
    grey = build((4, 6, 1), (2, 3))
    hidden = draw(grey)
    np.testing.assert_array_equal(features(grey, hidden, x[..., 0]), features(grey, hidden, x[..., :1]))


@pytest.mark.parametrize("build", [conv, functools.partial(resnet, blocks=1)])
def test_single_precision(build):
    network = build((4, 4, 1), (3, 5))
    assert isinstance(network, Network)
    hidden = jax.jit(network.sample_hidden)(jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(hidden)} == {np.dtype("float32")}
    x = np.random.default_rng(0).integers(0, 3, size=(4, 16))
    psi = features(network, hidden, x, jnp.float32)
    assert psi.dtype == jnp.float32
    exact = features(network, jax.tree.map(np.float64, hidden), x, jnp.float64)
    assert exact.dtype == jnp.float64
    np.testing.assert_allclose(psi, exact, atol=1e-5)
    np.testing.assert_array_equal(features(network, hidden, x, jnp.uint8), psi)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the slow convolutions are those of the CPU")
def test_there_is_no_convolution_in_loops_on_cpus():
    network = resnet((4, 4, 1), (2, 3), 1)
    hidden = draw(network)
    gradient = jax.jit(jax.grad(lambda hidden: jnp.sum(network.features(hidden, jnp.ones((2, 16))) ** 2)))
    program = gradient.lower(hidden).as_text()
    assert "dot_general" in program
    assert "convolution" not in program


# --- The prior


@pytest.mark.parametrize(
    ("network", "dimension"),
    [
        (conv((4, 4, 2), (2, 1), kernel_size=2), (8 * 2 + 2) + (8 * 1 + 1)),
        (resnet((4, 4, 1), (1, 2), 1), (9 + 1) + 2 * (9 + 1) + (18 + 2) + (36 + 2) + 2),
    ],
)
def test_hidden_parameters_are_independent_standard_normals(network, dimension):
    draws = jax.vmap(lambda key: jax.flatten_util.ravel_pytree(network.sample_hidden(key, jnp.float64))[0])(
        jax.random.split(jax.random.key(0), 10_000)
    )
    draws = np.asarray(draws)
    n = len(draws)
    assert draws.shape[1] == dimension
    z_covariance = (draws.T @ draws / n - np.eye(dimension)) * np.sqrt(n) / np.sqrt(1 + np.eye(dimension))
    assert np.abs(draws.mean(0) * np.sqrt(n)).max() < 5
    assert np.abs(z_covariance).max() < 5


@pytest.mark.parametrize("pooling", ["mean", "flatten"])
def test_variance_of_one_convolution_is_exact_at_any_width(pooling):
    """E |Psi|^2 = sw_out^2 mean E[g(u_p) g(u_q)] + sb_out^2, over all pairs p, q or (flatten) over p = q."""
    x = images((4, 4, 2), n=2)
    network = conv((4, 4, 2), 3, pooling=pooling, strides=2, **SCALES)
    # Column p of the map from kernels to position p: what a kernel with a single 1 sees there.
    basis = np.eye(18).reshape(3, 3, 2, 18)
    seen = numpy_convolution(x, basis, 2).reshape(2, 4, 18)
    k = 1.2**2 / 18 * seen @ seen.transpose(0, 2, 1) + 0.3**2
    variance = np.diagonal(k, axis1=1, axis2=2)
    products = dual_activation("gelu")(variance[:, :, None], variance[:, None, :], k)
    mean = products.mean(axis=(1, 2)) if pooling == "mean" else np.diagonal(products, axis1=1, axis2=2).mean(axis=1)
    value, error = prior_variance(network, x, 3000)
    assert np.all(error < 0.02 * value)
    assert np.abs((value - 0.7**2 * mean - 0.4**2) / error).max() < 4.5


def flattened_relu_variance(network, x):
    """Var f(x), position by position, exact at any width: E relu(u)^2 = Var(u) / 2 is linear in the variance."""
    k = network.kernel_size
    square = np.mean(x**2, axis=3, keepdims=True)
    for stride in network.strides:
        seen = numpy_convolution(square, np.ones((k, k, 1, 1)), stride, network.padding) / k**2
        square = (network.weight_std**2 * seen + network.bias_std**2) / 2
    return network.readout_weight_std**2 * square.mean(axis=(1, 2, 3)) + network.readout_bias_std**2


@pytest.mark.parametrize(
    ("depth", "width", "padding"), [(1, 4, "zeros"), (2, 24, "circular"), (5, 8, "circular"), (5, 24, "zeros")]
)
def test_variance_does_not_depend_on_width_nor_on_depth(depth, width, padding):
    """Within 5 standard errors of at most 10%; the part that zeros at the border take away is known as well."""
    x = images((5, 5, 1), n=2)
    network = conv((5, 5, 1), [width] * depth, "relu", pooling="flatten", padding=padding)
    expected = flattened_relu_variance(network, x)
    if padding == "circular":
        np.testing.assert_allclose(expected, np.mean(x**2, axis=(1, 2, 3)) + depth * 0.1**2 / 2 + 0.1**2)
    else:
        assert np.all((expected > 0.2) & (expected < 2))
    value, error = prior_variance(network, x, 200)
    assert np.all(error < 0.1 * expected)
    assert np.abs((value - expected) / error).max() < 5


def test_one_pixel_has_the_variance_of_the_nngp():
    x = images((3,), n=3)
    network = conv((1, 1, 3), [256, 256], kernel_size=1)
    expected = np.diagonal(nngp_kernel(widebnn.dense(3, [1, 1]), x))
    value, error = prior_variance(network, x, 200)
    assert np.all(error < 0.02 * expected)
    assert np.all(np.abs(value - expected) < 5 * error + 2 / 256 * expected)


@pytest.mark.parametrize(("activation", "blocks"), [("relu", 3), ("gelu", 2)])
def test_variance_of_the_resnet_does_not_depend_on_width_nor_on_depth(activation, blocks):
    """Exact for infinite width where all positions are alike: v <- (1 - a^2) v + a^2 (the branch's variance).

    Within 5 standard errors of at most 5% and a bias of 1 / (channels) for each of the convolutions.
    """
    pixel = np.array([1.0, -0.5])
    width, a = 48, 0.6
    network = resnet((2, 2, 2), [width] * 2, blocks, activation, kernel_size=1, branch_scale=a)

    def convolution(v):
        return network.weight_std**2 * dual_activation(activation)(v, v, v) + network.bias_std**2

    first = v = 2 * np.mean(pixel**2) + 0.1**2
    for _ in range(2 * blocks):
        v = (1 - a**2) * v + a**2 * convolution(convolution(v))
    if activation == "relu":
        np.testing.assert_allclose(v, first + 2 * blocks * a**2 * 2 * 0.1**2)
    expected = dual_activation(activation)(v, v, v) + 0.1**2
    value, error = prior_variance(network, np.tile(pixel, (1, 2, 2, 1)), 400)
    assert np.all(error < 0.05 * expected)
    assert np.all(np.abs(value - expected) < 5 * error + 4 * blocks / width * expected)


def test_variance_of_the_resnet_is_of_order_one_on_noise():
    """Zeros at the border, stride 2 and the mean over positions take their part and leave more than 5%."""
    for width, blocks in ((8, 3), (16, 1)):
        value, error = prior_variance(resnet((8, 8, 1), [width] * 2, blocks), images((8, 8, 1), n=2), 200)
        assert np.all((value - 5 * error > 0.05) & (value + 5 * error < 2)), (width, blocks, value, error)


# --- The posterior

NETWORKS = {
    "conv": conv((4, 4, 1), (3, 4), strides=(1, 2)),
    "flatten": conv((4, 4, 1), (3,), strides=2, pooling="flatten"),
    "resnet": resnet((4, 4, 1), (2, 3), 1, "gelu"),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("coordinates", ["weights", "reparametrised", "marginal"])
def test_log_likelihood_and_gradient(name, coordinates):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 16)), rng.normal(size=(6, 2))
    target = widebnn.posterior(NETWORKS[name], x, y, noise=NOISE, coordinates=coordinates, dtype="float64")
    u = target.sample_reference(jax.random.key(0))
    value, gradient = jax.jit(jax.value_and_grad(target.log_likelihood))(u)
    expected, expected_gradient = jax.jit(jax.value_and_grad(naive_log_likelihood(target)))(u)
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    flat, expected_flat = (np.asarray(jax.flatten_util.ravel_pytree(g)[0]) for g in (gradient, expected_gradient))
    assert np.all(np.isfinite(flat)) and np.any(flat != 0)
    np.testing.assert_allclose(flat, expected_flat, atol=1e-9 * np.abs(expected_flat).max())
    if coordinates == "marginal":
        psi = np.asarray(NETWORKS[name].features(u, jnp.asarray(x)))
        law = scipy.stats.multivariate_normal(cov=psi @ psi.T + NOISE**2 * np.eye(6))
        np.testing.assert_allclose(value, law.logpdf(y.T).sum(), rtol=1e-10)


def test_the_gradient_sees_every_parameter():
    """A parameter that the likelihood forgets has no gradient."""
    for network in NETWORKS.values():
        rng = np.random.default_rng(0)
        target = widebnn.posterior(network, rng.normal(size=(6, 4, 4, 1)), rng.normal(size=6), dtype="float64")
        assert target.coordinates == "marginal"
        gradient = jax.jit(jax.grad(target.log_likelihood))(target.sample_reference(jax.random.key(0)))
        for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
            assert np.all(leaf != 0), (network, jax.tree_util.keystr(path))


@pytest.mark.long
@pytest.mark.ambient
@pytest.mark.parametrize(
    ("network", "fits"),
    [(conv((8, 8, 1), 4, strides=2, pooling="flatten"), True), (resnet((8, 8, 1), (4, 6), 1), False)],
)
def test_sample_moves_and_predicts_digits(network, fits):
    data = load_dataset("digits", 16, 5)
    target = widebnn.posterior(network, data.x_train, data.y_train, noise=0.2)
    result = widebnn.sample(
        target, steps=10, step_size=0.1, collect=widebnn.track(target, data.x_test, projections=4), progress=False
    )
    f, mean, positions = (result.draws[name] for name in ("f_test", "mean_test", "weights"))
    assert f.shape == (1, 10, 5, 10)
    assert np.all(np.isfinite(f)) and np.all(mean.std(axis=1) > 0)
    assert result.acceptance_rate > 0.1
    assert np.any(np.diff(positions, axis=1) != 0)
    if fits:  # replicated observations at the training images are nearer to the labels than nothing is
        error = np.mean((result.draws["y"].mean(axis=(0, 1)) - data.y_train) ** 2)
        assert error < 0.5 * np.mean(data.y_train**2)


# --- Bad arguments


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: conv((8, 8), 4), r"image_shape must be \(height, width, channels\).*\(height, width, 1\)"),
        (lambda: conv(64, 4), r"image_shape must be \(height, width, channels\), got 64"),
        (lambda: conv((8, 0, 1), 4), "each entry of image_shape must be at least 1, got 0"),
        (lambda: conv((8, 8.0, 1), 4), "each entry of image_shape must be a whole number"),
        (lambda: conv((8, 8, 1), []), "channels is empty"),
        (lambda: conv((8, 8, 1), [4, 0]), "each entry of channels must be at least 1"),
        (lambda: conv((8, 8, 1), None), "channels must be a whole number"),
        (lambda: conv((8, 8, 1), 4, "gelo"), "activation must be one of .*Did you mean 'gelu'"),
        (lambda: conv((8, 8, 1), 4, kernel_size=0), "kernel_size must be at least 1"),
        (lambda: conv((8, 8, 1), 4, kernel_size=(3, 3)), "kernel_size must be a whole number"),
        (lambda: conv((8, 8, 1), [4, 4], strides=[2]), "strides must be one number or one for each convolution, 2"),
        (lambda: conv((8, 8, 1), 4, strides=0), "strides must be at least 1"),
        (lambda: conv((8, 8, 1), 4, pooling="max"), "pooling must be one of mean, flatten"),
        (lambda: conv((8, 8, 1), 4, padding="same"), "padding must be one of zeros, circular"),
        (lambda: conv((8, 8, 1), 4, layout="cwh"), "layout must be one of hwc, chw.*Did you mean 'chw'"),
        (lambda: conv((8, 8, 1), 4, weight_std=0), "weight_std must be greater than 0"),
        (lambda: conv((8, 8, 1), 4, bias_std=-1), "bias_std must be at least 0"),
        (lambda: conv((8, 8, 1), 4, readout_weight_std=0), "readout_weight_std must be greater than 0"),
        (lambda: conv((8, 8, 1), 4, readout_bias_std=-1), "readout_bias_std must be at least 0"),
        (lambda: conv((1, 1, 3), 4), "convolution 1 gets images of 1 x 1, too small for kernel_size=3 and stride 1"),
        (lambda: conv((8, 3, 1), 4, kernel_size=1, strides=4), "images of 8 x 3, too small .* stride 4"),
        (lambda: conv((2, 2, 1), 4, strides=3, padding="circular"), "images of 2 x 2, too small .* stride 3"),
        (lambda: conv((8, 8, 1), [4] * 3, strides=2), "convolution 3 gets images of 2 x 2"),
        (lambda: resnet((8, 8), 4), "image_shape must be"),
        (lambda: resnet((8, 8, 1), [4, 4], [1]), "blocks must be one number or one for each group, 2 in all; got 1"),
        (lambda: resnet((8, 8, 1), 4, 0), "blocks must be at least 1"),
        (lambda: resnet((8, 8, 1), [4] * 4), "group 4 gets images of 2 x 2.*fewer groups"),
        (lambda: resnet((1, 8, 1), 4), "the stem gets images of 1 x 8"),
        (lambda: resnet((8, 8, 1), 4, branch_scale=1.5), "branch_scale must be greater than 0 and at most 1"),
        (lambda: resnet((8, 8, 1), 4, branch_scale=0), "branch_scale must be greater than 0"),
        (lambda: resnet((8, 8, 1), 4, padding="same"), "padding must be one of zeros, circular"),
        (lambda: resnet((8, 8, 1), 4, 1, "swish"), "activation must be one of"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(widebnn.WidebnnError, match=message):
        call()


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("shape", [(5, 15), (5, 4, 4, 3), (5, 1, 4, 4), (5, 2, 8)])
def test_images_of_the_wrong_shape(network, shape):
    with pytest.raises(widebnn.WidebnnError, match=r"expects images of shape n x 4 x 4 x 1 or, flattened, n x 16; got"):
        widebnn.posterior(network, np.zeros(shape), np.zeros(5))


def test_function_coordinates_are_for_dense_networks():
    with pytest.raises(widebnn.WidebnnError, match="coordinates='function' needs a dense network"):
        widebnn.posterior(NETWORKS["conv"], np.zeros((5, 16)), np.zeros(5), coordinates="function")


def test_arguments_in_other_forms():
    network = conv(np.array([8, 8, 1]), np.int64(4), strides=np.array([2]))
    assert network == conv([8, 8, 1], [4], strides=2)
    assert hash(network) == hash(conv([8, 8, 1], [4], strides=2))
    assert conv((3, 3, 1), 2, kernel_size=5).kernel_size == 5
    assert conv((1, 1, 1), 2, padding="circular").padding == "circular"
    assert isinstance(network.sample_hidden(jax.random.key(0))[0], ConvLayer)
    assert resnet((32, 32, 3)).blocks == (2, 2, 2)
