"""Deliberate mistakes, most of them printed in the paper or present in its code: each must be caught.

Every mutant replaces one part of a correct combination and goes through the same joint test, with the
same number of draws and the same threshold, as the real samplers do in test_exactness.py.
"""

import jax
import jax.numpy as jnp
import pytest
from harness import ALPHA, NOISE, joint_test, make_sampler, make_target

from widebnn import samplers
from widebnn.networks import Weights
from widebnn.posteriors.readout import condition
from widebnn.samplers import algorithm as core
from widebnn.samplers.hmc import energy_change, leapfrog
from widebnn.samplers.pcnl import delta_from_step_size
from widebnn.samplers.tree import combine, inner, squared_norm_change


def edited(coordinates, **changes):
    """A target with some of its functions replaced; each change maps the right target to a function."""

    def target_of(y):
        target = make_target(coordinates)(y)
        replacements = {name: change(target) for name, change in changes.items()}
        return type(target)(**{**vars(target), **replacements})

    return target_of


def kernel(target, hidden):
    psi = target.network.features(hidden, target.x)
    return psi, psi @ psi.T + target.noise**2 * jnp.eye(len(psi))


def evidence(log_det, quadratic):
    """log-likelihood in marginal coordinates with these coefficients; the right ones are -c/2 and -1/2."""

    def change(target):
        def log_likelihood(hidden):
            _, k = kernel(target, hidden)
            fit = jnp.sum(target.y * jnp.linalg.solve(k, target.y))
            return log_det * jnp.linalg.slogdet(k)[1] + quadratic * fit

        return log_likelihood

    return edited("marginal", log_likelihood=change)


def misfit_alone(target):
    """What the published code uses as l under the reparametrisation: the residual, no determinant."""

    def log_likelihood(u):
        weights = target.to_weights(jax.random.key(0), u)
        f = target.network.features(weights.hidden, target.x) @ weights.readout
        return -0.5 * jnp.sum((target.y - f) ** 2) / target.noise**2

    return log_likelihood


def covariance_instead_of_root(target):
    def to_weights(key, u):
        psi, _ = kernel(target, u.hidden)
        sigma = jnp.linalg.inv(jnp.eye(psi.shape[1]) + psi.T @ psi / NOISE**2)
        return Weights(u.hidden, sigma @ psi.T @ target.y / NOISE**2 + sigma @ u.readout)

    return to_weights


def readout_mean_only(target):
    def to_weights(key, u):
        return Weights(u, condition(target.network.features(u, target.x), target.y, NOISE).gain(target.y))

    return to_weights


def readout_without_noise(target):
    def to_weights(key, u):
        psi = target.network.features(u, target.x)
        z = jax.random.normal(key, (psi.shape[1], target.y.shape[1]))
        return Weights(u, z + condition(psi, target.y, NOISE).gain(target.y - psi @ z))

    return to_weights


def standard_deviation_for_variance(target):
    def log_likelihood(u):
        f = target.network.features(u.hidden, target.x) @ u.readout
        return -0.5 * jnp.sum((target.y - f) ** 2) / target.noise

    return log_likelihood


def with_log_ratio(build, ratio):
    """A sampler whose log ratio is replaced by ratio(state, noise, proposal)."""

    def sampler_of(log_likelihood):
        right = build(log_likelihood)

        def propose(state, noise):
            proposal = right.propose(state, noise)
            return proposal._replace(log_ratio=ratio(state, noise, proposal))

        return core.metropolis_algorithm(right.init, propose, 0)

    return sampler_of


def likelihood_difference(state, noise, proposal):
    return proposal.state.log_likelihood - state.log_likelihood


def posterior_difference(state, noise, proposal):
    change = squared_norm_change(proposal.state.position, state.position)
    return likelihood_difference(state, noise, proposal) - 0.5 * change


def printed_pcnl_ratio(step_size):
    """exp(rho(u, v)) - rho(v, u), as displayed in the main text."""
    d = delta_from_step_size(step_size)

    def rho(at, to):
        difference, total = (
            combine((1.0, to.position), (-1.0, at.position)),
            combine((1.0, to.position), (1.0, at.position)),
        )
        g = at.gradient
        return -at.log_likelihood - inner(difference, g) / 2 - d / 4 * inner(total, g) + d / 4 * inner(g, g)

    return lambda state, noise, proposal: jnp.log(
        jnp.maximum(jnp.exp(rho(state, proposal.state)) - rho(proposal.state, state), 0.0)
    )


def expanded_pcnl_ratio(step_size):
    """The expansion in the appendix, whose first gradient term has the wrong sign."""
    d = delta_from_step_size(step_size)

    def ratio(state, noise, proposal):
        new = proposal.state
        back, total = (combine((1.0, state.position), (sign, new.position)) for sign in (-1.0, 1.0))
        both, change = (combine((1.0, state.gradient), (sign, new.gradient)) for sign in (1.0, -1.0))
        return (
            new.log_likelihood
            - state.log_likelihood
            - 0.5 * inner(back, both)
            - d / 4 * inner(total, change)
            - d / 4 * squared_norm_change(new.gradient, state.gradient)
        )

    return ratio


def proposal_ratio_without_prior(state, noise, proposal):
    """q(u | v) / q(v | u) kept, the Gaussian factor of the posterior dropped (equation 5)."""
    change = squared_norm_change(proposal.state.position, state.position)
    return likelihood_difference(state, noise, proposal) + 0.5 * change


def readout_prior_dropped(target):
    """The published single-device branch: the prior of theta is missing from the acceptance."""

    def log_likelihood(u):
        theta = target.to_weights(jax.random.key(0), u)
        return target.log_likelihood(u) + 0.5 * inner(theta, theta)

    return log_likelihood


def with_proposal(init_of, propose_of):
    """A sampler from a wrong propose function."""

    def sampler_of(log_likelihood):
        init = init_of(log_likelihood)
        return core.metropolis_algorithm(init, propose_of(init, log_likelihood), 1)

    return sampler_of


def pcn_with_wrong_contraction(init, log_likelihood):
    def propose(state, noise):
        new = init(combine((1 - 0.5, state.position), (0.5, noise)))
        return core.Proposal(new, state, new.log_likelihood - state.log_likelihood)

    return propose


def pcnl_with_delta_equal_to_step_size(init, log_likelihood):
    """The noise gets the wrong delta, the ratio the right one."""
    right = samplers.pcnl(log_likelihood, 0.6)
    d, wrong = delta_from_step_size(0.6), 0.6

    def propose(state, noise):
        scale = (jnp.sqrt(8 * wrong) / (2 + wrong)) / (jnp.sqrt(8 * d) / (2 + d))
        return right.propose(state, combine((scale, noise)))

    return propose


def hmc_without_last_kick(init, log_likelihood):
    def propose(state, noise):
        momentum = noise
        end = state
        for _ in range(4):
            momentum = combine((1.0, momentum), (0.35, end.gradient), (-0.35, end.position))
            end = init(combine((1.0, end.position), (0.35, momentum)))
        return core.Proposal(end, state, -energy_change(state, noise, end, momentum))

    return propose


def hmc_without_prior_energy(init, log_likelihood):
    def propose(state, noise):
        end, momentum = state, noise
        for _ in range(4):
            end, momentum = leapfrog(init, 0.35, end, momentum)
        kinetic = 0.5 * squared_norm_change(momentum, noise)
        return core.Proposal(end, state, end.log_likelihood - state.log_likelihood - kinetic)

    return propose


def underdamped_without_flip(log_likelihood):
    right = samplers.underdamped(log_likelihood, 0.3, friction=0.1)

    def propose(state, noise):
        proposal = right.propose(state, noise)
        kept = proposal.otherwise._replace(momentum=combine((-1.0, proposal.otherwise.momentum)))
        return proposal._replace(otherwise=kept)

    return core.metropolis_algorithm(right.init, propose, 1)


def accept_without_randomness(log_likelihood):
    """Accept whenever the ratio exceeds one half: an optimiser in disguise."""
    right = samplers.pcn(log_likelihood, 0.5)

    def step(key, state):
        noise_key, _ = jax.random.split(key)
        proposal = right.propose(state, core.normal_like(noise_key, state.position))
        accept = proposal.log_ratio > jnp.log(0.5)
        new = jax.tree.map(lambda a, b: jnp.where(accept, a, b), proposal.state, proposal.otherwise)
        return new, None

    return right._replace(step=step)


c = 2  # outputs
BUGS = {
    "dropped log det": (evidence(0.0, -0.5), make_sampler("pcn")),
    "printed sign of the quadratic form": (evidence(-c / 2, 0.5), make_sampler("pcn")),
    "det Sigma proportional to det K": (evidence(c / 2, -0.5), make_sampler("pcn")),
    "log det counted once, not per output": (evidence(-0.5, -0.5), make_sampler("pcn")),
    "published pCNL potential (misfit alone)": (
        edited("reparametrised", log_likelihood=misfit_alone),
        make_sampler("pcnl"),
    ),
    "Sigma in place of its square root": (
        edited("reparametrised", to_weights=covariance_instead_of_root),
        make_sampler("pcn"),
    ),
    "readout mean in place of a draw": (edited("marginal", to_weights=readout_mean_only), make_sampler("pcn")),
    "pathwise draw without observation noise": (
        edited("marginal", to_weights=readout_without_noise),
        make_sampler("pcn"),
    ),
    "s in place of s^2": (edited("weights", log_likelihood=standard_deviation_for_variance), make_sampler("pcn")),
    "Algorithm 2's ratio": (
        make_target("marginal"),
        with_log_ratio(make_sampler("pcnl"), posterior_difference),
    ),
    "printed pCNL acceptance": (
        make_target("marginal"),
        with_log_ratio(make_sampler("pcnl"), printed_pcnl_ratio(0.6)),
    ),
    "expanded pCNL ratio of the appendix": (
        make_target("marginal"),
        with_log_ratio(make_sampler("pcnl"), expanded_pcnl_ratio(0.6)),
    ),
    "equation 5 without the Gaussian factor": (
        make_target("marginal"),
        with_log_ratio(make_sampler("pcn"), proposal_ratio_without_prior),
    ),
    "published acceptance without the prior": (
        edited("reparametrised", log_likelihood=readout_prior_dropped),
        make_sampler("pcn"),
    ),
    "wrong delta": (make_target("marginal"), with_proposal(core.gradient_init, pcnl_with_delta_equal_to_step_size)),
    "missing prior term in RW-MH": (
        make_target("marginal"),
        with_log_ratio(make_sampler("rwmh"), likelihood_difference),
    ),
    "MALA without proposal correction": (
        make_target("marginal"),
        with_log_ratio(make_sampler("mala"), posterior_difference),
    ),
    "pCN with 1 - b in place of sqrt(1 - b^2)": (
        make_target("marginal"),
        with_proposal(core.plain_init, pcn_with_wrong_contraction),
    ),
    "prior counted twice in pCN": (
        make_target("marginal"),
        with_log_ratio(make_sampler("pcn"), posterior_difference),
    ),
    "HMC without the half kicks": (make_target("marginal"), with_proposal(core.gradient_init, hmc_without_last_kick)),
    "HMC without the prior's energy": (
        make_target("marginal"),
        with_proposal(core.gradient_init, hmc_without_prior_energy),
    ),
    "underdamped without momentum flip": (make_target("weights"), underdamped_without_flip),
    "acceptance without randomness": (make_target("marginal"), accept_without_randomness),
}


@pytest.mark.parametrize(
    "name", [name if i % 2 else pytest.param(name, marks=pytest.mark.long) for i, name in enumerate(BUGS)]
)
def test_planted_bug_is_caught(name):
    outcome = joint_test(*BUGS[name])
    assert min(outcome.conservation, outcome.geweke) < ALPHA, f"{name} went unnoticed: {outcome}"
