"""Every sampler draws from the right distribution.

**Joint tests.** Weights and data drawn from the model itself have a joint law that is known exactly. Thousands of short
chains start at such draws and alternate steps of the sampler, with the data fixed, and new data given the weights
(Geweke 2004); if the sampler is right, the joint law is the same after the first turn (conservation) and after the
last. At least 20 functions of weights and data (moments, products, extremes, ranks, signs) are compared with fresh
exact draws by Kolmogorov-Smirnov tests. So goes every sampler in every coordinate system of every likelihood:
regression with known and unknown noise, classification with known and unknown scale of the logits; and some of them
with two hidden layers, with the paper's chain on all weights (`space="full"`) and in single precision. Chains that do
not move would pass: how far they go, and how often they are rejected, is checked as well. (A noise for every row and
mixed precision came after the run below; `make test-long` has their joint tests.)

**Simulation-based calibration.** For 1 000 data sets drawn from the model a chain starts at another draw of the prior,
burns in, and keeps 63 draws; the rank of the truth among them must be uniform for every function, by a chi-squared test
and by a Kolmogorov-Smirnov test. In the burn-in smaller steps take turns with the usual ones, which some data sets
would never accept from a wrong start. A planted mistake goes the same way and must be seen.

**Agreement.** On fixed data, long chains of `sample()` in all coordinate systems must have the same means of function
values at new inputs, of their squares and of their products: each against each, and against importance sampling from
the prior, which is no Markov chain. At growing width they must approach the Gaussian process.

**Planted mistakes.** Wrong formulas, stale caches, keys used twice, momenta not refreshed, forgotten determinants and
Jacobians, among them those printed in the paper: the short form of the joint test, which `make test` runs, must see
them. (A gradient that is stale after a rejection is a wrong force which the acceptance corrects for in part; the law of
the chain hardly shows it, so what samplers remember is compared with the truth directly.) Then mistakes that can be
made as small as one likes show how small one may be and still be seen.

**Chance.** Seeds are fixed. If everything is right, all of this section holds with a probability of at least 99.9 %:
the false alarms of 1 in 1 000 are shared equally by four parts (joint tests, uniformity of their p-values, calibration,
agreement), and within a part by all its p-values (Bonferroni). In the joint test p-values are exact because replicates
are independent. p-values of different functions are not independent of each other, so their uniformity is tested with
one function of each combination, drawn by lot.

**Not covered.** Networks here have a few units and data sets a few rows; what changes with size (rounding, mixing) is
tested elsewhere. A kernel that is exact and mixes slowly passes the joint test. A mistake below the sizes that are
shown last would not be seen, nor one in code that these models do not reach, such as convolutions, which have the same
samplers and coordinates but features of their own.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from page import Page, main  # the tests' folders are importable from here on

# isort: split
# A vmapped factorisation waits inside JAX's pool of threads for a thread of it: there have to be some to spare.
os.environ.setdefault("NPROC", "8")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import agreement
import bugs
import calibration
import grid
import jax
import numpy as np
from harness import ALPHA, BATCH, GAUSSIAN, WITH_ATOMS, Outcome, caches, make_sampler, reference_sample
from scipy.stats import kstest

from widebnn.compilation import compile_quickly

compile_quickly()
PROCESSES = 2
FALSE_ALARM = 1e-3
PER_PART = FALSE_ALARM / 4
REPLICATES = 32_000
REFERENCES = 6
"""Exact draws per replicate."""
TURNS = 4
DATASETS = 1_000
CALIBRATED = {
    ("known noise", "pcn", "function"): {"burn_in": 1_000, "thin": 60},
    ("known noise", "hmc", "weights"): {"burn_in": 1_000, "thin": 80},
    ("known noise", "pcnl", "reparametrised"): {"burn_in": 3_000, "thin": 150},
    ("known noise", "mala", "marginal"): {"burn_in": 1_000, "thin": 100},
    ("known noise", "elliptical_slice", "marginal"): {"burn_in": 500, "thin": 30},
    ("known noise", "rwmh", "marginal"): {"burn_in": 2_000, "thin": 120},
    ("unknown noise", "auto", "marginal"): {"burn_in": 1_000, "thin": 60},
    ("unknown noise", "underdamped", "function"): {"burn_in": 2_000, "thin": 120},
    ("softmax", "hilbert_hmc", "function"): {"burn_in": 1_000, "thin": 40},
    ("softmax of unknown scale", "auto", "function"): {"burn_in": 1_000, "thin": 60},
    ("two hidden layers", "pcn", "function"): {"burn_in": 1_000, "thin": 80},
}
CAREFUL = (0.25, 0.06)
"""Step sizes that take turns with the usual one while calibrated chains burn in."""
MISCALIBRATED = "log det counted once, not per output"
STEPS = 300_000
SEEDS, LONG_SEEDS = 4, 2

Spread = Callable[[str, Callable, Iterable], list]


@contextmanager
def processes(page: Page) -> Iterator[Spread]:
    """A function that does jobs on all processes; a small share of the trials is done in this one."""
    if page.share < 1:
        yield lambda what, function, jobs: [function(job) for job in jobs]
        return
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:

        def spread(what: str, function: Callable, jobs: Iterable) -> list:
            jobs, results = list(jobs), []
            page.progress(what, 0, len(jobs))
            for result in pool.map(function, jobs):
                results.append(result)
                page.progress(what, len(results), len(jobs))
            return results

        yield spread


def joint(job: tuple[tuple[str, str, str], int]) -> Outcome:
    """The joint test of a combination, in the long form."""
    combination, replicates = job
    with jax.enable_x64(True):
        return grid.run(*combination, cycles=TURNS, replicates=replicates, reference=REFERENCES * replicates)


def cached(page: Page, samplers: Iterable[str] = grid.SAMPLERS) -> None:
    """What the samplers remember, and that stale caches which are planted are seen."""
    with jax.enable_x64(True):
        found = {name: caches(make_sampler(name)) for name in samplers}
        planted = [caches(bug.sampler_of).error for name, bug in bugs.BUGS.items() if "stale" in name]
    rates = [cache.accepted for name, cache in found.items() if name != grid.SLOW]
    page.check(
        "caches: log-likelihood and gradient that a state remembers, against those at its position",
        f"largest difference {max(cache.error for cache in found.values()):g}, acceptance {min(rates):.2f} to "
        f"{max(rates):.2f}; with {len(planted)} planted mistakes at least {min(planted):.1g}",
        "none, and seen where planted",
        max(cache.error for cache in found.values()) == 0 and min(planted) > 0.1 and 0 < min(rates) < max(rates) < 1,
    )


def joint_tests(page: Page, spread: Spread, combinations: list[tuple[str, str, str]]) -> float:
    """All combinations; returns the p-value that a mistake has to be below to be seen here."""
    replicates = page.count(REPLICATES, least=BATCH)
    outcomes = spread("joint tests", joint, [(combination, replicates) for combination in combinations])
    counts = [len(outcome.first) for outcome in outcomes]
    total = 2 * sum(counts)
    page.check(
        "joint tests: combinations of likelihood, sampler and coordinates",
        f"{len(outcomes)}, each with {min(counts)} to {max(counts)} test functions and {replicates} replicates",
        "at least 20 functions",
        min(counts) >= 20,
    )
    for stage, found in {"conservation": "first", f"after {TURNS} turns": "last"}.items():
        p, function, combination = min(
            (p, name, ", ".join(combination))
            for combination, outcome in zip(combinations, outcomes, strict=True)
            for name, p in getattr(outcome, found).items()
        )
        page.check(
            f"joint tests, {stage}: smallest of {sum(counts)} p-values, times {total}",
            f"{min(1.0, total * p):.2g} ({combination}: {function})",
            f"above {PER_PART:g}",
            total * p > PER_PART,
        )
    still = [c for c, outcome in zip(combinations, outcomes, strict=True) if not grid.moves(outcome, c[1])]
    rates = [outcome.accepted for c, outcome in zip(combinations, outcomes, strict=True) if c[1] != grid.SLOW]
    page.check(
        "joint tests: chains that hardly move, or are never rejected",
        f"{len(still)} (acceptance {min(rates):.2f} to {max(rates):.2f}, "
        f"squared displacement {min(outcome.moved for outcome in outcomes):.2f} or more)",
        "none",
        not still,
    )
    uniform = uniformity(outcomes)
    page.check(
        f"joint tests: p-values of {len(combinations)} combinations, one function of each, are uniform",
        f"p = {uniform:.2g}",
        f"above {PER_PART:g}",
        uniform > PER_PART,
    )
    return PER_PART / total


def uniformity(outcomes: list[Outcome]) -> float:
    """Of one p-value per combination: they use different replicates, and are independent but for the reference."""
    rng = np.random.default_rng(0)
    drawn = [outcome.last[rng.choice(sorted(set(outcome.last) - WITH_ATOMS))] for outcome in outcomes]
    return float(kstest(drawn, "uniform").pvalue)


def calibrate(job: tuple[Any, dict[str, Any]]) -> calibration.Calibration:
    """Simulation-based calibration of a combination, or of a planted bug."""
    what, length = job
    with jax.enable_x64(True):
        if isinstance(what, str):
            bug = bugs.BUGS[what]
            target_of, sampler_of, problem = bug.target_of, bug.sampler_of, grid.SETTINGS[bug.setting].problem
        else:
            setting = grid.SETTINGS[what[0]]
            target_of, sampler_of = setting.target_of(what[2]), grid.make(setting, *what[1:])
            problem = setting.problem
            length = length | {"careful": [grid.make(setting, *what[1:], shrink=part) for part in CAREFUL]}
        return calibration.calibrate(target_of, sampler_of, problem, **length)


def calibrations(page: Page, spread: Spread, combinations: dict[tuple[str, str, str], dict[str, int]]) -> None:
    """The combinations and, in the coordinates of the first, a planted bug."""
    datasets = page.count(DATASETS, least=40)
    jobs: list[Any] = [
        (what, {"datasets": datasets, "seed": seed} | length)
        for seed, (what, length) in enumerate(combinations.items())
    ]
    wrong = (MISCALIBRATED, {"datasets": datasets} | next(iter(combinations.values())))
    *found, planted = spread("calibration", calibrate, [*jobs, wrong])
    total = sum(len(result.p_values) for result in found)
    for (what, length), result in zip(combinations.items(), found, strict=True):
        p, name = min((p, name) for name, p in result.p_values.items())
        page.check(
            f"calibration, {', '.join(what)}: {datasets} data sets, ranks of {len(result.ranks)} functions, "
            f"burn-in {length['burn_in']}, every {length['thin']}th step",
            f"smallest p-value times {total}: {min(1.0, total * p):.2g} ({name}); "
            f"neighbouring draws correlate by {result.autocorrelation:.2f} at most",
            f"above {PER_PART:g}, correlation below 0.2, 20 functions",
            total * p > PER_PART and result.autocorrelation < 0.2 and len(result.ranks) >= 20,
        )
    p = total * min(planted.p_values.values())
    page.check(f"calibration of a planted mistake ({MISCALIBRATED})", f"{p:.1g}", f"below {PER_PART:g}", p < PER_PART)


def moments(job: tuple[str, str, int]) -> agreement.Moments:
    """Means over the posterior of a model, in some coordinates or by importance sampling."""
    model, how, steps = job
    with jax.enable_x64(True):
        if model == "softmax":
            return agreement.label_moments(how, steps // 5)
        if how == "importance sampling":
            return agreement.importance_moments(model == "unknown noise", 3 * steps)
        return agreement.regression_moments(how, model == "unknown noise", steps)


def agreements(page: Page, spread: Spread) -> None:
    """All coordinate systems of every likelihood, and importance sampling."""
    steps = page.count(STEPS, least=2_000)
    everywhere = [*grid.COORDINATES, "importance sampling"]
    models = {"known noise": everywhere, "unknown noise": everywhere, "softmax": ["weights", "function"]}
    jobs = [(model, how, steps) for model, hows in models.items() for how in hows]
    found = dict(zip(jobs, spread("agreement", moments, jobs), strict=True))
    compared = {
        model: agreement.pairs({how: found[model, how, steps] for how in hows}) for model, hows in models.items()
    }
    total = sum(p.size for pairs in compared.values() for p in pairs.values())
    for model, pairs in compared.items():
        p, pair = min((float(p.min()), pair) for pair, p in pairs.items())
        least = min(result.ess for job, result in found.items() if job[0] == model)
        page.check(
            f"agreement, {model}: {len(pairs)} pairs of {', '.join(models[model])}",
            f"smallest of {sum(p.size for p in pairs.values())} p-values, times {total}: {min(1.0, total * p):.2g} "
            f"({pair}); {least:.0f} effective draws or more",
            f"above {PER_PART:g}, {0.05 * steps:.0f} effective draws",
            total * p > PER_PART and least > 0.05 * steps,
        )


def limit(steps: int) -> np.ndarray:
    """Distances to the Gaussian process at growing widths."""
    with jax.enable_x64(True):
        return agreement.distances_to_the_limit((4, 64, 1024), steps)


def limits(page: Page, spread: Spread) -> None:
    """The limit of infinite width."""
    (distances,) = spread("infinite width", limit, [page.count(20_000, least=1_000)])
    page.check(
        "agreement with the Gaussian process: largest difference of means and of standard deviations",
        "; ".join(
            f"width {width}: {mean:.3f} and {std:.3f}"
            for width, (mean, std) in zip((4, 64, 1024), distances, strict=True)
        ),
        "below 0.03 at width 1024, a quarter of that at width 4",
        bool((distances[-1] < 0.03).all() and (distances[-1] < 0.25 * distances[0]).all()),
    )


def planted(name: str) -> bool:
    """Whether the short form of the joint test sees a planted bug."""
    with jax.enable_x64(True):
        return bugs.is_caught(bugs.outcome_of(name))


def planted_bugs(page: Page, spread: Spread, names: list[str]) -> None:
    """The planted bugs, in the short form."""
    caught = dict(zip(names, spread("planted mistakes", planted, names), strict=True))
    missed = [name for name in names if not caught[name]]
    page.check(
        "planted mistakes that the short form sees",
        f"{sum(caught.values())} of {len(names)}" + (f"; not: {', '.join(missed)}" if missed else ""),
        "95 %" + (" of at least 20" if page.share == 1 else ""),
        sum(caught.values()) >= 0.95 * len(names) and (page.share < 1 or len(names) >= 20),
    )


def seen(job: tuple[str, float, int, int, float]) -> bool:
    """Whether a subtle mistake gives a p-value below the threshold."""
    name, size, replicates, seed, threshold = job
    with jax.enable_x64(True):
        outcome = bugs.subtle_outcome(name, size, replicates, seed)
        return min([*outcome.first.values(), *outcome.last.values()]) < threshold


def power(page: Page, spread: Spread, names: list[str], threshold: float) -> None:
    """How small a mistake may be and still be seen: in the short form, and in the long form with its own threshold."""
    functions = len(reference_sample(GAUSSIAN))
    short, long = (grid.USUAL["replicates"], ALPHA / functions), (REPLICATES, threshold)
    forms = [(SEEDS, short), (LONG_SEEDS, long)] if page.share == 1 else [(1, short)]
    for name in names:
        sizes = bugs.SUBTLE[name][1] if page.share == 1 else bugs.SUBTLE[name][1][:1]
        words = []
        for seeds, (replicates, below) in forms:
            jobs = [(name, size, replicates, seed, below) for size in sizes for seed in range(seeds)]
            hits = np.reshape(spread(f"power, {name}", seen, jobs), (len(sizes), seeds))
            shares = ", ".join(f"{size:g}: {row.sum()} of {seeds}" for size, row in zip(sizes, hits, strict=True))
            words.append(f"{replicates} replicates: {shares}")
        page.check(f"seen of a mistake by its size: {name} by", "; ".join(words), f"{sizes[0]:g} always", hits[0].all())


def run(page: Page) -> None:
    """All parts."""
    with processes(page) as spread:
        threshold = joint_tests(page, spread, list(grid.combinations()))
        cached(page)
        calibrations(page, spread, CALIBRATED)
        agreements(page, spread)
        limits(page, spread)
        planted_bugs(page, spread, list(bugs.BUGS))
        power(page, spread, list(bugs.SUBTLE), threshold)


if __name__ == "__main__":
    main(__file__, run)
