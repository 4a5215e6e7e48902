"""Function space against the chain on all weights: fed the same noise, both do the same."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import widebnn
from problems import small_data, worst_z_of_normals, worst_z_of_pairs
from widebnn.coordinates.full import TRACKED, FullPosition
from widebnn.coordinates.function import FunctionPosition
from widebnn.coordinates.function_space import FunctionSpace
from widebnn.coordinates.lumped import Lumped
from widebnn.data import load_dataset
from widebnn.networks import apply
from widebnn.precision import one_blas_thread
from widebnn.samplers.tree import reframe

STEPS = 200
N, M, WIDTH, OUTPUTS = 4, 40, 6, 2


def targets():
    x, y = small_data(n=N, m=M, outputs=OUTPUTS)
    network = widebnn.dense(M, [WIDTH])
    options = {"noise": 0.3, "dtype": "float64"}
    names = ("reparametrised", "function", "full")
    return [widebnn.posterior(network, x, y, coordinates=name, **options) for name in names]


def stacked(hidden):
    return jnp.concatenate([hidden[0].w, hidden[0].b[None]])


class Split:
    """All weights of the full chain in the coordinates of the lumped one."""

    def __init__(self, target):
        basis = FunctionSpace(target.network, target.x).basis
        everything, _ = np.linalg.qr(np.hstack([basis, np.random.default_rng(0).normal(size=(M + 1, M + 1))]))
        self.basis, self.rest = jnp.asarray(basis), jnp.asarray(everything[:, basis.shape[1] : M + 1])

    def parts(self, weights):
        """A, the tracked numbers (any orthonormal functionals will do here), and the ignored vector."""
        w = stacked(weights.hidden)
        outside = (self.rest.T @ w).ravel()
        return self.basis.T @ w, outside[:TRACKED], outside[TRACKED:]

    def ignored(self, weights):
        """The ignored vector."""
        return self.parts(weights)[2]

    def position(self, weights, frame):
        """The ignored vector is in coordinates along an orthonormal frame, and the length of the rest."""
        a, tracked, ignored = self.parts(weights)
        coordinates = [ignored @ axis for axis in frame]
        left = ignored - sum(c * axis for c, axis in zip(coordinates, frame, strict=True))
        values = jnp.array([*coordinates, *([0.0] * (2 - len(frame))), jnp.linalg.norm(left)])
        return FullPosition((a,), (), weights.readout, tracked, Lumped(values, ignored.size))


def frame_of(*vectors):
    """Orthonormal axes for the position and the momentum of the ignored block, in this order."""
    axes = []
    for vector in vectors:
        left = vector - sum(((vector @ axis) * axis for axis in axes), start=jnp.zeros_like(vector))
        axes.append(left / jnp.linalg.norm(left))
    return axes


@pytest.mark.some(1)
@pytest.mark.parametrize(("name", "step_size"), [("pcn", 0.4), ("pcnl", 0.5), ("hilbert_hmc", 0.4)])
def test_the_reduced_chain_is_the_projected_full_chain(name, step_size):
    """pCN, pCNL and Hilbert-space HMC: what the likelihood ignores does not even enter the acceptance."""
    full, reduced, _ = targets()
    basis = Split(full).basis
    build = widebnn.samplers.SAMPLERS[name]
    a, b = (build(t.log_likelihood, step_size) for t in (full, reduced))
    run_a, run_b, accept = jax.jit(a.propose), jax.jit(b.propose), jax.jit(widebnn.samplers.metropolis)
    state_a = a.init(full.sample_reference(jax.random.key(0)))
    state_b = b.init(FunctionPosition((basis.T @ stacked(state_a.position.hidden),)))
    accepted = 0
    for t in range(STEPS):
        noise_key, accept_key = jax.random.split(jax.random.key(t + 1))
        noise = full.sample_reference(noise_key)
        one, two = run_a(state_a, noise), run_b(state_b, FunctionPosition((basis.T @ stacked(noise.hidden),)))
        np.testing.assert_allclose(one.log_ratio, two.log_ratio, atol=1e-8)
        (state_a, info_a), (state_b, info_b) = (accept(accept_key, p) for p in (one, two))
        assert info_a.is_accepted == info_b.is_accepted
        accepted += bool(info_a.is_accepted)
        np.testing.assert_allclose(state_a.log_likelihood, state_b.log_likelihood, atol=1e-8)
    psi = full.network.features(state_a.position.hidden, full.x)
    np.testing.assert_allclose(FunctionSpace(full.network, full.x).psi(state_b.position.layers), psi, atol=1e-9)
    assert 20 < accepted < STEPS


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rwmh", {"step_size": 0.12}),
        ("mala", {"step_size": 0.5}),
        ("underdamped", {"step_size": 0.5, "friction": 0.7}),
        ("hmc", {"step_size": 0.4, "num_steps": 3}),
    ],
)
def test_the_lumped_chain_makes_the_decisions_of_the_full_chain(name, options):
    """Random walk, MALA, underdamped, HMC: the ignored block in three numbers gives the same ratios."""
    full, _, lumped = targets()
    split = Split(full)
    build = widebnn.samplers.SAMPLERS[name]
    a, b = (build(t.log_likelihood, **options) for t in (full, lumped))
    run_a, run_b, accept = jax.jit(a.propose), jax.jit(b.propose), jax.jit(widebnn.samplers.metropolis)
    state_a = a.init(full.sample_reference(jax.random.key(0)))
    state_b = b.init(split.position(state_a.position, frame_of(split.ignored(state_a.position))))
    if name == "underdamped":
        momentum = full.sample_reference(jax.random.key(1000))
        state_a = state_a._replace(momentum=momentum, has_momentum=jnp.asarray(True))
    accepted = 0
    for t in range(STEPS):
        noise_key, accept_key = jax.random.split(jax.random.key(t + 1))
        noise = full.sample_reference(noise_key)
        frame = frame_of(split.ignored(state_a.position))
        if name == "underdamped":
            frame = frame_of(split.ignored(state_a.position), split.ignored(state_a.momentum))
            momentum = split.position(state_a.momentum, frame)
            state_b = state_b._replace(momentum=momentum, has_momentum=jnp.asarray(True))
        one, two = run_a(state_a, noise), run_b(state_b, split.position(noise, frame))
        np.testing.assert_allclose(one.log_ratio, two.log_ratio, atol=1e-7)
        (state_a, info_a), (state_b, info_b) = (accept(accept_key, p) for p in (one, two))
        assert info_a.is_accepted == info_b.is_accepted
        accepted += bool(info_a.is_accepted)
        position, momentum = reframe(state_b.position, getattr(state_b, "momentum", None))
        state_b = state_b._replace(position=position, **({"momentum": momentum} if momentum is not None else {}))
        length = jnp.linalg.norm(split.ignored(state_a.position))
        np.testing.assert_allclose(position.ignored.values, [length, 0, 0], atol=1e-9)
        if momentum is not None:
            # What the chain itself would carry on, without looking at the full chain.
            frame = frame_of(split.ignored(state_a.position), split.ignored(state_a.momentum))
            expected = split.position(state_a.momentum, frame).ignored
            np.testing.assert_allclose(momentum.ignored.values, expected.values, atol=1e-7)
    assert 20 < accepted < STEPS


def test_lumped_noise_has_the_norms_of_standard_normals():
    """<u, w> / |u| is N(0, 1) and |w|^2 is chi-squared with as many degrees as coordinates."""
    dimension = 50
    u = Lumped.sample(jax.random.key(0), dimension)
    w = jax.jit(jax.vmap(lambda key: u.sample_noise(key).values))(jax.random.split(jax.random.key(1), 40_000))
    squares = jnp.sum(w**2, axis=1)
    root = np.sqrt(len(squares))
    assert abs(w[:, 0].mean()) * root < 4.5
    assert abs((squares.mean() - dimension) / np.sqrt(2 * dimension)) * root < 4.5
    np.testing.assert_allclose(squares.var(), 2 * dimension, rtol=0.06)
    lengths = jax.vmap(lambda key: Lumped.sample(key, dimension).values[0])(jax.random.split(jax.random.key(2), 40_000))
    assert abs((jnp.mean(lengths**2) - dimension) / np.sqrt(2 * dimension)) * root < 4.5


@pytest.mark.parametrize(
    ("widths", "m", "message"), [((3, 3), M, "exact for one hidden layer"), ((3,), 3, "nothing to gain")]
)
def test_where_full_space_makes_no_sense(widths, m, message):
    x, y = small_data(n=N, m=m)
    with pytest.raises(widebnn.WidebnnError, match=message):
        widebnn.posterior(widebnn.dense(m, widths), x, y, coordinates="full")


@pytest.mark.some(2)
@pytest.mark.parametrize(("n", "widths"), [(4, (6,)), (4, (6, 5)), (4, (7, 6, 5)), (6, (3, 8)), (9, (4, 4))])
def test_coordinates_weights_and_back(n, widths):
    """to_weights is exact: same features, same likelihood; and its inverse returns the coordinates."""
    x, y = small_data(n=n)
    x[-1] = x[0]  # a duplicate input
    network = widebnn.dense(3, widths)
    function, marginal = (
        widebnn.posterior(network, x, y, dtype="float64", coordinates=c) for c in ("function", "marginal")
    )
    u = function.sample_reference(jax.random.key(0))
    weights = jax.jit(function.to_weights)(jax.random.key(1), u)
    here, there = jax.jit(function.log_likelihood)(u), jax.jit(marginal.log_likelihood)(weights.hidden)
    np.testing.assert_allclose(here, there, rtol=1e-9)
    for a, b in zip(u.layers, jax.jit(function.from_weights)(weights).layers, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)


def small_target_of(likelihood, widths):
    """Three inputs; for classes four, of which two are equal and have different labels. And how many draws to make."""
    x, y = small_data(n=4 if likelihood == "softmax" else 3)
    options = {"noise": 0.3}
    if likelihood == "softmax":
        x[-1], y, options = x[0], np.array([0, 1, 2, 2]), {"likelihood": "softmax"}
    network = widebnn.dense(3, widths, readout_weight_std=2.0)
    return widebnn.posterior(network, x, y, dtype="float64", **options), 4_000 if likelihood == "softmax" else 20_000


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("likelihood", "widths"),
    [("gaussian", (5, 4)), ("gaussian", (5,)), ("gaussian", (4, 5, 3)), ("softmax", (7,)), ("softmax", (3, 5))],
)
def test_weights_drawn_back_are_standard_normal(likelihood, widths):
    """Coordinates from N(0, I) must give weights N(0, I): nothing is lost and nothing counted twice."""
    target, count = small_target_of(likelihood, widths)

    def draw(key):
        u_key, w_key = jax.random.split(key)
        weights = target.to_weights(w_key, target.sample_reference(u_key))
        # The readout of a regression depends on the data.
        return jax.flatten_util.ravel_pytree(weights if likelihood == "softmax" else weights.hidden)[0]

    keys = jax.random.split(jax.random.key(0), count)
    draws = np.asarray(jax.jit(lambda keys: jax.lax.map(draw, keys, batch_size=500))(keys))
    assert worst_z_of_normals(draws) < 5


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("likelihood", "widths"),
    [("gaussian", (6, 5)), ("gaussian", (5,)), ("gaussian", (3, 6)), ("softmax", (7,)), ("softmax", (6, 5))],
)
def test_predictions_have_the_law_of_weights_drawn_back(likelihood, widths):
    """Two exact routes to new inputs: conditional draws layer by layer, and drawing all weights."""
    target, count = small_target_of(likelihood, widths)
    u = target.sample_reference(jax.random.key(5))
    x_new = np.random.default_rng(3).normal(size=(2, 3))
    if likelihood == "gaussian":  # the logits at training inputs are those of the position
        x_new = np.vstack([target.x[0], x_new])

    def both(key):
        one, two = jax.random.split(key)
        return target.predict(two, u, x_new).f, apply(target.network, target.to_weights(one, u), jnp.asarray(x_new))

    assert worst_z_of_pairs(both, count, 500) < 5


@pytest.mark.some(1)
@pytest.mark.parametrize("coordinates", ["function", "full"])
def test_carried_inputs_have_the_law_of_new_inputs(coordinates):
    """Averaged over the coordinates that are carried, predict(key, u) is predict(key, u, x)."""
    x, y = small_data(n=N, m=M)
    x_new = np.vstack([x[1], np.random.default_rng(3).normal(size=(2, M))])
    target = widebnn.posterior(
        widebnn.dense(M, [WIDTH]), x, y, noise=0.3, dtype="float64", carry=x_new, coordinates=coordinates
    )
    layers = target.sample_reference(jax.random.key(9)).layers

    def both(key):
        u_key, one, two = jax.random.split(key, 3)
        u = target.sample_reference(u_key)._replace(layers=layers)
        return target.predict(one, u).f, target.predict(two, u, x_new).f

    assert worst_z_of_pairs(both, 20_000, 500) < 5


@pytest.mark.some(1)
@pytest.mark.parametrize("widths", [(6,), (7, 6), (3, 6)])
def test_carried_function_moves_with_the_chain(widths):
    """The same position gives the same hidden function at carried inputs, and duplicates of training inputs agree."""
    x, y = small_data(n=N)
    target = widebnn.posterior(widebnn.dense(3, widths), x, y, noise=0.3, dtype="float64", carry=np.vstack([x[:2], -x]))
    u = target.sample_reference(jax.random.key(0))
    predict = jax.jit(target.predict)
    mean = predict(jax.random.key(1), u).mean
    np.testing.assert_allclose(predict(jax.random.key(2), u).mean, mean, atol=1e-10)
    np.testing.assert_allclose(predict(jax.random.key(3), u, x[:2]).mean, mean[:2], atol=1e-7)
    with pytest.raises(widebnn.WidebnnError, match="pass x, or carry them"):
        widebnn.posterior(widebnn.dense(3, widths), x, y).predict(jax.random.key(0), u)


def test_projections_in_full_space_do_not_depend_on_what_is_carried():
    """Carrying inputs moves coordinates from 'tracked' to 'carried': projections stay N(0, 1) a priori."""
    x, y = small_data(n=N, m=M)
    x_new = np.random.default_rng(3).normal(size=(3, M))
    covariances = []
    for carry in (None, x_new):
        target = widebnn.posterior(widebnn.dense(M, [WIDTH]), x, y, dtype="float64", carry=carry, coordinates="full")
        flat, unravel = jax.flatten_util.ravel_pytree(target.sample_reference(jax.random.key(0)))
        matrix = jax.jit(jax.jacfwd(lambda v, t=target, un=unravel: t.coordinates.project(un(v))))(jnp.zeros_like(flat))
        covariances.append(matrix @ matrix.T)
    np.testing.assert_allclose(covariances[0], covariances[1], atol=1e-10)
    np.testing.assert_allclose(np.diag(covariances[0]), 1.0, atol=1e-10)
    assert np.abs(covariances[0] - np.eye(len(covariances[0]))).max() < 0.5, "distinct directions"


def test_dead_units_do_not_stop_a_narrow_relu_network():
    """Units dead at all inputs make a deeper kernel singular: another root is used, and all stays exact."""
    x, y = small_data(n=4)
    network, options = widebnn.dense(3, (5, 4), "relu"), {"dtype": "float64", "noise": 0.3}
    target, marginal = (
        widebnn.posterior(network, x, y, coordinates=name, **options) for name in ("function", "marginal")
    )
    u = target.sample_reference(jax.random.key(0))
    basis = FunctionSpace(target.network, target.x).basis
    # One unit works, the others are dead everywhere: rank two for four inputs.
    w = np.zeros((4, 5))
    w[-1] = -50.0
    w[:, 0] = [1.0, 0.5, -0.3, 20.0]
    u = u._replace(layers=(jnp.asarray(basis.T @ w), u.layers[1]))
    value, gradient = jax.jit(jax.value_and_grad(target.log_likelihood))(u)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    weights = jax.jit(target.to_weights)(jax.random.key(1), u)
    np.testing.assert_allclose(value, jax.jit(marginal.log_likelihood)(weights.hidden), rtol=1e-6)
    assert np.isfinite(jax.jit(target.predict)(jax.random.key(2), u, x + 0.1).f).all()


def test_coordinates_do_not_depend_on_rounding():
    """Digits depend on one another; the same position must be the same function with any number of threads."""
    x = load_dataset("digits", 256, 8).x_train
    network = widebnn.dense(64, [8])
    first = FunctionSpace(network, jnp.asarray(x))
    with one_blas_thread():
        again = FunctionSpace(network, jnp.asarray(x))
    nearly = FunctionSpace(network, jnp.asarray(x * (1 + 1e-13 * np.random.default_rng(0).normal(size=x.shape))))
    assert first.factor.shape[1] < 64
    np.testing.assert_allclose(again.factor, first.factor, atol=1e-12)
    np.testing.assert_allclose(nearly.factor[:, :50], first.factor[:, :50], atol=1e-7)
