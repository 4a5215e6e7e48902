"""The scales of a candidate that maximise evidence times prior."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.optimize

from widebnn.errors import WidebnnError
from widebnn.limits.evidence import INPUT_SCALE, SCALES, Candidate

# In prior standard deviations from the medians. There are often two or three maxima: a flexible function and little
# noise (first two rows), or a flat function and much noise.
STARTS = np.array([[0.0, 1.0, 1.0, 0.0, 0.0], [1.0, 2.5, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.5]])


class Objective:
    """-log(evidence times prior) as a function of z, where the free scales are median exp(log_sd z).

    The coordinates z are N(0, 1) a priori. ``pinned`` are scales that are not free, ``inputs`` the number of input
    scales, and ``watch`` is called at every evaluation. Values are kept: a search asks for some of them twice.
    """

    def __init__(
        self,
        candidate: Candidate,
        pinned: Mapping[str, float],
        inputs: int = 0,
        least_noise: float = SCALES["noise"].low,
        watch: Callable[[], None] = lambda: None,
    ):
        self.candidate, self.pinned, self.watch = candidate, pinned, watch
        priors = SCALES | {"noise": SCALES["noise"]._replace(low=least_noise)}
        medians, log_sds, low, high = np.array([*priors.values(), *[INPUT_SCALE] * inputs]).T
        self.free = np.array([name not in pinned for name in SCALES] + [True] * inputs)
        medians[: len(SCALES)] = [pinned.get(name, prior.median) for name, prior in SCALES.items()]
        with np.errstate(divide="ignore"):  # a bias may be pinned at 0
            self._centre = np.log(medians)
        self._log_sds = log_sds[self.free]
        self.bounds = ((np.log([low, high]) - self._centre)[:, self.free] / self._log_sds).T
        self._known: dict[bytes, tuple[float, np.ndarray]] = {}

    def log_scales(self, z: np.ndarray) -> np.ndarray:
        """The logs of all scales: the five, and those of the inputs."""
        log_scales = self._centre.copy()
        log_scales[self.free] += self._log_sds * z
        return log_scales

    def log_evidence(self, z: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient, without the prior; the value is -inf where rounding makes the covariance indefinite."""
        key = z.tobytes()
        if key not in self._known:
            self.watch()
            value, gradient = self.candidate.log_evidence(self.log_scales(z))
            finite = math.isfinite(value) and np.all(np.isfinite(gradient))
            self._known[key] = (value, self._log_sds * gradient[self.free]) if finite else (-math.inf, z)
        return self._known[key]

    def __call__(self, z: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient; (inf, 0) where the covariance is indefinite."""
        value, gradient = self.log_evidence(z)
        return 0.5 * float(z @ z) - value, z - gradient


def minimise(
    function: Callable[[np.ndarray], tuple[float, np.ndarray]], start: np.ndarray, bounds: np.ndarray
) -> np.ndarray:
    """A local minimum by L-BFGS-B, to less than a hundredth of a unit in most cases.

    ``function`` returns its value and gradient; the value must be finite at ``start`` and may be inf elsewhere.
    """
    if not len(start):
        return start
    worst = function(start)[0]

    def finite(z: Any) -> Any:
        nonlocal worst
        value, gradient = function(z)
        # Something a little worse than all seen so far makes the line search step back.
        worst = max(worst, value if math.isfinite(value) else worst + 1.0)
        return min(value, worst), gradient

    return scipy.optimize.minimize(
        finite, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-7, "gtol": 1e-3}
    ).x


def best_scales(objective: Objective, start: np.ndarray | None = None) -> np.ndarray:
    """The z of the best scales, from ``start``, if the covariance is positive definite there, or from all STARTS.

    Coordinates of input scales that ``start`` does not have are 0 at first, and so they are in STARTS.
    """
    starts = np.hstack([STARTS, np.zeros((len(STARTS), len(objective.free) - len(SCALES)))])[:, objective.free]
    if start is not None:
        start = np.concatenate([start, np.zeros(starts.shape[1] - len(start))])
        if math.isfinite(objective(start)[0]):
            starts = start[None]
    minima = [minimise(objective, z, objective.bounds) for z in starts if math.isfinite(objective(z)[0])]
    if not minima:
        raise WidebnnError(
            "the kernel plus noise^2 must be positive definite; rounding makes it indefinite with "
            f"{len(objective.candidate.y)} rows and fixed = {dict(objective.pinned)}. "
            "Fix a larger noise or smaller scales."
        )
    return min(minima, key=lambda z: objective(z)[0])
