"""The weights behind function-space coordinates: their law, and the function they give, in every precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widebnn
from widebnn.coordinates.function_space import FunctionSpace
from widebnn.coordinates.weights import WeightCoordinates
from widebnn.likelihoods.softmax import kernel_root
from widebnn.networks import apply

N, WIDTH, DRAWS = 20, 64, 8
NOISE = 0.1
X = np.linspace(-2, 2, N)[:, None]
"""One input and a smooth activation: the kernels of deeper layers are singular up to rounding."""
Y = np.sin(2 * X[:, 0])
FUNCTION_ERROR = {"float32": 5e-3, "float64": 1e-6, "mixed": 1e-6}
"""Of order sqrt(N eps), the change of a root by rounding in the kernel, a few times over in deeper layers."""
LIKELIHOODS = {
    "gaussian": {"noise": NOISE},
    "unknown noise": {"noise": widebnn.LogNormal(NOISE, 0.5)},
    "noise per row": {"likelihood": widebnn.HeavyTails(NOISE, 0.5)},
    "softmax": {"likelihood": "softmax"},
    "unknown logit scale": {"likelihood": widebnn.Softmax(logit_scale=widebnn.LogNormal(2.0, 0.5))},
}


def target_of(dtype, depth, likelihood, activation="erf"):
    options = LIKELIHOODS[likelihood]
    y = (Y > 0).astype(int) if likelihood in ("softmax", "unknown logit scale") else Y
    return widebnn.posterior(widebnn.dense(1, [WIDTH] * depth, activation), X, y, dtype=dtype, **options)


def draws_of(target):
    """Positions from N(0, I), weights for each, and the features of both.

    In one program: the root of a nearly singular kernel depends on rounding, which another program may do otherwise.
    """
    space = FunctionSpace(target.network, target.x)

    def draw(key):
        position_key, weights_key = jax.random.split(key)
        u = target.sample_reference(position_key)
        weights = target.to_weights(weights_key, u)
        psi = space.psi(getattr(u, "network", u).layers)
        return u, weights, psi, target.network.features(weights.hidden, target.x)

    return jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(1), DRAWS))


def check_standard_normal(values):
    """First, second and fourth moment, each within five standard errors."""
    values = np.asarray(values, np.float64).ravel()
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (4, 3, 96)):
        assert abs(np.mean(values**power) - mean) < 5 * np.sqrt(variance / values.size), power


@pytest.mark.some(3)
@pytest.mark.parametrize("dtype", FUNCTION_ERROR)
@pytest.mark.parametrize(
    ("likelihood", "depth"),
    [
        *((likelihood, depth) for likelihood in ("gaussian", "unknown noise", "softmax") for depth in (1, 2, 3)),
        ("noise per row", 2),
        ("unknown logit scale", 2),
    ],
)
def test_weights_of_a_draw_from_the_prior(dtype, depth, likelihood):
    """N(0, I) in hidden layers, and with them the function of the coordinates at the training inputs."""
    target = target_of(dtype, depth, likelihood)
    u, weights, psi, found = draws_of(target)
    for layer in weights.hidden:
        check_standard_normal(layer.w)
        check_standard_normal(layer.b)
    np.testing.assert_allclose(found, psi, atol=FUNCTION_ERROR[dtype])
    f = jax.jit(jax.vmap(lambda w: apply(target.network, w, target.x)))(weights)
    if target.likelihood.name == "softmax":
        scale = jax.vmap(lambda z: jnp.asarray(target.likelihood.scale(z)))(u.z).reshape(-1, 1, 1)
        if target.likelihood.logit_scale is None:
            check_standard_normal(weights.readout)
        chain = scale * (jax.jit(jax.vmap(kernel_root))(psi) @ u.z.readout.astype(jnp.float64))
        np.testing.assert_allclose(f, chain, atol=20 * FUNCTION_ERROR[dtype])
    else:
        noise = np.asarray(jax.vmap(target.noise_at)(u)).reshape(DRAWS, -1, 1)
        k = np.asarray(found, np.float64)
        k = k @ k.swapaxes(1, 2)
        # y - f = s^2 K^-1 y + what N(0, K) leaves open: compared in units of its own standard deviation.
        s2 = noise**2 * np.eye(N)
        mean = s2 @ np.linalg.solve(k + s2, np.asarray(target.y, np.float64))
        covariance = s2 - s2 @ np.linalg.solve(k + s2, s2)
        values, vectors = np.linalg.eigh(covariance)
        seen = values > 1e-2 * noise.min() ** 2
        white = vectors.swapaxes(1, 2) @ (np.asarray(target.y, np.float64) - np.asarray(f, np.float64) - mean)
        check_standard_normal((white[..., 0] / np.sqrt(np.abs(values)))[seen])


@pytest.mark.some(3)
@pytest.mark.parametrize("dtype", FUNCTION_ERROR)
@pytest.mark.parametrize("likelihood", ["gaussian", "softmax"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_coordinates_of_weights(dtype, likelihood, activation):
    """Coordinates of weights from the prior are no larger than standard normals, and give the weights' function."""
    target = target_of(dtype, 3, likelihood, activation)
    space = FunctionSpace(target.network, target.x)

    def draw(key):
        weights = WeightCoordinates(target.network, target.x, target.y.shape[1]).sample(key)
        u = target.from_weights(weights)
        u = getattr(u, "network", u)
        return u, space.psi(u.layers), target.network.features(weights.hidden, target.x)

    u, psi, expected = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(2), DRAWS))
    for layer in u.layers:
        assert np.mean(np.asarray(layer, np.float64) ** 2) < 1 + 5 * np.sqrt(2 / layer.size)
    np.testing.assert_allclose(psi, expected, atol=FUNCTION_ERROR[dtype])


@pytest.mark.some(2)
@pytest.mark.parametrize("dtype", FUNCTION_ERROR)
@pytest.mark.parametrize("likelihood", ["gaussian", "softmax"])
def test_predictions_far_away_have_the_variance_of_the_prior(dtype, likelihood):
    """Far from the data f(x) of a deep network is of the size of its features, not of inverted rounding."""
    target = target_of(dtype, 2, likelihood)
    far = np.array([[30.0], [-30.0]])

    def size(key):
        u = target.sample_reference(key)
        return jnp.mean(target.predict(key, u, far).f ** 2)

    assert jnp.mean(jax.jit(jax.vmap(size))(jax.random.split(jax.random.key(0), 50))) < 5
