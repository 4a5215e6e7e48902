"""Deliberate mistakes in samplers and posteriors: each is caught by the test that the real ones pass."""

import bugs
import pytest

CAUGHT = [name for name in bugs.BUGS if name != bugs.INVISIBLE]
SHORT = CAUGHT[::6]
"""Tried without long tests; ``make reliability`` tries all."""


@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in CAUGHT]
)
def test_planted_bug_is_caught(name):
    outcome = bugs.outcome_of(name)
    assert bugs.is_caught(outcome), f"{name} went unnoticed: {outcome}"
