"""The choice of hyperparameters by evidence: over depths and activations, with more and more rows.

Candidates are compared with at most 200 rows and without scales of the inputs; where there are enough rows the three
best again with 500 and with 2000, and with scales of the inputs: few rows are far from one another and say little of
how quickly the function changes. The scales of the best are then fitted to all rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from widebnn.errors import WidebnnError, check_choice, check_inputs, check_integer, check_real, check_targets
from widebnn.limits.evidence import SCALES, Candidate, Hyperparameters
from widebnn.limits.gp import leave_one_out
from widebnn.limits.kernel import CLOSED_FORMS
from widebnn.limits.row_noise import fit_row_noise
from widebnn.limits.scales import STARTS, Objective, best_scales
from widebnn.precision import double_precision, one_blas_thread

# Rows with which all candidates are compared; where there are twice as many rows, the best few again with so many.
_COMPARED_ROWS = 200
_COMPARED_AGAIN = (500, 2000)
_FINALISTS = 3
# No entry of a standardised column of n numbers is larger than sqrt(n).
_LARGEST_ENTRY = 1e4


def choose_hyperparameters(
    x: Any,
    y: Any,
    *,
    depths: Iterable[int] | int = (1, 2),
    activations: Iterable[str] | str = ("gelu", "relu", "erf"),
    fixed: Mapping[str, float] | None = None,
    input_scales: bool = False,
    max_rows: int = 4000,
    least_noise: float = SCALES["noise"].low,
    row_noise: bool | None = False,
    seed: int = 0,
    watch: Callable[[float, str], None] | None = None,
) -> Hyperparameters:
    """The depth, activation and scales with the largest evidence log N(y; 0, K + noise^2 I) at infinite width.

    The scales of every candidate maximise evidence times a weak log-normal prior, ``widebnn.limits.evidence.SCALES``.
    The evidence alone decides between candidates.

    Args:
        x: inputs, n x features, roughly standardised; copies of a row count once.
        y: targets, n x outputs, or n, roughly standardised. Outputs share the hyperparameters.
        depths: numbers of hidden layers to try.
        activations: activations to try: relu, erf, sin or gelu, whose kernels have closed forms.
        fixed: given values of ``weight_std``, ``bias_std``, ``readout_weight_std``, ``readout_bias_std``, ``noise``.
        input_scales: give each column of x its own scale, to be multiplied with it (automatic relevance determination).
        max_rows: how many rows to use at most; time grows like its cube.
        least_noise: lower end of the search for the noise.
        row_noise: whether the noise differs from row to row (heavy tails), by the leave-one-out errors of the best
            candidate. None: only if that is clearly better than equal noise.
        seed: of the random choice of rows.
        watch: called now and then with the estimated share of the work that is done, and a few words.

    Returns:
        The best hyperparameters, their evidence and that of all candidates.

    Raises:
        WidebnnError: if an argument is outside its range, or no covariance is positive definite.

    Examples:
        >>> found = choose_hyperparameters([[-1.0], [0.0], [1.0]], [-0.8, 0.0, 0.8], depths=1, activations="erf")
        >>> network = found.network(input_dim=1, width=256)
    """
    x, y = _without_copies(*_checked_data(x, y))
    max_rows, seed = check_integer("max_rows", max_rows, 1), check_integer("seed", seed, 0)
    rows = np.random.default_rng(seed).permutation(len(x))[:max_rows]
    candidates, pinned = _checked_candidates(depths, activations), _checked_fixed({} if fixed is None else fixed)
    least_noise = check_real("least_noise", least_noise, above=0, at_most=1.0)
    with double_precision(), one_blas_thread():
        tried, best = _Search(x[rows], y[rows], pinned, input_scales, least_noise, watch).run(candidates)
        tails = None if row_noise is False or "noise" in pinned else _row_noise(best, always=bool(row_noise))
    scales = np.exp(best.log_scales).tolist()
    return Hyperparameters(
        *best.candidate[2:],
        **(dict(zip(SCALES, scales, strict=False)) | pinned),  # exp(log(.)) rounds, pinned values do not
        log_evidence=best.log_evidence,
        candidates=tuple((*fit.candidate[2:], fit.log_evidence) for fit in tried),
        input_scales=tuple(scales[len(SCALES) :]) if input_scales else None,
        row_noise=tails,
    )


class _Fit(NamedTuple):
    """A candidate and its best scales."""

    candidate: Candidate
    z: np.ndarray
    log_scales: np.ndarray
    log_evidence: float


@dataclass
class _Search:
    """The comparison of candidates with more and more rows."""

    x: np.ndarray
    y: np.ndarray
    pinned: Mapping[str, float]
    input_scales: bool
    least_noise: float
    watch: Callable[[float, str], None] | None
    begun: float = 0.0
    """Work in the fits so far, the present one included, in seconds on some machine; ``total`` is that of all."""
    total: float = 1.0

    def run(self, candidates: list[tuple[int, str]]) -> tuple[list[_Fit], _Fit]:
        """All candidates, fitted to few rows, and the best of them, fitted to all rows."""
        few = min(_COMPARED_ROWS, len(self.x))
        again = [rows for rows in _COMPARED_AGAIN if 2 * rows <= len(self.x)]
        last = [len(self.x)] if self.input_scales or len(self.x) > few else []
        finalists = min(_FINALISTS, len(candidates)) if again else 1
        self.total = len(candidates) * _work(few, len(STARTS)) + sum(map(_work, finalists * again + last))
        tried = [self.fit(few, *candidate) for candidate in candidates]
        finals = sorted(tried, key=lambda fit: -fit.log_evidence)[:finalists]
        for rows in again:
            finals = [self.fit(rows, *fit.candidate[2:], fit.z) for fit in finals]
        best = max(finals, key=lambda fit: fit.log_evidence)
        for rows in last:
            best = self.fit(rows, *best.candidate[2:], best.z)
        return tried, best

    def fit(self, rows: int, depth: int, activation: str, z: np.ndarray | None = None) -> _Fit:
        """The best scales of a candidate, given those for fewer rows."""
        x, y, own = self.x[:rows], self.y[:rows], self.input_scales and z is not None
        candidate = Candidate(x if own else x @ x.T / x.shape[1], y, depth, activation)
        words = f"{activation}, {depth} hidden layer{'s' * (depth > 1)}, {rows} rows"
        work = _work(rows, len(STARTS) if z is None else 1)
        self.begun += work
        evaluations = itertools.count(1)

        def evaluated() -> Any:
            if self.watch is not None:
                self.watch((self.begun - work * math.exp(-next(evaluations) / 30)) / self.total, words)

        objective = Objective(candidate, self.pinned, x.shape[1] if own else 0, self.least_noise, evaluated)
        z = best_scales(objective, z)
        return _Fit(candidate, z, objective.log_scales(z), objective.log_evidence(z)[0])


def _work(rows: int, searches: int = 1) -> float:
    """Compiling, and about thirty evaluations a search."""
    return 1.5 + searches * 30 * (0.005 + 0.09 * (rows / 1000) ** 3)


def _row_noise(best: _Fit, *, always: bool) -> tuple[float, float] | None:
    """Median and spread of the noise by leave-one-out errors, whose variances are those of function plus noise."""
    errors, variances = leave_one_out(best.candidate.covariance(best.log_scales), best.candidate.y)
    noise = math.exp(best.log_scales[list(SCALES).index("noise")])
    return fit_row_noise(errors, np.maximum(variances - noise**2, 0.0), noise, always=always)


def _checked_data(x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """x as n x features and y as n x outputs, not far from standardised."""
    x = check_inputs("x", x)
    y = check_targets(y, len(x))
    for name, array in (("x", x), ("y", y)):
        largest = np.max(np.abs(array))
        if largest > _LARGEST_ENTRY:
            raise WidebnnError(
                f"{name} must be roughly standardised, entries of {largest:g} are too large: subtract the mean of "
                "each column and divide by its standard deviation."
            )
    return x, y


def _without_copies(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every distinct row once; but where equal inputs have different targets, repeats are observations of the noise."""
    first = np.unique(np.hstack([x, y]), axis=0, return_index=True)[1]
    if len(np.unique(x, axis=0)) < len(first):
        return x, y
    first.sort()
    return x[first], y[first]


def _checked_fixed(fixed: Mapping[str, float]) -> dict[str, float]:
    """The pinned scales, positive; biases may be 0."""
    if not isinstance(fixed, Mapping):
        raise WidebnnError(f"fixed must map names of scales to values, such as {{'noise': 0.1}}; got {fixed!r}.")
    pinned = {}
    for name, value in fixed.items():
        bias = "bias" in check_choice("each name in fixed", name, SCALES)
        pinned[name] = check_real(f"fixed[{name!r}]", value, at_least=0 if bias else None, above=None if bias else 0)
    return pinned


def _checked_candidates(depths: Any, activations: Any) -> list[tuple[int, str]]:
    """All pairs of one or several depths and activations, each once."""
    depths, activations = (
        [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
        for given in (depths, activations)
    )
    if not depths or not activations:
        raise WidebnnError(f"depths and activations must not be empty; got {depths} and {activations}.")
    for name in activations:
        if name not in list(CLOSED_FORMS):
            raise WidebnnError(
                "activations must be among those whose infinite-width kernel has a closed form, "
                f"{', '.join(CLOSED_FORMS)}; got {name!r}. Leave it out."
            )
    depths = [check_integer("each of depths", depth, 1) for depth in depths]
    return list(dict.fromkeys(itertools.product(depths, activations)))
