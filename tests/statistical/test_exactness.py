"""Every sampler in every coordinate system of every model leaves the exact joint distribution unchanged, and moves.

Here is the short form: fewer draws, and not all combinations of grid.py unless long tests are asked for; ``make
reliability`` runs them all.
"""

import grid
import pytest
from harness import ALPHA

SHORT = {
    # Tried without long tests: every setting, sampler and coordinate system.
    ("known noise", "underdamped", "marginal"),
    ("unknown noise", "mala", "reparametrised"),
    ("noise of every row", "hmc", "function"),
    ("noise of the inputs", "hmc", "function"),
    ("softmax", "elliptical_slice", "function"),
    ("softmax of unknown scale", "hilbert_hmc", "weights"),
    ("two hidden layers", "pcn", "function"),
    ("all weights", "rwmh", "function"),
    ("single precision", "auto", "function"),
    ("mixed precision", "pcnl", "function"),
}
COMBINATIONS = [
    pytest.param(*c, marks=[grid.worker(c[0]), *([] if c in SHORT else [pytest.mark.long])])
    for c in grid.combinations()
]


@pytest.mark.parametrize(("setting", "sampler", "coordinates"), COMBINATIONS)
def test_conservation_and_geweke(setting, sampler, coordinates):
    outcome = grid.run(setting, sampler, coordinates)
    assert grid.moves(outcome, sampler), f"the chain hardly moved: the test would show nothing: {outcome}"
    assert len(outcome.first) >= 20
    assert outcome.conservation > ALPHA
    assert outcome.geweke > ALPHA
