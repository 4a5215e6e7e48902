"""Calibration against counts made by hand and against predictions that are calibrated by construction."""

import numpy as np
import pytest
from scipy.stats import norm

from widebnn.diagnostics.calibration import (
    central_coverage,
    classification_scores,
    expected_calibration_error,
    regression_scores,
    reliability,
)
from widebnn.errors import WidebnnError
from widebnn.figures import coverage_figure, reliability_figure

HAND = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
LABELS = np.array([0, 1, 1, 1])


def test_by_hand():
    found = reliability(HAND, LABELS, bins=4)
    np.testing.assert_array_equal(found.count, [0, 0, 2, 2])
    np.testing.assert_allclose(found.confidence, [np.nan, np.nan, 0.65, 0.85])
    np.testing.assert_allclose(found.accuracy, [np.nan, np.nan, 1.0, 0.5])
    np.testing.assert_allclose(expected_calibration_error(HAND, LABELS, bins=4), 0.5 * 0.35 + 0.5 * 0.35)
    scores = classification_scores(HAND, LABELS)
    assert scores["accuracy"] == 0.75
    np.testing.assert_allclose(scores["log_loss"], -np.mean(np.log([0.9, 0.2, 0.7, 0.6])))


def test_a_bin_holds_its_upper_end():
    certain = np.array([[1.0, 0.0], [0.5, 0.5], [0.6, 0.4]])
    assert reliability(certain, [0, 0, 0], bins=10).count.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0, 1]
    assert expected_calibration_error(np.eye(3), [0, 1, 2]) == 0
    assert expected_calibration_error(np.eye(3), [1, 2, 0]) == 1
    assert classification_scores(np.eye(2), [1, 0])["log_loss"] > 700, "not infinite: JSON has no infinity"


def test_calibrated_predictions_have_a_small_error_and_confident_ones_a_large_one():
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet([1.0, 1.0, 1.0], size=20_000)
    labels = (probabilities.cumsum(axis=1) > rng.uniform(size=(20_000, 1))).argmax(axis=1)
    assert expected_calibration_error(probabilities, labels) < 0.015
    sharpened = probabilities**4 / (probabilities**4).sum(axis=1, keepdims=True)
    assert expected_calibration_error(sharpened, labels) > 0.15
    worse, better = (classification_scores(p, labels)["log_loss"] for p in (sharpened, probabilities))
    assert worse > better


def test_regression_with_the_true_predictive_distribution():
    rng = np.random.default_rng(1)
    mean, std = rng.normal(size=20_000), 0.5
    y = mean + std * rng.normal(size=20_000)
    scores = regression_scores(y, mean, norm.logpdf(y, mean, std), norm.cdf(y, mean, std))
    np.testing.assert_allclose(scores["rmse"], std, rtol=0.02)
    np.testing.assert_allclose(scores["r2"], 1 - std**2 / (1 + std**2), rtol=0.02)
    np.testing.assert_allclose(scores["nll"], 0.5 * np.log(2 * np.pi * np.e * std**2), rtol=0.02)
    np.testing.assert_allclose([scores["coverage_50"], scores["coverage_90"]], [0.5, 0.9], atol=0.01)
    narrow = norm.cdf(y, mean, std / 2)
    np.testing.assert_allclose(central_coverage(narrow, [0.9]), 2 * norm.cdf(norm.ppf(0.95) / 2) - 1, atol=0.01)


def test_coverage_by_hand():
    np.testing.assert_array_equal(central_coverage([0.5, 0.25, 0.95, 0.0], [0.0, 0.5, 0.9, 1.0]), [0.25, 0.5, 0.75, 1])
    assert regression_scores([1.0, 1.0], [1.0, 2.0], [0.0, 0.0], [0.5, 0.5])["r2"] is None


@pytest.mark.parametrize(
    ("probabilities", "labels", "message"),
    [
        (np.ones(3), [0, 0, 0], "rows x classes"),
        (HAND, [0, 1], "rows x classes"),
        (np.ones((0, 2)), [], "rows x classes"),
        (HAND, [0, 1, 2, 0], "whole numbers from 0 to 1"),
        (HAND, ["a", "b", "a", "b"], "whole numbers from 0 to 1"),
        (2 * HAND, LABELS, "add up to 1"),
        (np.full((4, 2), np.nan), LABELS, "NaN"),
    ],
)
def test_bad_input(probabilities, labels, message):
    with pytest.raises(WidebnnError, match=message):
        reliability(probabilities, labels)


def test_figures_say_what_they_show():
    figure = reliability_figure(reliability(HAND, LABELS, bins=4), "title")
    top, bottom = figure.axes
    assert bottom.get_xlabel() and top.get_ylabel() and bottom.get_ylabel() and top.get_legend() is not None
    assert "title" in figure.get_suptitle()
    figure = coverage_figure([0.5, 0.25, 0.95], "title")
    assert figure.axes[0].get_xlabel() and figure.axes[0].get_ylabel() and figure.axes[0].get_legend() is not None
