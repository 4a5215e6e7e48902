"""Values that are not finite: NaN, infinities and overflow in likelihood, gradient and Cholesky factor.

A share of all positions is made bad. Which ones is a hash of the position, cut off at 2^-12: random, inside the
compiled loop, and a function of the position, as a real likelihood is. At a bad position the log-likelihood is NaN,
+inf, -inf, 1e308 times 10 or exp(1000), by the same hash; or the log-likelihood is finite and one entry of its gradient
is one of these, or 1e200, whose square overflows; or, for the posterior of a network, the kernel is made indefinite, so
that LAPACK itself gives NaN. Every sampler meets each kind at 1 000 steps at least.

*What counts.* A Metropolis step is judged by the value at its end and by every gradient on its way: it is counted as
not finite if the end is NaN or +inf, or if a gradient is NaN or infinite; a value in the middle of a trajectory is
never looked at. A log-likelihood of -inf is a likelihood of zero: a plain rejection, not counted. 1e200 is a finite
number: the step must be rejected, and may or may not be counted. Elliptical slice sampling never rejects: a bad point
shrinks the bracket as any point outside of the slice does, and a step that met NaN or +inf is counted once.

*How it is counted a second time.* The draws of all steps are kept. From each and the random numbers of the next step
the points that the step evaluates are computed again in NumPy, by formulas that share nothing with the samplers, and
hashed. The count of the sampler is compared with this step by step, and the number in the warning with the sum. Steps
that moved must end where the second computation says, else it followed another chain. A position nearer to a cut of the
hash than its rounding error would be a false alarm, with a probability below 1e-3 for all steps together.

*Law.* A bad position has likelihood zero, and bad positions are everywhere alike: what is left of a Gaussian has the
moments of the Gaussian. Chains that start at exact draws and take ten steps each must end in the same law; means and
variances of the ends are tested exactly (normal and chi-squared), all tests together with a false alarm in 10 000.

*Starts, tuning, networks.* A start that is not finite, in value, gradient or position, must end in an error that says
so, and a run in which nothing but the start is finite in a warning that says so. Tuned step sizes and the climb of the
estimators are checked under injections, networks at positions with a NaN and with weights of 1e20 in float32.

*Not covered.* What a ``collect`` function of one's own makes of a position; a likelihood that is wrong and finite.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple
from unittest import mock

os.environ.setdefault("NPROC", "8")

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jax.flatten_util import ravel_pytree

import widebnn
from page import Page, main
from problems import naive_log_likelihood, small_data
from widebnn.estimators.ascent import ascend
from widebnn.posteriors import readout
from widebnn.precision import double_precision, one_blas_thread
from widebnn.samplers import SAMPLERS, TUNERS, build_sampler
from widebnn.samplers.tree import normal_like

GRID = 2.0**12
FALSE_ALARM = 1e-4
OPTIONS: dict[str, dict[str, Any]] = {
    "rwmh": {"step_size": 0.8},
    "pcn": {"step_size": 0.7},
    "pcnl": {"step_size": 0.8},
    "mala": {"step_size": 0.9},
    "underdamped": {"step_size": 0.6},
    "hmc": {"step_size": 0.4, "num_steps": 4},
    "hilbert_hmc": {"step_size": 0.4, "num_steps": 4},
    "elliptical_slice": {},
}
WITH_GRADIENT = ("pcnl", "mala", "underdamped", "hmc", "hilbert_hmc")
TRAJECTORIES = ("hmc", "hilbert_hmc")
VALUES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "NaN": lambda value: jnp.nan * value,
    "+inf": lambda value: jnp.inf + value,
    "-inf": lambda value: -jnp.inf + value,
    "1e308 x 10": lambda value: 1e308 * (10 + value**2),
    "exp(1000)": lambda value: jnp.exp(1000 + value**2),
}
GRADIENTS = VALUES | {"1e200": lambda entry: jnp.where(entry > 0, 1e200, -1e200)}
PLAIN = {"likelihood": "-inf", "gradient": "1e200", "Cholesky": None}
"""What is rejected without having to be counted."""
CENTRE = np.array([0.6, -0.4, 0.2])


def bad_kind(numbers: Any, rate: float, kinds: int, xp: Any) -> Any:
    """-1, or which of the kinds is injected: a hash of the last axis, bad with probability ``rate``.

    Numbers that are not finite any more are left as they are.
    """
    finite = xp.isfinite(numbers)
    cells = xp.floor(xp.where(finite, numbers, 0.0) * GRID).astype(xp.int64).astype(xp.uint64)
    mixed = xp.full(cells.shape[:-1], 0x9E3779B97F4A7C15, xp.uint64)
    for i in range(cells.shape[-1]):
        mixed = mixed ^ cells[..., i]
        for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53), (33, 0x9E3779B97F4A7C15)):
            mixed = (mixed ^ (mixed >> xp.uint64(shift))) * xp.uint64(factor)
    uniform = (mixed >> xp.uint64(11)).astype(xp.float64) / 2.0**53
    is_bad = (uniform < rate) & finite.all(axis=-1)
    return xp.where(is_bad, xp.floor(uniform / rate * kinds).astype(xp.int64), -1)


def pick(kinds: dict[str, Callable[[jax.Array], jax.Array]], kind: jax.Array, number: jax.Array) -> jax.Array:
    """``number`` made bad, or as it is where ``kind`` is -1."""
    return jnp.stack([*(spoil(number) for spoil in kinds.values()), number])[kind]


def poisoned(log_likelihood: Callable[[Any], jax.Array], place: str, rate: float) -> Callable[[Any], jax.Array]:
    """A log-likelihood of a vector that is bad in its value or in one entry of its gradient."""
    kinds = VALUES if place == "likelihood" else GRADIENTS

    def value_and_gradient(u):
        value, gradient = jax.value_and_grad(log_likelihood)(u)
        kind = bad_kind(u, rate, len(kinds), jnp)
        if place == "likelihood":
            return pick(kinds, kind, value), gradient
        return value, gradient.at[0].set(pick(kinds, kind, gradient[0]))

    @jax.custom_vjp
    def function(u):
        return value_and_gradient(u)[0]

    function.defvjp(value_and_gradient, lambda gradient, cotangent: (cotangent * gradient,))
    return function


class Problem(NamedTuple):
    """A target, and the same again for the second computation, on rows of positions as vectors."""

    place: str
    target: widebnn.Target
    kinds: tuple[str, ...]
    value: Callable[[np.ndarray], np.ndarray]
    gradient: Callable[[np.ndarray], np.ndarray]
    kind: Callable[[np.ndarray], np.ndarray]
    """-1, or which kind is injected there."""

    @property
    def counted(self) -> np.ndarray:
        """Which kinds are to be counted."""
        return np.array([name != PLAIN[self.place] for name in self.kinds])


def plain_log_likelihood(u: jax.Array) -> jax.Array:
    """Of an observation N(u, I): the posterior is N(CENTRE / 2, I / 2)."""
    return -0.5 * jnp.sum((u - CENTRE) ** 2)


def gaussian_problem(place: str, rate: float) -> Problem:
    """A Gaussian in three dimensions, bad in its value or its gradient; chains start where it is good."""
    kinds = VALUES if place == "likelihood" else GRADIENTS

    def reference(key):
        return first_good(jax.random.normal(key, (40, 3), jnp.float64), rate)

    return Problem(
        place,
        widebnn.Target(poisoned(plain_log_likelihood, place, rate), reference),
        tuple(kinds),
        lambda u: -0.5 * np.sum((u - CENTRE) ** 2, axis=-1),
        lambda u: CENTRE - u,
        lambda u: bad_kind(u, rate, len(kinds), np),
    )


def first_good(candidates: jax.Array, rate: float) -> jax.Array:
    """The first row that is not bad."""
    return candidates[jnp.argmax(bad_kind(candidates, rate, 1, jnp) < 0)]


def network_problem(rate: float) -> Problem:
    """The posterior of a small network, whose kernel is indefinite where the hash of its diagonal says so."""
    x, y = small_data(n=4, m=2, outputs=1)
    network = widebnn.dense(2, [3], "erf")
    target = widebnn.posterior(network, x, y, noise=0.4, coordinates="marginal", dtype="float64")
    _, unravel = ravel_pytree(target.sample_reference(jax.random.key(0)))
    value = naive_log_likelihood(target)

    def diagonal(u):
        return jnp.sum(network.features(unravel(u), target.x) ** 2, axis=1) + target.noise**2

    def reference(key):
        draws = jax.vmap(target.sample_reference)(jax.random.split(key, 40))
        bad = bad_kind(jax.vmap(lambda u: diagonal(ravel_pytree(u)[0]))(draws), rate, 1, jnp)
        return jax.tree.map(lambda leaf: leaf[jnp.argmax(bad < 0)], draws)

    def rows(function):
        compiled = jax.jit(jax.vmap(lambda u: function(unravel(u))))
        return lambda u: np.asarray(compiled(u))

    diagonals = rows(lambda u: diagonal(ravel_pytree(u)[0]))
    slopes = jax.jit(jax.vmap(jax.grad(lambda u: value(unravel(u)))))
    return Problem(
        "Cholesky",
        dataclasses.replace(target, sample_reference=reference),
        ("indefinite",),
        rows(value),
        lambda u: np.asarray(slopes(u)),
        lambda u: bad_kind(diagonals(u.reshape(-1, u.shape[-1])), rate, 1, np).reshape(u.shape[:-1]),
    )


@contextlib.contextmanager
def indefinite_kernels(rate: float) -> Iterator[None]:
    """The matrix that is factored has a large multiple of the identity taken off, at a share ``rate`` of them."""
    factor = readout._lower

    def lower(matrix):
        bad = bad_kind(jnp.diagonal(matrix), rate, 1, jnp) >= 0
        return factor(matrix - jnp.where(bad, 1 + jnp.trace(matrix), 0.0) * jnp.eye(len(matrix)))

    with mock.patch.object(readout, "_lower", lower):
        yield


def random_numbers(name: str, seed: int, steps: int, like: Any) -> dict[str, np.ndarray]:
    """The noise of all steps of chain 0, as vectors, and the levels and uniforms of the slice sampler."""

    def one(t):
        _, chain_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), 0))
        key, _ = jax.random.split(jax.random.fold_in(chain_key, t))
        if name != "elliptical_slice":
            noise_key, _ = jax.random.split(key)
            return {"noise": ravel_pytree(normal_like(noise_key, like))[0]}
        noise_key, level_key, angle_key = jax.random.split(key, 3)
        turns = jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(angle_key, i), (), jnp.float64))
        return {
            "noise": ravel_pytree(normal_like(noise_key, like))[0],
            "level": jnp.log(jax.random.uniform(level_key, (), jnp.float64)),
            "turns": turns(jnp.arange(60)),
        }

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(jnp.arange(steps)))


def evaluated_points(name: str, path: np.ndarray, numbers: dict[str, np.ndarray], problem: Problem) -> np.ndarray:
    """Where each step evaluates the target, steps x points x coordinates; NaN beyond the last. ``path`` has the start.

    From the documented formulas; what is evaluated does not depend on which points are bad, except in a slice.
    """
    u, w, gradient = path[:-1], numbers["noise"], problem.gradient
    e = OPTIONS[name].get("step_size")
    if name == "rwmh":
        return (u + e * w)[:, None]
    if name == "pcn":
        return (math.sqrt(1 - e**2) * u + e * w)[:, None]
    if name == "pcnl":
        d = min(np.roots([1, 4 - 8 / e**2, 4]))
        return (((2 - d) * u + 2 * d * gradient(u) + math.sqrt(8 * d) * w) / (2 + d))[:, None]
    if name == "mala":
        return (u + e**2 / 2 * (gradient(u) - u) + e * w)[:, None]
    if name == "underdamped":
        return underdamped_points(path, w, gradient(path), e)[:, None]
    if name == "hmc":
        return leapfrog_points(u, w, gradient, e, OPTIONS[name]["num_steps"])
    if name == "hilbert_hmc":
        return rotation_points(u, w, gradient, e, OPTIONS[name]["num_steps"])
    return slice_points(u, numbers, problem)


def underdamped_points(path: np.ndarray, w: np.ndarray, slopes: np.ndarray, e: float) -> np.ndarray:
    """Ends of one leapfrog step with momentum that persists and is turned round by a rejection."""
    keep = math.exp(-e)
    momentum, points = None, np.empty_like(w)
    for t in range(len(w)):
        fresh = w[t] if momentum is None else keep * momentum + math.sqrt(1 - keep**2) * w[t]
        middle = fresh + e / 2 * (slopes[t] - path[t])
        points[t] = path[t] + e * middle
        moved = not np.array_equal(path[t], path[t + 1])
        momentum = middle + e / 2 * (slopes[t + 1] - path[t + 1]) if moved else -fresh
    return points


def leapfrog_points(u: np.ndarray, p: np.ndarray, gradient: Callable, e: float, count: int) -> np.ndarray:
    """The positions of a trajectory of leapfrog steps."""
    points = []
    for _ in range(count):
        p = p + e / 2 * (gradient(u) - u)
        u = u + e * p
        p = p + e / 2 * (gradient(u) - u)
        points.append(u)
    return np.stack(points, axis=1)


def rotation_points(u: np.ndarray, p: np.ndarray, gradient: Callable, e: float, count: int) -> np.ndarray:
    """The positions of an even number of rotations between kicks of two strengths."""
    b = (3 - math.sqrt(3)) / 6
    kicks = [2 * b, *([2 - 4 * b, 4 * b] * count)[: count - 1], 2 * b]
    p = p + kicks[0] * e * gradient(u)
    points = []
    for kick in kicks[1:]:
        u, p = math.cos(e) * u + math.sin(e) * p, math.cos(e) * p - math.sin(e) * u
        p = p + kick * e * gradient(u)
        points.append(u)
    return np.stack(points, axis=1)


def slice_points(u: np.ndarray, numbers: dict[str, np.ndarray], problem: Problem) -> np.ndarray:
    """The points that shrink a bracket until one is in the slice, of all steps side by side."""
    w, turns, level = numbers["noise"], numbers["turns"], problem.value(u) + numbers["level"]
    angle = 2 * math.pi * turns[:, 0]
    low, high = angle - 2 * math.pi, angle
    searching, points = np.full(len(u), True), []
    while searching.any():
        here = np.cos(angle)[:, None] * u + np.sin(angle)[:, None] * w
        points.append(np.where(searching[:, None], here, np.nan))
        searching = searching & ((problem.kind(here) >= 0) | ~(problem.value(here) > level))
        low, high = np.where(angle < 0, angle, low), np.where(angle < 0, high, angle)
        angle = low + turns[:, len(points)] * (high - low)
    return np.stack(points, axis=1)


def injected_kinds(name: str, points: np.ndarray, problem: Problem) -> np.ndarray:
    """The kind that each step meets, or -1: see above for which points are judged."""
    kinds = problem.kind(points)
    if problem.place == "likelihood" and name in TRAJECTORIES:
        kinds = kinds[:, -1:]
    hits = kinds >= 0
    counted = hits & problem.counted[kinds]
    if name == "elliptical_slice":
        hits = np.where(counted.any(axis=1, keepdims=True), counted, hits)
    first = kinds[np.arange(len(kinds)), hits.argmax(axis=1)]
    return np.where(hits.any(axis=1), first, -1)


class Tally(NamedTuple):
    """What one run shows."""

    injected: dict[str, int]
    """Steps that met each kind."""
    wrong: int
    """Steps whose count differs from that of the second computation."""
    accepted: int
    """Steps of a Metropolis sampler that were accepted in spite of an injection."""
    strayed: int
    """Steps that moved elsewhere than the second computation says."""
    bad_draws: int
    """Draws that are bad positions."""
    nonfinite: int
    """Stored numbers that are not finite."""
    warned: int | None
    """The number in the warning."""
    counted: int
    """What that number should be."""


def keep(target: widebnn.Target) -> Callable[[jax.Array, Any], dict[str, jax.Array]]:
    """The position as one vector, and the predictions of a network."""
    is_network = isinstance(target, widebnn.posteriors.NetworkTarget)
    predictions = widebnn.track(target, np.ones((2, 2)), projections=2) if is_network else lambda key, u: {}
    return lambda key, u: {"u": ravel_pytree(u)[0]} | predictions(key, u)


def run_injected(name: str, problem: Problem, rate: float, steps: int, seed: int = 1) -> Tally:
    """One chain under injections, compared with the second computation of all its steps."""
    patch = indefinite_kernels(rate) if problem.place == "Cholesky" else contextlib.nullcontext()
    with patch:
        collect = keep(problem.target)
        result, warned = sample_quietly(problem.target, name, steps=steps, seed=seed, collect=collect, **OPTIONS[name])
    init_key, _ = jax.random.split(jax.random.fold_in(jax.random.key(seed), 0))
    start = jax.jit(problem.target.sample_reference)(init_key)
    draws = result.draws["u"][0]
    path = np.concatenate([ravel_pytree(start)[0][None], draws])
    points = evaluated_points(name, path, random_numbers(name, seed, steps, start), problem)
    kinds = injected_kinds(name, points, problem)
    counted = (kinds >= 0) & problem.counted[kinds]
    wrong = result.stats["nonfinite"][0] != counted
    if problem.place == "gradient":
        wrong &= kinds != problem.kinds.index("1e200")
    moved = result.stats["accepted"][0] == 1
    last = points[np.arange(steps), (~np.isnan(points[..., 0])).sum(axis=1) - 1]
    stored = [*result.draws.values(), *result.stats.values(), *jax.tree.leaves(result.last)]
    return Tally(
        {label: int(np.sum(kinds == i)) for i, label in enumerate(problem.kinds)},
        int(wrong.sum()),
        int(np.sum(moved & (kinds >= 0))) if name != "elliptical_slice" else 0,
        int(np.sum(moved & (np.abs(last - draws).max(axis=1) > 1e-9))),
        int(np.sum(problem.kind(draws) >= 0)),
        int(sum(np.sum(~np.isfinite(array)) for array in stored)),
        warned,
        int(result.stats["nonfinite"].sum()) if problem.place == "gradient" else int(counted.sum()),
    )


def sample_quietly(target: widebnn.Target, name: str, **options: Any) -> tuple[widebnn.Result, int | None]:
    """A run, and the number in its warning of proposals that were not finite."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = widebnn.sample(target, name, progress=False, **options)
    said = [re.search(r"(\d+) (?:of \d+ )?proposals", str(warning.message)) for warning in caught]
    numbers = [int(match[1]) for match in said if match]
    return result, numbers[0] if numbers else None


def law_p_values(name: str, place: str, rate: float, replicates: int) -> tuple[list[float], int]:
    """P-values of means and variances after ten steps from exact draws, and the number of injections on the way."""
    algorithm = build_sampler(name, gaussian_problem(place, rate).target.log_likelihood, **OPTIONS[name])
    mean, variance = CENTRE / 2, 0.5

    def one(key):
        start_key, key = jax.random.split(key)
        start = first_good(mean + math.sqrt(variance) * jax.random.normal(start_key, (40, 3), jnp.float64), rate)
        state, infos = jax.lax.scan(lambda state, k: algorithm.step(k, state), algorithm.init(start), split(key, 10))
        return state.position, jnp.sum(~infos.is_finite)

    split = jax.random.split
    ends, counts = jax.jit(jax.vmap(one))(split(jax.random.key(7), replicates))
    deviations = (np.asarray(ends) - mean) / math.sqrt(variance)
    normal = np.abs(deviations.sum(axis=0)) / math.sqrt(replicates)
    squares = np.sum(deviations**2, axis=0)
    tails = [scipy.stats.chi2.cdf(squares, replicates), scipy.stats.chi2.sf(squares, replicates)]
    return [*(2 * scipy.stats.norm.sf(normal)), *(2 * np.minimum(*tails))], int(counts.sum())


def check_injections(page: Page) -> None:
    """Counts, stored values and warnings of every sampler under every injection."""
    every: list[Tally] = []
    for place, rate, steps, names in (
        ("likelihood", 0.25, 40_000, list(OPTIONS)),
        ("gradient", 0.25, 40_000, [name for name in WITH_GRADIENT if name not in TRAJECTORIES]),
        ("gradient", 0.08, 40_000, list(TRAJECTORIES)),
        ("Cholesky", 0.1, 14_000, list(OPTIONS)),
    ):
        tallies = []
        for i, name in enumerate(names):
            page.progress(f"injections into the {place}", i, len(names))
            problem = network_problem(rate) if place == "Cholesky" else gaussian_problem(place, rate)
            tallies.append(run_injected(name, problem, rate, page.count(steps)))
        injected = [number for tally in tallies for number in tally.injected.values()]
        wrong = sum(tally.wrong for tally in tallies)
        kinds = len(tallies[0].injected)
        page.check(
            f"steps with a bad {place}, {len(names)} samplers ({', '.join(names)}) x {kinds} kinds",
            f"{sum(injected)}, at least {min(injected)} of each; counted wrongly: {wrong}",
            f"at least {page.count(1000)} of each, 0 wrong",
            min(injected) >= page.count(1000) and wrong == 0,
        )
        every += tallies
    for what, figure in (
        ("Metropolis steps with an injection that were accepted", sum(tally.accepted for tally in every)),
        ("steps that moved elsewhere than the second computation says", sum(tally.strayed for tally in every)),
        ("bad positions among the draws", sum(tally.bad_draws for tally in every)),
        ("numbers that are not finite among draws, statistics and last states", sum(t.nonfinite for t in every)),
    ):
        page.check(what, str(figure), "0", figure == 0)
    right = sum(tally.warned == (tally.counted or None) for tally in every)
    page.check("warnings with the right number", f"{right} of {len(every)}", "all", right == len(every))


def check_burn_in_and_thinning(page: Page) -> None:
    """The same steps as burn-in and thinned have the same total in the warning, over all chains."""
    right, steps = 0, 20 * page.count(100)
    for name in OPTIONS:
        problem = gaussian_problem("likelihood", 0.25)
        options = {"seed": 2, "chains": 2, **OPTIONS[name]}
        plain, _ = sample_quietly(problem.target, name, steps=steps, **options)
        _, warned = sample_quietly(problem.target, name, steps=steps // 2, burn_in=steps // 2, thin=5, **options)
        right += warned == int(plain.stats["nonfinite"].sum())
    page.check(
        "the number in the warning includes burn-in, thinned steps and all chains",
        f"{right} of {len(OPTIONS)} samplers",
        "all",
        right == len(OPTIONS),
    )


def check_law(page: Page) -> None:
    """Means and variances of what is left of a Gaussian."""
    p_values, injections = [], 0
    cases = [("likelihood", name, 0.25) for name in OPTIONS]
    cases += [("gradient", name, 0.08 if name in TRAJECTORIES else 0.25) for name in WITH_GRADIENT]
    for i, (place, name, rate) in enumerate(cases):
        page.progress("law", i, len(cases))
        found, count = law_p_values(name, place, rate, page.count(50_000))
        p_values += found
        injections += count
    least = min(1.0, min(p_values) * len(p_values))
    page.check(
        f"law after {injections} injections, {len(p_values)} tests of {page.count(50_000)} chains each",
        f"smallest p-value, times the number of tests: {least:.2g}",
        f"above {FALSE_ALARM:g}",
        least > FALSE_ALARM,
    )


def fails_with(message: str, target: widebnn.Target, name: str, **options: Any) -> bool:
    """Whether a run ends with an error that says this."""
    try:
        widebnn.sample(target, name, steps=3, progress=False, **OPTIONS[name], **options)
    except widebnn.WidebnnError as error:
        return re.search(message, str(error)) is not None
    return False


def bad_beyond(limit: float, value: float) -> Callable[[jax.Array], jax.Array]:
    """A log-likelihood that has this value where the first coordinate is above the limit."""
    return lambda u: jnp.where(u[0] > limit, value, plain_log_likelihood(u))


def check_starts(page: Page, names: Collection[str] = tuple(OPTIONS)) -> None:
    """Starts from which no step can be judged."""
    start = np.zeros((3, 3))
    start[2, 0] = 5.0
    named = total = 0

    def expect(message, target, name, **options):
        nonlocal named, total
        total += 1
        named += fails_with(message, target, name, chains=3, initial=start, **options)

    def reference(key):
        return jax.random.normal(key, (3,), jnp.float64)

    @jax.custom_vjp
    def steep(u):
        return plain_log_likelihood(u)

    steep.defvjp(lambda u: (steep(u), u), lambda u, c: (c * jnp.where(u > 4, jnp.inf, CENTRE - u),))
    for name in names:
        for value in (math.nan, math.inf, -math.inf):
            expect(
                f"log-likelihood is {value} at the start of chain 2",
                widebnn.Target(bad_beyond(4, value), reference),
                name,
            )
        if name in WITH_GRADIENT:
            expect("gradient .* not finite at the start of chain 2", widebnn.Target(steep, reference), name)
    page.check(
        "hopeless starts of one chain of three (value NaN, +inf, -inf; infinite gradient) named by an error",
        f"{named} of {total}",
        "all",
        named == total,
    )
    start = np.zeros((3, 3))
    ignoring = widebnn.Target(lambda u: -jnp.sum(u[:2] ** 2), reference)
    named = total = 0
    for name in names:
        for value in (math.nan, math.inf):
            start[1, 2] = value
            expect("position .* not finite at the start of chain 1", ignoring, name)
    page.check(
        "initial positions that are not finite where the likelihood ignores them, named by an error",
        f"{named} of {total}",
        "all",
        named == total,
    )


def check_hopeless_runs(page: Page, names: Collection[str] = tuple(OPTIONS)) -> None:
    """Everything but the start is NaN."""
    target = widebnn.Target(lambda u: jnp.where(jnp.all(u == 0), 0.0, jnp.nan), lambda key: jnp.zeros(3))
    said = 0
    for name in names:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = widebnn.sample(target, name, steps=20, burn_in=10, chains=2, progress=False, **OPTIONS[name])
        said += any(re.search(r"all 60 proposals .* no chain has moved", str(w.message)) for w in caught) and (
            result.acceptance_rate == 0 and np.all(result.draws["u"] == 0)
        )
    page.check("runs in which nothing is finite say so", f"{said} of {len(names)}", "all", said == len(names))


def tuned_step_size(name: str, log_likelihood: Callable[[jax.Array], jax.Array], start: np.ndarray) -> float:
    """The step size after a burn-in of 1 000 steps."""
    algorithm = build_sampler(name, log_likelihood, burn_in=1000)
    scan = jax.jit(lambda state, keys: jax.lax.scan(lambda state, key: algorithm.step(key, state), state, keys)[0])
    state = scan(jax.jit(algorithm.init)(jnp.asarray(start)), jax.random.split(jax.random.key(3), 1000))
    return float(TUNERS[name]().final(state.tuner))


def check_tuning(page: Page) -> None:
    """Step sizes tuned under injections, against those without; and where nothing is finite."""
    ratios, hopeless = {}, []
    for i, name in enumerate(TUNERS):
        page.progress("tuning", i, len(TUNERS))
        clean = tuned_step_size(name, plain_log_likelihood, CENTRE / 2)
        for place in ("likelihood", "gradient") if name in WITH_GRADIENT else ("likelihood",):
            spoilt = poisoned(plain_log_likelihood, place, 0.05 if place == "likelihood" else 0.01)
            ratios[name, place] = tuned_step_size(name, spoilt, CENTRE / 2) / clean
        hopeless.append(tuned_step_size(name, lambda u: jnp.where(jnp.all(u == 0), 0.0, jnp.nan), np.zeros(3)))
    low, high = min(ratios.values()), max(ratios.values())
    page.check(
        "step sizes tuned with 5 % bad values or 1 % bad gradients, divided by those without",
        f"{low:.2f} to {high:.2f}",
        "0.33 to 3",
        low > 1 / 3 and high < 3,
    )
    page.check(
        "step sizes tuned where nothing is finite: the smallest",
        f"{min(hopeless):.2g}",
        "finite and above 0",
        all(0 < step < math.inf for step in hopeless),
    )


def check_ascent(page: Page) -> None:
    """The climb before the first step."""
    bad = lower = total = 0
    for place in ("likelihood", "gradient"):
        problem = gaussian_problem(place, 0.05)
        chains = page.count(200)
        ends = ascend(problem.target, chains, seed=0)
        starts = jax.vmap(problem.target.sample_reference)(jax.random.split(jax.random.key(0), chains))
        height = [problem.value(u) - 0.5 * np.sum(u**2, axis=1) for u in (np.asarray(starts), ends)]
        bad += int(np.sum(problem.kind(ends) >= 0) + np.sum(~np.isfinite(ends)))
        lower += int(np.sum(height[1] < height[0]))
        total += chains
    page.check(
        f"{total} climbs of the estimators (60 steps, 5 % bad): ends that are bad, that are lower than the start",
        f"{bad}, {lower}",
        "0, 0",
        bad == lower == 0,
    )


def check_networks(page: Page) -> None:
    """A NaN in a position is a NaN in the log-likelihood: no factorisation or activation swallows it, or hangs."""
    x, y = small_data(n=6, m=2, outputs=1)
    kinds: list[dict[str, Any]] = [{"coordinates": name} for name in ("function", "marginal", "weights")]
    kinds += [{"noise": widebnn.LogNormal(0.2)}, {"likelihood": "softmax"}]
    finite = total = 0
    for options in kinds:
        for activation, widths in (("relu", [8]), ("erf", [8, 8])):
            softmax = options.get("likelihood") == "softmax"
            labels = (x[:, 0] > 0).astype(float) if softmax else y
            target = widebnn.posterior(widebnn.dense(2, widths, activation), x, labels, **options)
            flat, unravel = ravel_pytree(target.sample_reference(jax.random.key(0)))
            value = jax.jit(lambda u: target.log_likelihood(unravel(u)))  # noqa: B023
            for i in np.random.default_rng(0).choice(flat.size, 10, replace=False):
                finite += bool(np.isfinite(value(flat.at[i].set(jnp.nan))))
                total += 1
    page.check(
        f"log-likelihoods of networks that are finite at {total} positions with a NaN", str(finite), "0", finite == 0
    )


def relu_network(coordinates: str) -> widebnn.posteriors.NetworkTarget:
    """A network whose features grow with its weights, in float32."""
    x, y = small_data(n=6, m=2, outputs=1)
    return widebnn.posterior(widebnn.dense(2, [16, 16], "relu"), x, y, noise=0.4, coordinates=coordinates)


def check_single_precision(page: Page) -> None:
    """Weights of 1e20 in float32: features of 1e20, their products above the largest number of 3e38."""
    named = quiet = total = stored = 0
    for coordinates in ("function", "marginal", "reparametrised", "weights"):
        target = relu_network(coordinates)
        draw = jax.tree.map(lambda leaf: 1e20 * np.asarray(leaf)[None], target.sample_reference(jax.random.key(0)))
        for name in ("pcn", "hilbert_hmc", "elliptical_slice"):
            named += fails_with("at the start of chain 0", target, name, initial=draw)
            total += 1
        for name in ("rwmh", "hmc", "mala"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = widebnn.sample(target, name, step_size=1e20, steps=page.count(50), progress=False)
            arrays = [*result.draws.values(), *result.stats.values()]
            stored += int(sum(np.sum(~np.isfinite(array)) for array in arrays))
            quiet += int(np.sum(result.stats["accepted"] != 0))
    page.check("starts with weights of 1e20 in float32 named by an error", f"{named} of {total}", "all", named == total)
    page.check(
        "proposals with weights of 1e20 in float32: accepted, and numbers stored that are not finite",
        f"{quiet}, {stored}",
        "0, 0",
        quiet == stored == 0,
    )


def run(page: Page) -> None:
    """Fill the page."""
    assert set(OPTIONS) == set(SAMPLERS)
    with double_precision(), one_blas_thread():
        check_injections(page)
        check_burn_in_and_thinning(page)
        check_law(page)
        check_starts(page)
        check_hopeless_runs(page)
        check_tuning(page)
        check_ascent(page)
        check_networks(page)
        check_single_precision(page)


if __name__ == "__main__":
    main(__file__, run)
