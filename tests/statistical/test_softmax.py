"""Classification is exact: chains started from the joint law of weights and labels stay there."""

import agreement
import numpy as np
import pytest
from harness import ALPHA
from test_exactness import check, parameters

SHORT = ("pcn", "hilbert_hmc", "elliptical_slice", "mala")


@pytest.mark.parametrize(
    ("setting", "sampler", "coordinates"), parameters({"softmax"}, lambda setting, kernel, _: kernel in SHORT)
)
def test_conservation_and_geweke(setting, sampler, coordinates):
    check(setting, sampler, coordinates)


@pytest.mark.long
def test_class_probabilities_agree_between_coordinates():
    """Two chains that share nothing but the posterior: probabilities and their products at new inputs."""
    weights, function = (agreement.label_moments(coordinates, steps=2_000) for coordinates in ("weights", "function"))
    assert min(weights.ess, function.ess) > 300, "too few effective draws to show anything"
    p_values = agreement.p_values(weights, function)
    assert p_values.size * p_values.min() > ALPHA
    # The data are seen: the prior has probability 1/3 for every class.
    assert np.abs(function.mean[:9] - 1 / 3).max() > 0.1
