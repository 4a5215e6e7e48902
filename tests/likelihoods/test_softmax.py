"""Classification: the softmax likelihood in both coordinate systems, against NumPy and against each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import widebnn
from problems import numpy_features
from widebnn.likelihoods.softmax import SoftmaxLatent, kernel_root, polar_factor

CLASSES = 3
SHAPES = [(5, (7,)), (9, (4,)), (6, (3, 8)), (9, (4, 5))]
"""(inputs, widths): the readout is reduced in the first and the third, at depth 1 and 2."""
SYSTEMS = ["weights", "marginal", "function"]
CASES = [
    *((system, *shape) for shape in SHAPES for system in ("function", "marginal")),
    ("weights", 5, (7,)),
    ("weights", 9, (4, 5)),
]


def labelled(n, m=3, repeated=True, seed=0):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(n, m)), rng.integers(0, CLASSES, n)
    y[:CLASSES] = np.arange(CLASSES)
    if repeated:
        x[-1] = x[0]  # the same input with two different labels
        y[0], y[-1] = 0, 2
    return x, y


def classifier(coordinates, n, widths, repeated=True, dtype="float64", **options):
    x, y = labelled(n, repeated=repeated)
    network = widebnn.dense(3, widths, readout_weight_std=2.0)
    return widebnn.posterior(
        network, x, y, **{"likelihood": "softmax", "coordinates": coordinates, "dtype": dtype} | options
    )


def naive(f, labels):
    """sum_i log softmax(f_i)[y_i], as one writes it first."""
    p = np.exp(f) / np.exp(f).sum(axis=1, keepdims=True)
    return sum(np.log(p[i, label]) for i, label in enumerate(labels))


@pytest.mark.some(4)
@pytest.mark.parametrize(
    ("coordinates", "n", "widths", "repeated"), [*((*case, True) for case in CASES), ("function", 5, (8, 7), False)]
)
def test_log_likelihood_against_numpy(coordinates, n, widths, repeated):
    """In function space the weights drawn back give the logits that the likelihood saw."""
    target = classifier(coordinates, n, widths, repeated)
    x, labels = labelled(n, repeated=repeated)

    @jax.jit
    def draw(key):
        u = target.sample_reference(key)
        other, another = jax.random.split(key)
        return target.log_likelihood(u), target.to_weights(other, u), target.predict(another, u, x)

    for seed in range(3):
        value, weights, prediction = draw(jax.random.key(seed))
        f = numpy_features(target.network, weights.hidden, x) @ np.asarray(weights.readout)
        np.testing.assert_allclose(value, naive(f, labels), rtol=1e-9)
        np.testing.assert_allclose(prediction.f, f, atol=1e-7)
        np.testing.assert_array_equal(prediction.f, prediction.mean)
        assert not prediction.variance.any(), "nothing is left to average"


def test_huge_logits_do_not_overflow():
    target = classifier("weights", 5, (7,))
    u = target.sample_reference(jax.random.key(0))
    u = u._replace(readout=1e5 * u.readout)
    value, gradient = jax.jit(jax.value_and_grad(target.log_likelihood))(u)
    assert np.isfinite(value) and value < -100
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.some(4)
@pytest.mark.parametrize(("coordinates", "n", "widths"), CASES)
def test_gradient_against_finite_differences(coordinates, n, widths):
    target = classifier(coordinates, n, widths)
    u, unravel = ravel_pytree(target.sample_reference(jax.random.key(1)))
    log_likelihood = jax.jit(lambda v: target.log_likelihood(unravel(v)))
    gradient = jax.jit(jax.grad(log_likelihood))(u)
    assert np.isfinite(gradient).all()
    h = 1e-5
    for direction in np.random.default_rng(0).normal(size=(5, u.size)):
        difference = (log_likelihood(u + h * direction) - log_likelihood(u - h * direction)) / (2 * h)
        np.testing.assert_allclose(gradient @ direction, difference, rtol=1e-6, atol=1e-7)


@pytest.mark.some(4)
@pytest.mark.parametrize(("coordinates", "n", "widths"), CASES)
def test_coordinates_weights_and_back(coordinates, n, widths):
    target, weights_target = classifier(coordinates, n, widths), classifier("weights", n, widths)
    u = target.sample_reference(jax.random.key(2))
    back = jax.jit(lambda u: target.from_weights(target.to_weights(jax.random.key(0), u)))(u)
    for a, b in zip(jax.tree.leaves(u), jax.tree.leaves(back), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)
    w = weights_target.sample_reference(jax.random.key(3))
    here = jax.jit(lambda w: target.log_likelihood(target.from_weights(w)))(w)
    np.testing.assert_allclose(here, jax.jit(weights_target.log_likelihood)(w), rtol=1e-9)


@pytest.mark.parametrize(("n", "widths", "rows"), [(5, (7,), 4), (9, (4,), 5), (5, (8, 7), 4)])
def test_the_readout_is_reduced_where_it_can_be(n, widths, rows):
    target = classifier("function", n, widths)
    u = target.sample_reference(jax.random.key(0))
    assert u.z.readout.shape == (rows, CLASSES)
    assert target.dimension == ravel_pytree(u)[0].size


def test_mean_is_the_draw_and_nothing_is_left_to_average():
    target = classifier("function", 5, (7,))
    prediction = target.predict(jax.random.key(0), target.sample_reference(jax.random.key(1)), np.ones((2, 3)))
    assert prediction.f.shape == (2, CLASSES)
    np.testing.assert_array_equal(prediction.f, prediction.mean)
    np.testing.assert_array_equal(prediction.variance, np.zeros(2))


def test_the_root_of_a_singular_kernel():
    """Rank two: the root and its gradient are finite, R R' = K, and the polar factor stays orthonormal."""
    rng = np.random.default_rng(0)
    psi = jnp.asarray(rng.normal(size=(4, 2)) @ rng.normal(size=(2, 9)))
    root, polar = kernel_root(psi), polar_factor(psi)
    np.testing.assert_allclose(root @ root.T, psi @ psi.T, atol=1e-12)
    np.testing.assert_allclose(polar.T @ polar, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(psi @ polar, root, atol=1e-6)
    assert np.isfinite(jax.grad(lambda p: jnp.sum(kernel_root(p) ** 3))(psi)).all()
    assert np.isfinite(jax.grad(lambda p: jnp.sum(kernel_root(p)))(0 * psi)).all()


@pytest.mark.some(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_smooth_functions_of_one_input_are_no_problem(dtype):
    """40 points on a line: Psi Psi' has eigenvalues far below rounding, and no Cholesky factor."""
    x = np.linspace(-2, 2, 40)[:, None]
    y = (np.sin(3 * x[:, 0]) > 0).astype(int)
    network = widebnn.dense(1, [256])
    target = widebnn.posterior(network, x, y, likelihood="softmax", dtype=dtype)
    psi = network.features(network.sample_hidden(jax.random.key(0), jnp.float64), jnp.asarray(x))
    assert not np.isfinite(jnp.linalg.cholesky(psi @ psi.T)).all(), "the problem should be singular"
    u = target.sample_reference(jax.random.key(1))
    value, gradient = jax.jit(jax.value_and_grad(target.log_likelihood))(u)
    assert np.isfinite(value) and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    # The gradient is that of the likelihood, in the direction of the hidden layer too.
    log_likelihood = jax.jit(target.in_dtype("float64").log_likelihood)
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), u)
    np.testing.assert_allclose(value, log_likelihood(wide), atol=1e-3 if dtype == "float32" else 1e-9)
    direction = np.random.default_rng(0).normal(size=u.network.layers[0].shape)

    def along(h):
        layers = (wide.network.layers[0] + h * direction,)
        return log_likelihood(wide._replace(network=wide.network._replace(layers=layers)))

    moved = [along(h) for h in (1e-4, -1e-4)]
    slope = float(jnp.sum(gradient.network.layers[0] * direction))
    np.testing.assert_allclose(slope, (moved[0] - moved[1]) / 2e-4, rtol=1e-3, atol=1e-3)
    f = jax.jit(lambda u: target.predict(jax.random.key(2), u, x).f)(u)
    np.testing.assert_allclose(naive(np.asarray(f, np.float64), y), value, rtol=1e-3)


def test_labels_one_hot_and_classes_say_the_same():
    x, y = labelled(5)
    network = widebnn.dense(3, [4])
    one_hot = np.eye(CLASSES)[y]
    build = lambda y, likelihood="softmax": widebnn.posterior(network, x, y, likelihood=likelihood)  # noqa: E731
    three = widebnn.Softmax(classes=3)
    targets = [build(same) for same in (y, list(y), y.astype(float), one_hot)]
    for target in [*targets, build(y, three), build(one_hot, three)]:
        np.testing.assert_array_equal(target.y, one_hot)
    assert build(y, likelihood=widebnn.Softmax(5)).y.shape == (5, 5)
    assert build(np.zeros(5, int), likelihood=widebnn.Softmax(2)).y.shape == (5, 2)
    assert build(y > 0).y.shape == (5, 2)


def test_default_coordinates():
    x, y = labelled(5)
    other = widebnn.feature_map({"w": (3, 8)}, lambda p, x: jnp.cos(x @ p["w"]) / np.sqrt(8))
    coordinates = [
        widebnn.posterior(network, x, y, likelihood="softmax").coordinates.name
        for network in (widebnn.dense(3, [4]), widebnn.dense(3, []), other)
    ]
    assert coordinates == ["function", "weights", "weights"]
    assert widebnn.posterior(widebnn.dense(3, [4]), x, y).likelihood.noise == 0.1
    assert widebnn.posterior(widebnn.dense(3, [4]), x, y).likelihood.name == "gaussian"


X, Y = np.ones((4, 2)) * np.arange(4)[:, None], np.array([0, 1, 2, 1])


@pytest.mark.parametrize(
    ("y", "options", "message"),
    [
        (np.array([0, 1, -1, 1]), {}, "counted from 0; got the label -1"),
        (np.array([0, 1, 1.5, 1]), {}, "whole numbers.*got 1.5.*gaussian"),
        (np.array(["a", "b", "a", "b"]), {}, "y must be a numeric array; encode text"),
        (np.array([0, 1, np.nan, 1]), {}, "y has 1 NaN"),
        (np.zeros(4, int), {}, "at least two classes; every label is 0.*classes=C"),
        (np.full(4, 3), {}, "at least two classes; every label is 3"),
        (Y, {"likelihood": widebnn.Softmax(2)}, "below classes=2; got the label 2"),
        (Y[:, None], {}, r"Try y.ravel\(\)"),
        (np.eye(3)[Y], {"likelihood": widebnn.Softmax(4)}, "3 one-hot columns but classes=4"),
        (np.eye(3)[Y] * 0.9, {}, "one-hot rows"),
        (np.ones((4, 3)), {}, "one-hot rows"),
        (np.ones((4, 3, 1)), {}, r"shape \(n,\) or one-hot"),
        (Y[:3], {}, "same number of rows; got 4 and 3"),
        (Y[:0], {}, "y is empty"),
        (Y, {"noise": 0.1}, "noise=0.1 belongs to likelihood='gaussian'"),
        (
            Y,
            {"coordinates": "reparametrised"},
            "whiten the readout.*Use coordinates='function', 'marginal' or 'weights'",
        ),
        (Y, {"coordinates": "functon"}, "Did you mean 'function'"),
        (Y, {"coordinates": "full"}, "whiten the readout"),
        (Y, {"coordinates": "weights", "carry": X}, "carry belongs to coordinates='function'"),
        (Y, {"likelihood": "sotfmax"}, "Did you mean 'softmax'"),
        (Y, {"likelihood": 3}, "likelihood must be one of gaussian, heavy_tails, input_noise, softmax or an object"),
    ],
)
def test_bad_input(y, options, message):
    with pytest.raises(widebnn.WidebnnError, match=message):
        widebnn.posterior(widebnn.dense(2, [3]), X, y, **({"likelihood": "softmax"} | options))


def test_bad_networks_and_calls():
    with pytest.raises(widebnn.WidebnnError, match="classes must be at least 2"):
        widebnn.Softmax(classes=1)
    with pytest.raises(widebnn.WidebnnError, match=r"without hidden parameters.*coordinates='weights'"):
        widebnn.posterior(widebnn.dense(2, []), X, Y, likelihood="softmax", coordinates="function")
    network = widebnn.feature_map({"w": (2, 8)}, lambda p, x: jnp.cos(x @ p["w"]))
    with pytest.raises(widebnn.WidebnnError, match="dense network; use coordinates='marginal'"):
        widebnn.posterior(network, X, Y, likelihood="softmax", coordinates="function")
    target = widebnn.posterior(widebnn.dense(2, [3]), X, Y, likelihood="softmax", carry=X)
    with pytest.raises(widebnn.WidebnnError, match="leave carry out"):
        target.from_weights(None)
    target = widebnn.posterior(widebnn.dense(2, [3]), X, Y, likelihood="softmax")
    with pytest.raises(widebnn.WidebnnError, match="predict needs inputs"):
        target.predict(jax.random.key(0), None)
    with pytest.raises(widebnn.WidebnnError, match="traced labels; pass classes=C"):
        jax.jit(lambda y: widebnn.posterior(widebnn.dense(2, [3]), X, y, likelihood="softmax").y)(Y)


@pytest.mark.some(1)
@pytest.mark.ambient
@pytest.mark.parametrize("coordinates", SYSTEMS)
def test_float64_with_a_sampled_scale_in_a_program_of_single_precision(coordinates):
    target = classifier(
        coordinates, 5, (7,), likelihood=widebnn.Softmax(logit_scale=widebnn.LogNormal(np.pi, 1.0))
    )  # any warning is an error
    u = target.sample_reference(jax.random.key(0))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(u)} == {"float64"}
    with jax.enable_x64(True):
        assert float(target.likelihood.scale(SoftmaxLatent(scale=np.zeros(())))) == np.pi
