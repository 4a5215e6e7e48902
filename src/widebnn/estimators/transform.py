"""Targets on another scale: standardised, and where that is better as asinh(y / b).

asinh(y / b) is linear where |y| is below b and logarithmic beyond. Prices, concentrations and resistances have errors
that grow with them, and a network with the same noise everywhere fits them on such a scale better. asinh maps the line
onto the line, so nothing is said of the sign of y, and the moments of its inverse are known: for z ~ N(m, t^2)

    E[sinh z] = exp(t^2 / 2) sinh m,     E[sinh^2 z] = (exp(2 t^2) cosh(2 m) - 1) / 2.

b is chosen by the evidence of the infinite-width limit for y itself: that of z plus the log of |dz/dy|.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from widebnn.limits import choose_hyperparameters

CANDIDATES = (1.0, 0.3, 0.1)
"""Candidates for b, as parts of the median of |y|."""
ROWS = 200
"""Rows that they are compared with, at most."""
CLEARLY = 3.0
"""How much larger the log evidence must be for targets to be transformed unasked."""


def location_and_scale(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation per column; a constant column has scale 1."""
    mean, scale = values.mean(axis=0), values.std(axis=0)
    return mean, np.where(scale > 1e-12 * np.maximum(np.abs(mean), 1e-300), scale, 1.0)


class TargetScale(NamedTuple):
    """z = (asinh(y / b) - mean) / scale, column by column; without asinh where b is None."""

    b: np.ndarray | None
    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, y: np.ndarray, b: np.ndarray | None) -> TargetScale:
        """The scale on which the columns of y have mean 0 and standard deviation 1."""
        return cls(b, *location_and_scale(y if b is None else np.arcsinh(y / b)))

    def forward(self, y: np.ndarray) -> np.ndarray:
        """z of targets y."""
        return ((y if self.b is None else np.arcsinh(y / self.b)) - self.mean) / self.scale

    def inverse(self, z: np.ndarray) -> np.ndarray:
        """The targets y of z."""
        z = z * self.scale + self.mean
        return z if self.b is None else self.b * np.sinh(z)

    def log_derivative(self, y: np.ndarray) -> np.ndarray:
        """log |dz/dy| at y."""
        return (0.0 if self.b is None else -np.log(np.hypot(y, self.b))) - np.log(self.scale) + np.zeros_like(y)

    def moments(self, centres: np.ndarray, std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of y where z ~ N(centres, std^2)."""
        m, t = centres * self.scale + self.mean, std * self.scale
        if self.b is None:
            return m, t**2
        mean = self.b * np.exp(t**2 / 2) * np.sinh(m)
        return mean, self.b**2 * 0.5 * (np.exp(2 * t**2) * np.cosh(2 * m) - 1) - mean**2

    def noise_variance(self, centres: np.ndarray, variance: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """E[Var(y | f)] where z ~ N(f, noise^2) and f ~ N(centres, variance): what is left when f is known."""
        m, v, t2 = centres * self.scale + self.mean, variance * self.scale**2, (noise * self.scale) ** 2
        if self.b is None:
            return t2 + np.zeros_like(m)
        square = 0.5 * (np.exp(2 * v) * np.cosh(2 * m) - 1)  # E[sinh^2 f]
        return self.b**2 * (np.exp(2 * t2) * (square + 0.5) - 0.5 - np.exp(t2) * square)


def choose_asinh(x: np.ndarray, y: np.ndarray, seed: int, *, always: bool, **options: Any) -> np.ndarray | None:
    """The scale b of asinh(y / b) with the largest evidence.

    Args:
        x: inputs, n x features.
        y: targets, n x outputs.
        seed: of the random choice of rows.
        always: transform the targets also where that is not clearly better.
        **options: those of ``choose_hyperparameters``.

    Returns:
        b for each column of y; None to leave y as it is.
    """
    typical = np.median(np.abs(y), axis=0)
    typical = np.where(typical > 0, typical, np.mean(np.abs(y), axis=0))
    if not np.all(typical > 0):
        return None  # a column of zeros
    rows = np.random.default_rng(seed).permutation(len(y))[:ROWS]

    def log_evidence(b: Any) -> Any:
        scale = TargetScale.of(y, b)
        found = choose_hyperparameters(x[rows], scale.forward(y[rows]), seed=seed, **options)
        return found.log_evidence + np.sum(scale.log_derivative(y[rows]))

    candidates = [part * typical for part in CANDIDATES]
    evidence = [log_evidence(b) for b in candidates]
    best = int(np.argmax(evidence))
    return candidates[best] if always or evidence[best] > log_evidence(None) + CLEARLY else None
