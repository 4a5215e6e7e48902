"""Importances say how much predictions depend on a column; scales say how quickly the function changes along it."""

import numpy as np
import pytest

from widebnn.estimators import WideBNNRegressor
from widebnn.estimators.ensemble import ROWS, Ensemble
from widebnn.estimators.importance import NETWORKS, column_importances

pytestmark = [pytest.mark.ambient, pytest.mark.xdist_group("importance")]
SMALL = {"width": 128, "depth": 1, "activation": "erf", "target_ess": 40, "burn_in": 60, "random_state": 0}


def wiggle(rows, seed):
    """Nine tenths of the target's variance are linear in the first input, a hundredth a quick wiggle of the second."""
    x = np.random.default_rng(seed).uniform(-1, 1, size=(rows, 3))
    return x, np.sqrt(3) * x[:, 0] + 0.1 * np.sqrt(2) * np.sin(6 * x[:, 1])


@pytest.mark.long
def test_a_quick_wiggle_has_a_large_scale_and_a_small_importance():
    x, f = wiggle(150, 0)
    y = f + 0.02 * np.random.default_rng(1).normal(size=150)
    model = WideBNNRegressor(**SMALL, target_transform="none", noise_tails="normal").fit(x, y)
    linear, quick, nothing = column_importances(model, x, y, [[0], [1], [2]])
    scales = model.hyperparameters_.input_scales
    assert scales[1] > 3 * scales[0], "this table does not tell scales and importances apart"
    # Shuffling a part of the function with variance v makes the squared error larger by 2 v.
    assert abs(linear - 2 / 1.01) < 0.4 and abs(quick - 2 * 0.01) < 0.01 and abs(nothing) < 0.003


class Copies:
    """A model whose score is how often the first two inputs agree."""

    def __init__(self):
        self.ensemble_ = Ensemble(
            (), np.zeros((250, 1, 1)), np.zeros((250, 1, 1, 1)), np.arange(250.0), np.zeros((250, 0))
        )

    def fit(self, x, y):
        """Nothing to fit."""

    def score(self, x, y):
        assert len(self.ensemble_.noise) <= NETWORKS and len(x) <= ROWS
        return np.mean(x[:, 0] == x[:, 1])


def test_inputs_of_a_column_are_shuffled_together():
    numbers = np.random.default_rng(0).normal(size=(400, 2))
    x, y = numbers[:, [0, 0, 1]], np.zeros(400)
    model = Copies()
    np.testing.assert_array_equal(column_importances(model, x, y, [[0, 1], [2]]), 0)
    np.testing.assert_allclose(column_importances(model, x, y, [[0], [1], [2]]), [1, 1, 0], atol=0.02)
    assert len(model.ensemble_.noise) == 250
