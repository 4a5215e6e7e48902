"""Hyperparameters of a dense network by the evidence of its infinite-width limit (empirical Bayes).

As all widths grow, a dense network becomes a Gaussian process with kernel K (:mod:`widebnn.networks.nngp`), and
the evidence of its hyperparameters is known in closed form,

    log p(y) = log N(y; 0, K + noise^2 I),   summed over outputs.

It is maximised by L-BFGS-B in the logs of the five scales, and if asked for of one scale per input, for every depth
and activation asked for. Nothing is sampled: a finite network with the same hyperparameters is then a sensible prior
for the samplers.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.special
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs

from widebnn.errors import WidebnnError, check_choice, check_integer, check_numbers, check_real
from widebnn.networks.dense import DenseNetwork, dense
from widebnn.networks.nngp import CLOSED_FORMS
from widebnn.precision import double_precision, one_blas_thread


class _Scale(NamedTuple):
    """Prior log N(log centre, log_sd^2) of a standard deviation, and the interval it is searched in."""

    centre: float
    log_sd: float
    low: float
    high: float
    may_be_zero: bool = False


# In the order of the vector of logs. The centres are the defaults of dense() and the paper's noise.
_SCALES = {
    "weight_std": _Scale(math.sqrt(2.0), 1.0, 0.05, 20.0),
    "bias_std": _Scale(0.1, 1.5, 1e-3, 20.0, may_be_zero=True),
    "readout_weight_std": _Scale(1.0, 1.0, 0.01, 100.0),
    "readout_bias_std": _Scale(0.1, 1.5, 1e-3, 20.0, may_be_zero=True),
    "noise": _Scale(0.1, 1.5, 1e-3, 10.0),
}
# Where the search starts, in prior standard deviations from the centres. There are often two or three maxima: a
# flexible function and little noise (first two rows), or a flat function and much noise.
_STARTS = np.array([[0.0, 1.0, 1.0, 0.0, 0.0], [1.0, 2.5, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.5]])
# Prior of the scale of an input, of standard deviation 1: an input that does not matter gets a small one.
_INPUT_SCALE = _Scale(1.0, 1.0, 0.01, 100.0)
# Depths and activations are compared, and scales first looked for, with at most this many rows.
_COMPARED_ROWS = 200
# Where there are twice as many rows, the best few of them are compared again with so many.
_COMPARED_AGAIN = (500, 2000)
_FINALISTS = 3
# The least and the largest spread of the log of the noise of a row, and how much likelier it must make the rows to be
# preferred to equal noise.
_SPREADS = (0.01, 1.0)
_CLEARLY = 20.0
# No entry of a standardised column of n numbers is larger than sqrt(n).
_LARGEST_ENTRY = 1e4


class Hyperparameters(NamedTuple):
    """What :func:`choose_hyperparameters` found: a depth, an activation, five scales and how good they are."""

    depth: int
    """Number of hidden layers."""
    activation: str
    weight_std: float
    """Of all hidden layers, like ``bias_std``."""
    bias_std: float
    readout_weight_std: float
    readout_bias_std: float
    noise: float
    """Standard deviation of the observations."""
    log_evidence: float
    """log N(y; 0, K + noise^2 I) of all rows used, summed over outputs, without the prior of the scales."""
    candidates: tuple[tuple[int, str, float], ...]
    """(depth, activation, log evidence with its best scales) of everything tried, given the rows of the comparison."""
    input_scales: tuple[float, ...] | None = None
    """What each column of x is multiplied with before it enters the network; None: nothing."""
    row_noise: tuple[float, float] | None = None
    """Median and spread of the log of noise that differs from row to row, if that was asked for and fits better."""

    def network(self, input_dim: int, width: int) -> DenseNetwork:
        """The dense network with these hyperparameters, every hidden layer ``width`` wide."""
        return dense(
            input_dim,
            [width] * self.depth,
            self.activation,
            weight_std=self.weight_std,
            bias_std=self.bias_std,
            readout_weight_std=self.readout_weight_std,
            readout_bias_std=self.readout_bias_std,
        )


def choose_hyperparameters(
    x: Any,
    y: Any,
    *,
    depths: Iterable[int] | int = (1, 2),
    activations: Iterable[str] | str = ("gelu", "relu", "erf"),
    fixed: Mapping[str, float] | None = None,
    input_scales: bool = False,
    max_rows: int = 4000,
    least_noise: float = _SCALES["noise"].low,
    row_noise: bool | None = False,
    seed: int = 0,
    watch: Callable[[float, str], None] | None = None,
) -> Hyperparameters:
    """The depth, activation and scales with the largest evidence in the limit of infinite width.

    ``x`` is n x features, ``y`` is n x outputs, or n; both should be roughly standardised. Outputs are
    independent given the hyperparameters and share them. Every pair of ``depths`` and ``activations`` is
    tried; activations need a closed-form kernel: relu, erf, sin or gelu. ``fixed`` pins any of ``weight_std``,
    ``bias_std``, ``readout_weight_std``, ``readout_bias_std`` and ``noise``.

    The scales of each candidate maximise log evidence plus a weak log-normal prior, so that a handful of rows
    gives no absurd values. Its medians are the defaults of :func:`widebnn.dense` and noise 0.1; one standard
    deviation is a factor of e for the two weight scales and of e^1.5 for the biases and the noise. The search
    stays in these intervals: weight_std 0.05 to 20, readout_weight_std 0.01 to 100, biases 0.001 to 20, noise
    ``least_noise`` to 10. Fixed values need not. Between candidates the evidence without the prior decides.

    With ``input_scales`` each column of x also gets a scale of its own (automatic relevance determination), a priori
    log-normal with median 1 and standard deviation a factor of e: multiply x with them before the network.

    Copies of a row count once, if rows with equal inputs have equal targets throughout the table. Candidates are
    compared with at most 200 rows and without ``input_scales``; where there are enough rows the three best again with
    500 and with 2000, and with ``input_scales``: few rows are far from one another and say little of how quickly the
    function changes. The scales of the best are then fitted to at most ``max_rows`` rows. Which rows is drawn with
    ``seed``, and the same seed gives the same result. Time grows like the cube of ``max_rows``. ``watch`` is called now
    and then with the share that is done, a guess, and a word.

    With ``row_noise`` errors may have heavy tails: the noise of a row is log-normal, and its median and spread are
    fitted to what the best candidate says of each row given all others. ``None`` keeps equal noise unless that is
    clearly better.
    """
    x, y = _without_copies(*_checked_data(x, y))
    pinned = _checked_fixed({} if fixed is None else fixed)
    depths = tuple(dict.fromkeys(check_integer("each of depths", depth, 1) for depth in _listed(depths)))
    activations = tuple(dict.fromkeys(_checked_activation(name) for name in _listed(activations)))
    if not depths or not activations:
        raise WidebnnError(f"depths and activations must not be empty; got {depths} and {activations}.")
    max_rows = check_integer("max_rows", max_rows, 1)
    least_noise = check_real("least_noise", least_noise, above=0, at_most=1.0)
    seed = check_integer("seed", seed, 0)
    drawn = np.random.default_rng(seed).permutation(len(x))[:max_rows]
    x, y = x[drawn], y[drawn]

    few = min(_COMPARED_ROWS, len(x))
    again = [count for count in _COMPARED_AGAIN if 2 * count <= len(x)]
    last = [len(x)] if input_scales or len(x) > few else []
    candidates = list(itertools.product(depths, activations))
    finalists = min(_FINALISTS, len(candidates)) if again else 1
    parts = [(few, len(_STARTS))] * len(candidates) + [(n, 1) for n in again for _ in range(finalists)]
    progress = _Progress(parts + [(n, 1) for n in last], watch)

    def fit(rows, depth, activation, z=None):
        """The evidence of a candidate, and where it is largest, given its best scales for fewer rows."""
        own = input_scales and z is not None
        evaluated = progress.next(f"{activation}, {depth} hidden layer{'s' * (depth > 1)}, {rows} rows")
        objective = _Objective(x[:rows], y[:rows], depth, activation, pinned, own, least_noise, evaluated)
        z = None if z is None else np.concatenate([z, np.zeros(len(objective.log_sds) - len(z))])
        z = objective.search() if z is None or not objective.is_finite(z) else objective.minimise(z)
        return _Fit(depth, activation, objective.evidence_at(z), z, objective.log_scales(z))

    with double_precision(), one_blas_thread():
        tried = [fit(few, *candidate) for candidate in candidates]
        finals = sorted(tried, key=lambda found: -found.log_evidence)[:finalists]
        for rows in again:
            finals = [fit(rows, found.depth, found.activation, found.z) for found in finals]
        best = max(finals, key=lambda found: found.log_evidence)
        for rows in last:
            best = fit(rows, best.depth, best.activation, best.z)
        used = last[-1] if last else few
        errors = _left_out(x[:used], y[:used], best) if row_noise is not False and "noise" not in pinned else None
    scales = np.exp(best.log_scales).tolist()
    chosen = dict(zip(_SCALES, scales, strict=False)) | pinned  # exp(log(.)) rounds, pinned values do not
    return Hyperparameters(
        best.depth,
        best.activation,
        **chosen,
        log_evidence=best.log_evidence,
        candidates=tuple(found[:3] for found in tried),
        input_scales=tuple(scales[len(_SCALES) :]) if input_scales else None,
        row_noise=None if errors is None else _fit_row_noise(*errors, always=bool(row_noise)),
    )


# --- noise that differs from row to row


def _left_out(x: np.ndarray, y: np.ndarray, best: _Fit) -> tuple[np.ndarray, np.ndarray, float]:
    """What all other rows say of each: errors of the means, n x outputs, variances of the function, and the noise.

    With C the covariance of the targets the error is (C^-1 y)_i / (C^-1)_ii and its variance 1 / (C^-1)_ii.
    """
    noise = float(np.exp(best.log_scales[list(_SCALES).index("noise")]))
    own = len(best.log_scales) > len(_SCALES)
    data = {"x": jnp.asarray(x)} if own else {"gram": jnp.asarray(x @ x.T / x.shape[1])}
    covariance = _covariance_at(best.log_scales, best.depth, best.activation, **data)
    factor = dpotrf(np.array(covariance, order="F"), lower=True, overwrite_a=True)[0]
    alpha = dpotrs(factor, y, lower=True)[0]
    precision = np.diagonal(dpotri(factor, lower=True, overwrite_c=True)[0])
    return alpha / precision[:, None], np.maximum(1 / precision - noise**2, 0.0), noise


def _fit_row_noise(
    errors: np.ndarray, variance: np.ndarray, noise: float, *, always: bool
) -> tuple[float, float] | None:
    """Median and spread of log-normal noise that make the errors likeliest; None unless clearly better than equal."""
    z, weights = normal_nodes()
    ends = np.log([(1e-4, _SPREADS[0]), (10.0, _SPREADS[1])])

    def minus_log_density(logs):
        median, spread = np.exp(np.clip(logs, *ends))
        total = variance[:, None] + median**2 * np.exp(2 * spread * z)
        squares = np.sum(errors**2, axis=1)[:, None] / total
        logs = -0.5 * squares - 0.5 * errors.shape[1] * np.log(2 * math.pi * total)
        return -float(np.sum(scipy.special.logsumexp(logs, axis=1, b=weights)))

    def fit(spread, fixed):
        start = np.log([noise, spread])
        function = (lambda a: minus_log_density([a[0], start[1]])) if fixed else minus_log_density
        return scipy.optimize.minimize(function, start[: 1 if fixed else 2], method="Nelder-Mead")

    equal, unequal = fit(_SPREADS[0], fixed=True), fit(0.5, fixed=False)
    if not always and unequal.fun > equal.fun - _CLEARLY:
        return None
    median, spread = np.exp(np.clip(unequal.x, *ends))
    return float(median), float(spread)


def normal_nodes(count: int = 15) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights of Gauss-Hermite quadrature for expectations under N(0, 1)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return nodes, weights / weights.sum()


# --- the search


class _Fit(NamedTuple):
    """A candidate with its best scales."""

    depth: int
    activation: str
    log_evidence: float
    z: np.ndarray
    log_scales: np.ndarray


class _Progress:
    """How far a search in several parts is; a part has its rows and the number of its searches."""

    def __init__(self, parts: list[tuple[int, int]], watch: Callable[[float, str], None] | None):
        self.watch = watch
        # Compiling, and about thirty evaluations a search, in seconds on some machine.
        costs = [1.5 + searches * 30 * (0.005 + 0.09 * (rows / 1000) ** 3) for rows, searches in parts]
        self.shares = np.cumsum([0.0, *costs])
        self.part = -1

    def next(self, word: str) -> Callable[[], None]:
        """Begin the next part; the result is called at every evaluation in it."""
        self.part += 1
        begin, end = self.shares[self.part : self.part + 2] / self.shares[-1]
        evaluations = 0

        def evaluated() -> None:
            nonlocal evaluations
            evaluations += 1
            if self.watch is not None:
                self.watch(float(end - (end - begin) * math.exp(-evaluations / 30)), word)

        return evaluated


class _Objective:
    """Minus the log of evidence times prior, and its gradient, of the free scales.

    Their coordinates z, scale = centre exp(log_sd z), are N(0, 1) a priori.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        depth: int,
        activation: str,
        pinned: Mapping[str, float],
        input_scales: bool = False,
        least_noise: float = _SCALES["noise"].low,
        watch: Callable[[], None] = lambda: None,
    ):
        self.rows, self.pinned, self.watch = len(x), pinned, watch
        # What is the same at all scales is computed once.
        data: dict[str, Any] = {"x": jnp.asarray(x)} if input_scales else {"gram": jnp.asarray(x @ x.T / x.shape[1])}
        data |= {"y": np.asarray(y), "depth": depth, "activation": activation}
        self.log_evidence: Callable[..., tuple[float, np.ndarray]] = functools.partial(_value_and_gradient, **data)
        self.known: dict[bytes, tuple[float, np.ndarray]] = {}
        inputs = x.shape[1] if input_scales else 0
        scales_of = _SCALES | {"noise": _SCALES["noise"]._replace(low=least_noise)}
        kinds = [*scales_of.values(), *[_INPUT_SCALE] * inputs]
        self.free = np.array([name not in pinned for name in _SCALES] + [True] * inputs)
        scales = np.array([pinned.get(name, scale.centre) for name, scale in _SCALES.items()] + [1.0] * inputs)
        self.centre = np.log(scales, out=np.full(len(scales), -np.inf), where=scales > 0)
        self.log_sds = np.array([kind.log_sd for kind in kinds])[self.free]
        ends = np.log([(kind.low, kind.high) for kind in kinds])[self.free]
        self.bounds = (ends - self.centre[self.free, None]) / self.log_sds[:, None]

    def log_scales(self, z: np.ndarray) -> np.ndarray:
        """The logs of all scales: the five, and those of the inputs."""
        log_scales = self.centre.copy()
        log_scales[self.free] += self.log_sds * z
        return log_scales

    def evidence_at(self, z: np.ndarray) -> float:
        """The log evidence alone."""
        return float(self.log_evidence(self.log_scales(z))[0])

    def __call__(self, z: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient; (inf, 0) where the factorisation fails, which it can at extreme scales."""
        key = z.tobytes()
        if key not in self.known:
            self.watch()
            value, gradient = map(np.asarray, self.log_evidence(self.log_scales(z)))
            if np.isfinite(value) and np.all(np.isfinite(gradient)):
                self.known[key] = 0.5 * float(z @ z) - float(value), z - self.log_sds * gradient[self.free]
            else:
                self.known[key] = math.inf, np.zeros_like(z)
        return self.known[key]

    def is_finite(self, z: np.ndarray) -> bool:
        """Whether the factorisation succeeds."""
        return math.isfinite(self(z)[0])

    def minimise(self, start: np.ndarray) -> np.ndarray:
        """A local minimum, to less than a hundredth of a unit of log evidence in most cases."""
        if not len(start):
            return start
        worst = self(start)[0]

        def finite(z):
            nonlocal worst
            value, gradient = self(z)
            # Something a little worse than all seen so far makes the line search step back.
            worst = max(worst, value if math.isfinite(value) else worst + 1.0)
            return min(value, worst), gradient

        return scipy.optimize.minimize(
            finite, start, jac=True, method="L-BFGS-B", bounds=self.bounds, options={"ftol": 1e-7, "gtol": 1e-3}
        ).x

    def search(self) -> np.ndarray:
        """The best of the minima found from all starts, where the inputs have equal scales."""
        starts = np.zeros((len(_STARTS), len(self.free)))
        starts[:, : len(_SCALES)] = _STARTS
        starts = starts[:, self.free] if np.any(self.free) else np.zeros((1, 0))
        minima = [self.minimise(z) for z in starts if self.is_finite(z)]
        if not minima:
            raise WidebnnError(
                f"the kernel plus noise^2 must be positive definite; rounding makes it indefinite with {self.rows} "
                f"rows and fixed = {dict(self.pinned)}. Fix a larger noise or smaller scales."
            )
        return min(minima, key=lambda z: self(z)[0])


# --- log N(y; 0, K + noise^2 I) and its gradient


def _covariance(
    log_scales: jax.Array, depth: int, activation: str, gram: jax.Array | None = None, x: jax.Array | None = None
) -> jax.Array:
    """K + noise^2 I as a function of the logs of the five scales, given ``gram`` = x x' / m.

    Given ``x`` instead, the logs of the scales of its columns come after the five.
    """
    weight_std, bias_std, readout_weight_std, readout_bias_std, noise = jnp.exp(log_scales[: len(_SCALES)])
    if x is not None:
        scaled = x * jnp.exp(log_scales[len(_SCALES) :])
        gram = scaled @ scaled.T / x.shape[1]
    expected_product = _SAFE_FORMS[activation]
    kernel = weight_std**2 * gram + bias_std**2
    for layer in range(depth):
        w, b = (weight_std, bias_std) if layer < depth - 1 else (readout_weight_std, readout_bias_std)
        variance = jnp.diagonal(kernel)
        kernel = w**2 * expected_product(variance[:, None], variance[None, :], kernel) + b**2
    return kernel + noise**2 * jnp.eye(len(kernel))


@functools.partial(jax.jit, static_argnames=("depth", "activation"))
def _covariance_at(log_scales, depth, activation, **data):
    return _covariance(log_scales, depth, activation, **data)


@functools.partial(jax.jit, static_argnames=("depth", "activation"))
def _pull_back(log_scales, derivative, depth, activation, **data):
    """The gradient in the logs of the scales, given that in the covariance. The kernel is cheaper to make than keep."""
    return jax.vjp(lambda logs: _covariance(logs, depth, activation, **data), log_scales)[1](derivative)[0]


def _value_and_gradient(
    log_scales: np.ndarray, y: np.ndarray, depth: int, activation: str, **data: Any
) -> tuple[float, np.ndarray]:
    """The log evidence and its gradient in the logs of the scales; not a number where the covariance is indefinite."""
    value, derivative = _log_normal(_covariance_at(log_scales, depth, activation, **data), y)
    return value, np.asarray(_pull_back(log_scales, derivative, depth, activation, **data))


def _log_normal(covariance: Any, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Sum over the columns of ``y`` of log N(column; 0, covariance), and its derivative in the covariance.

    The derivative is (alpha alpha' - outputs covariance^-1) / 2 with alpha = covariance^-1 y. LAPACK makes the inverse
    out of the factor in place, with a third of the operations that a triangular inverse and a product would take.
    """
    n, outputs = y.shape
    factor, failed = dpotrf(np.array(covariance, order="F"), lower=True, overwrite_a=True)
    if failed:
        return math.nan, np.full((n, n), math.nan)
    alpha = dpotrs(factor, y, lower=True)[0]
    half_log_det = float(np.sum(np.log(np.diagonal(factor))))
    value = -outputs * (half_log_det + 0.5 * n * math.log(2 * math.pi)) - 0.5 * float(np.sum(y * alpha))
    inverse = np.tril(dpotri(factor, lower=True, overwrite_c=True)[0])
    inverse += np.tril(inverse, -1).T
    return value, 0.5 * (alpha @ alpha.T - outputs * inverse)


# --- E[g(u) g(v)] as in nngp, with derivatives that are finite at correlation +-1 and at variance 0.
# Repeated inputs and the diagonal are at correlation 1 for all scales: ab - c^2 has derivative 0 there, and the
# gradient of maximum(., 0), whatever it is at a tie, is multiplied by that.


@jax.custom_jvp
def _relu(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    return CLOSED_FORMS["relu"](a, b, c)


@_relu.defjvp
def _relu_jvp(primals, tangents):
    """With s = sqrt(ab - c^2): d/da = s / (4 pi a), d/db = s / (4 pi b), d/dc = (pi - angle) / (2 pi).

    Differentiating term by term has 1 / s instead. At variance 0, where d/da is infinite, 0 is right: the
    variance is then 0 for all scales.
    """
    (a, b, c), (da, db, dc) = primals, tangents
    sine = jnp.sqrt(jnp.maximum(a * b - c**2, 0.0))
    relative = da / jnp.where(a > 0, a, jnp.inf) + db / jnp.where(b > 0, b, jnp.inf)
    tangent = (0.5 * sine * relative + (math.pi - jnp.arctan2(sine, c)) * dc) / (2 * math.pi)
    return _relu(a, b, c), tangent


def _erf(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """arcsin as atan2, whose second argument is at least 1, where arcsin's argument rounds to 1."""
    d = 1 + 2 * (a + b) + 4 * jnp.maximum(a * b - c**2, 0.0)
    return (2 / math.pi) * jnp.arctan2(2 * c, jnp.sqrt(d))


def _gelu(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """As in nngp, with arcsin as atan2 like erf."""
    d = 1 + (a + b) + jnp.maximum(a * b - c**2, 0.0)
    orthant = 0.25 + jnp.arctan2(c, jnp.sqrt(d)) / (2 * math.pi)
    return c * orthant + (c**2 + a * b * d) / (2 * math.pi * (1 + a) * (1 + b) * jnp.sqrt(d))


_SAFE_FORMS: dict[str, Callable[..., jax.Array]] = {
    "relu": _relu,
    "erf": _erf,
    "sin": CLOSED_FORMS["sin"],
    "gelu": _gelu,
}


# --- checks


def _checked_data(x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """x as n x features and y as n x outputs, both finite, not empty and not far from standardised."""
    x, y = check_numbers("x", x), check_numbers("y", y)
    if x.ndim != 2:
        raise WidebnnError(f"x must be a 2-D array, rows are inputs; got shape {x.shape}. Try reshape(-1, 1).")
    if y.ndim not in (1, 2):
        raise WidebnnError(f"y must have shape (n,) or (n, outputs); got {y.shape}.")
    y = y[:, None] if y.ndim == 1 else y
    for name, array in (("x", x), ("y", y)):
        if array.size == 0:
            raise WidebnnError(f"{name} must have at least one row and one column; got shape {array.shape}.")
        largest = np.max(np.abs(array))
        if largest > _LARGEST_ENTRY:
            raise WidebnnError(
                f"{name} must be roughly standardised, entries of {largest:g} are too large: subtract the mean of "
                "each column and divide by its standard deviation."
            )
    if len(x) != len(y):
        raise WidebnnError(f"x and y must have the same number of rows; got {len(x)} and {len(y)}.")
    return x, y


def _without_copies(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every distinct row once, unless equal inputs have different targets somewhere.

    Tables often hold the same record twice. Taken for repeated observations, copies that always agree would prove that
    there is no noise; without them the function has to show that. Where repeats differ, they are observations.
    """
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
        scale = _SCALES[check_choice("each name in fixed", name, _SCALES)]
        limit = 0.0 if scale.may_be_zero else None
        pinned[name] = check_real(f"fixed[{name!r}]", value, at_least=limit, above=None if limit == 0 else 0.0)
    return pinned


def _listed(value: Any) -> list:
    """One value, or several."""
    return [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)


def _checked_activation(name: str) -> str:
    if name not in list(_SAFE_FORMS):
        raise WidebnnError(
            f"activations must be among those whose infinite-width kernel has a closed form, {', '.join(_SAFE_FORMS)}; "
            f"got {name!r}. Leave it out."
        )
    return name
