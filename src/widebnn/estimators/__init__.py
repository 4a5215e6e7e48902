"""scikit-learn estimators, and how they are saved and loaded."""

from widebnn.estimators.classifier import WideBNNClassifier
from widebnn.estimators.models import load, save
from widebnn.estimators.regressor import WideBNNRegressor

__all__ = ["WideBNNClassifier", "WideBNNRegressor", "load", "save"]
