"""scikit-learn's own suite of checks, and the tools that people put around an estimator.

No check is expected to fail. Settings are small because every fit compiles a program of its own.
"""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import (
    check_estimators_nan_inf,
    check_estimators_unfitted,
    check_fit2d_1feature,
    check_n_features_in,
    parametrize_with_checks,
)

from widebnn.estimators import WideBNNClassifier, WideBNNRegressor

pytestmark = [pytest.mark.ambient, pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")]
SCALES = dict.fromkeys(["weight_std", "bias_std", "readout_weight_std", "readout_bias_std"], 1.0)
TINY = {
    "width": 32, "depth": 1, "activation": "erf", "noise": 0.3, **SCALES, "input_scales": False, "sampler": "pcn",
    "step_size": 0.2, "chains": 1, "burn_in": 4, "target_ess": 1, "max_steps": 8, "random_state": 0,
}  # fmt: skip


ESTIMATORS = [WideBNNRegressor(**TINY), WideBNNClassifier(likelihood="regression", **TINY)]
SHORT = (check_estimators_unfitted, check_n_features_in, check_fit2d_1feature, check_estimators_nan_inf)


@pytest.mark.long
@parametrize_with_checks(ESTIMATORS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_check(estimator, check):
    check(estimator)


@pytest.mark.some(2)
@pytest.mark.parametrize("check", SHORT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: type(estimator).__name__)
def test_some_of_the_checks(estimator, check):
    check(type(estimator).__name__, clone(estimator))


@pytest.mark.long
def test_pipeline_grid_search_and_cross_validation():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(45, 2))
    y = x[:, 0] + 0.1 * rng.normal(size=45)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = make_pipeline(MinMaxScaler(), WideBNNRegressor(**TINY))
        assert cross_val_score(model, x, y, cv=2).mean() > 0.5
        search = GridSearchCV(model, {"widebnnregressor__noise": [0.1, 30.0]}, cv=2).fit(x, y)
    assert search.best_params_ == {"widebnnregressor__noise": 0.1}
