"""The length of the run that is kept: decided before it begins, so that its draws are not chosen for what they show."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
from scipy.signal import lfilter

from widebnn.diagnostics.convergence import ess
from widebnn.estimators.length import ENOUGH, LEAST_TRIAL, MARGIN, TRIAL, run_long_enough

pytestmark = pytest.mark.ambient


@dataclass(frozen=True)
class Run:
    ess: float
    is_enough: bool = True
    is_whole: bool = True
    steps: int = 0


def scripted(*runs):
    """A run function that returns these one after the other, and the lengths that it was asked for."""
    asked, left = [], list(runs)

    def run(steps, before):
        asked.append(steps)
        return left.pop(0)

    return run, asked


def test_a_trial_decides_the_length_of_the_run_that_is_kept():
    run, asked = scripted(Run(200.0), kept := Run(350.0))
    assert run_long_enough(run, wanted=400, chains=2, most=10_000) is kept
    assert asked == [100, round(100 * MARGIN * 2)]


def test_a_trial_is_never_kept_for_what_it_shows():
    """Not even where it has more than enough: that would be the choice that biases what is kept."""
    run, asked = scripted(Run(5000.0), kept := Run(600.0))
    assert run_long_enough(run, wanted=400, chains=2, most=10_000) is kept
    assert asked == [100, 100]


def test_a_trial_with_few_effective_draws_is_repeated_before_it_is_believed():
    run, asked = scripted(Run(20.0), Run(200.0), kept := Run(500.0))
    assert run_long_enough(run, wanted=400, chains=2, most=10_000) is kept
    second = round(100 * MARGIN * TRIAL * 20)
    assert asked == [100, second, round(second * MARGIN * 2)]


def test_a_run_that_falls_far_short_is_followed_by_a_longer_one():
    run, asked = scripted(Run(400.0), Run(200.0, is_enough=False), kept := Run(600.0))
    assert run_long_enough(run, wanted=400, chains=2, most=10_000) is kept
    assert asked == [100, 140, round(140 * MARGIN * 2)]


def test_the_most_steps_are_kept_whatever_they_show():
    run, asked = scripted(only := Run(3.0, is_enough=False))
    assert run_long_enough(run, wanted=400, chains=2, most=100) is only and asked == [100]
    run, asked = scripted(Run(10.0), kept := Run(9.0, is_enough=False))
    assert run_long_enough(run, wanted=400, chains=2, most=150) is kept and asked == [100, 150]
    # Another run that would be less than twice as long is not begun.
    run, asked = scripted(Run(400.0), kept := Run(200.0, is_enough=False))
    assert run_long_enough(run, wanted=400, chains=2, most=200) is kept and asked == [100, 140]
    assert scripted_lengths(wanted=1, most=1000)[0] == LEAST_TRIAL


def scripted_lengths(wanted, most):
    run, asked = scripted(Run(1e9), Run(1e9))
    run_long_enough(run, wanted=wanted, chains=1, most=most)
    return asked


@pytest.mark.parametrize("is_better", [False, True])
def test_a_longer_run_that_was_cut_short_is_kept_only_if_it_is_better(is_better):
    whole, part = Run(50.0), Run(60.0 if is_better else 40.0, is_enough=False, is_whole=False)
    run, _ = scripted(whole, part)
    found = run_long_enough(run, wanted=400, chains=2, most=10_000, has_time=lambda attempt: attempt.is_whole)
    assert found is (part if is_better else whole)


def test_nothing_is_begun_without_time():
    run, asked = scripted(first := Run(1.0, is_enough=False))
    assert run_long_enough(run, wanted=400, chains=2, most=10_000, has_time=lambda _: False) is first
    assert asked == [100]


# --- optional stopping, measured on chains whose law is known

WANTED, RHO, CHAINS = 100, 0.5, 2


@dataclass
class Chains:
    """Stationary autoregressive chains, x' = rho x + sqrt(1 - rho^2) N(0, 1): mean 0 and variance 1."""

    x: np.ndarray
    is_whole: bool = True

    @cached_property
    def ess(self):
        return float(ess(self.x))

    @property
    def is_enough(self):
        return self.ess >= ENOUGH * WANTED


def autoregressive(rng, steps, before):
    start = rng.normal(size=(CHAINS, 1)) if before is None else before.x[:, -1:]
    noise = math.sqrt(1 - RHO**2) * rng.normal(size=(CHAINS, steps))
    return Chains(lfilter([1.0], [1.0, -RHO], noise, axis=1, zi=RHO * start)[0])


def until_enough(rng):
    """What not to do: run longer and longer, and keep the first run that shows enough effective draws."""
    steps, before = math.ceil(2 * WANTED / CHAINS), None
    while True:
        before = autoregressive(rng, steps, before)
        if before.ess >= WANTED:
            return before
        steps = math.ceil(steps * max(2.0, 1.2 * WANTED / max(before.ess, 1.0)))


def decided_before(rng):
    return run_long_enough(
        lambda steps, before: autoregressive(rng, steps, before), wanted=WANTED, chains=CHAINS, most=10**6
    )


def effect(rule, replicates):
    """(change of the variance of the draws, coverage of a 90 % interval of the mean), and their standard errors.

    The variance about the mean of chains of a fixed length is 1 - Var(mean) on average.
    """
    rng = np.random.default_rng(0)
    found = []
    for _ in range(replicates):
        kept = rule(rng)
        n = kept.x.shape[1]
        half_width = 1.6449 * kept.x.std() / math.sqrt(kept.ess)
        lags = np.arange(1, n)
        variance_of_mean = (1 + 2 * np.sum((1 - lags / n) * RHO**lags)) / (n * CHAINS)
        found.append([kept.x.var() / (1 - variance_of_mean) - 1, abs(kept.x.mean()) < half_width])
    return np.mean(found, axis=0), np.std(found, axis=0) / math.sqrt(replicates)


@pytest.mark.long
def test_most_of_optional_stopping_is_gone():
    """Prints what each rule does to the draws that it keeps."""
    (before, _), (error, _) = found = effect(until_enough, 4000)
    (now, _), _ = found_now = effect(decided_before, 4000)
    untouched = effect(lambda rng: autoregressive(rng, 220, None), 4000)
    for name, ((variance, coverage), errors) in {
        "a length given beforehand": untouched,
        "until the draws show enough": found,
        "decided by a trial": found_now,
    }.items():
        print(f"{name}: variance {variance:+.4f} +- {errors[0]:.4f}, coverage {coverage:.3f} +- {errors[1]:.3f}")
    assert abs(untouched[0][0]) < 4 * untouched[1][0], "the average variance of chains is not what it should be"
    assert before < -4 * error, "the comparison does not see the effect"
    assert now > before / 2
