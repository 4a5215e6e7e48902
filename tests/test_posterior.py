"""Bad input to posterior() and dense(): the message names the problem and the fix."""

import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import widebnn

X, Y = np.ones((4, 2)), np.ones((4, 1))
NET = widebnn.dense(2, [3])


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((NET, X, Y), {"noise": 0.0}, "noise must be greater than 0"),
        ((NET, X, Y), {"noise": np.nan}, "noise must be greater than 0"),
        ((NET, X, Y), {"coordinates": "margnal"}, "Did you mean 'marginal'"),
        ((NET, X, Y), {"dtype": "float16"}, "dtype must be one of float32, float64"),
        ((NET, X[:, 0], Y), {}, r"2-D array.*reshape\(-1, 1\)"),
        ((NET, X[:2], Y), {}, "same number of rows; got 2 and 4"),
        ((NET, X[:0], Y[:0]), {}, "x is empty"),
        ((NET, X * np.nan, Y), {}, "x has 8 NaN or infinite entries; remove or impute"),
        ((NET, X, Y * np.inf), {}, "y has 4 NaN or infinite entries"),
        ((NET, X, np.array([["a"]] * 4)), {}, "y must be a numeric array"),
        ((NET, np.ones((4, 5)), Y), {}, "does not accept x of shape.*expects 2 input columns"),
        ((NET, X, np.ones((4, 1, 1))), {}, r"shape \(n,\) or \(n, outputs\)"),
        ((lambda x: x, X, Y), {}, "use widebnn.dense"),
        ((widebnn.dense(2, []), X, Y), {"coordinates": "marginal"}, "has an exact posterior"),
        ((NET, X, Y), {"noise": widebnn.LogNormal(1.0), "coordinates": "full"}, "'full' need known noise"),
        ((widebnn.feature_map({"w": (2, 3)}, lambda p, x: (x @ p["w"])[0]), X, Y), {}, "features must return shape"),
    ],
)
def test_posterior(arguments, options, message):
    with pytest.raises(widebnn.WidebnnError, match=message):
        widebnn.posterior(*arguments, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_dim": 0, "widths": [3]}, "input_dim must be at least 1"),
        ({"input_dim": 2, "widths": [0]}, "each width must be at least 1"),
        ({"input_dim": 2, "widths": [2.5]}, "each width must be a whole number"),
        ({"input_dim": 2, "widths": [3], "activation": "gellu"}, "Did you mean 'gelu'"),
        ({"input_dim": 2, "widths": [3], "weight_std": -1}, "weight_std must be greater than 0"),
        ({"input_dim": 2, "widths": [3], "bias_std": float("inf")}, "bias_std must be at least 0"),
    ],
)
def test_dense(options, message):
    with pytest.raises(widebnn.WidebnnError, match=message):
        widebnn.dense(**options)


def test_priors_of_scales():
    with pytest.raises(widebnn.WidebnnError, match="log_sd must be greater than 0"):
        widebnn.LogNormal(1.0, log_sd=0.0)
    with pytest.raises(widebnn.WidebnnError, match="logit_scale must be the prior"):
        widebnn.Softmax(logit_scale=2.0)


def test_one_dimensional_targets_are_one_column():
    target = widebnn.posterior(NET, X, Y[:, 0])
    assert target.y.shape == (4, 1)
    assert target.y.dtype == jnp.float32


def test_a_posterior_says_what_it_is_in_one_line():
    assert repr(widebnn.posterior(NET, X, Y, noise=0.2)) == (
        "Posterior(DenseNetwork(3,), Gaussian(noise=0.2), coordinates='function', 4 x 2 inputs, 1 outputs, "
        "dtype='float32', dimension=3)"
    )


def test_importing_the_package_is_enough():
    code = "import widebnn; widebnn.estimators, widebnn.limits, widebnn.data, widebnn.WideBNNRegressor"
    subprocess.run([sys.executable, "-c", code], check=True)
