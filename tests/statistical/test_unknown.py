"""A scale sampled with the chain is exact: the joint law of scale, weights and data is conserved, and bugs are seen."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_softmax as labels
from harness import ALPHA, NETWORK, Problem, X, joint_test, make_sampler, test_functions
from harness import joint_draw as gaussian_draw

import widebnn
from widebnn.networks import apply
from widebnn.precision import in_double_precision
from widebnn.samplers import SAMPLERS

NOISE = widebnn.LogNormal(0.3, log_sd=0.6)
LOGIT_SCALE = widebnn.LogNormal(1.5, log_sd=0.6)
REPLICATES = 4_000


def data_draw(key, theta):
    weights, z = theta
    f = apply(NETWORK, weights, jnp.asarray(X))
    return f + NOISE.at(z) * jax.random.normal(key, f.shape)


def joint_draw(key):
    weights_key, z_key, data_key = jax.random.split(key, 3)
    theta = gaussian_draw(weights_key)[0], jax.random.normal(z_key)
    return theta, data_draw(data_key, theta)


def functions_of(theta, y):
    weights, z = theta
    residual = y - apply(NETWORK, weights, jnp.asarray(X))
    return test_functions(weights, y) | {
        "z": z,
        "z squared": z**2,
        "standardised residual": jnp.sum(residual**2) / NOISE.at(z) ** 2,
        "z times residual": z * jnp.sum(residual**2),
        "z times readout": z * jnp.sum(weights.readout**2),
        "z times y": z * jnp.sum(y**2),
    }


POSITIONS = {
    "to_position": lambda target, theta: target.from_weights(*theta),
    "from_position": lambda target, key, u: (target.to_weights(key, u), u.z),
}
GAUSSIAN = Problem(joint_draw, data_draw, functions_of, **POSITIONS, reference=40_000)


def gaussian_target(coordinates):
    return lambda y: widebnn.posterior(NETWORK, X, y, noise=NOISE, coordinates=coordinates, dtype="float64")


@pytest.mark.parametrize("coordinates", ["weights", "reparametrised", "marginal", "function"])
@pytest.mark.parametrize("sampler", ["pcn", "hilbert_hmc"])
def test_unknown_noise(sampler, coordinates):
    outcome = joint_test(
        gaussian_target(coordinates),
        make_sampler(sampler, coordinates),
        problem=GAUSSIAN,
        cycles=3,
        replicates=REPLICATES,
    )
    assert outcome.accepted > 0.1, "the chain hardly moved: the test would show nothing"
    assert outcome.conservation > ALPHA
    assert outcome.geweke > ALPHA


@pytest.mark.long
@pytest.mark.parametrize("sampler", ["rwmh", "pcnl", "mala", "underdamped", "hmc", "elliptical_slice"])
def test_unknown_noise_with_every_other_sampler(sampler):
    length = {"cycles": 2, "steps": 2} if sampler == "elliptical_slice" else {"cycles": 3}
    outcome = joint_test(
        gaussian_target("function"),
        make_sampler(sampler, "function"),
        problem=GAUSSIAN,
        replicates=REPLICATES,
        **length,
    )
    assert outcome.accepted > 0.2 and min(outcome.conservation, outcome.geweke) > ALPHA


def label_draw(key, theta):
    return labels.data_draw(key, theta[0])


def label_joint_draw(key):
    """The prior of the readout is that of logits times the scale."""
    weights_key, z_key, data_key = jax.random.split(key, 3)
    weights, _ = labels.joint_draw(weights_key)
    z = jax.random.normal(z_key)
    theta = weights._replace(readout=LOGIT_SCALE.at(z) * weights.readout), z
    return theta, label_draw(data_key, theta)


def label_functions(theta, y):
    weights, z = theta
    size = jnp.sum(weights.readout**2)
    return labels.statistics(weights, y) | {
        "z": z,
        "z squared": z**2,
        "z readout": z * size,
        "scaled": size * jnp.exp(-z),
    }


LABELS = Problem(label_joint_draw, label_draw, label_functions, **POSITIONS, reference=40_000)


@pytest.mark.parametrize("coordinates", ["weights", "function"])
@pytest.mark.parametrize("sampler", ["pcn", "hilbert_hmc"])
def test_unknown_scale_of_logits(sampler, coordinates):
    def target_of(y):
        options = {"likelihood": "softmax", "coordinates": coordinates, "logit_scale": LOGIT_SCALE}
        return widebnn.posterior(labels.NETWORK, labels.X, y, **options, dtype="float64")

    outcome = joint_test(
        target_of,
        lambda log_likelihood: SAMPLERS[sampler](log_likelihood, **labels.OPTIONS[sampler]),
        problem=LABELS,
        cycles=3,
        replicates=3_000,
    )
    assert outcome.accepted > 0.2 and min(outcome.conservation, outcome.geweke) > ALPHA


def noise_without_its_normalisation(y):
    """The likelihood without the factor noise^-n."""
    target = gaussian_target("weights")(y)
    inner = inspect.unwrap(target.log_likelihood)
    wrong = in_double_precision(lambda u: inner(u) + y.size * jnp.log(NOISE.at(u.z)))
    return dataclasses.replace(target, log_likelihood=wrong)


def readout_at_the_median(y):
    """The readout drawn with the median noise instead of the chain's."""
    target = gaussian_target("marginal")(y)
    return dataclasses.replace(
        target, to_weights=lambda key, u: target.to_weights(key, u._replace(z=jnp.zeros_like(u.z)))
    )


@pytest.mark.parametrize("bug", [noise_without_its_normalisation, readout_at_the_median])
def test_planted_bug_is_caught(bug):
    outcome = joint_test(bug, make_sampler("pcn", "weights"), problem=GAUSSIAN, cycles=3, replicates=REPLICATES)
    assert min(outcome.conservation, outcome.geweke) < ALPHA


def test_noise_is_found():
    """With many rows the posterior of the noise is at the truth, whatever the prior's median."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(80, 1))
    y = np.sin(2 * x) + 0.2 * rng.normal(size=x.shape)
    network = widebnn.dense(1, [32], "erf", weight_std=2.0, bias_std=1.0)
    target = widebnn.posterior(network, x, y, noise=widebnn.LogNormal(0.5, 0.7), dtype="float64")
    noise = widebnn.sample(
        target, steps=200, burn_in=100, collect=lambda key, u: {"noise": target.noise_at(u)}, seed=1
    ).draws["noise"]
    assert abs(noise.mean() - 0.2) < 0.05 and 0.005 < noise.std() < 0.04


def test_bad_input():
    with pytest.raises(widebnn.WidebnnError, match="log_sd must be greater than 0"):
        widebnn.LogNormal(1.0, log_sd=0.0)
    with pytest.raises(widebnn.WidebnnError, match="space='full' needs known noise"):
        widebnn.posterior(NETWORK, X, X[:, :1], noise=NOISE, space="full")
    with pytest.raises(widebnn.WidebnnError, match="logit_scale must be the prior"):
        widebnn.posterior(NETWORK, X, [0, 1, 0], likelihood="softmax", logit_scale=2.0)
    with pytest.raises(widebnn.WidebnnError, match="belongs to likelihood='softmax'"):
        widebnn.posterior(NETWORK, X, X[:, :1], logit_scale=LOGIT_SCALE)
