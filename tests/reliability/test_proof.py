"""The statistical proof at a small share of its trials: it passes on what is right and fails on what is wrong."""

import bugs
import grid
import numpy as np
import pytest
from agreement import Moments, p_values, pairs

import proof
from page import Page

COMBINATIONS = [("known noise", "pcn", "marginal"), ("known noise", "pcn", "function")]

pytestmark = pytest.mark.long


def in_turn(what, function, jobs):
    return [function(job) for job in jobs]


@pytest.fixture
def page():
    return Page("proof", share=0.01)


def failed(page):
    return [check["what"].split(":")[0] for check in page.checks if not check["holds"]]


def test_joint_tests_hold(page):
    threshold = proof.joint_tests(page, in_turn, COMBINATIONS)
    assert page.holds and len(page.checks) == 5
    assert 0 < threshold < proof.PER_PART / 100


def test_joint_tests_fail_with_a_wrong_target_and_with_a_chain_that_stands_still(page, monkeypatch):
    right, bug = grid.SETTINGS["known noise"], bugs.BUGS["dropped log det"]
    monkeypatch.setitem(grid.SETTINGS, "wrong", right._replace(target_of=lambda coordinates: bug.target_of))
    monkeypatch.setitem(grid.SETTINGS, "still", right._replace(step_sizes={"": {"pcn": 1e-4}}))
    proof.joint_tests(page, in_turn, [("wrong", "pcn", "marginal")])
    assert "joint tests, after 4 turns" in failed(page)
    still = Page("proof", share=0.01)
    proof.joint_tests(still, in_turn, [("still", "pcn", "marginal")])
    assert failed(still) == ["joint tests"]


def test_caches_are_right_and_stale_ones_are_seen(page, monkeypatch):
    proof.cached(page)
    assert page.holds
    stale = bugs.BUGS["stale gradient after a rejection"].sampler_of
    monkeypatch.setattr(proof, "make_sampler", lambda name: stale)
    proof.cached(page, ["mala"])
    assert not page.holds


def test_calibration_holds_and_sees_a_planted_bug(page, monkeypatch):
    monkeypatch.setattr(proof, "MISCALIBRATED", "printed sign of the quadratic form")
    lengths = {("known noise", "pcn", "marginal"): {"burn_in": 200, "thin": 60, "draws": 15}}
    proof.calibrations(page, in_turn, lengths)
    assert page.holds and len(page.checks) == 2


def test_disagreement_is_seen():
    mean, error = np.zeros(30), np.full(30, 0.1)
    right = {
        name: Moments(mean + 0.1 * np.random.default_rng(i).normal(size=30), error, 1e3) for i, name in enumerate("abc")
    }
    assert set(pairs(right)) == {"a, b", "a, c", "b, c"}
    assert min(p.min() for p in pairs(right).values()) > 1e-4
    shifted = right["a"]._replace(mean=mean + np.eye(30)[3])
    assert p_values(shifted, right["b"]).min() < 1e-6
    assert p_values(right["a"]._replace(error=np.full(30, np.nan)), right["b"]).min() == 0.0


def test_a_bug_that_is_missed_is_named(page, monkeypatch):
    found = {"seen": True, "not seen": False}
    monkeypatch.setattr(proof, "planted", found.get)
    proof.planted_bugs(page, in_turn, ["seen"])
    assert page.holds
    proof.planted_bugs(page, in_turn, ["seen", "not seen"])
    assert not page.holds and page.checks[-1]["figure"] == "1 of 2; not: not seen"


@pytest.mark.long
def test_power_is_that_of_plain_mistakes(page):
    proof.power(page, in_turn, ["noise variance too large"], threshold=0.0)
    assert page.holds and page.checks[0]["figure"] == "8000 replicates: 0.3: 1 of 1"


@pytest.mark.long
def test_agreement_holds(page):
    proof.agreements(page, in_turn)
    assert page.holds


def test_the_proof_is_of_all_that_was_asked_for():
    assert len(list(grid.combinations())) >= 100
    assert len(bugs.BUGS) >= 20
    assert proof.DATASETS == 1000
    assert all(combination in set(grid.combinations()) for combination in proof.CALIBRATED)
