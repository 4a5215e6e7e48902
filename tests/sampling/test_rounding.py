"""float32 features where the chains are: a warning, an error with advice, and no chain that never moved."""

import warnings

import numpy as np
import pytest

import widebnn
from widebnn.data import load_dataset
from widebnn.errors import PrecisionError, PrecisionWarning
from widebnn.samplers.tree import inner
from widebnn.sampling import rounding

X = np.linspace(-2, 2, 20)[:, None]
Y = np.sin(2 * X[:, 0])


def target(noise, widths=(64,), dtype="float32"):
    return widebnn.posterior(widebnn.dense(1, widths), X, Y, noise=noise, dtype=dtype)


def messages(caught):
    return [str(w.message) for w in caught if issubclass(w.category, PrecisionWarning)]


@pytest.mark.some(1)
@pytest.mark.parametrize("sampler", ["pcnl", "pcn", "elliptical_slice"])
@pytest.mark.filterwarnings("ignore::widebnn.errors.PrecisionWarning")
def test_stops_after_warm_up_where_rounding_decides(sampler):
    with pytest.raises(PrecisionError, match=r"log acceptance ratio .* after warm-up, and rounding .* dtype='mixed'"):
        widebnn.sample(target(1e-3), sampler, steps=1000, burn_in=200)


@pytest.mark.some(1)
@pytest.mark.parametrize("dtype", ["float32", "mixed"])
@pytest.mark.filterwarnings("ignore::widebnn.errors.PrecisionWarning")
def test_stops_a_deep_chain_that_does_not_move(dtype):
    what, advice = ("log acceptance ratio", "mixed") if dtype == "float32" else ("gradient", "float64")
    with pytest.raises(PrecisionError, match=rf"{what} .* only 0\.\d% of the steps .* dtype='{advice}'"):
        widebnn.sample(target(1e-2, (64, 64), dtype), "pcnl", step_size=0.1, steps=1000, burn_in=200)


@pytest.mark.long
def test_warns_of_a_deep_chain_that_moves():
    """Another root of a singular kernel: other coordinates, the same distribution."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = widebnn.sample(target(0.1, (64, 64)), "pcnl", steps=200, burn_in=300)
    assert any("where the chains are after warm-up" in message for message in messages(caught))
    assert result.acceptance_rate > 0.2


def test_nearly_equal_inputs_and_tiny_noise_are_named_at_the_start_and_stop_at_the_end():
    x = np.random.default_rng(0).normal(size=(30, 4))
    x = np.vstack([x, x + 1e-3])
    y = np.random.default_rng(1).normal(size=(60, 1))

    def run(dtype):
        near = widebnn.posterior(widebnn.dense(4, [64]), x, y, noise=1e-3, dtype=dtype)
        widebnn.sample(near, "pcn", step_size=0.1, steps=2)

    with (
        pytest.warns(PrecisionWarning, match=r"log acceptance ratio.* at the start .*dtype='mixed', or 'float64', to"),
        pytest.raises(PrecisionError, match="at the end, and rounding decides what is accepted"),
    ):
        run("float32")
    with pytest.warns(PrecisionWarning, match=r"the gradient relatively.*dtype='float64'"):
        run("mixed")
    run("float64")


def test_warns_once_where_the_error_is_noticeable_in_the_bulk_only():
    """At the start, far from the bulk, nothing is wrong with float32 here."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        widebnn.sample(target(6e-3), "pcnl", steps=20, burn_in=500, chains=2)
    bulk = [message for message in messages(caught) if "where the chains are" in message]
    assert len(bulk) == 1 and "dtype='mixed'" in bulk[0]


@pytest.mark.some(1)
@pytest.mark.parametrize("widths", [(64,), (64, 64)])
@pytest.mark.filterwarnings("ignore::widebnn.errors.PrecisionWarning")
def test_the_advice_helps(widths):
    result = widebnn.sample(target(1e-2, widths, "mixed"), "pcnl", steps=50, burn_in=300)
    assert result.acceptance_rate > 0.2


def test_mixed_says_nothing_of_gradients_that_nobody_uses(recwarn):
    warnings.simplefilter("always")
    widebnn.sample(target(1e-3, (64,), "mixed"), "pcn", steps=20, burn_in=20)
    assert not [message for message in messages(recwarn) if "where the chains are" in message]


def test_the_proposal_at_the_start_is_not_along_the_position(monkeypatch, recwarn):
    """Its noise is independent of the start, which is a draw from N(0, I) too."""

    def along(u, w, step):
        return inner(u, w) ** 2 / (inner(u, u) * inner(w, w))

    monkeypatch.setattr(rounding, "precision_error", lambda target: along)
    widebnn.sample(target(0.3, (2000,)), "pcn", step_size=0.1, steps=1, chains=2)
    assert not messages(recwarn)


def test_is_quiet_where_float32_is_precise_enough():
    """Images of digits depend on one another linearly, which is not a matter of precision. Warnings are errors here."""
    data = load_dataset("digits", 256, 8)
    digits = widebnn.posterior(widebnn.dense(64, [256]), data.x_train, data.y_train)
    widebnn.sample(digits, "pcn", step_size=0.1, steps=10, burn_in=5, progress=False)
    widebnn.sample(target(0.3), "pcnl", steps=50, burn_in=200)
