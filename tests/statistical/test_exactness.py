"""Every sampler in every coordinate system of every model leaves the exact joint distribution unchanged, and moves.

Here is the short form: fewer draws, and not all combinations of grid.py unless long tests are asked for; ``make
reliability`` runs them all.
"""

import grid
import pytest
from harness import ALPHA

EVERY = grid.KERNELS
SHORT = {
    # setting: coordinates -> samplers that are tried without long tests
    "known noise": dict.fromkeys(("weights", "reparametrised", "marginal"), ("pcn", "hmc")) | {"function": EVERY},
    "unknown noise": dict.fromkeys(("weights", "reparametrised", "marginal"), ("pcn",))
    | {"function": ("hilbert_hmc",)},
    "noise of every row": {"weights": ("pcn",), "function": ("pcn",)},
    "softmax": dict.fromkeys(("weights", "marginal"), ("pcn",)) | {"function": ("hilbert_hmc", "elliptical_slice")},
    "softmax of unknown scale": {"weights": ("pcn",), "function": ("hilbert_hmc",)},
    "two hidden layers": {"function": ("pcn",)},
    "all weights": {"function": ("underdamped",)},
    "single precision": {"function": ("auto",)},
    "mixed precision": {"function": ("auto",)},
}
COMBINATIONS = [
    pytest.param(*c, marks=[] if c[1] in SHORT[c[0]].get(c[2], ()) else [pytest.mark.long]) for c in grid.combinations()
]


@pytest.mark.parametrize(("setting", "sampler", "coordinates"), COMBINATIONS)
def test_conservation_and_geweke(setting, sampler, coordinates):
    outcome = grid.run(setting, sampler, coordinates)
    assert grid.moves(outcome, sampler), f"the chain hardly moved: the test would show nothing: {outcome}"
    assert len(outcome.first) >= 20
    assert outcome.conservation > ALPHA
    assert outcome.geweke > ALPHA
