"""Classification is exact: chains started from the joint law of weights and labels stay there, and bugs are seen.

The test of harness.py for labels y ~ softmax(f(x)). Every input comes with several labels, so that the posterior is
far from the prior, and equal inputs are merged in function space.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import ALPHA, Problem, joint_test

import widebnn
from widebnn.diagnostics import ess
from widebnn.networks import Weights, apply
from widebnn.precision import in_double_precision
from widebnn.samplers import SAMPLERS

CLASSES = 3
INPUTS = np.array([[1.0, 0.3], [-0.7, 1.1], [0.2, -1.4]])
X = np.repeat(INPUTS, 4, axis=0)
NETWORK = widebnn.dense(2, [3], "gelu", readout_weight_std=4.0)
REPLICATES = 3_000
OPTIONS = {
    "pcn": {"step_size": 0.4},
    "hilbert_hmc": {"step_size": 0.4, "num_steps": 2},
    "elliptical_slice": {},
    "mala": {"step_size": 0.4},
}


def joint_draw(key):
    hidden_key, readout_key, data_key = jax.random.split(key, 3)
    hidden = NETWORK.sample_hidden(hidden_key, jnp.float64)
    weights = Weights(hidden, jax.random.normal(readout_key, (NETWORK.feature_dim, CLASSES)))
    return weights, data_draw(data_key, weights)


def data_draw(key, weights):
    """One-hot labels drawn from the classes' probabilities."""
    return jax.nn.one_hot(jax.random.categorical(key, apply(NETWORK, weights, jnp.asarray(X))), CLASSES)


def statistics(weights, y):
    f = apply(NETWORK, weights, jnp.asarray(X))
    w, theta = weights.hidden[0].w, weights.readout
    residual = y - jax.nn.softmax(f)
    return {
        "w": w[0, 0],
        "w squared": jnp.sum(w**2),
        "readout": theta[0, 0],
        "readout squared": jnp.sum(theta**2),
        "unit product": w[0, 0] * theta[0, 0],
        "f": f[0, 0],
        "f squared": jnp.sum(f**2),
        "f products": f[0, 0] * f[-1, 0],
        "classes product": f[0, 0] * f[0, 1],
        "mean logit": jnp.mean(f),
        "logit of the label": jnp.sum(y * f),
        "log-likelihood": jnp.sum(y * jax.nn.log_softmax(f)),
        "residual": jnp.sum(residual * f),
        "residual of a class": jnp.sum(residual[:, 0]),
    }


LABELS = Problem(joint_draw, data_draw, statistics, reference=40_000)


def target_in(coordinates):
    return lambda y: widebnn.posterior(NETWORK, X, y, likelihood="softmax", coordinates=coordinates, dtype="float64")


def run(target_of, sampler, **length):
    length = {"cycles": 3, "replicates": REPLICATES} | length
    return joint_test(
        target_of,
        lambda log_likelihood: SAMPLERS[sampler](log_likelihood, **OPTIONS[sampler]),
        problem=LABELS,
        **length,
    )


@pytest.mark.parametrize("coordinates", ["weights", "function"])
@pytest.mark.parametrize("sampler", OPTIONS)
def test_conservation_and_geweke(sampler, coordinates):
    # Slice sampling moves far, and under vmap all replicates wait for the slowest search.
    length = {"cycles": 2, "steps": 2} if sampler == "elliptical_slice" else {}
    outcome = run(target_in(coordinates), sampler, **length)
    assert outcome.accepted > 0.2, "the chain hardly moved: the test would show nothing"
    assert sampler == "elliptical_slice" or outcome.accepted < 0.97, "hardly anything was rejected"
    assert outcome.conservation > ALPHA
    assert outcome.geweke > ALPHA


def without_normalisation(f, y):
    return jnp.sum(y * f)


def distinct_inputs_counted_once(f, y):
    return jnp.sum((y * jax.nn.log_softmax(f))[::4])


def buggy(coordinates, log_likelihood_of):
    """The target with another function of logits and labels in place of its log-likelihood."""

    def target_of(y):
        target = target_in(coordinates)(y)

        @in_double_precision
        def log_likelihood(u):
            return log_likelihood_of(target.predict(jax.random.key(0), u, X).f, y)

        return dataclasses.replace(target, log_likelihood=log_likelihood)

    return target_of


def readout_of_least_norm(y):
    """to_weights that forgets the part of the readout that B leaves open."""
    target = target_in("function")(y)

    def to_weights(key, u):
        weights = target.to_weights(key, u)
        psi = NETWORK.features(weights.hidden, jnp.asarray(INPUTS))
        _, _, vt = jnp.linalg.svd(psi, full_matrices=False)
        return weights._replace(readout=vt.T @ (vt @ weights.readout))

    return dataclasses.replace(target, to_weights=to_weights)


BUGS = {
    "classes not normalised": buggy("weights", without_normalisation),
    "equal inputs counted once": buggy("weights", distinct_inputs_counted_once),
    "readout of least norm": readout_of_least_norm,
}


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_is_caught(name):
    outcome = run(BUGS[name], "pcn")
    assert min(outcome.conservation, outcome.geweke) < ALPHA, f"{name} went unnoticed: {outcome}"


@pytest.mark.long
def test_class_probabilities_agree_between_coordinates():
    """Two chains that share nothing but the posterior: probabilities and their products at new inputs."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 2)), np.array([0, 1, 2, 1, 0, 1])
    x_test = rng.normal(size=(3, 2))
    network = widebnn.dense(2, [8], readout_weight_std=3.0)
    runs = {"weights": ("hilbert_hmc", 3), "function": ("pcn", 5)}
    means, errors = [], []
    for seed, (coordinates, (sampler, thin)) in enumerate(runs.items()):
        target = widebnn.posterior(network, x, y, likelihood="softmax", coordinates=coordinates, dtype="float64")

        def collect(key, u, target=target):
            p = jax.nn.softmax(target.predict(key, u, x_test).f)
            return {"p": jnp.concatenate([p, p[:, :1] * p, p[:1] * p])}

        p = widebnn.sample(
            target, sampler, steps=2_000 * thin, burn_in=500, thin=thin, seed=seed, collect=collect
        ).draws["p"]  # fmt: skip
        assert ess(p).min() > 300, "too few effective draws to show anything"
        means.append(p.mean(axis=(0, 1)))
        errors.append(p.std(axis=(0, 1)) / np.sqrt(ess(p)))
    z = (means[0] - means[1]) / np.hypot(*errors)
    assert np.abs(z).max() < 4.5
    # The data are seen: the prior has probability 1/3 for every class.
    assert np.abs(means[0][:3] - 1 / 3).max() > 0.1
