"""scikit-learn estimators, and how they are saved and loaded."""

from widebnn.estimators.classifier import WideBNNClassifier
from widebnn.estimators.regressor import WideBNNRegressor
from widebnn.estimators.saving import load, save

__all__ = ["WideBNNClassifier", "WideBNNRegressor", "load", "save"]
