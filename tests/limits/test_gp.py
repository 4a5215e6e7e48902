"""The normal density, leave-one-out and the Gaussian process posterior against brute-force conditioning."""

import doctest
import functools
import importlib
import math

import numpy as np
import pytest
import scipy.stats

from widebnn.errors import WidebnnError
from widebnn.limits import GPPosterior, gp_posterior, leave_one_out, log_normal, nngp_kernel
from widebnn.networks import dense


def inputs(n=7, m=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n, m))


def random_covariance(n=8, seed=4):
    root = np.random.default_rng(seed).normal(size=(n, n))
    return root @ root.T / n + 0.1 * np.eye(n)


# --- N(y; 0, C)


def test_log_normal():
    covariance, y = random_covariance(), inputs(8, 2)
    value, derivative = log_normal(covariance, y)
    assert value == pytest.approx(np.sum(scipy.stats.multivariate_normal(np.zeros(8), covariance).logpdf(y.T)))
    direction = random_covariance(seed=5)
    numeric = [log_normal(covariance + h * direction, y)[0] for h in (1e-6, -1e-6)]
    assert np.sum(derivative * direction) == pytest.approx((numeric[0] - numeric[1]) / 2e-6, rel=1e-7)
    np.testing.assert_array_equal(derivative, derivative.T)


def test_leave_one_out_equals_conditioning_on_all_other_rows():
    covariance, y = random_covariance(), inputs(8, 2)
    errors, variances = leave_one_out(covariance, y)
    for i in range(8):
        others = np.delete(np.arange(8), i)
        gain = np.linalg.solve(covariance[np.ix_(others, others)], covariance[others, i])
        np.testing.assert_allclose(errors[i], y[i] - gain @ y[others], rtol=1e-11)
        assert variances[i] == pytest.approx(covariance[i, i] - gain @ covariance[others, i], rel=1e-11)


def test_indefinite_covariance_is_nan():
    indefinite, y = np.diag([1.0, -1.0]), np.ones((2, 1))
    for value in (*log_normal(indefinite, y), *leave_one_out(indefinite, y)):
        assert np.all(np.isnan(value))


# --- the posterior


def test_posterior_equals_brute_force_conditioning():
    network = dense(3, [1, 1], "gelu")
    rng = np.random.default_rng(3)
    x, x_test, y, noise = inputs(9), inputs(4, seed=1), rng.normal(size=(9, 2)), 0.3
    posterior = gp_posterior(network, x, y, noise, x_test)
    kernel = nngp_kernel(network, x) + noise**2 * np.eye(9)
    cross = nngp_kernel(network, x_test, x)
    inverse = np.linalg.inv(kernel)
    covariance = nngp_kernel(network, x_test) - cross @ inverse @ cross.T
    evidence = sum(scipy.stats.multivariate_normal(np.zeros(9), kernel).logpdf(y[:, j]) for j in range(2))
    np.testing.assert_allclose(posterior.mean, cross @ inverse @ y, rtol=0, atol=1e-10)
    np.testing.assert_allclose(posterior.covariance, covariance, rtol=0, atol=1e-10)
    np.testing.assert_allclose(posterior.variance, np.diag(covariance), rtol=0, atol=1e-10)
    assert posterior.log_evidence == pytest.approx(evidence, rel=1e-10)


def test_posterior_of_a_given_kernel():
    network, x, y = dense(3, [1], "gelu"), 0.5 * inputs(6), inputs(6, 1)
    by_network = gp_posterior(network, x, y, 0.2, x[:2])
    by_kernel = gp_posterior(functools.partial(nngp_kernel, network, quadrature_order=100), x, y, 0.2, x[:2])
    np.testing.assert_allclose(by_kernel.mean, by_network.mean, rtol=0, atol=1e-8)
    linear = gp_posterior(lambda z: z @ z.T, x, y, 0.2, x[:2])
    assert np.max(np.abs(linear.mean - by_network.mean)) > 1e-3


def test_variance_is_never_negative():
    """Where the data leave no doubt, rounding can push the diagonal of K_** - V'V below zero."""
    posterior = GPPosterior(np.zeros((2, 1)), np.array([[0.5, 0.1], [0.1, -1e-17]]), 0.0)
    np.testing.assert_array_equal(posterior.variance, [0.5, 0.0])


# --- bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_test": np.ones((2, 4))}, r"x_test must have 3 columns.*\(2, 4\)"),
        ({"x": np.ones((5, 2))}, r"x must have 3 columns.*\(5, 2\)"),
        ({"y": np.ones(4)}, "same number of rows; got 5 and 4"),
        ({"noise": 0.0}, "noise must be greater than 0.*standard deviation"),
        ({"network": lambda x: np.ones((2, 2))}, r"kernel of 7 inputs must be square.*\(2, 2\)"),
        ({"network": lambda x: -np.eye(len(x))}, "not positive definite; use a larger noise"),
        ({"network": lambda x: np.full((len(x), len(x)), math.inf)}, "not positive definite"),
    ],
)
def test_posterior_refuses_bad_input(change, message):
    good = {"network": dense(3, [1]), "x": inputs(5), "y": np.ones(5), "noise": 0.1, "x_test": inputs(2)}
    gp_posterior(**good)
    with pytest.raises(WidebnnError, match=message):
        gp_posterior(**(good | change))


@pytest.mark.ambient
@pytest.mark.parametrize("name", ["kernel", "gp", "evidence", "choice"])
def test_examples(name):
    found = doctest.testmod(importlib.import_module(f"widebnn.limits.{name}"))
    assert found.attempted > 0 and found.failed == 0
