"""scikit-learn estimators."""

from widebnn.estimators.regressor import WideBNNRegressor

__all__ = ["WideBNNRegressor"]
