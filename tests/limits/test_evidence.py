"""Hyperparameters by evidence: the closed form, its gradient at degenerate inputs, and what the search finds."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from widebnn.errors import WidebnnError
from widebnn.limits import choice as choice_module
from widebnn.limits import choose_hyperparameters, gp_posterior, nngp_kernel
from widebnn.limits import log_evidence as log_evidence_of
from widebnn.limits.evidence import Candidate
from widebnn.limits.kernel import CLOSED_FORMS
from widebnn.limits.row_noise import fit_row_noise
from widebnn.limits.scales import Objective, minimise
from widebnn.networks import dense

NAMES = ("weight_std", "bias_std", "readout_weight_std", "readout_bias_std", "noise")
SCALES = dict(zip(NAMES, (1.3, 0.4, 0.8, 0.7, 0.3), strict=True))
DEPTHS = (1, 2, 3)
# The prior as the docstring states it: medians, and standard deviations of the logs.
MEDIANS = dict(zip(NAMES, (math.sqrt(2), 0.1, 1.0, 0.1, 0.1), strict=True))
LOG_SDS = dict(zip(NAMES, (1.0, 1.5, 1.0, 1.5, 1.5), strict=True))


def degenerate_data(outputs=2):
    """Repeated, doubled, opposite and zero inputs among random ones."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10, 3))
    x[3], x[4], x[5], x[6], x[7] = x[1], x[1], 2 * x[1], -x[1], 0.0
    return x, rng.normal(size=(10, outputs))


def regression_data(n=40, noise=0.2, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    return x, np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] + noise * rng.normal(size=n)


def log_evidence(depth, activation, scales, x, y):
    """By the kernel of a network, one triangle of it, instead of the compiled kernel of the search."""
    network_scales = {name: value for name, value in scales.items() if name != "noise"}
    network = dense(x.shape[1], [1] * depth, activation, **network_scales)
    return gp_posterior(network, x, y, scales["noise"], x[:1]).log_evidence


def penalised(depth, activation, scales, x, y, fixed=None):
    """Evidence times the prior of the scales that are not fixed."""
    z = [math.log(scales[name] / MEDIANS[name]) / LOG_SDS[name] for name in scales]
    return log_evidence(depth, activation, scales | (fixed or {}), x, y) - 0.5 * np.sum(np.square(z))


def scales_of(result):
    return {name: getattr(result, name) for name in NAMES}


# --- the evidence and its gradient


def test_evidence_equals_that_of_the_gaussian_process():
    x, y = degenerate_data()
    result = choose_hyperparameters(x, y, depths=DEPTHS, activations=tuple(CLOSED_FORMS), fixed=SCALES)
    assert [(depth, name) for depth, name, _ in result.candidates] == list(itertools.product(DEPTHS, CLOSED_FORMS))
    for depth, name, value in result.candidates:
        assert value == pytest.approx(log_evidence(depth, name, SCALES, x, y), rel=1e-11)


@pytest.mark.some(6)
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", CLOSED_FORMS)
@pytest.mark.parametrize("bias_std", [0.4, 0.0])
def test_gradient_equals_finite_differences(name, depth, bias_std):
    """At inputs with correlations of exactly +-1; without biases a variance is 0, too."""
    x, y = degenerate_data()
    candidate = Candidate(x @ x.T / x.shape[1], y, depth, name)
    with np.errstate(divide="ignore"):
        log_scales = np.log(list((SCALES | {"bias_std": bias_std}).values()))

    def difference(i, step=1e-4):
        def central(h):
            values = [candidate.log_evidence(log_scales + sign * h * np.eye(5)[i])[0] for sign in (1, -1)]
            return (values[0] - values[1]) / (2 * h)

        return (4 * central(step / 2) - central(step)) / 3

    numerical = [0.0 if np.isinf(log_scales[i]) else difference(i) for i in range(5)]
    np.testing.assert_allclose(candidate.log_evidence(log_scales)[1], numerical, rtol=1e-7, atol=1e-7)


@pytest.mark.some(2)
@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_gradient_is_finite_at_extreme_scales(name):
    """The ends of the search intervals, three layers, also with the largest inputs there may be."""
    x, y = degenerate_data()
    for scales in ([20.0, 1e-3, 100.0, 1e-3, 1e4], [0.05, 20.0, 0.01, 20.0, 10.0], [20.0, 20.0, 0.01, 20.0, 10.0]):
        for factor in (1.0, 1e4):
            candidate = Candidate(factor**2 * x @ x.T / 3, y, 3, name)
            value, gradient = candidate.log_evidence(np.log(np.array(scales) * [1, 1, 1, 1, factor**2]))
            assert np.isfinite(value)
            assert np.all(np.isfinite(gradient))


# --- the search


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("name", "fixed"),
    [("gelu", {}), ("relu", {}), ("relu", {"noise": 0.35, "bias_std": 0.0, "readout_bias_std": 25.0})],
)
def test_scales_are_a_maximum(name, fixed):
    """Of evidence times prior, both computed here: better than 10 % more or less of each; what is fixed stays."""
    x, y = regression_data()
    result = choose_hyperparameters(x, y, depths=1, activations=name, fixed=fixed)
    scales = scales_of(result)
    assert scales | fixed == scales
    free = {scale: value for scale, value in scales.items() if scale not in fixed}
    best = penalised(1, name, free, x, y, fixed)
    assert fixed or best > penalised(1, name, MEDIANS, x, y) + 1
    for scale, factor in itertools.product(free, (0.9, 1 / 0.9)):
        assert penalised(1, name, free | {scale: factor * free[scale]}, x, y, fixed) < best
    assert result.log_evidence == pytest.approx(log_evidence(1, name, scales, x, y), rel=1e-10)


def test_search_finds_the_better_of_two_maxima():
    """A fast sine: from the defaults the search ends in "all is noise", 24 units below the sine."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-1.7, 1.7, size=(40, 1))
    y = np.sin(8 * x[:, 0]) + 0.2 * rng.normal(size=40)
    result = choose_hyperparameters(x, y, depths=1, activations="gelu")
    assert 0.1 < result.noise < 0.4
    # All is noise, on the other hand, is found where it is true.
    result = choose_hyperparameters(x, rng.normal(size=40), depths=1, activations="gelu")
    assert 0.7 < result.noise < 1.3


@pytest.mark.some(1)
@pytest.mark.parametrize("noise", [0.1, 0.5])
def test_noise_is_recovered(noise):
    """Data of an infinitely wide network: the error of log noise is within 4 standard errors, and they are small."""
    rng = np.random.default_rng(7)
    truth = dense(3, [1], "gelu", bias_std=0.5)
    x = rng.normal(size=(150, 3))
    covariance = nngp_kernel(truth, x) + noise**2 * np.eye(150)
    y = np.linalg.cholesky(covariance) @ rng.normal(size=(150, 2))
    result = choose_hyperparameters(x, y, depths=1, activations="gelu")
    objective = Objective(Candidate(x @ x.T / 3, y, 1, "gelu"), {})
    z = np.array([math.log(getattr(result, name) / MEDIANS[name]) / LOG_SDS[name] for name in NAMES])
    gradient = objective(z)[1]
    np.testing.assert_allclose(gradient, 0, atol=0.5)
    hessian = np.array([(objective(z + 1e-4 * e)[1] - objective(z - 1e-4 * e)[1]) / 2e-4 for e in np.eye(5)])
    error = LOG_SDS["noise"] * math.sqrt(np.linalg.inv(hessian)[4, 4])
    assert error < 0.07
    assert abs(math.log(result.noise / noise)) < 4 * error


def test_noise_stays_above_its_least():
    """Of a function without noise; what is fixed need not."""
    x = np.linspace(-2, 2, 40)[:, None]
    y = np.sin(2 * x)
    options = {"depths": 1, "activations": "erf"}
    assert choose_hyperparameters(x, y, **options).noise < 0.01
    assert choose_hyperparameters(x, y, **options, least_noise=0.05).noise == pytest.approx(0.05, rel=1e-6)
    assert choose_hyperparameters(x, y, **options, least_noise=0.05, fixed={"noise": 0.02}).noise == 0.02


def test_chosen_is_the_best_candidate():
    """Data of a network with two layers of steep erfs: relu is far behind."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(40, 2))
    truth = dense(2, [1, 1], "erf", weight_std=4.0)
    y = np.linalg.cholesky(nngp_kernel(truth, x) + 0.01 * np.eye(40)) @ rng.normal(size=(40, 1))
    result = choose_hyperparameters(x, y, depths=(1, 2), activations=("relu", "erf", "relu"))
    assert [candidate[:2] for candidate in result.candidates] == [(1, "relu"), (1, "erf"), (2, "relu"), (2, "erf")]
    values = [candidate[2] for candidate in result.candidates]
    assert result.candidates[int(np.argmax(values))] == (result.depth, result.activation, result.log_evidence)
    assert result.activation == "erf"
    assert result.log_evidence > values[0] + 3
    # The network carries everything but the noise.
    network = result.network(2, 64)
    assert network.widths == (64,) * result.depth
    by_network = gp_posterior(network, x, y, result.noise, x[:1]).log_evidence
    assert by_network == pytest.approx(result.log_evidence, rel=1e-10)


def test_failed_factorisations_do_not_stop_the_search():
    """A quadratic with its minimum next to a region where everything is infinite."""
    peak = np.array([0.7, 0.5])
    failures = 0

    def function(z):
        nonlocal failures
        failed = z[0] > peak[0] + 0.02
        failures += failed
        offset = z - peak
        return (math.inf, np.zeros(2)) if failed else (500 * offset @ offset, 1000 * offset)

    found = minimise(function, np.zeros(2), np.array([[-3.0, 3.0]] * 2))
    assert failures > 0
    np.testing.assert_allclose(found, peak, atol=1e-3)


# --- one scale per input


@pytest.mark.some(1)
@pytest.mark.parametrize("depth", DEPTHS)
def test_gradient_in_the_scales_of_inputs(depth):
    x, y = regression_data()
    objective = Objective(Candidate(x, y[:, None], depth, "gelu"), {"noise": 0.2}, inputs=x.shape[1])
    z = 0.3 * np.random.default_rng(0).normal(size=4 + x.shape[1])
    numeric = [(objective(z + 1e-5 * e)[0] - objective(z - 1e-5 * e)[0]) / 2e-5 for e in np.eye(len(z))]
    np.testing.assert_allclose(objective(z)[1], numeric, rtol=1e-5, atol=1e-6)


def test_inputs_that_do_not_matter_get_small_scales():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(80, 4))
    y = np.sin(2 * x[:, 1]) + 0.1 * rng.normal(size=80)
    options = {"depths": 1, "activations": "gelu"}
    equal, own = (choose_hyperparameters(x, y, **options, input_scales=own) for own in (False, True))
    assert equal.input_scales is None
    assert own.log_evidence > equal.log_evidence + 20
    assert np.argmax(own.input_scales) == 1
    assert np.max(np.delete(own.input_scales, 1)) < 0.3 * own.input_scales[1]
    # They are multiplied into the inputs, and the evidence is then that of the network.
    network = own.network(4, 64)
    by_network = gp_posterior(network, x * np.array(own.input_scales), y[:, None], own.noise, x[:1]).log_evidence
    assert by_network == pytest.approx(own.log_evidence, rel=1e-10)
    assert log_evidence_of(own, x, y) == pytest.approx(own.log_evidence, rel=1e-10)


# --- noise that differs from row to row


@pytest.mark.some(1)
@pytest.mark.parametrize("outputs", [1, 2])
def test_row_noise_is_recovered(outputs):
    rng = np.random.default_rng(2)
    variances = rng.uniform(0.0, 0.05, size=4000)
    noise = 0.3 * np.exp(0.6 * rng.normal(size=4000))
    errors = np.sqrt(variances + noise**2)[:, None] * rng.normal(size=(4000, outputs))
    median, spread = fit_row_noise(errors, variances, 0.4, always=False)
    assert median == pytest.approx(0.3, rel=0.07) and spread == pytest.approx(0.6, rel=0.1)
    equal = np.sqrt(variances + 0.3**2)[:, None] * rng.normal(size=(4000, outputs))
    assert fit_row_noise(equal, variances, 0.4, always=False) is None
    assert fit_row_noise(equal, variances, 0.4, always=True)[1] < 0.2


# --- many rows


def test_few_rows_first_then_all_gives_the_same(monkeypatch):
    x, y = regression_data()
    direct = choose_hyperparameters(x, y, depths=1, activations="gelu")
    calls = []
    monkeypatch.setattr(choice_module, "_COMPARED_ROWS", 25)
    staged = choose_hyperparameters(x, y, depths=1, activations="gelu", watch=lambda _, word: calls.append(word))
    few, many = (calls.count(f"gelu, 1 hidden layer, {rows} rows") for rows in (25, 40))
    assert few > many > 0
    np.testing.assert_allclose(list(scales_of(staged).values()), list(scales_of(direct).values()), rtol=0.02)


def test_more_rows_decide_between_the_best_few(monkeypatch):
    """Against fits of every activation to that many rows by itself."""
    monkeypatch.setattr(choice_module, "_COMPARED_ROWS", 10)
    x, y = regression_data()
    y = y + 0.8 * np.random.default_rng(1).normal(size=y.shape)  # so that ten rows do not tell one from the other
    overruled = 0
    for seed in range(6):
        options = {"depths": 1, "seed": seed}
        monkeypatch.setattr(choice_module, "_COMPARED_AGAIN", (20,))
        found = choose_hyperparameters(x, y, **options)
        monkeypatch.setattr(choice_module, "_COMPARED_AGAIN", ())
        alone = {
            name: choose_hyperparameters(x, y, **options, activations=name, max_rows=20).log_evidence
            for name in ("gelu", "relu", "erf")
        }
        assert alone[found.activation] > max(alone.values()) - 0.02
        overruled += found.activation != max(found.candidates, key=lambda candidate: candidate[2])[1]
    assert overruled


def test_progress_only_grows():
    x, y = regression_data()
    seen = []
    choose_hyperparameters(x, y, depths=1, input_scales=True, watch=lambda *told: seen.append(told))
    shares = [share for share, _ in seen]
    assert shares[0] > 0 and shares == sorted(shares) and 0.5 < shares[-1] <= 1
    words = list(dict.fromkeys(word for _, word in seen))
    assert words == [f"{name}, 1 hidden layer, 40 rows" for name in ("gelu", "relu", "erf")]


def test_subset_of_rows():
    x, y = regression_data(n=100)
    options = {"depths": 1, "activations": "gelu", "max_rows": 40}
    result = choose_hyperparameters(x, y, **options)
    assert result == choose_hyperparameters(x, y, **options)
    assert result != choose_hyperparameters(x, y, **options, seed=1)
    # Rows of x and y stay together: with one row, the evidence is that of one of the rows.
    singles = [log_evidence(1, "gelu", SCALES, x[i : i + 1], y[i : i + 1]) for i in range(100)]
    options |= {"max_rows": 1, "fixed": SCALES}
    values = [choose_hyperparameters(x, y, **options, seed=seed).log_evidence for seed in range(5)]
    assert len(set(values)) > 1
    assert all(np.min(np.abs(np.array(singles) - value)) < 1e-12 for value in values)


# --- odd and bad input


def test_copies_of_rows_prove_nothing():
    """Records that stand twice in a table are no repeated observations without noise."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = np.sin(x[:, 0]) + 0.5 * rng.normal(size=60)
    options = {"depths": 1, "activations": "gelu"}
    alone = choose_hyperparameters(x, y, **options)
    copied = choose_hyperparameters(np.vstack([x, x[:20]]), np.concatenate([y, y[:20]]), **options)
    assert copied == alone and alone.noise > 0.3
    # Repeats that differ are observations, also those that happen to agree.
    other = choose_hyperparameters(np.vstack([x, x[:20]]), np.append(y, [*y[:19], y[19] + 0.5]), **options)
    assert other.log_evidence < alone.log_evidence - 10, "that of 80 rows"


def test_one_row_gives_nearly_the_prior():
    result = choose_hyperparameters([[0.3, -1.0]], [0.5], depths=1, activations="gelu")
    for name in NAMES:
        assert 0.5 < getattr(result, name) / MEDIANS[name] < 2
    assert np.isfinite(result.log_evidence)


@pytest.mark.some(1)
@pytest.mark.parametrize("constant", [0.0, 1.0])
def test_constant_outputs(constant):
    """The noise goes to its lower end, no further."""
    x, _ = regression_data()
    result = choose_hyperparameters(x, np.full(40, constant), depths=1, activations="gelu")
    assert result.noise == pytest.approx(1e-3, rel=1e-6)
    assert np.all(np.isfinite([*scales_of(result).values(), result.log_evidence]))


def test_constant_inputs():
    result = choose_hyperparameters(np.zeros((40, 2)), regression_data()[1], depths=1, activations="relu")
    assert np.std(regression_data()[1]) == pytest.approx(result.noise, rel=0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": [[1.0, math.nan]] * 40}, "x has 40 NaN or infinite entries"),
        ({"x": np.ones(40)}, r"x must be a 2-D array.*\(40,\).*reshape"),
        ({"x": np.ones((40, 0))}, r"x must have at least one row and one column; got shape \(40, 0\)"),
        ({"y": np.ones((40, 1, 1))}, r"y must have shape \(n,\) or \(n, outputs\); got \(40, 1, 1\)"),
        ({"y": np.ones((40, 0))}, "y must have at least one row and one column"),
        ({"y": ["a"] * 40}, "y must be a numeric array"),
        ({"y": [math.inf] * 40}, "y has 40 NaN or infinite entries"),
        ({"x": np.full((40, 2), 1e5)}, r"x must be roughly standardised, entries of 100000 .*subtract the mean"),
        ({"y": np.full(40, -1e5)}, "y must be roughly standardised, entries of 100000"),
        ({"y": np.ones(39)}, "same number of rows; got 40 and 39"),
        ({"activations": ("gelu", "tanh")}, "has a closed form, relu, erf, sin, gelu; got 'tanh'. Leave it out"),
        ({"activations": ()}, r"must not be empty; got \[1\] and \[\]"),
        ({"depths": ()}, r"must not be empty"),
        ({"depths": (1, 0)}, "each of depths must be at least 1, got 0"),
        ({"depths": (1.5,)}, "each of depths must be a whole number"),
        ({"activations": jnp.tanh}, "has a closed form, relu, erf, sin, gelu; got .*tanh"),
        ({"fixed": 0.1}, "fixed must map names of scales to values.*got 0.1"),
        ({"fixed": {"weight_sd": 1.0}}, "each name in fixed must be one of weight_std.*Did you mean 'weight_std'"),
        ({"fixed": {"noise": 0.0}}, r"fixed\['noise'\] must be greater than 0, got 0.0"),
        ({"fixed": {"bias_std": -1.0}}, r"fixed\['bias_std'\] must be at least 0"),
        ({"fixed": {"weight_std": math.inf}}, r"fixed\['weight_std'\] must be greater than 0, got inf"),
        ({"fixed": {"noise": 1e-12}, "x": np.ones((40, 2))}, "positive definite; .* 40 rows.*Fix a larger noise"),
        ({"max_rows": 0}, "max_rows must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_bad_input(change, message):
    x, y = regression_data()
    with pytest.raises(WidebnnError, match=message):
        choose_hyperparameters(**({"x": x, "y": y, "depths": (1,), "activations": ("gelu",)} | change))
