"""Targets on a bent scale: asinh(y / b), linear where |y| is below b and logarithmic beyond.

Prices, concentrations and resistances have errors that grow with them, and a network with the same noise everywhere
fits them on such a scale better. asinh maps the line onto the line, so nothing is said of the sign of y, and the
moments of its inverse are known: for z ~ N(m, t^2)

    E[sinh z] = exp(t^2 / 2) sinh m,     E[sinh^2 z] = (exp(2 t^2) cosh(2 m) - 1) / 2.

b is chosen by the evidence of the infinite-width limit for y itself: that of z plus the log of |dz/dy|.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from widebnn.limits import choose_hyperparameters

BENDS = (1.0, 0.3, 0.1)
"""Candidates for b, as parts of the median of |y|."""
ROWS = 200
"""Rows that they are compared with, at most."""
CLEARLY = 3.0
"""How much larger the log evidence must be for targets to be bent unasked."""


def location_and_scale(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation per column; a constant column has scale 1."""
    mean, scale = values.mean(axis=0), values.std(axis=0)
    return mean, np.where(scale > 1e-12 * np.maximum(np.abs(mean), 1e-300), scale, 1.0)


def bend(y: np.ndarray, b: np.ndarray | None) -> np.ndarray:
    """asinh(y / b), one b per column; None leaves y alone."""
    return y if b is None else np.arcsinh(y / b)


def unbend(z: np.ndarray, b: np.ndarray | None) -> np.ndarray:
    """The inverse of :func:`bend`."""
    return z if b is None else b * np.sinh(z)


def log_slope(y: np.ndarray, b: np.ndarray | None) -> np.ndarray:
    """log |dz/dy| at y."""
    return np.zeros_like(y) if b is None else -np.log(np.hypot(y, b))


def unbent_moments(centres: np.ndarray, std: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and second moment of y = b sinh z, z normal."""
    first = b * np.exp(std**2 / 2) * np.sinh(centres)
    return first, b**2 * 0.5 * (np.exp(2 * std**2) * np.cosh(2 * centres) - 1)


def choose_bend(x: np.ndarray, y: np.ndarray, seed: int, *, always: bool, **options: Any) -> np.ndarray | None:
    """b per column of y with the largest evidence; None, if not ``always``, unless bending is clearly better.

    ``options`` are those of :func:`choose_hyperparameters`.
    """
    typical = np.median(np.abs(y), axis=0)
    typical = np.where(typical > 0, typical, np.mean(np.abs(y), axis=0))
    if not np.all(typical > 0):
        return None  # a column of zeros
    rows = np.random.default_rng(seed).permutation(len(y))[:ROWS]

    def log_evidence(b):
        z = bend(y, b)
        mean, scale = location_and_scale(z)
        found = choose_hyperparameters(x[rows], (z[rows] - mean) / scale, seed=seed, **options)
        return found.log_evidence + np.sum(log_slope(y[rows], b) - np.log(scale))

    candidates = [part * typical for part in BENDS]
    evidence = [log_evidence(b) for b in candidates]
    best = int(np.argmax(evidence))
    if always or evidence[best] > log_evidence(None) + CLEARLY:
        return candidates[best]
    return None
