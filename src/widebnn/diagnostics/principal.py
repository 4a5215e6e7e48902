"""Principal components of the iterates, in memory that does not depend on their dimension.

The trace of a principal component, the coordinate of every iterate along it, is a left singular vector of the
matrix of centred iterates (draws x dimension) times its singular value. Random projections of the iterates are
that matrix times a random one, and keep its leading left singular vectors (Halko, Martinsson and Tropp 2011): so
the projections that a run stores anyway are enough, whatever the width.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np


class PrincipalTraces(NamedTuple):
    """Traces of the leading components and the share of the variance that each explains."""

    traces: np.ndarray
    """draws x components."""
    shares: np.ndarray


def principal_traces(projections: np.ndarray, components: int = 2) -> PrincipalTraces:
    """From random projections (draws x directions) of the iterates of one chain.

    The sign of a component is arbitrary: the first draw is on the positive side. Chains that never moved, that are not
    finite or that have fewer than two draws give NaN and a warning.
    """
    projections = np.asarray(projections, np.float64)
    draws = len(projections)
    centred = projections - projections.mean(axis=0) if draws else projections
    if draws < 2 or not np.isfinite(centred).all() or not np.abs(centred).max() > 0:
        warnings.warn("principal components need at least two finite draws that differ: NaN", stacklevel=2)
        return PrincipalTraces(np.full((draws, components), np.nan), np.full(components, np.nan))
    left, singular, _ = np.linalg.svd(centred, full_matrices=False)
    count = min(components, len(singular))
    traces, shares = np.full((draws, components), 0.0), np.zeros(components)
    signs = np.where(left[0, :count] < 0, -1.0, 1.0)
    traces[:, :count] = left[:, :count] * singular[:count] * signs / np.sqrt(projections.shape[1])
    shares[:count] = singular[:count] ** 2 / np.sum(singular**2)
    return PrincipalTraces(traces, shares)
