"""A small share of what make reliability does about NaN and overflow, and whether it would notice what goes wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nonfinite
from nonfinite import gaussian_problem, network_problem, run_injected
from page import Page
from widebnn.estimators.ascent import ascend
from widebnn.samplers import algorithm

pytestmark = pytest.mark.long


def is_clean(tally):
    return (
        tally.wrong == tally.accepted == tally.strayed == tally.bad_draws == tally.nonfinite == 0
        and min(tally.injected.values()) > 0
        and tally.warned == tally.counted > 0
    )


@pytest.mark.parametrize(
    ("name", "place", "rate"),
    [("hilbert_hmc", "gradient", 0.08), ("elliptical_slice", "likelihood", 0.25)],
)
def test_injections_are_counted(name, place, rate):
    """Infinite gradients and +inf in a slice once were not."""
    assert is_clean(run_injected(name, gaussian_problem(place, rate), rate, 400))


@pytest.mark.long
@pytest.mark.parametrize("name", nonfinite.OPTIONS)
def test_indefinite_kernels_are_counted(name):
    assert is_clean(run_injected(name, network_problem(0.1), 0.1, 200))


def metropolis(key, proposal, gradients=0):
    """Counts NaN and +inf only."""
    accept = jnp.log(jax.random.uniform(key, ())) < proposal.log_ratio
    state = jax.tree.map(lambda new, old: jnp.where(accept, new, old), proposal.state, proposal.otherwise)
    rate = jnp.exp(jnp.minimum(jnp.nan_to_num(proposal.log_ratio, nan=-jnp.inf), 0.0))
    return state, algorithm.Info(rate, accept, proposal.log_ratio < jnp.inf, gradients)


def test_samplers_that_count_wrongly_or_accept_infinity_are_found(monkeypatch):
    monkeypatch.setattr(algorithm, "metropolis", metropolis)
    assert run_injected("mala", gaussian_problem("gradient", 0.25), 0.25, 200).wrong > 0
    spoilt = run_injected("pcn", gaussian_problem("likelihood", 0.25), 0.25, 200)
    assert spoilt.accepted > 0 and spoilt.bad_draws > 0 and spoilt.nonfinite > 0


@pytest.mark.long
def test_a_wrong_law_is_found(monkeypatch):
    assert min(nonfinite.law_p_values("pcn", "likelihood", 0.25, 2000)[0]) > 1e-6
    right = algorithm.metropolis

    def accepting(key, proposal, gradients=0):
        """Goes to where the log-likelihood is NaN."""
        zero = jnp.where(jnp.isnan(proposal.log_ratio), 0.0, proposal.log_ratio)
        return right(key, proposal._replace(log_ratio=zero), gradients)

    monkeypatch.setattr(algorithm, "metropolis", accepting)
    assert min(nonfinite.law_p_values("pcn", "likelihood", 0.25, 2000)[0]) < 1e-6


def test_hopeless_starts_and_runs_are_named():
    page = Page("nonfinite", share=0.01)
    nonfinite.check_starts(page, ["mala"])
    nonfinite.check_hopeless_runs(page, ["pcn"])
    assert page.holds


def test_a_climb_ends_where_it_is_finite():
    """It once stayed at the first bad place that it came to."""
    problem = gaussian_problem("gradient", 0.2)
    ends = ascend(problem.target, 4, seed=0)
    assert np.all(problem.kind(ends) < 0)
    assert np.all(np.abs(ends[:, 1:] - nonfinite.CENTRE[1:] / 2) < 2.0)
