"""Every sampler in every coordinate system leaves the exact law alone, and moves."""

import pytest
from harness import ALPHA, joint_test, make_sampler, make_target

from widebnn.posteriors import COORDINATES
from widebnn.samplers import SAMPLERS


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("name", SAMPLERS)
def test_conservation_and_geweke(name, coordinates):
    # Slice sampling moves far, and under vmap all replicates wait for the slowest search.
    cycles = 3 if name == "elliptical_slice" else 6
    outcome = joint_test(make_target(coordinates), make_sampler(name, coordinates), cycles=cycles)
    assert outcome.moved > 0.1, "the chain hardly moved: the test would show nothing"
    assert outcome.conservation > ALPHA
    assert outcome.geweke > ALPHA


def test_turns_of_random_length():
    """Hilbert-space HMC as ``auto`` runs it, without a number of steps."""
    outcome = joint_test(
        make_target("function"), lambda log_likelihood: SAMPLERS["hilbert_hmc"](log_likelihood, 0.7), cycles=4
    )
    assert 0.3 < outcome.accepted < 0.99
    assert min(outcome.conservation, outcome.geweke) > ALPHA
