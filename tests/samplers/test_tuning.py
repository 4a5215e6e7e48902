"""Step sizes: found in burn-in, sensible, and frozen afterwards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widebnn
from problems import small_target
from widebnn.diagnostics import ess
from widebnn.samplers import TUNERS, build_sampler
from widebnn.samplers.tuning import acceptance_rate, squared_jump, tuned


def gaussian(precision):
    return widebnn.Target(
        lambda u: -0.5 * precision * jnp.sum(u**2), lambda key: jax.random.normal(key, (50,), jnp.float64)
    )


@pytest.mark.some(2)
@pytest.mark.parametrize(("name", "aim"), [("mala", 0.574), ("pcnl", 0.6), ("hmc", 0.8), ("hilbert_hmc", 0.8)])
def test_gradient_samplers_reach_their_acceptance_rate(name, aim):
    options = {"num_steps": 5} if name in ("hmc", "hilbert_hmc") else {}
    result = widebnn.sample(gaussian(30.0), name, steps=2000, burn_in=1000, seed=1, **options)
    # Averaged iterates are a little cautious: acceptance falls faster above the aim than it rises below.
    assert aim - 0.05 < result.acceptance_rate < aim + 0.15
    assert abs(result.burn_in_acceptance_rate - aim) < 0.05


@pytest.mark.some(2)
@pytest.mark.parametrize("first", [1e-3, 0.03, 1.0, 30.0])
def test_short_burn_ins_find_the_order_of_magnitude(first):
    """From steps a hundred times too small or too large, in forty steps."""
    target = gaussian(30.0)
    tuner = acceptance_rate(0.8, first, most=100.0, burn_in=40)
    algorithm = tuned(lambda e, _: widebnn.samplers.hmc(target.log_likelihood, e, num_steps=5), tuner, burn_in=40)

    @jax.jit
    def run(key):
        def step(state, key):
            state, info = algorithm.step(key, state)
            return state, info.acceptance_rate

        return jax.lax.scan(step, algorithm.init(0.18 * jnp.ones(50)), jax.random.split(key, 240))[1]

    rates = [float(run(jax.random.key(seed))[40:].mean()) for seed in range(5)]
    assert 0.6 < np.mean(rates) < 0.92


def test_pcn_is_tuned_for_the_squared_jump():
    """No step size on the grid should do much better than the one that was found."""
    target = gaussian(30.0)

    def efficiency(step_size):
        result = widebnn.sample(target, "pcn", step_size=step_size, steps=3000, seed=2, initial=0.18 * np.ones((1, 50)))
        return result.acceptance_rate * 2 * (1 - np.sqrt(1 - step_size**2))

    algorithm = build_sampler("pcn", target.log_likelihood, burn_in=1500)
    state = algorithm.init(0.1 * jnp.ones(50))
    state = jax.jit(lambda s: jax.lax.fori_loop(0, 1500, lambda i, s: algorithm.step(jax.random.key(i), s)[0], s))(
        state
    )
    found = float(TUNERS["pcn"](1500).final(state.tuner))
    best = max(efficiency(b) for b in np.geomspace(0.03, 0.2, 4))
    assert efficiency(found) > 0.75 * best


def test_pcn_takes_full_steps_where_everything_is_accepted():
    target = gaussian(0.0)
    result = widebnn.sample(target, "pcn", steps=500, burn_in=500, seed=1)
    u = result.draws["u"][0]
    correlation = np.mean(u[1:] * u[:-1])
    assert abs(correlation) < 0.05, "step size 1 makes independent draws"


def test_a_tuned_sampler_after_burn_in_is_the_sampler_with_that_step_size():
    target = small_target("function")
    tuner = acceptance_rate(0.7, 0.3, 1.0, burn_in=20)
    algorithm = tuned(lambda e, _: widebnn.samplers.mala(target.log_likelihood, e), tuner, burn_in=20)
    state, step, found = algorithm.init(target.sample_reference(jax.random.key(0))), jax.jit(algorithm.step), []
    for t in range(30):
        state, _ = step(jax.random.key(t), state)
        found.append(jax.tree.leaves(state.tuner))
    assert found[10] != found[19] == found[29]
    fixed = widebnn.samplers.mala(target.log_likelihood, float(tuner.final(state.tuner)))
    ours, _ = step(jax.random.key(99), state)
    theirs, _ = jax.jit(fixed.step)(jax.random.key(99), state.inner)
    np.testing.assert_allclose(ours.position.layers[0], theirs.position.layers[0], atol=1e-12)


def test_auto_makes_quarter_turns():
    target = small_target("function")
    result = widebnn.sample(target, "auto", steps=200, burn_in=100)
    assert result.gradients_per_step >= 1
    assert 0.6 < result.acceptance_rate <= 1
    with pytest.raises(widebnn.WidebnnError, match="needs a step_size, or a burn_in"):
        widebnn.sample(target, "auto", steps=10)


def test_auto_does_not_resonate():
    """Directions that make a whole number of half turns per trajectory: squares mix as well as anything else."""
    precisions = jnp.array([0.0, 3.0, 15.0, 35.0])  # turning 1, 2, 4 and 6 times as fast as the prior
    target = widebnn.Target(
        lambda u: -0.5 * jnp.sum(precisions * u**2), lambda key: jax.random.normal(key, (4,), jnp.float64)
    )
    draws = widebnn.sample(target, "auto", steps=4000, burn_in=300, chains=4, seed=0).draws["u"]
    assert ess(draws**2).min() > 1200


def test_squared_jump_starts_in_the_middle_and_stays_on_its_grid():
    tuner = squared_jump(lambda b: b**2)
    state = tuner.init()
    for t in range(60):
        step_size = tuner.exploring(state, jnp.asarray(t))
        assert 1e-3 <= step_size <= 1.0
        state = tuner.update(state, step_size, widebnn.samplers.Info(jnp.asarray(0.0), False, True, 0))
    assert tuner.final(state) < 0.03, "nothing is accepted: smaller and smaller"
