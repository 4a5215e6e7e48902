"""Simulation-based calibration (Talts et al. 2018): the truth has a uniform rank among posterior draws.

theta* ~ prior, y ~ p(y | theta*), and a chain on p(theta | y) that starts at another draw of the prior and forgets it
in a burn-in. If chain and posterior are right, the rank of g(theta*) among L independent draws of g(theta) is uniform
on 0, ..., L for every function g. Unlike the joint test of harness.py this runs chains as users do, from a wrong start
to convergence; so it also sees a burn-in that is too short. Draws that depend on each other make ranks too extreme:
their autocorrelation is reported.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from harness import WITH_ATOMS, Problem, compiled
from scipy.stats import chisquare, kstest


class Calibration(NamedTuple):
    """What the ranks say."""

    ranks: dict[str, np.ndarray]
    """Of the truth, one per data set, for every function that varies."""
    p_values: dict[str, float]
    """Two per function: a chi-squared test of equal bins and a Kolmogorov-Smirnov test."""
    autocorrelation: float
    """Between neighbouring draws, within data sets; the largest of all functions."""


def calibrate(
    target_of: Callable,
    sampler_of: Callable,
    problem: Problem,
    *,
    datasets: int,
    burn_in: int,
    thin: int,
    draws: int = 63,
    seed: int = 0,
    careful: Sequence[Callable] = (),
) -> Calibration:
    """Ranks among ``draws`` draws, every ``thin``-th step of a chain after ``burn_in`` steps, for each data set.

    ``careful`` are samplers with smaller step sizes that take turns with the first during the burn-in. One step size
    for all data sets is too large for some wrong starts, where nothing would ever be accepted; sample() tunes it there.
    """

    def chain(key):
        keys = jax.random.split(key, 5)
        truth, y = problem.joint_draw(keys[0])
        elsewhere, _ = problem.joint_draw(keys[1])
        target = target_of(y)
        algorithm = sampler_of(target.log_likelihood)

        in_turn = [algorithm, *(sampler_of(target.log_likelihood) for sampler_of in careful)]

        def step(state, key):
            return algorithm.step(key, state)[0], None

        def turn(state, key):
            for each, own_key in zip(in_turn, jax.random.split(key, len(in_turn)), strict=True):
                state, _ = each.step(own_key, state)
            return state, None

        def functions(key, u):
            theta = problem.from_position(target, key, u)
            return problem.test_functions(theta, y) | {"log-likelihood": target.log_likelihood(u)}

        def draw(state, key):
            steps_key, draw_key = jax.random.split(key)
            state, _ = jax.lax.scan(step, state, jax.random.split(steps_key, thin))
            return state, functions(draw_key, state.position)

        state = algorithm.init(problem.to_position(target, elsewhere))
        state, _ = jax.lax.scan(turn, state, jax.random.split(keys[2], burn_in // len(in_turn)))
        _, kept = jax.lax.scan(draw, state, jax.random.split(keys[3], draws))
        u = problem.to_position(target, truth)
        true = problem.test_functions(truth, y) | {"log-likelihood": target.log_likelihood(u)}
        return true, kept

    true, kept = compiled(jax.vmap(chain))(jax.random.split(jax.random.key(seed), datasets))
    true, kept = ({name: np.asarray(value) for name, value in part.items()} for part in (true, kept))
    names = [name for name in true if np.any(np.ptp(kept[name], axis=1) > 0)]  # not those of the data alone
    rng = np.random.default_rng(seed)
    ranks = {name: rank(true[name], kept[name], rng) for name in names}
    tests = {f"{name} ({test})": p for name in names for test, p in uniformity(ranks[name], draws, rng).items()}
    dependence = max(autocorrelation(kept[name]) for name in names if name not in WITH_ATOMS)
    return Calibration(ranks, tests, dependence)


def rank(true: np.ndarray, kept: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """How many draws are below the truth; ties, of functions with few values, are broken by lot."""
    assert np.isfinite(true).all() and np.isfinite(kept).all()
    below, equal = (np.sum(compare(kept, true[:, None]), axis=1) for compare in (np.less, np.equal))
    return below + rng.integers(0, equal + 1)


def uniformity(ranks: np.ndarray, draws: int, rng: np.random.Generator) -> dict[str, float]:
    """p-values of the hypothesis that ranks are uniform on 0, ..., draws; draws + 1 is a power of two."""
    bins = min(16, draws + 1)
    while bins > 2 and len(ranks) / bins < 10:
        bins //= 2
    counts = np.bincount(ranks * bins // (draws + 1), minlength=bins)
    smooth = (ranks + rng.uniform(size=len(ranks))) / (draws + 1)
    return {"bins": float(chisquare(counts).pvalue), "distance": float(kstest(smooth, "uniform").pvalue)}


def autocorrelation(kept: np.ndarray) -> float:
    """Between neighbouring draws, data sets x draws, each data set about its own mean; corrected for its error.

    The mean of a data set is estimated from its own few draws, which makes independent ones look correlated by -1 / L.
    A chain that never moved correlates by 1.
    """
    centred = kept - kept.mean(axis=1, keepdims=True)
    variance = np.mean(centred**2, axis=1)
    products = np.mean(centred[:, 1:] * centred[:, :-1], axis=1) + variance / kept.shape[1]
    return float(np.mean(np.divide(products, variance, out=np.ones_like(variance), where=variance > 0)))
