"""How much predictions depend on each column of a table."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from sklearn.inspection import permutation_importance

from widebnn.estimators.ensemble import ROWS, Ensemble
from widebnn.estimators.limit import Limit

NETWORKS = 100
"""Networks of the ensemble that importances are computed with."""
REPEATS = 2


def column_importances(model: Any, x: np.ndarray, y: np.ndarray, groups: Sequence[Sequence[int]]) -> np.ndarray:
    """Permutation importance (Breiman 2001): how much the score falls when a column is shuffled among rows.

    The score is R2 for regression and accuracy for classes. An importance of 1 means that R2 falls by 1; values above 1
    occur where predictions with the shuffled column are worse than the mean. At most 256 rows and 100 networks are
    used.

    Args:
        model: a fitted ``WideBNNRegressor`` or ``WideBNNClassifier``.
        x: inputs, rows x inputs.
        y: targets.
        groups: which inputs belong to each column; they are shuffled together.

    Returns:
        One number per column.

    Examples:
        ``column_importances(model, x, y, groups=[[0], [1, 2]])``
    """
    rows = np.random.default_rng(0).permutation(len(x))[:ROWS]
    x, y = x[rows], y[rows]
    small = copy.copy(model)
    small.ensemble_ = _thinned(model.ensemble_)

    def score(_: Any, sources: Any, targets: Any) -> Any:
        """Each column of inputs is taken from the row that its column of ``sources`` names."""
        shuffled = np.empty_like(x)
        for group, source in zip(groups, sources.T, strict=True):
            shuffled[:, group] = x[source][:, group]
        return small.score(shuffled, targets)

    sources = np.tile(np.arange(len(x))[:, None], len(groups))
    found = permutation_importance(small, sources, y, scoring=score, n_repeats=REPEATS, random_state=0)
    return found.importances_mean


def _thinned(ensemble: Ensemble | Limit) -> Ensemble | Limit:
    if isinstance(ensemble, Limit):
        return ensemble
    step = -(-len(ensemble.noise) // NETWORKS)
    return jax.tree.map(lambda leaf: leaf[::step], ensemble)
