"""The instruments themselves: p-values, ranks, and how often there is a false alarm."""

import grid
import harness
import jax
import numpy as np
import pytest
from calibration import autocorrelation, rank, uniformity
from scipy.stats import ks_2samp, kstest

from problems import COORDINATES, autoregression


def test_kolmogorov_smirnov_is_that_of_scipy():
    rng = np.random.default_rng(0)
    for sample, reference in [
        (rng.normal(size=500), rng.normal(size=3000)),
        (rng.normal(size=500) + 0.3, rng.normal(size=3000)),
        (rng.integers(0, 4, 500), rng.integers(0, 5, 3000)),
        (np.zeros(500), np.full(3000, 1.0)),
    ]:
        expected = ks_2samp(sample, reference, method="asymp").pvalue
        np.testing.assert_allclose(harness.ks_p_value(sample, np.sort(reference)), expected, rtol=1e-9, atol=1e-300)


def test_what_is_not_finite_is_caught():
    values = np.random.default_rng(0).normal(size=1000)
    values[7] = np.nan
    assert harness.ks_p_value(values, np.sort(np.random.default_rng(1).normal(size=1000))) == 0.0
    assert harness.smallest({"first": 0.5, "second": 0.0}) == 0.0


def test_false_alarms_are_as_rare_as_stated():
    """Fresh exact draws, a hundred times: uniform p-values for every function with a continuous law."""
    program, found = harness.programs(harness.GAUSSIAN), []
    for seed in range(10):
        keys = jax.random.split(jax.random.key(1000 + seed), harness.BATCH)
        values = program.test_functions(*program.joint_draw(keys))
        parts = [{name: np.asarray(value)[i::10] for name, value in values.items()} for i in range(10)]
        found += [harness.p_values(part, harness.GAUSSIAN) for part in parts]
    continuous = set(found[0]) - harness.WITH_ATOMS
    assert len(continuous) >= 20
    tests = [kstest([p[name] for p in found], "uniform").pvalue for name in continuous]
    assert len(tests) * min(tests) > harness.ALPHA
    assert min(map(harness.smallest, found)) > harness.ALPHA


@pytest.mark.parametrize("setting", ["known noise", "softmax"])
def test_functions_with_atoms_are_named(setting):
    for name, values in harness.reference_sample(grid.SETTINGS[setting].problem).items():
        share = np.unique(values, return_counts=True)[1].max() / len(values)
        assert (share > 0.01) == (name in harness.WITH_ATOMS), (name, share)
        assert share > 0.01 or share < 0.001, (name, share)


SYSTEMS = {"gaussian": COORDINATES, "softmax": ("weights", "marginal", "function")}


def test_every_sampler_is_tested_in_all_coordinates_of_every_likelihood():
    tested = set(grid.combinations())
    for setting, likelihood in {"known noise": "gaussian", "unknown noise": "gaussian", "softmax": "softmax"}.items():
        for coordinates in SYSTEMS[likelihood]:
            assert {(setting, sampler, coordinates) for sampler in grid.SAMPLERS} <= tested


def test_ranks_of_independent_draws_are_uniform():
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(2000, 64))
    ranks = rank(draws[:, 0], draws[:, 1:], rng)
    assert min(uniformity(ranks, 63, rng).values()) > 1e-3
    assert abs(autocorrelation(draws)) < 0.02
    coarse = rng.integers(0, 3, size=(2000, 64))
    assert min(uniformity(rank(coarse[:, 0], coarse[:, 1:], rng), 63, rng).values()) > 1e-3


@pytest.mark.parametrize("wrong", [lambda true: 1.3 * true, lambda true: 0.75 * true, lambda true: true + 0.2])
def test_ranks_of_a_posterior_that_is_too_narrow_too_wide_or_shifted_are_not(wrong):
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(1000, 64))
    assert min(uniformity(rank(wrong(draws[:, 0]), draws[:, 1:], rng), 63, rng).values()) < 1e-4


def test_autocorrelation_of_draws_is_seen():
    assert abs(autocorrelation(autoregression(0.5, 63, 1000).T) - 0.5) < 0.03
