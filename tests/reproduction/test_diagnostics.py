"""The paper's definitions, against plain loops; principal components, against those of the iterates themselves."""

import numpy as np
import pytest

from problems import autoregression
from widebnn.reproduction.diagnostics import principal_traces, published_ess, published_rhat


def naive_ess(x):
    """The formula as printed, one lag after the other."""
    n = len(x)
    x = x - x.mean()
    total = 0.0
    for i in range(1, n):
        r = np.mean(x[: n - i] * x[i:]) / np.mean(x * x)
        if r < 0:
            break
        total += (1 - i / n) * r
    return n / (1 + 2 * total)


@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.5, 0.95])
def test_ess_equals_the_printed_formula(rho):
    x = autoregression(rho, 400, 3, 2, seed=1)
    expected = np.apply_along_axis(naive_ess, 0, x)
    np.testing.assert_allclose(published_ess(x[None]), expected, rtol=1e-9)
    two_chains = np.stack([x, x[::-1] + 5.0])
    np.testing.assert_allclose(published_ess(two_chains), 2 * expected, rtol=1e-9)


def test_rhat_equals_the_printed_formula():
    x = np.random.default_rng(3).normal(size=(3, 50, 4)) + np.array([0.0, 0.3, 1.0])[:, None, None]
    for k in range(4):
        chains = x[:, :, k]
        means = [sum(chain) / 50 for chain in chains]
        within = sum(sum((v - m) ** 2 for v in chain) / 49 for chain, m in zip(chains, means, strict=True)) / 3
        between = 50 / 2 * sum((m - sum(means) / 3) ** 2 for m in means)
        expected = (49 / 50 * within + between / 50) / within
        np.testing.assert_allclose(published_rhat(x)[k], expected, rtol=1e-12)


@pytest.mark.parametrize("function", [published_ess, published_rhat])
def test_undefined_statistics_are_nan(function):
    x = np.random.default_rng(4).normal(size=(3, 20, 3))
    x[:, :, 0] = 0.1
    x[1, 5, 1] = np.nan
    assert np.isnan(function(x)).tolist() == [True, True, False]
    assert np.isnan(function(x[:, :1])).all()


def test_traces_are_those_of_the_iterates():
    """Two strong directions in 5000 dimensions, seen through 100 random projections."""
    rng = np.random.default_rng(0)
    time = np.linspace(0, 1, 300)
    slow = np.stack([40 * np.cos(3 * time), 20 * np.sin(9 * time)], axis=1)
    basis = np.linalg.qr(rng.normal(size=(5000, 2)))[0].T
    iterates = slow @ basis + 0.02 * rng.normal(size=(300, 5000))
    left, singular, _ = np.linalg.svd(iterates - iterates.mean(axis=0), full_matrices=False)
    exact = left[:, :2] * singular[:2]
    found = principal_traces(iterates @ rng.normal(size=(5000, 100)))
    for component in range(2):
        assert abs(np.corrcoef(found[:, component], exact[:, component])[0, 1]) > 0.99
        np.testing.assert_allclose(found[:, component].std(), exact[:, component].std(), rtol=0.3)
    assert (found[0] >= 0).all()


@pytest.mark.parametrize("projections", [np.ones((10, 4)), np.full((10, 4), np.nan), np.zeros((1, 4))])
def test_chains_that_never_moved_have_no_principal_components(projections):
    found = principal_traces(projections, 3)
    assert found.shape == (len(projections), 3) and np.isnan(found).all()
