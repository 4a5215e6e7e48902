"""Deliberate mistakes in samplers and posteriors: each is caught by the test that the real ones pass."""

import bugs
import grid
import pytest

CAUGHT = [name for name in bugs.BUGS if name != bugs.INVISIBLE]
SHORT = (
    "dropped log det",
    "expanded pCNL ratio of the appendix",
    "one key for proposal and acceptance",
    "momentum refreshed by 1 - c",
    "slice: bracket that begins at the position",
    "hidden weights of least norm",
    "unknown noise: Jacobian of the logarithm",
    "classes not normalised",
)
"""One of each kind, tried without long tests: densities, ratios, keys, momenta, slices, open weights, scales, labels.

``make reliability`` tries all."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[grid.worker(bugs.BUGS[name].setting), *([] if name in SHORT else [pytest.mark.long])])
        for name in CAUGHT
    ],
)
def test_planted_bug_is_caught(name):
    outcome = bugs.outcome_of(name)
    assert bugs.is_caught(outcome), f"{name} went unnoticed: {outcome}"
