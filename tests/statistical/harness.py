"""Exactness by simulation: many short chains that start from exact draws must end in the same law.

The joint law of weights and data, p(theta) p(y | theta), can be drawn from exactly. ``joint_test`` starts
one chain per replicate at such a draw and alternates

    kernel:  theta -> theta'   with the sampler under test, in the coordinates under test, y fixed;
    data:    y' ~ p(y | theta')

(Geweke 2004, with independent replicates instead of one long chain, so that p-values are exact). One cycle
without new data is the conservation test. Afterwards (theta', y) must again have the joint law: a set of
test functions is compared with fresh exact draws by two-sample Kolmogorov-Smirnov tests, Bonferroni
corrected. With ALPHA per test and fixed seeds a correct kernel fails with probability ALPHA, once, when the
seed is chosen; the planted bugs of test_planted_bugs.py show what the same numbers of draws do detect.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import ks_2samp

import widebnn
from widebnn.networks import Weights, apply
from widebnn.posteriors import posterior

ALPHA = 1e-4
REPLICATES = 8_000
REFERENCE = 100_000
NOISE = 0.3
X = np.array([[1.0, 0.3], [-0.7, 1.1], [0.2, -1.4]])
NETWORK = widebnn.dense(2, [3], "gelu", readout_weight_std=1.5)
OUTPUTS = 2

STEP_SIZES = {"rwmh": 0.4, "pcn": 0.5, "pcnl": 0.6, "mala": 0.5, "underdamped": 0.5, "hmc": 0.35, "hilbert_hmc": 0.5}
WEIGHT_SPACE_STEP_SIZES = {"rwmh": 0.2, "pcn": 0.25} | dict.fromkeys(["pcnl", "mala", "underdamped"], 0.2)
WEIGHT_SPACE_STEP_SIZES |= dict.fromkeys(["hmc", "hilbert_hmc"], 0.12)
OPTIONS = {"hmc": {"num_steps": 4}, "hilbert_hmc": {"num_steps": 2}}


def compiled(function):
    """jit with a cheap compilation: these programs are small and run once."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


class Problem(NamedTuple):
    """What is being simulated: parameters theta and data y."""

    joint_draw: Callable
    """key -> (theta, y), exactly."""
    data_draw: Callable
    """(key, theta) -> y."""
    test_functions: Callable
    """(theta, y) -> a dictionary of numbers."""
    to_position: Callable = lambda target, theta: target.from_weights(theta)
    from_position: Callable = lambda target, key, u: target.to_weights(key, u)
    reference: int = REFERENCE
    """How many exact draws to compare with."""


class Outcome(NamedTuple):
    """Smallest p-value over the test functions, times their number; 1 is the best there is."""

    conservation: float
    """After the first cycle: the kernel alone, from exact draws."""
    geweke: float
    """After the last cycle: kernel and new data in turns."""
    moved: float
    """Mean squared displacement of the weights per coordinate, against 2 for an independent draw."""
    accepted: float
    """Share of proposals that were accepted."""


def joint_draw(key):
    """(theta, y) exactly from p(theta) p(y | theta)."""
    hidden_key, readout_key, data_key = jax.random.split(key, 3)
    hidden = NETWORK.sample_hidden(hidden_key, jnp.float64)
    weights = Weights(hidden, jax.random.normal(readout_key, (NETWORK.feature_dim, OUTPUTS)))
    return weights, data_draw(data_key, weights)


def data_draw(key, weights):
    f = apply(NETWORK, weights, jnp.asarray(X))
    return f + NOISE * jax.random.normal(key, f.shape)


def test_functions(weights, y):
    """Moments, products and residuals that a wrong kernel disturbs."""
    f = apply(NETWORK, weights, jnp.asarray(X))
    first = weights.hidden[0].w
    return {
        "w": first[0, 0],
        "w squared": jnp.sum(first**2),
        "w cross": first[0, 0] * first[1, -1],
        "readout": weights.readout[0, 0],
        "readout squared": jnp.sum(weights.readout**2),
        "readout bias": weights.readout[-1, 0],
        "unit product": first[0, 0] * weights.readout[0, 0],
        "f": f[0, 0],
        "f squared": jnp.sum(f**2),
        "f products": f[0, 0] * f[1, 0],
        "outputs product": f[0, 0] * f[0, 1],
        "y squared": jnp.sum(y**2),
        "residual": jnp.sum((y - f) ** 2),
        "residual sign": y[0, 0] - f[0, 0],
        "y times w": y[0, 0] * first[0, 0],
        "y times readout": y[0, 0] * weights.readout[0, 0],
    }


test_functions.__test__ = False


def make_target(coordinates):
    """y -> the target under test."""
    return lambda y: posterior(NETWORK, X, y, noise=NOISE, coordinates=coordinates, dtype="float64")


def make_sampler(name, coordinates="marginal"):
    """log-likelihood -> the sampler under test, with a step size that is sometimes rejected."""
    build = widebnn.samplers.SAMPLERS[name]
    options = dict(OPTIONS.get(name, {}))
    if name != "elliptical_slice":
        options["step_size"] = (WEIGHT_SPACE_STEP_SIZES if coordinates == "weights" else STEP_SIZES)[name]
    return lambda log_likelihood: build(log_likelihood, **options)


GAUSSIAN = Problem(joint_draw, data_draw, test_functions)


def joint_test(
    target_of, sampler_of, *, problem=GAUSSIAN, cycles=6, steps=4, replicates=REPLICATES, seed=0, needs_target=False
) -> Outcome:
    """Run the test; a correct kernel has p_value uniform (or larger, by Bonferroni)."""

    def kernel(key, state, algorithm):
        def body(state, key):
            state, info = algorithm.step(key, state)
            return state, getattr(info, "is_accepted", True)  # some planted bugs say nothing

        return jax.lax.scan(body, state, jax.random.split(key, steps))

    def replicate(key):
        start_key, momentum_key, key = jax.random.split(key, 3)
        start, y = problem.joint_draw(start_key)

        def cycle(carry, key):
            theta, y, momentum = carry
            kernel_key, readout_key, data_key = jax.random.split(key, 3)
            target = target_of(y)
            algorithm = sampler_of(target if needs_target else target.log_likelihood)
            state = algorithm.init(problem.to_position(target, theta))
            if hasattr(state, "momentum"):
                state = state._replace(momentum=momentum, has_momentum=jnp.asarray(True))
            state, accepted = kernel(kernel_key, state, algorithm)
            theta = problem.from_position(target, readout_key, state.position)
            momentum = getattr(state, "momentum", momentum)
            functions = problem.test_functions(theta, y)
            return (theta, problem.data_draw(data_key, theta), momentum), (functions, jnp.mean(accepted))

        shapes = target_of(y).sample_reference(momentum_key)  # a momentum is N(0, I) in the same shapes
        (end, _, _), (functions, accepted) = jax.lax.scan(cycle, (start, y, shapes), jax.random.split(key, cycles))
        first, last = (jax.tree.map(lambda values, i=i: values[i], functions) for i in (0, -1))
        change = jax.tree.map(lambda a, b: jnp.mean((a - b) ** 2), start, end)
        moved = sum(jax.tree.leaves(change)) / len(jax.tree.leaves(change))
        return first, last, moved, jnp.mean(accepted)

    keys = jax.random.split(jax.random.key(seed), replicates)
    first, last, moved, accepted = compiled(jax.vmap(replicate))(keys)
    p_values = smallest_p_value(first, problem), smallest_p_value(last, problem)
    return Outcome(*p_values, float(jnp.mean(moved)), float(jnp.mean(accepted)))


@functools.cache
def reference_sample(problem):
    """The test functions under the exact joint law."""
    keys = jax.random.split(jax.random.key(12345), problem.reference)
    values = compiled(jax.vmap(lambda key: problem.test_functions(*problem.joint_draw(key))))(keys)
    return {name: np.asarray(value) for name, value in values.items()}


def smallest_p_value(values, problem):
    """Bonferroni-corrected two-sample Kolmogorov-Smirnov test against the exact joint law."""
    reference = reference_sample(problem)
    p_values = [ks_2samp(np.asarray(values[name]), reference[name], method="asymp").pvalue for name in values]
    return min(1.0, len(p_values) * min(p_values))
