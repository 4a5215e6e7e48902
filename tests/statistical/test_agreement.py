"""All coordinate systems describe one posterior over functions, and it tends to the Gaussian process limit."""

import agreement
import jax
import numpy as np
import pytest
from harness import ALPHA

from problems import COORDINATES


@pytest.fixture(scope="module")
def truth():
    """Posterior means by importance sampling from the prior: no Markov chain at all."""
    with jax.enable_x64(True):
        moments = agreement.importance_moments()
    assert moments.ess > 2000, "importance sampling is unreliable here"
    return moments


@pytest.mark.long
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_predictive_moments_agree_with_importance_sampling(coordinates, truth):
    moments = agreement.regression_moments(coordinates, unknown_noise=False, steps=20_000)
    assert moments.ess > 300, "too few effective draws to show anything"
    p_values = agreement.p_values(moments, truth)
    assert p_values.size * p_values.min() > ALPHA


@pytest.mark.long
def test_posterior_approaches_the_gaussian_process_limit():
    distances = agreement.distances_to_the_limit((4, 64, 1024))
    assert (distances[-1] < 0.03).all(), distances
    assert (distances[-1] < 0.25 * distances[0]).all(), distances


@pytest.mark.long
def test_class_probabilities_agree_between_coordinates():
    """Two chains that share nothing but the posterior: probabilities and their products at new inputs."""
    weights, function = (agreement.label_moments(coordinates, steps=2_000) for coordinates in ("weights", "function"))
    assert min(weights.ess, function.ess) > 300, "too few effective draws to show anything"
    p_values = agreement.p_values(weights, function)
    assert p_values.size * p_values.min() > ALPHA
    # The data are seen: the prior has probability 1/3 for every class.
    assert np.abs(function.mean[:9] - 1 / 3).max() > 0.1
