"""Every sampler in every coordinate system leaves the exact law alone, and moves.

Here is the short form: fewer draws, and not all combinations of grid.py unless long tests are asked for; ``make
reliability`` runs them all.
"""

import grid
import pytest
from harness import ALPHA

SHORT = {("known noise", "auto", "function"), ("two hidden layers", "pcn", "function")}
SHORT |= {("all weights", "underdamped", "function"), ("single precision", "auto", "function")}
SHORT |= {("mixed precision", "auto", "function"), ("mixed precision", "pcnl", "weights")}


def is_short(setting, kernel, coordinates):
    return (setting == "known noise" and kernel != "auto") or (setting, kernel, coordinates) in SHORT


def parameters(of, is_short):
    """The combinations of some settings; those that are not short are marked as long."""
    wanted = [combination for combination in grid.combinations() if combination[0] in of]
    return [pytest.param(*c, marks=[] if is_short(*c) else [pytest.mark.long]) for c in wanted]


def check(setting, kernel, coordinates):
    outcome = grid.run(setting, kernel, coordinates)
    assert grid.moves(outcome, kernel), f"the chain hardly moved: the test would show nothing: {outcome}"
    assert len(outcome.first) >= 20
    assert outcome.conservation > ALPHA
    assert outcome.geweke > ALPHA


@pytest.mark.parametrize(
    ("setting", "name", "coordinates"),
    parameters({"known noise", "two hidden layers", "all weights", "single precision", "mixed precision"}, is_short),
)
def test_conservation_and_geweke(setting, name, coordinates):
    check(setting, name, coordinates)
