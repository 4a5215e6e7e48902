"""Networks of one's own: parameters as shapes, as arrays, or as Flax and Equinox have them."""

import math

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import widebnn
from problems import small_data
from widebnn.errors import WidebnnError
from widebnn.networks import Weights

WIDTH = 6


def psi(h):
    """The readout's features of widebnn.dense, from the activations of the last layer."""
    return jnp.concatenate([h / math.sqrt(WIDTH), jnp.full((len(h), 1), 0.1, h.dtype)], axis=1)


def scaled(parameter, inputs):
    """From N(0, 1) to the prior of widebnn.dense."""
    return parameter * (math.sqrt(2 / inputs) if parameter.ndim == 2 else 0.1)


def linen_network(x):
    module = nn.Dense(WIDTH)
    shapes = jax.eval_shape(module.init, jax.random.key(0), x)

    def features(p, x):
        return psi(nn.tanh(module.apply(jax.tree.map(lambda leaf: scaled(leaf, 3), p), x)))

    return widebnn.feature_map(shapes, features), lambda w, b: {"params": {"kernel": w, "bias": b}}


def nnx_network(x):
    module = nnx.eval_shape(lambda: nnx.Linear(3, WIDTH, rngs=nnx.Rngs(0)))
    graph, parameters, rest = nnx.split(module, nnx.Param, ...)

    def features(p, x):
        return psi(nnx.tanh(nnx.merge(graph, jax.tree.map(lambda leaf: scaled(leaf, 3), p), rest)(x)))

    leaves, structure = jax.tree.flatten(parameters)
    assert [leaf.shape for leaf in leaves] == [(WIDTH,), (3, WIDTH)]
    return widebnn.feature_map(parameters, features), lambda w, b: jax.tree.unflatten(structure, [b, w])


def equinox_network(x):
    module = eqx.nn.Linear(3, WIDTH, key=jax.random.key(0))
    parameters, rest = eqx.partition(module, eqx.is_inexact_array)

    def features(p, x):
        return psi(jnp.tanh(jax.vmap(eqx.combine(jax.tree.map(lambda leaf: scaled(leaf, 3), p), rest))(x)))

    def to_module(w, b):
        return eqx.tree_at(lambda module: (module.weight, module.bias), parameters, (w.T, b))

    return widebnn.feature_map(parameters, features), to_module


@pytest.mark.some(1)
@pytest.mark.parametrize("build", [linen_network, nnx_network, equinox_network])
def test_modules_have_the_posterior_of_the_same_dense_network(build):
    x, y = small_data()
    network, to_module = build(x)
    for coordinates in ("marginal", "reparametrised", "weights"):
        ours, theirs = (
            widebnn.posterior(one, x, y, coordinates=coordinates, dtype="float64")
            for one in (widebnn.dense(3, [WIDTH], "tanh"), network)
        )
        u = ours.sample_reference(jax.random.key(1))
        (layer,) = u if coordinates == "marginal" else u.hidden
        hidden = to_module(layer.w, layer.b)
        v = hidden if coordinates == "marginal" else Weights(hidden, u.readout)
        assert jax.tree.structure(v) == jax.tree.structure(theirs.sample_reference(jax.random.key(1)))
        np.testing.assert_allclose(jax.jit(theirs.log_likelihood)(v), jax.jit(ours.log_likelihood)(u), rtol=1e-12)
    result = widebnn.sample(theirs, "pcn", step_size=0.1, steps=4, collect=widebnn.track(theirs, x))
    assert result.draws["f_test"].shape == (1, 4, 5, 2)


def test_arrays_stand_for_their_shapes():
    key, dtype = jax.random.key(3), jnp.float64
    expected = widebnn.feature_map({"b": (), "w": (2, 3)}, None).sample_hidden(key, dtype)
    for parameters in (
        {"b": jnp.ones(()), "w": np.ones((2, 3), np.float32)},
        {"b": jax.ShapeDtypeStruct((), jnp.bfloat16), "w": jax.ShapeDtypeStruct((2, 3), jnp.float32)},
    ):
        found = widebnn.feature_map(parameters, None).sample_hidden(key, dtype)
        assert jax.tree.all(jax.tree.map(lambda a, b: a.dtype == dtype and jnp.array_equal(a, b), found, expected))
    # Among arrays an empty tuple is an empty layer, and what a module leaves open is left open.
    found = widebnn.feature_map({"w": jnp.ones(2), "layers": (), "bias": None}, None).sample_hidden(key, dtype)
    assert found["layers"] == () and found["bias"] is None and found["w"].shape == (2,)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"w": (2, 3), "n": 4}, "tuples of whole numbers, or arrays; got 4"),
        ({"w": "wide"}, "got 'wide'"),
        ({"w": jnp.ones(3), "n": 4}, "all of it must be arrays of floats; got 4"),
        ({"w": jnp.ones(3), "n": jnp.arange(4)}, "got an array of int"),
        ({"w": jnp.ones(3), "key": jax.random.key(0)}, r"got an array of key<.*eqx\.partition"),
        (eqx.nn.MLP(2, 3, 4, 1, key=jax.random.key(0)), r"arrays of floats; got <.*eqx\.partition"),
    ],
)
def test_bad_shapes(shapes, message):
    with pytest.raises(WidebnnError, match=message):
        widebnn.feature_map(shapes, None)
