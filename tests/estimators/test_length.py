"""The length of the run that is kept: decided before it begins, so that its draws are not chosen for what they show."""

import math
from dataclasses import dataclass

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
    trial, kept = Run(250.0), Run(350.0)
    run, asked = scripted(trial, kept)
    assert run_long_enough(run, wanted=400, chains=2, most=10_000) is kept
    assert asked == [100, math.ceil(100 * MARGIN * 400 / 250)]


def test_a_trial_is_never_kept_for_what_it_shows():
    """Not even where it has more than enough: that would be the choice that biases what is kept."""
    run, asked = scripted(Run(5000.0), kept := Run(600.0))
    assert run_long_enough(run, wanted=400, chains=2, most=10_000) is kept
    assert asked == [100, 100]


def test_a_trial_with_few_effective_draws_is_repeated_before_it_is_believed():
    run, asked = scripted(Run(20.0), Run(250.0), kept := Run(500.0))
    assert run_long_enough(run, wanted=400, chains=2, most=10_000) is kept
    second = math.ceil(100 * MARGIN * TRIAL * 400 / 20)
    assert asked == [100, second, math.ceil(second * MARGIN * 400 / 250)]


def test_a_run_that_falls_far_short_is_followed_by_a_longer_one():
    run, asked = scripted(Run(400.0), Run(250.0, is_enough=False), kept := Run(600.0))
    assert run_long_enough(run, wanted=400, chains=2, most=10_000) is kept
    assert asked == [100, 140, math.ceil(140 * MARGIN * 400 / 250)]


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


@dataclass(frozen=True)
class Chains:
    """Stationary autoregressive chains, x' = rho x + sqrt(1 - rho^2) N(0, 1): mean 0 and variance 1."""

    x: np.ndarray
    is_whole: bool = True

    @property
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
    """(change of the variance of the draws, of the coverage of a 90 % interval of the mean), and standard errors.

    Each kept run is compared with chains of the same length that nobody looked at.
    """
    rng = np.random.default_rng(0)

    def judge(run):
        x = run.x
        half_width = 1.6449 * x.std(ddof=1) / math.sqrt(run.ess)
        return np.array([x.var(ddof=1), float(abs(x.mean()) < half_width)])

    differences = []
    for _ in range(replicates):
        kept = rule(rng)
        differences.append(judge(kept) - judge(autoregressive(rng, kept.x.shape[1], None)))
    return np.mean(differences, axis=0), np.std(differences, axis=0) / math.sqrt(replicates)


@pytest.mark.long
def test_most_of_optional_stopping_is_gone():
    """Prints what docs/mathematics.md says of it."""
    (variance, coverage), errors = effect(until_enough, 6000)
    (variance_now, coverage_now), errors_now = effect(decided_before, 6000)
    print(f"until the draws show enough: variance {variance:+.2%}, coverage {coverage:+.2%} (s.e. {errors})")
    print(f"decided before the run: variance {variance_now:+.2%}, coverage {coverage_now:+.2%} (s.e. {errors_now})")
    assert variance < -5 * errors[0] and coverage < 0, "the comparison does not see the effect"
    assert abs(variance_now) < abs(variance) / 2
    assert coverage_now > -0.01 - 2 * errors_now[1]
