"""What is wrong is said before anything expensive; the time of a fit is known before it begins."""

import jax
import numpy as np
import pytest

from widebnn.errors import WidebnnError
from widebnn.estimators import WideBNNClassifier, WideBNNRegressor, base, chains, cost
from widebnn.estimators.chains import Clock, Plan
from widebnn.estimators.cost import Cost, check_time, gradients, in_words, multiplications
from widebnn.networks.dense import dense
from widebnn.posteriors import posterior

pytestmark = pytest.mark.ambient
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(30, 2)), RNG.normal(size=30)


@pytest.fixture
def no_search(monkeypatch):
    """The search for hyperparameters must not begin."""

    def fail(*arguments, **options):
        pytest.fail("the search has begun")

    monkeypatch.setattr(base, "choose_hyperparameters", fail)
    monkeypatch.setattr("widebnn.estimators.regressor.choose_asinh", fail)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"sampler": "hilbert_hmv"}, "sampler must be one of .* Did you mean 'hilbert_hmc'"),
        ({"chains": 0}, "chains must be at least 1, got 0"),
        ({"chains": 1.5}, "chains must be a whole number"),
        ({"burn_in": 0}, "burn_in must be at least 1"),
        ({"target_ess": 0}, "target_ess must be at least 1"),
        ({"max_steps": 3}, "max_steps must be at least 4"),
        ({"max_minutes": 0}, "max_minutes must be greater than 0"),
        ({"step_size": -0.1}, "step_size must be"),
        ({"sampler": "elliptical_slice", "step_size": 0.1}, "sampler 'elliptical_slice'"),
        ({"width": 0}, "width must be at least 1"),
        ({"depth": 0}, "depth must be at least 1"),
        ({"activation": "tanh"}, "activation must be one of"),
        ({"weight_std": 0}, "weight_std must be greater than 0, got 0"),
        ({"bias_std": -1}, "bias_std must be at least 0, got -1"),
        ({"noise": "often"}, "noise, if not a number, must be one of"),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_parameters_are_checked_before_the_search(no_search, parameters, message, kind):
    model = WideBNNRegressor() if kind == "regressor" else WideBNNClassifier(likelihood="regression")
    with pytest.raises(WidebnnError, match=message):
        model.set_params(**parameters).fit(X, Y if kind == "regressor" else Y > 0)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"target_transform": "log"}, "target_transform must be one of"),
        ({"noise_tails": "light"}, "noise_tails must be one of"),
        ({"noise_tails": "heavy", "noise": 0.1}, "leave one out"),
        ({"noise_tails": "heavy", "target_transform": "asinh"}, "needs noise_tails='normal'"),
        ({"target_transform": "asinh", "noise": 0.1}, "leave one out"),
    ],
    ids=str,
)
def test_combinations_are_checked_before_the_search(no_search, parameters, message):
    with pytest.raises(WidebnnError, match=message):
        WideBNNRegressor(**parameters).fit(X, Y)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_biases_may_be_zero():
    scales = {"weight_std": 1.0, "readout_weight_std": 1.0, "bias_std": 0, "readout_bias_std": 0, "noise": 0.3}
    tiny = {"width": 8, "depth": 1, "activation": "erf", "input_scales": False, "chains": 1, "burn_in": 4}
    sampling = {"sampler": "pcn", "step_size": 0.2, "max_steps": 4, "random_state": 0}
    model = WideBNNRegressor(**tiny, **scales, **sampling).fit(X, Y)
    assert (model.network_.bias_std, model.network_.readout_bias_std) == (0.0, 0.0)
    # An odd activation without biases is an odd function, whatever its weights.
    np.testing.assert_allclose(
        model.predict(X) - model.y_mean_, model.y_mean_ - model.predict(2 * model.x_mean_ - X), atol=1e-4
    )


# --- precision


def line(noise):
    """Nearly equal inputs: with little noise float32 features are not precise enough."""
    x = np.linspace(0, 1, 40)[:, None]
    network = dense(1, [64], "erf", weight_std=3.0, bias_std=2.0)
    return lambda dtype: posterior(network, x, np.sin(6 * x), noise=noise, dtype=dtype)


PLAN = {"step_size": None, "chains": 2, "burn_in": 10, "wanted": 10, "most": 20, "progress": False, "store": None}


def plan(sampler):
    return Plan(sampler=sampler, clock=Clock(None), **PLAN)


@pytest.mark.parametrize(("noise", "dtype"), [(0.3, "mixed"), (1e-6, "float64")])
def test_precision_is_what_the_error_asks_for(noise, dtype):
    target, positions = chains._start(line(noise), plan("auto"), seed=0)
    assert target.dtype == dtype
    assert chains.rounding_error(target, positions, seed=5) < chains.FORCE_ERROR


def test_rounding_error_is_a_number():
    build = line(1e-4)
    errors = {}
    for dtype in ("float32", "float64"):
        target = build(dtype)
        errors[dtype] = chains.rounding_error(target, chains.first_positions(target, plan("pcn"), 0), 0)
    assert errors["float64"] == 0.0 and errors["float32"] > 0.01
    target = build("float32")
    bad = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), chains.first_positions(target, plan("pcn"), 0))
    assert chains.rounding_error(target, bad, 0) == 0, "float64 is not finite there either: nothing to compare"


def test_errors_are_not_caught_to_try_another_precision(monkeypatch):
    tried = []

    def build(dtype):
        tried.append(dtype)
        raise WidebnnError("no")

    with pytest.raises(WidebnnError, match="no"):
        chains._start(build, plan("auto"), seed=0)
    assert tried == ["mixed"]


# --- memory and time


def test_too_little_memory_is_found_before_the_search(no_search, monkeypatch):
    monkeypatch.setattr(base, "QUICK", 0.0)
    monkeypatch.setattr(cost, "physical_memory", lambda: 1000)
    with pytest.raises(WidebnnError, match=r"2 chains with 30 rows takes .* GB, more than the 0.0 GB .* fewer rows"):
        WideBNNRegressor(width=64, depth=1).fit(X, Y)


def test_too_little_time_is_found_before_the_search(no_search, monkeypatch):
    monkeypatch.setattr(base, "QUICK", 0.0)
    monkeypatch.setattr(base, "measure_gradient", lambda target, chains: 1.4)
    with pytest.raises(WidebnnError, match=r"30 rows at width 64: .* 2.6 hours, more than max_minutes=20: fit at most"):
        WideBNNRegressor(width=64, depth=1, burn_in=50).fit(X, Y)


def test_a_fit_that_was_begun_is_not_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(base, "QUICK", 0.0)
    monkeypatch.setattr(base, "measure_gradient", lambda target, chains: 1.4)
    monkeypatch.setattr(base, "choose_hyperparameters", lambda *_, **__: 1 / 0)
    model = WideBNNRegressor(width=64, depth=1, target_transform="none", store=str(tmp_path))
    with pytest.raises(WidebnnError):
        model.fit(X, Y)
    (tmp_path / "mixed").mkdir()
    with pytest.raises(ZeroDivisionError):
        model.fit(X, Y)


def test_the_time_is_said_first(monkeypatch, capsys):
    monkeypatch.setattr(base, "QUICK", 0.0)
    monkeypatch.setattr(base, "choose_hyperparameters", lambda *_, **__: 1 / 0)
    model = WideBNNRegressor(width=64, depth=1, target_transform="none")
    for progress, said in ((None, True), (False, False)):
        with pytest.raises(ZeroDivisionError):
            model.set_params(progress=progress).fit(X, Y)
        assert ("30 rows: a gradient takes" in capsys.readouterr().err) == said


def test_time_and_rows():
    """Twice the rows take twice the time where they are more than the units, and the advice keeps the limit."""
    few, most = gradients("auto", chains=2, burn_in=4, wanted=400, most=1000)
    assert few == 2 * (400 + 50 * 4 + 50 * 10) and most == 2 * (400 + 50 * 4 + 50 * 800)
    assert gradients("pcn", chains=1, burn_in=100, wanted=400, most=1000) == (110, 1100)
    assert multiplications(20_000, 8, (1024,)) == 2 * multiplications(10_000, 8, (1024,))
    assert multiplications(200, 8, (1024, 1024)) > multiplications(200, 8, (1024,))
    large = Cost(41_157, 8, (1024,), 3.0, few, most)
    with pytest.raises(WidebnnError, match=r"41157 rows at width 1024: .* about 113 minutes, more than .*=10: "):
        check_time(large, 600.0)
    rows = large.rows_within(600.0)
    assert 1000 <= rows < 6000 and large.seconds(few, rows) <= 600 < large.seconds(few, rows + 1000)
    assert check_time(large, np.inf) is None and check_time(large, 4 * 3600.0) is None
    assert "more than max_minutes=60" in check_time(large, 3600.0)
    assert [in_words(s) for s in (50.0, 200.0, 3000.0, 9000.0, 90_000.0)] == [
        "50 seconds", "3.3 minutes", "50 minutes", "2.5 hours", "25 hours",
    ]  # fmt: skip
