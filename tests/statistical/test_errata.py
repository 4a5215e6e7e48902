"""Claims of the paper that are settled by a limit or a scale rather than by a kernel (docs/errata.md)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import compiled

import widebnn
from widebnn.data import load_dataset
from widebnn.diagnostics import ess, rhat, summarise
from widebnn.reproduction.diagnostics import published_rhat
from widebnn.samplers.tree import inner

X = np.random.default_rng(0).normal(size=(4, 3))
Y = np.random.default_rng(1).normal(size=(4, 2))


@pytest.fixture(scope="module")
def by_width():
    """Mean over prior draws of <u, g>, d |g|^2 and the pCNL acceptance, at growing widths d."""
    with jax.enable_x64(True):
        rows = []
        for width in (64, 512, 4096):
            target = widebnn.posterior(widebnn.dense(3, [width]), X, Y, noise=0.5, dtype="float64")
            pcnl = widebnn.samplers.pcnl(target.log_likelihood, 0.5)

            def terms(key, target=target, pcnl=pcnl, width=width):
                u_key, w_key = jax.random.split(key)
                state = pcnl.init(target.sample_reference(u_key))
                ratio = pcnl.propose(state, target.sample_reference(w_key)).log_ratio
                g = state.gradient
                return jnp.stack([inner(state.position, g), width * inner(g, g), jnp.exp(jnp.minimum(ratio, 0))])

            keys = jax.random.split(jax.random.key(0), 64)
            rows.append(np.asarray(compiled(lambda k, f=terms: jax.lax.map(f, k))(keys)).mean(axis=0))
        return np.array(rows)


def test_gradient_terms_do_not_vanish_one_by_one(by_width):
    """|g|^2 is O(1/d), yet <u, g> tends to a constant: the proof of Theorem 2.2 needs their cancellation."""
    position_gradient, scaled_norm, acceptance = by_width.T
    assert abs(position_gradient[-1]) > 0.5
    np.testing.assert_allclose(position_gradient[-1], position_gradient[-2], rtol=0.1)
    assert scaled_norm.max() < 3 * scaled_norm.min()
    assert acceptance[0] < acceptance[1] < acceptance[2]
    assert acceptance[2] > 0.95


def test_acceptance_does_not_tend_to_one_from_every_position():
    """All-zero hidden weights make a constant kernel at any width; from there pCN is often rejected."""
    target = widebnn.posterior(widebnn.dense(3, [4096]), X, np.zeros((4, 2)), noise=0.5, dtype="float64")
    pcn = widebnn.samplers.pcn(target.log_likelihood, 0.9)
    zero = jax.tree.map(jnp.zeros_like, target.sample_reference(jax.random.key(0)))
    noise = target.sample_reference(jax.random.key(1))
    assert pcn.propose(pcn.init(zero), noise).log_ratio < -0.5
    typical = pcn.init(target.sample_reference(jax.random.key(2)))
    assert abs(pcn.propose(typical, noise).log_ratio) < 0.3


def test_reported_ess_is_per_step_not_per_stored_draw():
    data = load_dataset("digits", 12, 4)
    target = widebnn.posterior(widebnn.dense(64, [16]), data.x_train, data.y_train)
    result = widebnn.sample(
        target, "pcn", step_size=0.3, steps=2500, thin=25, collect=widebnn.track(target, data.x_test)
    )
    per_stored_draw = ess(result.stats["lp"][..., None])[0] / result.stats["lp"].size
    reported = summarise(result, data)["ess_per_step"]["lp"]
    np.testing.assert_allclose(reported * 25, per_stored_draw, rtol=1e-12)


def test_rhat_is_a_ratio_of_standard_deviations():
    """The paper prints the ratio of variances; the usual R-hat is its square root."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 4000))
    x[:2] += 0.8
    printed, usual = published_rhat(x[..., None])[0], rhat(x[..., None])[0]
    np.testing.assert_allclose(usual, np.sqrt(printed), rtol=0.02)
    assert abs(usual - printed) > 0.05
