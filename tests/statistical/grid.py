"""Every model that is sampled, and every sampler in every coordinate system of it, for the joint test of harness.py.

``SETTINGS`` are the models: regression with known and with unknown noise, classification with known and with unknown
scale of the logits, two hidden layers, the paper's chain on all weights (``full``), noise of its own for every
row, noise that depends on the inputs, single precision, which is what users have unless they ask for double, and
gradients in single precision.
``combinations()`` are all that the package offers of them.
"""

import collections
import functools
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import (
    GAUSSIAN,
    NETWORK,
    NOISE,
    OPTIONS,
    OUTPUTS,
    REPLICATES,
    STEP_SIZES,
    WEIGHT_SPACE_STEP_SIZES,
    Outcome,
    Problem,
    X,
    functions_of_data,
    functions_of_f,
    functions_of_weights,
    joint_test,
    make_target,
    test_functions,
)
from harness import data_draw as gaussian_data
from harness import joint_draw as gaussian_draw

import widebnn
from problems import COORDINATES
from widebnn.coordinates.full import TRACKED, FullPosition
from widebnn.coordinates.function_space import FunctionSpace
from widebnn.coordinates.lumped import Lumped
from widebnn.likelihoods.input_noise import NoiseLatent
from widebnn.likelihoods.readout import condition
from widebnn.networks import Layer, Weights, apply
from widebnn.samplers import SAMPLERS

KERNELS = (*SAMPLERS, "auto")
"""``auto`` is Hilbert-space HMC with turns of random length, as it runs without ``num_steps``."""
SLOW = "elliptical_slice"
"""Moves far, and under vmap all replicates wait for the slowest search: fewer cycles of it."""
USUAL, SHORTER = {"cycles": 4, "replicates": REPLICATES}, {"cycles": 2, "replicates": REPLICATES // 2}


class Setting(NamedTuple):
    """A model to be sampled."""

    problem: Problem
    target_of: Callable[[str], Callable]
    """coordinates -> (y -> target)."""
    coordinates: tuple[str, ...]
    step_sizes: dict[str, dict[str, float]]
    """coordinates -> sampler -> step size; ``""`` for coordinates that are not named."""
    kernels: tuple[str, ...] = KERNELS
    length: dict[str, int] = USUAL
    """Of the short form."""


def make(setting: Setting, name: str, coordinates: str, shrink: float = 1.0) -> Callable:
    """log-likelihood -> the sampler, with a step size that is sometimes rejected, or a part of it."""
    if name == SLOW:
        return SAMPLERS[name]
    size = shrink * setting.step_sizes.get(coordinates, setting.step_sizes[""])[name]
    if name == "auto":
        return lambda log_likelihood: SAMPLERS["hilbert_hmc"](log_likelihood, size)
    return lambda log_likelihood: SAMPLERS[name](log_likelihood, size, **OPTIONS.get(name, {}))


def combinations() -> Iterator[tuple[str, str, str]]:
    """(setting, sampler, coordinates), all there are."""
    for name, setting in SETTINGS.items():
        for coordinates in setting.coordinates:
            yield from ((name, kernel, coordinates) for kernel in setting.kernels)


def run(setting: str, kernel: str, coordinates: str, **length: int) -> Outcome:
    """The joint test of a combination, from a seed of its own; in the short form unless told otherwise."""
    about = SETTINGS[setting]
    seed = zlib.crc32(f"{setting}, {kernel}, {coordinates}".encode())
    sampler = make(about, kernel, coordinates)
    return joint_test_of(setting, about.target_of(coordinates), sampler, slow=kernel == SLOW, seed=seed, **length)


def joint_test_of(
    setting: str, target_of: Callable, sampler_of: Callable, *, slow: bool = False, reference: int = 0, **length: int
) -> Outcome:
    """The joint test in a setting, of its own target and sampler or of others."""
    problem = SETTINGS[setting].problem
    problem = problem._replace(reference=reference or problem.reference)
    length = SETTINGS[setting].length | length
    length["cycles"] = (length["cycles"] + 1) // 2 if slow else length["cycles"]
    return joint_test(target_of, sampler_of, problem=problem, **length)


def worker(setting: str) -> pytest.MarkDecorator:
    """Tests of a setting share its exact draws, so they run in one process."""
    return pytest.mark.xdist_group(setting)


def moves(outcome: Outcome, kernel: str) -> bool:
    """Whether the chains went somewhere, and were sometimes rejected: otherwise the test would show nothing."""
    return outcome.moved > 0.1 and (kernel == SLOW or 0.1 < outcome.accepted < 0.97)


def targets(network=NETWORK, x=X, **options):
    """coordinates -> (y -> target)."""
    options = {"dtype": "float64"} | options
    return lambda coordinates: lambda y: widebnn.posterior(network, x, y, coordinates=coordinates, **options)


# Regression, the noise not known: theta is (weights, z).

POSITIONS = {
    "to_position": lambda target, theta: target.from_weights(*theta),
    "from_position": lambda target, key, u: (target.to_weights(key, u), u.z),
}


def noisy_problem(noise_at, shape, functions):
    """Regression whose noise is ``noise_at(z, psi)``, where z is N(0, I) of this shape."""

    def data(key, theta):
        psi = NETWORK.features(theta[0].hidden, jnp.asarray(X))
        f = psi @ theta[0].readout
        return f + noise_at(theta[1], psi) * jax.random.normal(key, f.shape)

    def draw(key):
        weights_key, z_key, data_key = jax.random.split(key, 3)
        leaves, structure = jax.tree.flatten(shape)
        normals = [
            jax.random.normal(k, s.shape) for k, s in zip(jax.random.split(z_key, len(leaves)), leaves, strict=True)
        ]
        theta = gaussian_draw(weights_key)[0], jax.tree.unflatten(structure, normals)
        return theta, data(data_key, theta)

    return Problem(draw, data, functions, **POSITIONS, reference=40_000)


def numbers(*shape):
    return jax.ShapeDtypeStruct(shape, np.float64)


NOISE_PRIOR = widebnn.LogNormal(NOISE, log_sd=0.6)


def noisy_functions(theta, y):
    weights, z = theta
    residual = y - apply(NETWORK, weights, jnp.asarray(X))
    return test_functions(weights, y, noise=NOISE_PRIOR.at(z)) | {
        "z": z,
        "z squared": z**2,
        "standardised residual": jnp.sum(residual**2) / NOISE_PRIOR.at(z) ** 2,
        "z times residual": z * jnp.sum(residual**2),
        "z times readout": z * jnp.sum(weights.readout**2),
        "z times y": z * jnp.sum(y**2),
    }


UNKNOWN_NOISE = noisy_problem(lambda z, psi: NOISE_PRIOR.at(z), numbers(), noisy_functions)
unknown_noise_target = targets(noise=NOISE_PRIOR)

# The same with a noise for every row: z has one number for each.

ROW_NOISE = widebnn.HeavyTails(NOISE, log_sd=0.8)


def unequal_functions(theta, y):
    weights, z = theta
    squares = jnp.sum((y - apply(NETWORK, weights, jnp.asarray(X))) ** 2, axis=1)
    return test_functions(weights, y) | {
        "z": z[0],
        "z squared": jnp.sum(z**2),
        "product of z": z[0] * z[1],
        "standardised residual": jnp.sum(squares / ROW_NOISE.noise_at(z) ** 2),
        "z times residual": jnp.sum(z * squares),
        "z times another residual": z[0] * squares[1],
        "z times readout": z[2] * jnp.sum(weights.readout**2),
        "z times y": jnp.sum(z * jnp.sum(y**2, axis=1)),
    }


UNEQUAL_NOISE = noisy_problem(lambda z, psi: ROW_NOISE.noise_at(z)[:, None], numbers(len(X)), unequal_functions)

# Noise that depends on the inputs by a second readout: z has its level, and a weight for every feature.

INPUT_NOISE = widebnn.InputNoise(NOISE_PRIOR, log_sd=0.5)


def input_noise_functions(theta, y):
    weights, z = theta
    psi = NETWORK.features(weights.hidden, jnp.asarray(X))
    squares, noise = jnp.sum((y - psi @ weights.readout) ** 2, axis=1), INPUT_NOISE.noise_at(z, psi)
    return test_functions(weights, y) | {
        "level": z.level,
        "level squared": z.level**2,
        "weight": z.weights[0],
        "weights squared": jnp.sum(z.weights**2),
        "level times weight": z.level * z.weights[-1],
        "standardised residual": jnp.sum(squares / noise**2),
        "log noise times residual": jnp.sum(jnp.log(noise) * squares),
        "log noise of two rows": jnp.log(noise[0] / noise[1]),
        "weight times readout": z.weights[1] * weights.readout[1, 0],
        "weights times y": jnp.sum(z.weights) * jnp.sum(y**2),
    }


INPUT_NOISE_PROBLEM = noisy_problem(
    lambda z, psi: INPUT_NOISE.noise_at(z, psi)[:, None],
    NoiseLatent(numbers(), numbers(NETWORK.feature_dim)),
    input_noise_functions,
)
input_noise_target = targets(likelihood=INPUT_NOISE)


# Classification. Every input comes with several labels, so that the posterior is far from the prior, and equal inputs
# are merged in function space.

CLASSES = 3
LABELLED_X = np.repeat(X, 4, axis=0)
LABELLED_NETWORK = widebnn.dense(3, [3], "gelu", readout_weight_std=4.0)


def label_draw(key, weights):
    """One-hot labels drawn from the classes' probabilities."""
    f = apply(LABELLED_NETWORK, weights, jnp.asarray(LABELLED_X))
    return jax.nn.one_hot(jax.random.categorical(key, f), CLASSES)


def labelled_draw(key):
    hidden_key, readout_key, data_key = jax.random.split(key, 3)
    hidden = LABELLED_NETWORK.sample_hidden(hidden_key, jnp.float64)
    weights = Weights(hidden, jax.random.normal(readout_key, (LABELLED_NETWORK.feature_dim, CLASSES)))
    return weights, label_draw(data_key, weights)


def label_functions(weights, y):
    """Of the weights, of the logits, and of logits and labels together."""
    f = apply(LABELLED_NETWORK, weights, jnp.asarray(LABELLED_X))
    residual = y - jax.nn.softmax(f)
    return (
        functions_of_weights(weights.hidden, weights.readout)
        | functions_of_f(f[::4])
        | {
            "mean logit": jnp.mean(f),
            "logit of the label": jnp.sum(y * f),
            "log-likelihood": jnp.sum(y * jax.nn.log_softmax(f)),
            "largest probability": jnp.max(jax.nn.softmax(f)),
            "residual": jnp.sum(residual * f),
            "residual of a class": jnp.sum(residual[:, 0]),
            "labels of a class": jnp.sum(y[:, 0]),
            "labels that are likeliest": jnp.sum(jnp.argmax(f, axis=1) == jnp.argmax(y, axis=1)).astype(f.dtype),
            "labels times w": jnp.sum(y[:4, 0]) * weights.hidden[0].w[0, 0],
            "labels times readout": jnp.sum(y[:4, 0]) * weights.readout[0, 0],
        }
    )


LABELS = Problem(labelled_draw, label_draw, label_functions, reference=40_000)
label_target = targets(LABELLED_NETWORK, LABELLED_X, likelihood="softmax")

# Classification, the scale of the logits not known: theta is (weights, z), and the readout's prior has the scale in it.

LOGIT_SCALE = widebnn.LogNormal(1.5, log_sd=0.6)
scaled_target = targets(LABELLED_NETWORK, LABELLED_X, likelihood=widebnn.Softmax(logit_scale=LOGIT_SCALE))


def scaled_data(key, theta):
    return label_draw(key, theta[0])


def scaled_draw(key):
    weights_key, z_key, data_key = jax.random.split(key, 3)
    weights, _ = labelled_draw(weights_key)
    z = jax.random.normal(z_key)
    theta = weights._replace(readout=LOGIT_SCALE.at(z) * weights.readout), z
    return theta, scaled_data(data_key, theta)


def scaled_functions(theta, y):
    weights, z = theta
    size = jnp.sum(weights.readout**2)
    more = {"z": z, "z squared": z**2, "z times readout": z * size, "readout against its scale": size * jnp.exp(-z)}
    return label_functions(weights, y) | more


SCALED = POSITIONS | {"from_position": lambda target, key, u: (target.to_weights(key, u), u.z.scale)}
UNKNOWN_SCALE = Problem(scaled_draw, scaled_data, scaled_functions, **SCALED, reference=40_000)


# Two hidden layers.

DEEP_NETWORK = widebnn.dense(3, [3, 3], "gelu", readout_weight_std=1.5)


def deep_functions(weights, y):
    second, f = weights.hidden[1], apply(DEEP_NETWORK, weights, jnp.asarray(X))
    return test_functions(weights, y, DEEP_NETWORK) | {
        "second w": second.w[0, 0],
        "second w squared": jnp.sum(second.w**2),
        "second bias": second.b[0],
        "product of layers": second.w[0, 0] * weights.hidden[0].w[0, 0],
        "second w times f": second.w[0, 0] * f[0, 0],
        "second w times readout": jnp.sum(second.w * weights.readout[:-1, :1]),
    }


DEEP_DRAWS = (functools.partial(draw, network=DEEP_NETWORK) for draw in (gaussian_draw, gaussian_data))
DEEP = Problem(*DEEP_DRAWS, deep_functions, reference=40_000)
deep_target = targets(DEEP_NETWORK, noise=NOISE)

# The paper's chain on all weights: most of the hidden ones are lumped in three numbers. theta is what the chain has,
# with the readout itself in place of the whitened one.

WIDE_X = np.random.default_rng(3).normal(size=(3, 40))
WIDE_NETWORK = widebnn.dense(40, [3], "gelu", readout_weight_std=1.5)


AllWeights = collections.namedtuple("AllWeights", "seen readout tracked ignored")
"""Hidden weights in the directions of the inputs, the readout, and the hidden weights that are left."""


def input_directions(network, x):
    """An orthonormal basis of what the first layer sees, also where the caller is traced."""
    with jax.ensure_compile_time_eval():
        return jnp.asarray(FunctionSpace(network, jnp.asarray(x)).basis)


def wide_features(theta):
    """Psi at the inputs, by the network itself; what is outside their directions does not matter."""
    stacked = input_directions(WIDE_NETWORK, WIDE_X) @ theta.seen
    return WIDE_NETWORK.features((Layer(stacked[:-1], stacked[-1]),), jnp.asarray(WIDE_X))


def wide_data(key, theta):
    f = wide_features(theta) @ theta.readout
    return f + NOISE * jax.random.normal(key, f.shape)


def wide_draw(key):
    keys = jax.random.split(key, 5)
    shapes = (3, 3), (WIDE_NETWORK.feature_dim, OUTPUTS), (TRACKED,)
    normals = [jax.random.normal(k, shape) for k, shape in zip(keys, shapes, strict=False)]
    theta = AllWeights(*normals, Lumped.sample(keys[3], (41 - 3) * 3 - TRACKED))
    return theta, wide_data(keys[4], theta)


def wide_target(y):
    return widebnn.posterior(WIDE_NETWORK, WIDE_X, y, noise=NOISE, coordinates="full", dtype="float64")


def wide_functions(theta, y):
    target = wide_target(jnp.zeros_like(y))
    along = target.coordinates.project(FullPosition((theta.seen,), (), theta.readout, theta.tracked, theta.ignored))
    length = jnp.sum(theta.ignored.values**2)
    psi = wide_features(theta)
    f = psi @ theta.readout
    return (
        functions_of_weights([(theta.seen[:-1], theta.seen[-1])], theta.readout)
        | functions_of_data(f, psi, y)
        | {
            "tracked": theta.tracked[0],
            "tracked squared": jnp.sum(theta.tracked**2),
            "tracked product": theta.tracked[0] * theta.tracked[1],
            "ignored": length,
            "ignored times readout": length * theta.readout[0, 0],
            "tracked times f": theta.tracked[0] * f[0, 0],
            "projection": along[0],
            "projection squared": along[1] ** 2,
        }
    )


def wide_position(target, theta):
    u = FullPosition((theta.seen,), (), theta.readout, theta.tracked, theta.ignored)
    psi = FunctionSpace(WIDE_NETWORK, target.x).psi(u.layers)
    return u._replace(readout=condition(psi, target.y, NOISE).whiten(theta.readout))


def wide_weights(target, key, u):
    return AllWeights(u.layers[0], target.to_weights(key, u).readout, u.tracked, u.ignored)


WIDE = Problem(wide_draw, wide_data, wide_functions, wide_position, wide_weights, reference=40_000)


# Single precision.


def single_draw(key):
    weights, _ = gaussian_draw(key)
    weights = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), weights)
    return weights, gaussian_data(jax.random.fold_in(key, 3), weights)


SINGLE = Problem(single_draw, gaussian_data, test_functions, reference=40_000)

REGRESSION = {"": STEP_SIZES | {"auto": 0.7}, "weights": WEIGHT_SPACE_STEP_SIZES | {"auto": 0.25}}
UNEQUAL = REGRESSION | {"weights": REGRESSION["weights"] | {"auto": 0.12}}
CLASSIFICATION = {"": dict.fromkeys(SAMPLERS, 0.4) | {"rwmh": 0.3, "pcnl": 0.5, "hmc": 0.3, "auto": 0.3}}
HIGH_DIMENSION = {"": STEP_SIZES | {"rwmh": 0.15, "mala": 0.4, "underdamped": 0.4, "hmc": 0.3, "auto": 0.7}}
FEW = ("pcn", "pcnl", "hmc", "auto")
ALL, SOFTMAX = tuple(COORDINATES), ("weights", "marginal", "function")
SINGLE_TARGET, MIXED_TARGET = (targets(noise=NOISE, dtype=dtype) for dtype in ("float32", "mixed"))
SETTINGS = {
    "known noise": Setting(GAUSSIAN, make_target, ALL, REGRESSION),
    "unknown noise": Setting(UNKNOWN_NOISE, unknown_noise_target, ALL, REGRESSION, length=SHORTER),
    "noise of every row": Setting(UNEQUAL_NOISE, targets(likelihood=ROW_NOISE), ALL, UNEQUAL, FEW, length=SHORTER),
    "noise of the inputs": Setting(INPUT_NOISE_PROBLEM, input_noise_target, ALL, UNEQUAL, FEW, length=SHORTER),
    "softmax": Setting(LABELS, label_target, SOFTMAX, CLASSIFICATION, length=SHORTER),
    "softmax of unknown scale": Setting(UNKNOWN_SCALE, scaled_target, SOFTMAX, CLASSIFICATION, length=SHORTER),
    "two hidden layers": Setting(DEEP, deep_target, ("marginal", "function"), REGRESSION, FEW),
    "all weights": Setting(WIDE, lambda coordinates: wide_target, ("function",), HIGH_DIMENSION),
    "single precision": Setting(SINGLE, SINGLE_TARGET, ALL, REGRESSION, ("pcn", "auto")),
    "mixed precision": Setting(GAUSSIAN, MIXED_TARGET, ALL, REGRESSION, ("pcnl", "auto")),
}
