"""NaN, infinities and overflow are rejected, counted and never stored.

A tenth of all positions, chosen by a hash of the position, is made bad: the log-likelihood there is NaN, infinite,
overflows or comes from a failed Cholesky factorisation; or one entry of the gradient does. A bad position has
likelihood zero, so a chain must be the one whose log-likelihood is -inf there, and exactly the steps whose acceptance
probability is zero must be counted. Chains that start at exact draws must keep the distribution of the target without
them. Step sizes are tuned all the same, and networks whose features overflow are refused as a start and rejected as a
proposal.
"""

import math
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.flatten_util import ravel_pytree
from trial import size

import widebnn
from problems import small_data
from widebnn.samplers import SAMPLERS

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("nonfinite")]
STEP_SIZES = {"rwmh": 0.8, "pcn": 0.7, "pcnl": 0.8, "mala": 0.9, "underdamped": 0.6, "hmc": 0.4, "hilbert_hmc": 0.4}
OPTIONS = {name: {"step_size": value} for name, value in STEP_SIZES.items()} | {"elliptical_slice": {}}
TRAJECTORIES = ("hmc", "hilbert_hmc")
for name in TRAJECTORIES:
    OPTIONS[name]["num_steps"] = 4
CASES = [("value", name) for name in OPTIONS]
CASES += [("gradient", name) for name in ("pcnl", "mala", "underdamped", *TRAJECTORIES)]
NUMBERS = {
    "-inf": lambda number: -jnp.inf + number,
    "NaN": lambda number: jnp.nan * number,
    "+inf": lambda number: jnp.inf + number,
    "1e308 x 10": lambda number: 1e308 * (10 + number**2),
    "exp(1000)": lambda number: jnp.exp(1000 + number**2),
    "Cholesky": lambda number: jnp.sum(jnp.linalg.cholesky(jnp.array([[1.0, 2.0], [2.0, 1.0]]) + 0 * number)),
}
CENTRE = np.array([0.6, -0.4, 0.2])
FALSE_ALARM = 1e-4


def log_likelihood(u):
    """Of an observation N(u, I): the posterior is N(CENTRE / 2, I / 2)."""
    return -0.5 * jnp.sum((u - CENTRE) ** 2)


def is_bad(u):
    """A hash of the position: random, and a function of the position as a real likelihood is."""
    return jnp.mod(jnp.floor(u * 4096) @ jnp.array([7919.0, 104729.0, 1299709.0]), 4099) < 410


def first_good(candidates):
    return candidates[jnp.argmax(~jax.vmap(is_bad)(candidates))]


def poisoned(place, kind):
    """A log-likelihood that is bad in its value or in one entry of its gradient."""

    def value_and_gradient(u):
        value, gradient = jax.value_and_grad(log_likelihood)(u)
        if place == "value":
            return jnp.where(is_bad(u), NUMBERS[kind](value), value), gradient
        return value, gradient.at[0].set(jnp.where(is_bad(u), NUMBERS[kind](gradient[0]), gradient[0]))

    function = jax.custom_vjp(lambda u: value_and_gradient(u)[0])
    function.defvjp(value_and_gradient, lambda gradient, cotangent: (cotangent * gradient,))
    return function


def poisoned_run(place, name, kind, **settings):
    """A run, and the number in its warning."""
    target = widebnn.Target(poisoned(place, kind), lambda key: first_good(jax.random.normal(key, (40, 3), jnp.float64)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = widebnn.sample(target, name, progress=False, seed=1, **settings)
    said = [re.search(r"(\d+) (?:of \d+ )?proposals", str(warning.message)) for warning in caught]
    return result, next((int(match[1]) for match in said if match), 0)


def problems_of(place, name, kind, model, steps):
    """What is wrong with a run, compared with one that it must equal."""
    result, warned = poisoned_run(place, name, kind, steps=steps, **OPTIONS[name])
    counted, plain = result.stats["nonfinite"][0], (place, kind) == ("value", "-inf")
    expected = np.zeros(steps) if plain else result.stats["acceptance_rate"][0] == 0
    if name == "elliptical_slice" and not plain:  # never rejects, and shrinks its bracket instead
        expected = counted
    arrays = [*result.draws.values(), *result.stats.values(), *jax.tree.leaves(result.last)]
    found = {  # programs differ, and may round differently
        "moves elsewhere": not np.allclose(result.draws["u"], model.draws["u"], atol=1e-6),
        "stores what is not finite": not all(np.isfinite(array).all() for array in arrays),
        f"counts {counted.sum()} and not {expected.sum()}": not np.array_equal(counted, expected),
        f"warns of {warned} and not {counted.sum()}": warned != counted.sum(),
        "meets too few": not plain and counted.sum() < steps / 20,
    }
    return [f"{kind}: {what}" for what, holds in found.items() if holds]


@pytest.mark.parametrize(("place", "name"), CASES)
def test_bad_numbers_are_a_likelihood_of_zero(place, name, record):
    # Values in the middle of a trajectory are not looked at and gradients are: those chains equal one another only.
    steps, alone = size(2000, 40_000), name in TRAJECTORIES and place == "gradient"
    model, _ = poisoned_run(place if alone else "value", name, "-inf", steps=steps, **OPTIONS[name])
    problems = [text for kind in NUMBERS for text in problems_of(place, name, kind, model, steps)]
    kinds = f"bad {place} of {len(NUMBERS)} kinds, {steps} steps of each"
    record(f"{name}, {kinds}: moved, counted, stored or warned wrongly", problems[:3] or 0, "0", not problems)


def p_values_of(place, name, replicates):
    """Exact tests of means and variances after ten steps from exact draws of what is left."""
    mean, deviation, kernel = CENTRE / 2, math.sqrt(0.5), SAMPLERS[name](poisoned(place, "NaN"), **OPTIONS[name])

    def end(key):
        start_key, key = jax.random.split(key)
        start = kernel.init(first_good(mean + deviation * jax.random.normal(start_key, (40, 3), jnp.float64)))
        return jax.lax.scan(lambda state, k: kernel.step(k, state), start, jax.random.split(key, 10))[0].position

    ends = (np.asarray(jax.jit(jax.vmap(end))(jax.random.split(jax.random.key(7), replicates))) - mean) / deviation
    squares = np.sum(ends**2, axis=0)
    tails = np.minimum(scipy.stats.chi2.cdf(squares, replicates), scipy.stats.chi2.sf(squares, replicates))
    return [*(2 * scipy.stats.norm.sf(np.abs(ends.sum(axis=0)) / math.sqrt(replicates))), *(2 * tails)]


def test_the_distribution_of_the_rest(record):
    replicates = size(10_000, 50_000)
    p_values = [p for place, name in CASES for p in p_values_of(place, name, replicates)]
    least = min(1.0, len(p_values) * min(p_values))
    what = (
        f"distribution of the rest, {len(p_values)} tests of {replicates} chains: smallest p-value times their number"
    )
    record(what, f"{least:.2g}", f"above {FALSE_ALARM:g}", least > FALSE_ALARM)


@pytest.mark.parametrize("name", STEP_SIZES)
def test_step_sizes_are_tuned(name, record):
    """And the warning includes the burn-in, thinned steps and all chains."""
    result, warned = poisoned_run("value", name, "NaN", steps=2000, burn_in=2000, thin=2, chains=2)
    rate, jump = result.acceptance_rate, np.mean(np.diff(result.draws["u"], axis=1) ** 2)
    right = rate > 0.1 and jump > 0.01 and warned > result.stats["nonfinite"].sum() > 100
    record(f"{name} tuned: acceptance; mean squared jump", f"{rate:.2f}; {jump:.2f}", "above 0.1; above 0.01", right)


@pytest.mark.parametrize("coordinates", ["function", "marginal", "weights"])
def test_networks_with_nan_and_with_huge_weights(coordinates):
    x, y = small_data(n=6, m=2, outputs=1)
    target = widebnn.posterior(widebnn.dense(2, [16, 16], "relu"), x, y, noise=0.4, coordinates=coordinates)
    flat, unravel = ravel_pytree(target.sample_reference(jax.random.key(0)))
    value = jax.jit(lambda u: target.log_likelihood(unravel(u)))
    assert not any(np.isfinite(value(flat.at[i].set(jnp.nan))) for i in range(0, flat.size, flat.size // 10))
    with pytest.raises(widebnn.WidebnnError, match="at the start of chain 0"):  # features overflow in float32
        widebnn.sample(target, steps=3, burn_in=3, initial=jax.tree.map(lambda leaf: leaf[None], unravel(1e20 * flat)))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = widebnn.sample(target, "mala", step_size=1e20, steps=20, progress=False)
    assert any("proposals" in str(warning.message) for warning in said)
    assert all(np.isfinite(array).all() for array in [*result.draws.values(), *result.stats.values()])
    assert not result.stats["accepted"].any()
