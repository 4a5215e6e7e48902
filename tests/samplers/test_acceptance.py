"""The log acceptance ratio of every sampler against densities of proposal and target, by brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.stats import multivariate_normal

from problems import COORDINATES, naive_log_likelihood, small_target
from widebnn import samplers
from widebnn.samplers.langevin import delta_from_step_size

STEP = 0.3
FIRST = (3 - np.sqrt(3)) / 3
ALTERNATING = (FIRST, 2 - 2 * FIRST, 2 * FIRST, 2 - 2 * FIRST, FIRST)
"""Kicks of four steps of Hilbert-space HMC."""


def normal_logpdf(at, mean, std):
    return multivariate_normal(mean, std**2 * np.eye(len(mean))).logpdf(at)


class BruteForce:
    """log pi and its gradient on flat vectors, from the naive log-likelihood alone."""

    def __init__(self, target, unravel):
        l = naive_log_likelihood(target)  # noqa: E741
        both = jax.jit(jax.value_and_grad(lambda u: l(unravel(u))))
        self.l = lambda u: float(both(u)[0])
        self.grad_l = lambda u: np.asarray(both(u)[1])
        self.log_pi = lambda u: self.l(u) + normal_logpdf(u, np.zeros_like(u), 1.0)
        self.grad_log_pi = lambda u: self.grad_l(u) - u

    def metropolis_hastings(self, u, v, log_q):
        """log [pi(v) q(u | v)] - log [pi(u) q(v | u)], log_q(to, given)."""
        return self.log_pi(v) + log_q(u, v) - self.log_pi(u) - log_q(v, u)

    def leapfrog(self, u, p, e, steps):
        for _ in range(steps):
            p = p + e / 2 * self.grad_log_pi(u)
            u = u + e * p
            p = p + e / 2 * self.grad_log_pi(u)
        return u, p

    def joint(self, u, p):
        return self.log_pi(u) + normal_logpdf(p, np.zeros_like(p), 1.0)


def brute_rwmh(b, u, w):
    v = u + STEP * w
    return v, b.metropolis_hastings(u, v, lambda to, given: normal_logpdf(to, given, STEP))


def brute_pcn(b, u, w):
    a = np.sqrt(1 - STEP**2)
    v = a * u + STEP * w
    return v, b.metropolis_hastings(u, v, lambda to, given: normal_logpdf(to, a * given, STEP))


def brute_mala(b, u, w):
    def mean(given):
        return given + STEP**2 / 2 * b.grad_log_pi(given)

    v = mean(u) + STEP * w
    return v, b.metropolis_hastings(u, v, lambda to, given: normal_logpdf(to, mean(given), STEP))


def brute_pcnl(b, u, w):
    # The root in (0, 2) of b^2 (2 + D)^2 = 8 D, by NumPy.
    roots = np.roots([STEP**2, 4 * STEP**2 - 8, 4 * STEP**2])
    (d,) = roots[(roots > 0) & (roots < 2)]

    def mean(given):
        return ((2 - d) * given + 2 * d * b.grad_l(given)) / (2 + d)

    v = mean(u) + STEP * w
    return v, b.metropolis_hastings(u, v, lambda to, given: normal_logpdf(to, mean(given), STEP))


def brute_hmc(b, u, w):
    v, p = b.leapfrog(u, w, STEP, 3)
    return v, b.joint(v, p) - b.joint(u, w)


def rotate_and_kick(b, u, w, kicks):
    v, p = u, w + STEP * kicks[0] * b.grad_l(u)
    for kick in kicks[1:]:
        v, p = np.cos(STEP) * v + np.sin(STEP) * p, np.cos(STEP) * p - np.sin(STEP) * v
        p = p + STEP * kick * b.grad_l(v)
    return v, b.joint(v, p) - b.joint(u, w)


def brute_hilbert_hmc(b, u, w):
    return rotate_and_kick(b, u, w, ALTERNATING)


def brute_odd_hilbert_hmc(b, u, w):
    """Odd numbers of steps are the leapfrog; one step of angle e moves by sin(e) times the noise."""
    return rotate_and_kick(b, u, w, [0.5, 1.0, 1.0, 0.5])


def brute_one_step_hilbert_hmc(b, u, w):
    return rotate_and_kick(b, u, w, [0.5, 0.5])


def test_alternating_kicks_have_a_smaller_energy_error():
    """Than the leapfrog's, with as many gradients, root mean square over random starts."""
    target = small_target("marginal")
    errors = []
    b = BruteForce(target, ravel_pytree(target.sample_reference(jax.random.key(0)))[1])
    for seed in range(8):
        u, w = (ravel_pytree(target.sample_reference(jax.random.key(2 * seed + i)))[0] for i in (0, 1))
        paths = ALTERNATING, [0.5, 1.0, 1.0, 1.0, 0.5]
        errors.append([rotate_and_kick(b, np.asarray(u), np.asarray(w), kicks)[1] for kicks in paths])
    alternating, leapfrog = np.sqrt(np.mean(np.square(errors), axis=0))
    assert alternating < 0.8 * leapfrog


def brute_underdamped(b, u, w):
    keep = np.exp(-0.7 * STEP)
    p = keep * np.ones_like(u) + np.sqrt(1 - keep**2) * w
    v, q = b.leapfrog(u, p, STEP, 1)
    return v, b.joint(v, q) - b.joint(u, p)


CASES = {
    "rwmh": (brute_rwmh, {}),
    "pcn": (brute_pcn, {}),
    "mala": (brute_mala, {}),
    "pcnl": (brute_pcnl, {}),
    "hmc": (brute_hmc, {"num_steps": 3}),
    "underdamped": (brute_underdamped, {"friction": 0.7}),
    "hilbert_hmc": (brute_hilbert_hmc, {"num_steps": 4}),
    "hilbert_hmc, odd": (brute_odd_hilbert_hmc, {"num_steps": 3}),
    "hilbert_hmc, one step": (brute_one_step_hilbert_hmc, {"num_steps": 1}),
}


def test_every_sampler_has_a_case():
    """All but the slice sampler, which has no acceptance ratio."""
    assert {case.partition(",")[0] for case in CASES} == set(samplers.SAMPLERS) - {"elliptical_slice"}


@pytest.mark.some(9)
@pytest.mark.parametrize(("n", "outputs", "widths"), [(5, 2, (4,)), (3, 1, (3, 4)), (9, 3, (2,))])
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("case", CASES)
def test_log_ratio_equals_brute_force(case, coordinates, n, outputs, widths):
    name, (brute, options) = case.partition(",")[0], CASES[case]
    target = small_target(coordinates, n=n, outputs=outputs, widths=widths, seed=n)
    algorithm = samplers.build_sampler(name, target.log_likelihood, step_size=STEP, **options)
    position, noise = map(jax.jit(target.sample_reference), jax.random.split(jax.random.key(n)))
    u, unravel = ravel_pytree(position)
    state = jax.jit(algorithm.init)(position)
    if name == "underdamped":
        state = state._replace(momentum=unravel(jnp.ones_like(u)), has_momentum=jnp.asarray(True))
    proposal = jax.jit(algorithm.propose)(state, noise)
    v, expected = brute(BruteForce(target, unravel), np.asarray(u), np.asarray(ravel_pytree(noise)[0]))
    # Where a trajectory diverges, positions are huge.
    np.testing.assert_allclose(ravel_pytree(proposal.state.position)[0], v, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(proposal.log_ratio, expected, rtol=1e-9, atol=1e-8)
    # A rejected step must leave the position alone; only the underdamped chain changes anything else.
    np.testing.assert_array_equal(ravel_pytree(proposal.otherwise.position)[0], u)


@pytest.mark.parametrize("name", ["pcn", "pcnl", "hilbert_hmc"])
def test_accepts_everything_when_the_likelihood_is_constant(name):
    algorithm = samplers.build_sampler(name, lambda u: 0.0 * jnp.sum(u), step_size=0.8)
    state = algorithm.init(jnp.ones(1000))
    for i in range(5):
        state, info = algorithm.step(jax.random.key(i), state)
        assert info.is_accepted
        np.testing.assert_allclose(info.acceptance_rate, 1.0, atol=1e-12)


def test_underdamped_with_infinite_friction_is_mala():
    target = small_target("marginal")
    key, position = jax.random.key(3), target.sample_reference(jax.random.key(4))
    noise = target.sample_reference(key)
    mala = samplers.mala(target.log_likelihood, STEP)
    other = samplers.underdamped(target.log_likelihood, STEP, friction=np.inf)
    state = other.init(position)._replace(momentum=noise, has_momentum=jnp.asarray(True))
    a, b = jax.jit(mala.propose)(mala.init(position), noise), jax.jit(other.propose)(state, noise)
    np.testing.assert_allclose(a.log_ratio, b.log_ratio, atol=1e-9)
    for p, q in zip(jax.tree.leaves(a.state.position), jax.tree.leaves(b.state.position), strict=True):
        np.testing.assert_allclose(p, q, atol=1e-12)


def test_underdamped_flips_the_momentum_on_rejection():
    algorithm = samplers.underdamped(lambda u: -1e3 * jnp.sum(u**4), 0.5, friction=1.0)
    momentum = jnp.array([1.0, -2.0, 3.0])
    state = algorithm.init(jnp.ones(3))._replace(momentum=momentum, has_momentum=jnp.asarray(True))
    noise = jnp.array([0.3, 0.1, -0.2])
    keep = np.exp(-0.5)
    refreshed = keep * state.momentum + np.sqrt(1 - keep**2) * noise
    np.testing.assert_allclose(algorithm.propose(state, noise).otherwise.momentum, -refreshed)


def test_underdamped_chain_gets_away_from_its_start():
    """In many dimensions a first momentum much shorter than a typical one would never be accepted."""
    algorithm = samplers.underdamped(lambda u: 0.0 * jnp.sum(u), 0.1, friction=0.05)
    state = algorithm.init(jax.random.normal(jax.random.key(0), (400_000,)))
    step, rates = jax.jit(algorithm.step), []
    for i in range(60):
        state, info = step(jax.random.key(i + 1), state)
        rates.append(info.acceptance_rate)
    assert np.mean(rates[30:]) > 0.5


@pytest.mark.parametrize("step_size", [1e-3, 0.01, 0.1, 0.5, 0.999, 1.0])
def test_pcnl_delta_gives_the_noise_coefficient(step_size):
    delta = delta_from_step_size(step_size)
    assert 0 < delta <= 2
    np.testing.assert_allclose(8 * delta / (2 + delta) ** 2, step_size**2, rtol=1e-12)


@pytest.mark.parametrize("name", samplers.SAMPLERS)
def test_nan_is_a_counted_rejection(name):
    def log_likelihood(u):
        return jnp.where(u[0] > 1.0, jnp.nan, -0.5 * jnp.sum(u**2))

    options = {} if name == "elliptical_slice" else {"step_size": 0.9}
    algorithm = samplers.build_sampler(name, log_likelihood, **options)
    state = algorithm.init(jnp.zeros(2))
    step = jax.jit(algorithm.step)
    seen = 0
    for i in range(200):
        state, info = step(jax.random.key(i), state)
        seen += not info.is_finite
        assert np.isfinite(state.log_likelihood) and np.all(np.isfinite(state.position))
        assert info.is_finite or not info.is_accepted or name == "elliptical_slice"
    assert seen > 0
