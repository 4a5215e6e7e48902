"""User-defined Gaussian priors: whitened exactly, sampled exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import widebnn
from widebnn.diagnostics import ess
from widebnn.errors import WidebnnError

NOISE = 3.0


def linear_problem(d=4, n=6, seed=0):
    """y = A x + noise with x ~ N(m, C): the data, the prior, and the exact mean and covariance of x given y."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(n, d))
    mean = rng.normal(size=d)
    root = rng.normal(size=(d, d))
    covariance = root @ root.T + 0.3 * np.eye(d)
    y = a @ rng.multivariate_normal(mean, covariance) + NOISE * rng.normal(size=n)
    precision = np.linalg.inv(covariance) + a.T @ a / NOISE**2
    exact = np.linalg.solve(precision, np.linalg.solve(covariance, mean) + a.T @ y / NOISE**2)
    return a, y, mean, covariance, exact, np.linalg.inv(precision)


def log_likelihood_of(a, y):
    return lambda x: -0.5 * jnp.sum((y - a @ x) ** 2) / NOISE**2


def differences(values):
    """Log-densities are compared up to a constant."""
    return np.asarray(values) - values[0]


def test_density_of_the_whitened_variable():
    a, y, mean, covariance, exact, spread = linear_problem()
    factor = np.linalg.cholesky(covariance)
    expected = scipy.stats.multivariate_normal(exact, spread)
    log_likelihood = log_likelihood_of(a, y)
    prior = scipy.stats.multivariate_normal(mean, covariance)
    inverse = np.linalg.inv(covariance)

    def log_density(x):
        return log_likelihood(x) - 0.5 * (x - mean) @ inverse @ (x - mean)

    targets = [
        widebnn.gaussian_target(log_likelihood, mean, factor),
        widebnn.gaussian_target(log_likelihood, mean, covariance=covariance),
        widebnn.gaussian_target(log_likelihood, mean, lambda u: jnp.asarray(factor) @ u),
        widebnn.gaussian_target(log_density, mean, factor, includes_prior=True),
    ]
    for target in targets:
        positions = [target.sample_reference(jax.random.key(i)) for i in range(4)]
        xs = [np.asarray(target.unwhiten(u)) for u in positions]
        np.testing.assert_allclose(xs[0], mean + factor @ np.asarray(positions[0]), rtol=1e-12)
        log_posterior = [float(target.log_likelihood(u)) + prior.logpdf(x) for u, x in zip(positions, xs, strict=True)]
        np.testing.assert_allclose(differences(log_posterior), differences(expected.logpdf(xs)), rtol=1e-9)


def test_a_gaussian_that_is_not_the_prior():
    """With the whole log-density, the reference changes the coordinates and nothing else."""
    *_, exact, spread = linear_problem()
    expected = scipy.stats.multivariate_normal(exact, spread)
    target = widebnn.gaussian_target(
        lambda x: -0.5 * (x - exact) @ np.linalg.inv(spread) @ (x - exact), exact + 1, 2.0, includes_prior=True
    )
    positions = [target.sample_reference(jax.random.key(i)) for i in range(4)]
    log_posterior = [float(target.log_likelihood(u) - 0.5 * jnp.sum(u**2)) for u in positions]
    np.testing.assert_allclose(
        differences(log_posterior), differences(expected.logpdf([target.unwhiten(u) for u in positions])), rtol=1e-9
    )


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("sampler", "options"), [("pcn", {"steps": 20_000}), ("hilbert_hmc", {"steps": 2_000, "step_size": 0.2})]
)
def test_moments_of_the_posterior(sampler, options):
    a, y, mean, covariance, exact, spread = linear_problem()
    target = widebnn.gaussian_target(log_likelihood_of(a, y), mean, covariance=covariance)
    result = widebnn.sample(target, sampler, burn_in=500, chains=2, collect=target.collect, **options)
    x = result.draws["x"]
    whitened = np.linalg.solve(np.linalg.cholesky(spread), (x.reshape(-1, 4) - exact).T).T.reshape(x.shape)
    # Under the exact posterior these are independent N(0, 1): means, variances and products of all pairs.
    products = whitened[..., :, None] * whitened[..., None, :] - np.eye(4)
    for statistic in (whitened, products[..., *np.triu_indices(4)]):
        error = statistic.std(axis=(0, 1)) / np.sqrt(ess(statistic))
        assert np.max(np.abs(statistic.mean(axis=(0, 1))) / error) < 4.5
    assert np.min(ess(whitened)) > 300


def test_latent_variables_in_a_dictionary():
    mean = {"field": np.zeros(50), "level": np.float64(3.0), "slopes": np.zeros((2, 3), np.float32)}
    scale = {"field": lambda u: jnp.cumsum(u) / np.sqrt(50), "level": 0.5, "slopes": np.array([[1.0], [2.0]])}
    target = widebnn.gaussian_target(lambda x: -jnp.sum(x["field"] ** 2) + x["level"], mean, scale)
    u = target.sample_reference(jax.random.key(0))
    x = target.unwhiten(u)
    np.testing.assert_allclose(x["field"], np.cumsum(u["field"]) / np.sqrt(50), rtol=1e-12)
    np.testing.assert_allclose(x["level"], 3 + 0.5 * u["level"], rtol=1e-12)
    np.testing.assert_allclose(x["slopes"], [[1], [2]] * np.asarray(u["slopes"]), rtol=1e-6)
    assert {name: leaf.dtype.name for name, leaf in x.items()} == {
        "field": "float64", "level": "float64", "slopes": "float32",
    }  # fmt: skip
    result = widebnn.sample(target, "pcn", step_size=0.5, steps=20, collect=target.collect)
    assert result.draws["field"].shape == (1, 20, 50)
    everywhere = widebnn.gaussian_target(lambda x: x["level"], mean, 2.0)
    np.testing.assert_allclose(everywhere.unwhiten(u)["slopes"], 2 * np.asarray(u["slopes"]), rtol=1e-6)


@pytest.mark.ambient
def test_double_precision_inside_sample_only():
    """A NumPy prior is sampled in float64 by a program that does not allow float64 elsewhere."""
    target = widebnn.gaussian_target(lambda x: -jnp.sum((x - 1) ** 2), np.zeros(3), 2.0)
    assert target.unwhiten(target.sample_reference(jax.random.key(0))).dtype == jnp.float32
    result = widebnn.sample(target, "pcn", step_size=0.5, steps=5, collect=target.collect)
    assert result.draws["x"].dtype == np.float64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mean": np.zeros(3)}, "one of them"),
        ({"mean": np.zeros(3), "scale": 1.0, "covariance": np.eye(3)}, "one of them"),
        ({"mean": np.zeros(3), "scale": 0.0}, "must be positive"),
        ({"mean": np.zeros(3), "scale": np.ones(2)}, "must be positive and broadcast"),
        ({"mean": np.zeros((3, 3)), "scale": np.ones((2, 3, 3))}, "must be positive and broadcast"),
        ({"mean": np.zeros(3), "scale": [1.0, 1.0, 1.0]}, "use arrays"),
        ({"mean": {"a": np.zeros(3)}, "scale": {"b": 1.0}}, "structure"),
        ({"mean": np.zeros(2), "covariance": np.array([[1.0, 0.5], [0.0, 1.0]])}, "symmetric positive definite"),
        ({"mean": np.zeros(2), "covariance": np.ones((2, 2)) - np.eye(2)}, "symmetric positive definite"),
        ({"mean": np.array([np.nan]), "scale": 1.0}, "mean has 1 NaN"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(WidebnnError, match=message):
        widebnn.gaussian_target(lambda x: 0.0, **arguments)
