"""The conjugate readout: primal against dual, gradients against autodiff, draws against moments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from problems import worst_z_of_normals
from widebnn.likelihoods import Gaussian, HeavyTails, InputNoise, Sizes
from widebnn.likelihoods.readout import choose_form, condition, log_evidence

SHAPES = [(4, 7, 2), (7, 4, 1), (5, 5, 3)]


def problem(n, p, outputs, seed=0, dtype=jnp.float64):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=(n, p)), dtype), jnp.asarray(rng.normal(size=(n, outputs)), dtype), 0.3


def gradients(function):
    return jax.jit(jax.grad(function, argnums=(0, 1, 2)))


def noise_of(kind, n):
    return jnp.asarray(0.3 if kind == "equal" else np.random.default_rng(5).uniform(0.1, 1.0, size=n))


NOISES = pytest.mark.parametrize("kind", ["equal", "of every row"])


@pytest.mark.some(4)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", ["primal", "dual"])
@NOISES
def test_evidence_and_its_gradients_are_those_of_the_textbook(shape, form, kind):
    """The density of the data by SciPy, its gradients by autodiff, with and without the variance of a constant."""
    psi, y, _ = problem(*shape)
    noise = noise_of(kind, len(psi))

    def naive(psi, y, noise, constant=0.0):
        k = psi @ psi.T + noise**2 * jnp.eye(len(psi)) + constant**2
        return -0.5 * (y.shape[1] * jnp.linalg.slogdet(2 * jnp.pi * k)[1] + jnp.sum(y * jnp.linalg.solve(k, y)))

    k = np.asarray(psi @ psi.T) + np.asarray(noise) ** 2 * np.eye(len(psi))
    expected = multivariate_normal(np.zeros(len(k)), k).logpdf(np.asarray(y).T).sum()
    np.testing.assert_allclose(jax.jit(log_evidence, static_argnums=3)(psi, y, noise, form), expected, rtol=1e-12)
    for constant in (0.0, 0.7):
        here, there = lambda *a, c=constant: log_evidence(*a, form, c), lambda *a, c=constant: naive(*a, c)
        np.testing.assert_allclose(jax.jit(here)(psi, y, noise), jax.jit(there)(psi, y, noise), rtol=1e-12)
        ours, expected = (gradients(lambda *a, f=f: 3 * f(*a))(psi, y, noise) for f in (here, there))
        for a, b in zip(ours, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_the_smaller_matrix_is_factored():
    assert choose_form(5, 9) == "dual"
    assert choose_form(9, 5) == "primal"


@pytest.mark.some(4)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", ["primal", "dual"])
@NOISES
def test_moments_and_square_root(shape, form, kind):
    psi, y, _ = problem(*shape)
    noise = noise_of(kind, len(psi))
    scaled, y_scaled = (np.asarray(part / noise.reshape(-1, 1)) for part in (psi, y))
    sigma = np.linalg.inv(np.eye(shape[1]) + scaled.T @ scaled)
    conditional = condition(psi, jnp.zeros((shape[0], shape[1])), noise, form)  # a mean of zero: the root alone
    root = conditional.unwhiten(jnp.eye(shape[1]))
    np.testing.assert_allclose(root @ root, sigma, atol=1e-11)
    np.testing.assert_allclose(root, root.T, atol=1e-11)
    np.testing.assert_allclose(conditional.whiten(root), np.eye(shape[1]), atol=1e-10)
    conditional = condition(psi, y, noise, form)
    np.testing.assert_allclose(conditional.mean, sigma @ scaled.T @ y_scaled, atol=1e-11)
    new = jnp.asarray(np.random.default_rng(1).normal(size=(3, shape[1])))
    np.testing.assert_allclose(conditional.variance(new), np.diag(new @ sigma @ new.T), atol=1e-11)
    key, other = jax.random.key(0), condition(psi, y, noise, "dual" if form == "primal" else "primal")
    np.testing.assert_allclose(conditional.draw(key), other.draw(key), atol=1e-11)
    z = np.random.default_rng(9).normal(size=conditional.mean.shape)
    np.testing.assert_allclose(conditional.unwhiten(z), conditional.mean + root @ z, atol=1e-11)
    np.testing.assert_allclose(conditional.whiten(conditional.unwhiten(z)), z, atol=1e-10)


@pytest.mark.parametrize("form", ["primal", "dual"])
@NOISES
def test_pathwise_draws_have_the_exact_posterior(form, kind):
    psi, y, _ = problem(4, 5, 1)
    noise = noise_of(kind, len(psi))
    scaled, y_scaled = (np.asarray(part / noise.reshape(-1, 1)) for part in (psi, y))
    sigma = np.linalg.inv(np.eye(5) + scaled.T @ scaled)
    conditional = condition(psi, y, noise, form)

    def worst_z(draw):
        """Of mean and covariance of whitened draws, N(0, I) under the exact law."""
        draws = np.asarray(jax.vmap(draw)(jax.random.split(jax.random.key(1), 40_000)))[:, :, 0]
        return worst_z_of_normals(
            np.linalg.solve(np.linalg.cholesky(sigma), (draws - (sigma @ scaled.T @ y_scaled).T).T).T
        )

    def without_observation_noise(key):
        z = jax.random.normal(key, (5, 1))
        return z + conditional.gain(y - psi @ z)

    assert worst_z(conditional.draw) < 4.5
    assert worst_z(without_observation_noise) > 10, "the check has no power"


def test_float32_features_float64_factorisation():
    rng = np.random.default_rng(0)
    wide = jnp.asarray(rng.normal(size=(64, 1000)) / np.sqrt(1000))
    y = jnp.asarray(rng.normal(size=(64, 10)))
    exact = log_evidence(wide, y, 0.1)
    mixed = log_evidence(wide.astype(jnp.float32), y.astype(jnp.float32), 0.1)
    assert mixed.dtype == jnp.float64
    np.testing.assert_allclose(mixed, exact, atol=1e-2)
    assert jax.grad(log_evidence)(wide.astype(jnp.float32), y, 0.1).dtype == jnp.float32


@pytest.mark.parametrize("shape", SHAPES[:2])
@pytest.mark.parametrize(
    "likelihood", [Gaussian(0.3), HeavyTails(0.3, log_sd=0.7), InputNoise()], ids=lambda one: one.name
)
def test_left_out_rows_by_brute_force(likelihood, shape):
    """log p(y_i | others) by Gaussian conditioning; with a noise for every row it is averaged over that of row i."""
    psi, y, _ = problem(*shape)
    n = len(psi)
    z = likelihood.sample_latent(jax.random.key(1), Sizes(n, psi.shape[1], 1, jnp.float64, False, False))
    noise = np.broadcast_to(likelihood.noise_at(z, psi), n)
    k, targets = np.asarray(psi @ psi.T), np.asarray(y)
    for i, found in enumerate(likelihood.log_left_out(psi, y, z)):
        rest = np.delete(np.arange(n), i)
        gain = k[i, rest] @ np.linalg.inv(k[np.ix_(rest, rest)] + np.diag(noise[rest] ** 2))
        mean, variance = gain @ targets[rest], k[i, i] - gain @ k[rest, i]
        grid = np.linspace(-6, 6, 2001) if likelihood.name == "heavy_tails" else np.zeros(1)
        own = 0.3 * np.exp(0.7 * grid)[:, None] if likelihood.name == "heavy_tails" else noise[i : i + 1, None]
        density = norm.pdf(targets[i], mean, np.sqrt(variance + own**2)).prod(axis=1)
        assert found == pytest.approx(np.log(np.average(density, weights=norm.pdf(grid))), rel=1e-4)
