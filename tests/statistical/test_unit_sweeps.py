"""Sweeps over units: the same decisions as with whole kernels, an exact law, and drift that is noticed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import ALPHA, OUTPUTS, joint_test, make_target

import widebnn
from widebnn.diagnostics import ess
from widebnn.samplers import unit_sweeps as module
from widebnn.samplers.unit_sweeps import unit_sweeps


def target_of(n, width, noise=0.1, repeated=False):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(n, 3)), rng.normal(size=(n, OUTPUTS))
    if repeated:
        x[1] = x[0]
    return widebnn.posterior(widebnn.dense(3, [width], "erf"), x, y, noise=noise, dtype="float64")


@pytest.mark.parametrize("n", [5, 40], ids=["dual", "primal"])
@pytest.mark.parametrize("width", [8, 13])
def test_a_sweep_is_one_decision_after_the_other(n, width, monkeypatch):
    """Against the same proposals, judged one by one with the whole log-likelihood."""
    monkeypatch.setattr(module, "BLOCK", 4)
    target = target_of(n, width, repeated=True)
    state = unit_sweeps(target, 0.9).init(target.sample_reference(jax.random.key(0)))
    key = jax.random.key(1)
    after, info = unit_sweeps(target, 0.9).step(key, state)
    a = np.array(state.position.layers[0])
    log_likelihood = jax.jit(lambda a: target.log_likelihood(state.position._replace(layers=(a,))))
    rates = []
    for i in range(-(-width // 4)):
        noise_key, accept_key, size_key = jax.random.split(jax.random.fold_in(key, i), 3)
        fresh = np.asarray(jax.random.normal(noise_key, (len(a), 4), a.dtype))
        shrink = np.maximum(0.0, np.asarray(jax.random.uniform(size_key, (4,), minval=-1)))
        beta = 0.9 * np.exp(np.log(module.SMALLEST) * shrink)
        uniforms = np.asarray(jax.random.uniform(accept_key, (4,)))
        for j in range(min(4, width - 4 * i)):
            new = a.copy()
            new[:, 4 * i + j] = np.sqrt(1 - beta[j] ** 2) * a[:, 4 * i + j] + beta[j] * fresh[:, j]
            ratio = float(log_likelihood(new) - log_likelihood(a))
            rates.append(min(1.0, np.exp(ratio)))
            a = new if np.log(uniforms[j]) < ratio else a
    np.testing.assert_allclose(after.position.layers[0], a, atol=1e-9)
    assert info.acceptance_rate == pytest.approx(np.mean(rates), rel=1e-6)
    assert after.log_likelihood == pytest.approx(float(log_likelihood(a)), abs=1e-8)
    assert 0.1 < np.mean(rates) < 0.95


def test_conservation_and_geweke():
    outcome = joint_test(
        make_target("function"), lambda target: unit_sweeps(target, 1.0), cycles=3, steps=2, needs_target=True
    )
    assert outcome.moved > 0.1
    assert outcome.conservation > ALPHA
    assert outcome.geweke > ALPHA


def test_mixes_where_moving_all_units_is_slow():
    """Little noise: units are drawn anew while Hilbert-space HMC would need tens of gradients per step."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-2, 2, size=(40, 2))
    y = np.sin(2 * x[:, :1])
    target = widebnn.posterior(widebnn.dense(2, [256], "erf", bias_std=1.0), x, y, noise=0.02, dtype="float64")
    result = widebnn.sample(
        target,
        unit_sweeps(target, 1.0),
        steps=200,
        burn_in=30,
        seed=0,
        collect=lambda key, u: {"size": jnp.mean(u.layers[0] ** 2, axis=1)},
    )
    assert result.acceptance_rate > 0.5
    assert ess(result.draws["size"]).min() > 40


def test_refuses_other_targets():
    deep = widebnn.posterior(widebnn.dense(2, [4, 4]), np.eye(2), np.ones(2))
    with pytest.raises(widebnn.WidebnnError, match="one hidden layer"):
        unit_sweeps(deep, 1.0)
