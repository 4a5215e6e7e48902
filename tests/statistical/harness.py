"""Exactness by simulation: many short chains that start from exact draws must end in the same law.

The joint law of weights and data, p(theta) p(y | theta), can be drawn from exactly. ``joint_test`` starts
one chain per replicate at such a draw and alternates

    kernel:  theta -> theta'   with the sampler under test, in the coordinates under test, y fixed;
    data:    y' ~ p(y | theta')

(Geweke 2004, with independent replicates instead of one long chain, so that p-values are exact). One cycle
without new data is the conservation test. Afterwards (theta', y) must again have the joint law: a set of
test functions is compared with fresh exact draws by two-sample Kolmogorov-Smirnov tests, Bonferroni
corrected. With ALPHA per test and fixed seeds a correct kernel fails with probability ALPHA, once, when the
seed is chosen; the planted bugs of bugs.py show what the same numbers of draws do detect. A kernel that does not move
conserves everything, so ``Outcome`` also says how far the chains went.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import kstwo

import widebnn
from widebnn.networks import Weights, apply
from widebnn.posteriors import posterior

ALPHA = 1e-4
REPLICATES = 8_000
REFERENCE = 100_000
BATCH = 4_000
"""Replicates that are simulated at once: their states fit into a processor's cache, and every program has one shape."""
STEPS = 6
"""Of the sampler between new data; some mistakes, such as stale caches, need several in a row."""
NOISE = 0.3
# Fewer inputs than weights of a unit: the likelihood leaves a direction open, which function space draws afresh.
X = np.array([[1.0, 0.3, -0.4], [-0.7, 1.1, 0.6], [0.2, -1.4, 0.9]])
X_NEW = np.array([[0.5, -0.6, 1.2]])
NETWORK = widebnn.dense(3, [3], "gelu", readout_weight_std=1.5)
OUTPUTS = 2

STEP_SIZES = {"rwmh": 0.4, "pcn": 0.5, "pcnl": 0.6, "mala": 0.5, "underdamped": 0.5, "hmc": 0.35, "hilbert_hmc": 0.5}
WEIGHT_SPACE_STEP_SIZES = {"rwmh": 0.2, "pcn": 0.25} | dict.fromkeys(["pcnl", "mala", "underdamped"], 0.2)
WEIGHT_SPACE_STEP_SIZES |= dict.fromkeys(["hmc", "hilbert_hmc"], 0.12)
OPTIONS = {"hmc": {"num_steps": 4}, "hilbert_hmc": {"num_steps": 2}}


def compiled(function):
    """jit with a cheap compilation: these programs are small and run once."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


class Edited:
    """A target with some of its functions replaced."""

    def __init__(self, target, **changes):
        self._target = target
        vars(self).update(changes)

    def __getattr__(self, name):
        return getattr(self._target, name)


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
    """What a joint test found."""

    first: dict[str, float]
    """The p-value of every test function after the first cycle: the kernel alone, from exact draws."""
    last: dict[str, float]
    """After the last cycle: kernel and new data in turns."""
    moved: float
    """Mean squared displacement of the weights per coordinate, against 2 for an independent draw."""
    accepted: float
    """Share of proposals that were accepted."""

    @property
    def conservation(self) -> float:
        """The smallest p-value of the first cycle, times their number; 1 is the best there is."""
        return smallest(self.first)

    @property
    def geweke(self) -> float:
        """The same after the last cycle."""
        return smallest(self.last)


def smallest(p_values: dict[str, float]) -> float:
    """Bonferroni: the smallest p-value times their number."""
    return min(1.0, len(p_values) * min(p_values.values()))


def joint_draw(key, network=NETWORK):
    """(theta, y) exactly from p(theta) p(y | theta)."""
    hidden_key, readout_key, data_key = jax.random.split(key, 3)
    hidden = network.sample_hidden(hidden_key, jnp.float64)
    weights = Weights(hidden, jax.random.normal(readout_key, (network.feature_dim, OUTPUTS)))
    return weights, data_draw(data_key, weights, network)


def data_draw(key, weights, network=NETWORK):
    f = apply(network, weights, jnp.asarray(X))
    return f + NOISE * jax.random.normal(key, f.shape)


def functions_of_weights(hidden, readout):
    """Moments, products and extremes of the weights: they see the prior, and what it is multiplied with."""
    w, b = hidden[0]
    return {
        "w": w[0, 0],
        "w squared": jnp.sum(w**2),
        "w cross": w[0, 0] * w[1, -1],
        "products within units": jnp.sum(w[0] * w[1]),
        "product between units": w[0, 0] * w[0, 1],
        "hidden bias": b[0],
        "hidden bias squared": jnp.sum(b**2),
        "readout": readout[0, 0],
        "readout squared": jnp.sum(readout**2),
        "readout bias": readout[-1, 0],
        "readout across outputs": jnp.sum(readout[:, 0] * readout[:, 1]),
        "largest readout": jnp.max(jnp.abs(readout)),
        "unit product": w[0, 0] * readout[0, 0],
        "bias times readout": jnp.sum(b[:, None] * readout[:-1]),
    }


def functions_of_f(f):
    """The function at the inputs: moments, products, extremes, a bounded wave, and a rank."""
    size = jnp.abs(f)
    return {
        "f": f[0, 0],
        "f squared": jnp.sum(f**2),
        "f products": f[0, 0] * f[-1, 0],
        "outputs product": f[0, 0] * f[0, 1],
        "largest f": jnp.max(f),
        "cosine of f": jnp.cos(f[0, 0] + f[-1, 1]),
        "rank of f": jnp.sum(size < size[0, 0]).astype(f.dtype),
    }


def log_evidence(psi, y, noise):
    """log N(y; 0, Psi Psi' + noise^2 I): what a chain without readout accepts by, and so what it gets wrong first."""
    kernel = psi @ psi.T + noise**2 * jnp.eye(len(psi))
    return -0.5 * (y.shape[1] * jnp.linalg.slogdet(kernel)[1] + jnp.sum(y * jnp.linalg.solve(kernel, y)))


def functions_of_data(f, psi, y, noise=NOISE):
    """The function at the inputs, the data, and what is between them."""
    residual = y - f
    evidence = log_evidence(psi, y, noise)
    return functions_of_f(f) | {
        "log evidence": evidence,
        "log evidence times f": evidence * f[0, 0],
        "log evidence and likelihood": evidence + 0.5 * jnp.sum(residual**2) / noise**2,
        "y squared": jnp.sum(y**2),
        "range of y": jnp.max(y) - jnp.min(y),
        "residual": jnp.sum(residual**2),
        "residual sign": residual[0, 0],
        "largest residual": jnp.max(jnp.abs(residual)),
        "residual times f": jnp.sum(residual * f),
        "residual products": residual[0, 0] * residual[1, 1],
        "y below f": jnp.sum(residual < 0).astype(f.dtype),
        "signs of y and f": jnp.sum(jnp.sign(y * f)),
    }


def test_functions(weights, y, network=NETWORK, noise=NOISE):
    """Numbers that a wrong kernel disturbs: of the weights, of the function, of the data, and of them together."""
    psi, psi_new = (network.features(weights.hidden, jnp.asarray(x)) for x in (X, X_NEW))
    f, f_new = psi @ weights.readout, psi_new @ weights.readout
    return (
        functions_of_weights(weights.hidden, weights.readout)
        | functions_of_data(f, psi, y, noise)
        | {
            "f at a new input": f_new[0, 0],
            "product with a new input": f_new[0, 0] * f[0, 0],
            "y times w": y[0, 0] * weights.hidden[0].w[0, 0],
            "y times readout": y[0, 0] * weights.readout[0, 0],
        }
    )


test_functions.__test__ = False
WITH_ATOMS = {"rank of f", "y below f", "signs of y and f"}
WITH_ATOMS |= {"labels of a class", "labels that are likeliest", "labels times w", "labels times readout"}
"""Test functions that have some values often: their p-values are uniform or larger, those of the others uniform."""


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


@functools.cache
def programs(problem: Problem) -> Problem:
    """The problem's functions for arrays of replicates, which all tests share, compiled once."""
    return Problem(*(compiled(jax.vmap(function)) for function in problem[:3]))


def kernel(target_of, sampler_of, problem: Problem, steps: int) -> Callable:
    """(key, theta, y, momentum, whether it has begun) -> theta, momentum and the share of accepted proposals."""

    def run(key, theta, y, momentum, begun):
        steps_key, draw_key = jax.random.split(key)
        target = target_of(y)
        algorithm = sampler_of(target.log_likelihood)
        state = algorithm.init(problem.to_position(target, theta))
        if hasattr(state, "momentum"):
            state = state._replace(momentum=momentum, has_momentum=begun)

        def step(state, key):
            state, info = algorithm.step(key, state)
            return state, getattr(info, "is_accepted", True)  # some planted bugs say nothing

        state, accepted = jax.lax.scan(step, state, jax.random.split(steps_key, steps))
        theta = problem.from_position(target, draw_key, state.position)
        return theta, getattr(state, "momentum", momentum), jnp.mean(accepted)

    return run


def cache_error(sampler_of, steps=60) -> float:
    """The largest difference of what states remember to the log-likelihood and gradient at their position.

    A wrong force hardly shows in the law of a chain that corrects for it.
    """
    algorithm = sampler_of(lambda u: jnp.sum(jnp.sin(2 * u)) - 4 * jnp.sum(u**2))

    def step(state, key):
        state, _ = algorithm.step(key, state)
        right = algorithm.init(state.position)
        names = [name for name in ("log_likelihood", "gradient") if jax.tree.leaves(getattr(right, name))]
        return state, [jnp.max(jnp.abs(getattr(state, name) - getattr(right, name))) for name in names]

    def chain(key):
        return jax.lax.scan(step, algorithm.init(jnp.full(4, 0.1)), jax.random.split(key, steps))[1]

    return float(np.max(compiled(chain)(jax.random.key(0))))


def joint_test(
    target_of, sampler_of, *, problem=GAUSSIAN, cycles=4, steps=STEPS, replicates=REPLICATES, seed=0
) -> Outcome:
    """Run the test; with a correct kernel all p-values are uniform (those of functions with few values: or larger)."""
    run = compiled(jax.vmap(kernel(target_of, sampler_of, problem, steps), (0, 0, 0, 0, None)))
    return simulate(run, target_of, problem, cycles, replicates, seed)


def simulate(run: Callable, target_of, problem: Problem, cycles: int, replicates: int, seed: int = 0) -> Outcome:
    """Kernel and new data in turns, for a kernel that is compiled for a batch of replicates."""
    batch = min(BATCH, replicates)
    keys = (jax.random.fold_in(jax.random.key(seed), i) for i in range(-(-replicates // batch)))
    parts = [simulate_batch(key, run, target_of, problem, cycles, batch) for key in keys]
    first, last = ({name: np.concatenate([part[i][name] for part in parts]) for name in parts[0][i]} for i in (0, 1))
    moved, accepted = (float(np.mean([part[i] for part in parts])) for i in (2, 3))
    return Outcome(p_values(first, problem), p_values(last, problem), moved, accepted)


def simulate_batch(key, run: Callable, target_of, problem: Problem, cycles: int, batch: int) -> tuple:
    """The test functions after the first and after the last cycle, squared displacement, and acceptance."""
    program = programs(problem)

    def keys(stage):
        return jax.random.split(jax.random.fold_in(key, stage), batch)

    start, y = program.joint_draw(keys(0))
    theta, momentum, accepted, functions = start, no_momentum(target_of, y), [], {}
    for cycle in range(cycles):
        theta, momentum, share = run(keys(2 * cycle + 1), theta, y, momentum, jnp.asarray(cycle > 0))
        accepted.append(np.mean(share))
        if cycle in (0, cycles - 1):
            functions[cycle] = program.test_functions(theta, y)
        if cycle < cycles - 1:
            y = program.data_draw(keys(2 * cycle + 2), theta)
    pairs = zip(jax.tree.leaves(start), jax.tree.leaves(theta), strict=True)
    changes = [np.mean((np.asarray(a) - np.asarray(b)) ** 2) for a, b in pairs]
    return functions[0], functions[cycles - 1], np.mean(changes), np.mean(accepted)


def no_momentum(target_of, y):
    """Zeros in the shapes of the position, one per replicate: a chain that has not begun draws all of its momentum."""
    shapes = jax.eval_shape(jax.vmap(lambda y: target_of(y).sample_reference(jax.random.key(0))), y)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


@functools.cache
def reference_sample(problem: Problem) -> dict[str, np.ndarray]:
    """The test functions under the exact joint law, in ascending order."""
    program = programs(problem)
    keys = (jax.random.fold_in(jax.random.key(12345), i) for i in range(problem.reference // BATCH))
    parts = [program.test_functions(*program.joint_draw(jax.random.split(key, BATCH))) for key in keys]
    return {name: np.sort(np.concatenate([part[name] for part in parts])) for name in parts[0]}


def p_values(values: dict[str, Any], problem: Problem) -> dict[str, float]:
    """Two-sample Kolmogorov-Smirnov tests against the exact joint law."""
    reference = reference_sample(problem)
    return {name: ks_p_value(np.asarray(values[name]), reference[name]) for name in values}


def ks_p_value(sample: np.ndarray, reference: np.ndarray) -> float:
    """scipy's ``ks_2samp(sample, reference, method="asymp").pvalue`` for a reference that is sorted already.

    The first distribution function jumps at its own points only, so the largest difference is at one of them or just
    before. A value that is not finite is never right: the p-value is 0.
    """
    if not np.isfinite(sample).all():
        return 0.0
    sample = np.sort(sample)
    n, m = len(sample), len(reference)
    sides = [
        np.searchsorted(sample, sample, side) / n - np.searchsorted(reference, sample, side) / m
        for side in ("right", "left")
    ]
    distance = max(sides[0].max(), -sides[1].min(), 0.0)
    return float(kstwo.sf(distance, np.round(n * m / (n + m))))
