"""The length of a run: planned by a trial that is discarded, so that its draws are not chosen for what they show."""

import math

import numpy as np
import pytest
from scipy.signal import lfilter

from widebnn.diagnostics.convergence import ess
from widebnn.estimators.chains import LONGER, MARGIN, TRIAL, Length, drifts
from widebnn.sampling.sample import EVERY

pytestmark = pytest.mark.ambient
STILL = np.random.default_rng(0).normal(size=(2, 1000))


def lengths(lp, effective=lambda stats, draws: 40.0, is_enough=lambda stats, draws: True, wanted=100, most=1000):
    """What the rule says after every 20 draws, and the rule."""
    rule, found, done = Length(wanted, most, effective, is_enough), [], 0
    while done < (goal := found[-1] if found else most):
        done = min(done + EVERY, goal)
        found.append(math.ceil(rule({"lp": lp[:, :done]}, {}) / EVERY) * EVERY)
    return found, rule


def test_a_trial_decides_the_length_of_the_run_and_is_discarded():
    """40 of 80 draws are effective, 100 are wanted: 100 / (1/2) / 2 chains, and a margin."""
    found, rule = lengths(STILL)
    assert rule.first == TRIAL and found[0] == 1000
    assert found[-1] == math.ceil((TRIAL + MARGIN * 100) / EVERY) * EVERY


def test_a_run_that_falls_short_becomes_longer_by_half():
    asked = []

    def is_enough(stats, draws):
        asked.append(stats["lp"].shape[1])
        return len(asked) == 2

    found, _ = lengths(STILL, is_enough=is_enough)
    first = math.ceil((TRIAL + MARGIN * 100) / EVERY) * EVERY - TRIAL
    assert asked == [first, math.ceil((LONGER * first + TRIAL) / EVERY) * EVERY - TRIAL]
    assert found[-1] == asked[-1] + TRIAL


def test_the_run_begins_once_the_chains_have_settled_or_half_of_the_draws_are_over():
    arriving = STILL - 20 * np.exp(-np.arange(1000) / 30)
    _, rule = lengths(arriving)
    assert 60 < rule.first < 200
    never = STILL + np.arange(1000)
    _, rule = lengths(never)
    assert 450 <= rule.first <= 500


def test_there_are_never_more_than_the_most():
    found, _ = lengths(STILL, effective=lambda stats, draws: 0.0, is_enough=lambda stats, draws: False, most=200)
    assert found[-1] == 200


def test_a_resumed_run_ends_where_another_would():
    """Asked once, with all draws so far, it decides as if it had been asked all the time."""
    arriving = STILL - 20 * np.exp(-np.arange(1000) / 30)

    def effective(stats, draws):
        return float(ess(stats["lp"]))

    def is_enough(stats, draws):
        return effective(stats, draws) > 150

    found, rule = lengths(arriving, effective, is_enough)
    again = Length(100, 1000, effective, is_enough)
    assert math.ceil(again({"lp": arriving[:, : found[-1]]}, {}) / EVERY) * EVERY == found[-1]
    assert again.first == rule.first


def test_chains_whose_step_size_was_missed_are_ended_before_the_run():
    rule = Length(100, 1000, lambda stats, draws: 40.0, lambda stats, draws: True, may_miss=True)
    moving = {"lp": STILL[:, :20], "acceptance_rate": np.full((2, 20), 0.8)}
    assert rule(moving, {}) == 1000 and not rule.missed
    one_stands = {"lp": STILL[:, :40], "acceptance_rate": np.full((2, 40), [[0.8], [0.1]])}
    assert rule(one_stands, {}) == 40 and rule.missed


def test_drift_is_seen():
    noise = STILL[:, :40]
    assert not drifts(noise)
    assert drifts(noise + np.linspace(0, 10, 40))
    assert drifts(noise - np.array([[0], [1]]) * np.linspace(0, 10, 40))


# --- optional stopping, measured on chains whose law is known

WANTED, RHO, CHAINS = 100, 0.5, 2


def effective(x):
    return float(ess(x))


def until_enough(x):
    """What not to do: keep the draws as soon as they show enough effective ones."""
    return next(x[:, :n] for n in range(EVERY, 2000, EVERY) if effective(x[:, :n]) >= WANTED)


def by_trial(x):
    rule = Length(
        WANTED, 2000, lambda stats, _: effective(stats["lp"]), lambda stats, _: effective(stats["lp"]) >= WANTED
    )
    done, goal = 0, 2000
    while done < goal:
        done += EVERY
        goal = rule({"lp": x[:, :done]}, {})
    return x[:, rule.first : done]


def effect(rule, replicates):
    """(change of the variance of the draws, coverage of a 90 % interval of the mean), and their standard errors.

    Stationary autoregressive chains, x' = rho x + sqrt(1 - rho^2) N(0, 1), have mean 0 and variance 1; the variance
    about the mean of chains of a fixed length is 1 - Var(mean) on average.
    """
    rng = np.random.default_rng(0)
    found = []
    for _ in range(replicates):
        start, noise = rng.normal(size=(CHAINS, 1)), math.sqrt(1 - RHO**2) * rng.normal(size=(CHAINS, 2000))
        kept = rule(lfilter([1.0], [1.0, -RHO], noise, axis=1, zi=RHO * start)[0])
        n = kept.shape[1]
        half_width = 1.6449 * kept.std() / math.sqrt(effective(kept))
        lags = np.arange(1, n)
        variance_of_mean = (1 + 2 * np.sum((1 - lags / n) * RHO**lags)) / (n * CHAINS)
        found.append([kept.var() / (1 - variance_of_mean) - 1, abs(kept.mean()) < half_width])
    return np.mean(found, axis=0), np.std(found, axis=0) / math.sqrt(replicates)


@pytest.mark.long
def test_most_of_optional_stopping_is_gone():
    """Prints what each rule does to the draws that it keeps."""
    rules = {
        "a length given beforehand": lambda x: x[:, :220],
        "until the draws show enough": until_enough,
        "planned by a trial": by_trial,
    }
    fixed, until, trial = found = [effect(rule, 3000) for rule in rules.values()]
    for name, ((variance, coverage), errors) in zip(rules, found, strict=True):
        print(f"{name}: variance {variance:+.4f} +- {errors[0]:.4f}, coverage {coverage:.3f} +- {errors[1]:.3f}")
    assert abs(fixed[0][0]) < 4 * fixed[1][0], "the average variance of chains is not what it should be"
    assert until[0][0] < -4 * until[1][0], "the comparison does not see the effect"
    assert trial[0][0] > until[0][0] / 2
