"""Deliberate mistakes, the first of them printed in the paper or present in its code: each must be caught.

Every mutant replaces one part of a correct combination and goes through the same joint test, with the same number of
draws and the same threshold, as the real samplers do.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import NamedTuple

import grid
import jax
import jax.numpy as jnp
from harness import (
    ALPHA,
    GAUSSIAN,
    NETWORK,
    NOISE,
    OUTPUTS,
    STEPS,
    Edited,
    Outcome,
    X,
    compiled,
    kernel,
    make_sampler,
    make_target,
    simulate,
)

import widebnn
from widebnn import samplers
from widebnn.coordinates.function_space import FunctionSpace
from widebnn.likelihoods.readout import condition, log_evidence
from widebnn.networks import Layer, Weights
from widebnn.precision import in_double_precision
from widebnn.samplers import algorithm as core
from widebnn.samplers.hilbert_hmc import _kick, _rotate
from widebnn.samplers.hmc import energy_change, leapfrog
from widebnn.samplers.langevin import delta_from_step_size
from widebnn.samplers.tree import combine, inner, normal_like, squared_norm_change


class Bug(NamedTuple):
    """A target or a sampler with a mistake in it."""

    target_of: Callable
    sampler_of: Callable
    setting: str = "known noise"
    slow: bool = False


def outcome_of(name: str, **length) -> Outcome:
    """The joint test of a planted bug."""
    bug = BUGS[name]
    return grid.joint_test_of(bug.setting, bug.target_of, bug.sampler_of, slow=bug.slow, **length)


def is_caught(outcome: Outcome) -> bool:
    """By the threshold of the real samplers."""
    return min(outcome.conservation, outcome.geweke) < ALPHA


def edited(coordinates, **changes):
    """A target with some of its functions replaced; each change gets the right target as its first argument."""

    def target_of(y):
        target = make_target(coordinates)(y)
        return Edited(target, **{name: functools.partial(change, target) for name, change in changes.items()})

    return target_of


def kernel_matrix(target, hidden):
    psi = target.network.features(hidden, target.x)
    return psi, psi @ psi.T + NOISE**2 * jnp.eye(len(psi))


def evidence(log_det, quadratic):
    """log-likelihood in marginal coordinates with these coefficients; the right ones are -c/2 and -1/2."""

    def log_likelihood(target, hidden):
        _, k = kernel_matrix(target, hidden)
        fit = jnp.sum(target.y * jnp.linalg.solve(k, target.y))
        return log_det * jnp.linalg.slogdet(k)[1] + quadratic * fit

    return edited("marginal", log_likelihood=log_likelihood)


def misfit_alone(target, u):
    """What the published code uses as l under the reparametrisation: the residual, no determinant."""
    weights = target.to_weights(jax.random.key(0), u)
    f = target.network.features(weights.hidden, target.x) @ weights.readout
    return -0.5 * jnp.sum((target.y - f) ** 2) / NOISE**2


def covariance_instead_of_root(target, key, u):
    psi, _ = kernel_matrix(target, u.hidden)
    sigma = jnp.linalg.inv(jnp.eye(psi.shape[1]) + psi.T @ psi / NOISE**2)
    return Weights(u.hidden, sigma @ psi.T @ target.y / NOISE**2 + sigma @ u.readout)


def readout_mean_only(target, key, u):
    return Weights(u, condition(target.network.features(u, target.x), target.y, NOISE).mean)


def readout_without_noise(target, key, u):
    psi = target.network.features(u, target.x)
    z = jax.random.normal(key, (psi.shape[1], target.y.shape[1]))
    return Weights(u, z + condition(psi, target.y, NOISE).gain(target.y - psi @ z))


def standard_deviation_for_variance(target, u):
    f = target.network.features(u.hidden, target.x) @ u.readout
    return -0.5 * jnp.sum((target.y - f) ** 2) / NOISE


def with_propose(build, propose):
    """A sampler whose proposals are propose(right sampler, state, noise)."""

    def sampler_of(log_likelihood):
        right = build(log_likelihood)
        return core.metropolis_algorithm(right.init, functools.partial(propose, right))

    return sampler_of


def with_noise(build, change):
    """A sampler whose noise is replaced by change(state, noise)."""
    return with_propose(build, lambda right, state, noise: right.propose(state, change(state, noise)))


def with_states(build, change):
    """A sampler whose proposal is changed: change(state, proposal) -> proposal."""
    return with_propose(build, lambda right, state, noise: change(state, right.propose(state, noise)))


def with_log_ratio(build, ratio):
    """A sampler whose log ratio is replaced by ratio(state, proposal)."""
    return with_states(build, lambda state, proposal: proposal._replace(log_ratio=ratio(state, proposal)))


def likelihood_difference(state, proposal):
    return proposal.state.log_likelihood - state.log_likelihood


def posterior_difference(state, proposal):
    change = squared_norm_change(proposal.state.position, state.position)
    return likelihood_difference(state, proposal) - 0.5 * change


def printed_pcnl_ratio(step_size):
    """exp(rho(u, v)) - rho(v, u), as displayed in the main text."""
    d = delta_from_step_size(step_size)

    def rho(at, to):
        difference, total = (combine((1.0, to.position), (sign, at.position)) for sign in (-1.0, 1.0))
        g = at.gradient
        return -at.log_likelihood - inner(difference, g) / 2 - d / 4 * inner(total, g) + d / 4 * inner(g, g)

    def ratio(state, proposal):
        return jnp.log(jnp.maximum(jnp.exp(rho(state, proposal.state)) - rho(proposal.state, state), 0.0))

    return ratio


def expanded_pcnl_ratio(step_size):
    """The expansion in the appendix, whose first gradient term has the wrong sign."""
    d = delta_from_step_size(step_size)

    def ratio(state, proposal):
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


def proposal_ratio_without_prior(state, proposal):
    """q(u | v) / q(v | u) kept, the Gaussian factor of the posterior dropped (equation 5)."""
    change = squared_norm_change(proposal.state.position, state.position)
    return likelihood_difference(state, proposal) + 0.5 * change


def readout_prior_dropped(target, u):
    """The published single-device branch: the prior of theta is missing from the acceptance."""
    theta = target.to_weights(jax.random.key(0), u)
    return target.log_likelihood(u) + 0.5 * inner(theta, theta)


def pcn_with(contraction, scale):
    """pCN with these coefficients of the position and of the noise."""

    def propose(right, state, noise):
        new = right.init(combine((contraction, state.position), (scale, noise)))
        return core.Proposal(new, state, new.log_likelihood - state.log_likelihood)

    return with_propose(PCN, propose)


def wrong_delta(state, noise):
    """The noise gets delta equal to the step size, the ratio of pCNL the right one."""
    d, wrong = delta_from_step_size(0.6), 0.6
    return combine(((jnp.sqrt(8 * wrong) / (2 + wrong)) / (jnp.sqrt(8 * d) / (2 + d)), noise))


def without_half_kicks(init, e, end, momentum):
    momentum = combine((1.0, momentum), (e, end.gradient), (-e, end.position))
    return init(combine((1.0, end.position), (e, momentum))), momentum


def old_gradient_in_the_second_kick(init, e, end, momentum):
    force = combine((1.0, end.gradient), (-1.0, end.position))
    momentum = combine((1.0, momentum), (e / 2, force))
    return init(combine((1.0, end.position), (e, momentum))), combine((1.0, momentum), (e / 2, force))


def hmc_with(e, step=leapfrog, energy=energy_change):
    """HMC of four steps, another step than the leapfrog's or another change of energy in its acceptance."""

    def propose(right, state, noise):
        end, momentum = state, noise
        for _ in range(4):
            end, momentum = step(right.init, e, end, momentum)
        return core.Proposal(end, state, -energy(state, noise, end, momentum))

    return with_propose(MALA, propose)


def without_the_prior(state, noise, end, momentum):
    return state.log_likelihood - end.log_likelihood + 0.5 * squared_norm_change(momentum, noise)


def without_kinetic_energy(state, noise, end, momentum):
    return state.log_likelihood - end.log_likelihood + 0.5 * squared_norm_change(end.position, state.position)


def no_flip(state, proposal):
    kept = proposal.otherwise._replace(momentum=combine((-1.0, proposal.otherwise.momentum)))
    return proposal._replace(otherwise=kept)


def accept_without_randomness(log_likelihood):
    """Accept whenever the ratio exceeds one half: an optimiser in disguise."""
    right = samplers.pcn(log_likelihood, 0.5)

    def step(key, state):
        noise_key, _ = jax.random.split(key)
        proposal = right.propose(state, normal_like(noise_key, state.position))
        accept = proposal.log_ratio > jnp.log(0.5)
        new = jax.tree.map(lambda a, b: jnp.where(accept, a, b), proposal.state, proposal.otherwise)
        return new, None

    return right._replace(step=step)


# Caches, keys, and what is kept.


def gradient_of_the_rejected(state, proposal):
    return proposal._replace(otherwise=proposal.otherwise._replace(gradient=proposal.state.gradient))


def gradient_of_before(state, proposal):
    return proposal._replace(state=proposal.state._replace(gradient=state.gradient))


def log_likelihood_of_before(state, proposal):
    return proposal._replace(state=proposal.state._replace(log_likelihood=state.log_likelihood))


def always(state, proposal):
    return proposal._replace(log_ratio=jnp.zeros(()))


def one_key(log_likelihood):
    """The uniform of the acceptance is made of the bits of the first normal of the proposal."""
    right = samplers.pcn(log_likelihood, 0.5)

    def step(key, state):
        first = jax.random.split(key, len(jax.tree.leaves(state.position)))[0]
        return core.metropolis(first, right.propose(state, normal_like(key, state.position)))

    return right._replace(step=step)


def accepted_only(log_likelihood):
    """Rejections are not counted: proposals are made until one is accepted (six at most)."""
    right = samplers.pcn(log_likelihood, 0.5)

    def step(key, state):
        def attempt(i, carry):
            kept, done = carry
            new, info = right.step(jax.random.fold_in(key, i), state)
            return jax.tree.map(lambda a, b: jnp.where(done, a, b), kept, new), done | info.is_accepted

        new, done = jax.lax.fori_loop(0, 6, attempt, (state, jnp.asarray(False)))
        return new, core.Info(done * 1.0, done, jnp.asarray(True), 0)

    return right._replace(step=step)


def step_size_of_the_state(log_likelihood):
    """Small steps where the weights are large: the way back has another probability."""

    def propose(state, noise):
        size = inner(state.position, state.position) / 12
        return samplers.pcn(log_likelihood, 0.8 / (1 + size)).propose(state, noise)

    return core.metropolis_algorithm(core.plain_init(log_likelihood), propose)


# Hamiltonian samplers.


def same_noise(state, noise):
    return normal_like(jax.random.key(0), state.position)


def wrong_refreshment(state, noise):
    """p' = c p + (1 - c) w."""
    c = math.exp(-0.5)
    return combine((jnp.where(state.has_momentum, (1 - c) / math.sqrt(1 - c * c), 1.0), noise))


def turned(first, last, counted):
    """One rotation of Hilbert-space HMC between kicks of these strengths; the work of the last is counted or not."""
    e = 0.6

    def propose(right, state, noise):
        momentum, done = _kick(state.gradient, noise, first * e)
        position, momentum = _rotate(e, state.position, momentum)
        end = right.init(position)
        done = done + counted * _kick(end.gradient, momentum, last * e)[1]
        return core.Proposal(end, state, end.log_likelihood - state.log_likelihood - done)

    return with_propose(MALA, propose)


# Slices.


def sliced(level=lambda value, uniform: value + jnp.log(uniform), from_position=False, new_levels=False):
    """Elliptical slice sampling with one part replaced."""

    def sampler_of(log_likelihood):
        init = core.plain_init(log_likelihood)

        def step(key, state):
            noise_key, level_key, angle_key = jax.random.split(key, 3)
            noise = normal_like(noise_key, state.position)

            def is_found(count, candidate):
                drawn = jax.random.uniform(jax.random.fold_in(level_key, count * new_levels))
                return candidate.log_likelihood > level(state.log_likelihood, drawn)

            def at(angle):
                return init(combine((jnp.cos(angle), state.position), (jnp.sin(angle), noise)))

            def shrink(carry):
                angle, low, high, count, _ = carry
                low, high = jnp.where(angle < 0, angle, low), jnp.where(angle < 0, high, angle)
                angle = jax.random.uniform(jax.random.fold_in(angle_key, count), minval=low, maxval=high)
                return angle, low, high, count + 1, at(angle)

            first = jax.random.uniform(jax.random.fold_in(angle_key, 0), maxval=2 * math.pi)
            low, high = (0.0, 2 * math.pi) if from_position else (first - 2 * math.pi, first)
            carry = first, jnp.asarray(low), jnp.asarray(high), 1, at(first)
            _, _, _, count, end = jax.lax.while_loop(lambda c: ~is_found(*c[3:]) & (c[3] < 25), shrink, carry)
            found = is_found(count, end)
            return jax.tree.map(lambda a, b: jnp.where(found, a, b), end, state), None

        return core.SamplingAlgorithm(init, step)

    return sampler_of


# Targets: scales, sums, and the weights that the likelihood leaves open.


def of_another_network(coordinates, **changes):
    network = dataclasses.replace(NETWORK, **changes)
    return lambda y: widebnn.posterior(network, X, y, noise=NOISE, coordinates=coordinates, dtype="float64")


def mean_over_rows(target, u):
    return target.log_likelihood(u) / len(X)


def a_row_left_out(y):
    target = make_target("function")(y)
    psi = FunctionSpace(NETWORK, target.x).psi
    return Edited(target, log_likelihood=lambda u: log_evidence(psi(u.layers)[1:], y[1:], NOISE))


def with_hidden_weights(change):
    """Function coordinates whose open directions are filled wrongly: change(known part, noise) -> weights."""

    def to_weights(target, key, u):
        weights = target.to_weights(key, u)
        known = grid.input_directions(NETWORK, X) @ u.layers[0]
        stacked = change(known, jax.random.normal(jax.random.fold_in(key, 1), known.shape))
        return weights._replace(hidden=(Layer(stacked[:-1], stacked[-1]),))

    return edited("function", to_weights=to_weights)


def readout_of_the_prior(target, key, u):
    weights = target.to_weights(key, u)
    return weights._replace(readout=jax.random.normal(key, weights.readout.shape))


def two_roots(y):
    """The likelihood takes the symmetric root of the second layer's kernel, the weights its Cholesky factor."""
    target = grid.deep_target("function")(y)
    network, x = grid.DEEP_NETWORK, jnp.asarray(X)
    factor = network.hidden_inputs(x) @ grid.input_directions(network, X)

    @in_double_precision
    def log_likelihood(u):
        inputs = network.hidden_inputs(network.activate(factor @ u.layers[0]))
        lam, vectors = jnp.linalg.eigh(inputs @ inputs.T)
        f = (vectors * jnp.sqrt(jnp.maximum(lam, 0.0))) @ vectors.T @ u.layers[1]
        return log_evidence(network.readout_inputs(network.activate(f)), y, NOISE)

    return Edited(target, log_likelihood=log_likelihood)


def frames_not_turned(log_likelihood):
    """Lumped blocks stay in the frame of the first position."""
    right = samplers.rwmh(log_likelihood, 0.15)

    def step(key, state):
        noise_key, accept_key = jax.random.split(key)
        return core.metropolis(accept_key, right.propose(state, normal_like(noise_key, state.position)))

    return right._replace(step=step)


# A scale that is not known.


def with_unknown_noise(coordinates, extra):
    """``extra(u, y)`` added to the log-likelihood."""

    def target_of(y):
        target = grid.unknown_noise_target(coordinates)(y)
        right = inspect.unwrap(target.log_likelihood)
        wrong = in_double_precision(lambda u: right(u) + extra(u, y))
        return Edited(target, log_likelihood=wrong)

    return target_of


def log_noise(u, y):
    return jnp.log(grid.NOISE_PRIOR.at(u.z))


def readout_at_the_median(y):
    """The readout drawn with the median noise instead of the chain's."""
    target = grid.unknown_noise_target("marginal")(y)
    return Edited(target, to_weights=lambda key, u: target.to_weights(key, u._replace(z=jnp.zeros_like(u.z))))


def readout_without_its_scale(y):
    """Logits are s f, and the weights that go with them have no s."""
    target = grid.scaled_target("weights")(y)

    def to_weights(key, u):
        weights = target.to_weights(key, u)
        return weights._replace(readout=weights.readout / grid.LOGIT_SCALE.at(u.z.scale))

    return Edited(target, to_weights=to_weights)


# Labels.


def of_logits(coordinates, log_likelihood_of):
    """The target with another function of logits and labels in place of its log-likelihood."""

    def target_of(y):
        target = grid.label_target(coordinates)(y)

        @in_double_precision
        def log_likelihood(u):
            return log_likelihood_of(target.predict(jax.random.key(0), u, grid.LABELLED_X).f, y)

        return Edited(target, log_likelihood=log_likelihood)

    return target_of


def readout_of_least_norm(y):
    """to_weights that forgets the part of the readout that B leaves open."""
    target = grid.label_target("function")(y)

    def to_weights(key, u):
        weights = target.to_weights(key, u)
        psi = grid.LABELLED_NETWORK.features(weights.hidden, jnp.asarray(X))
        _, _, vt = jnp.linalg.svd(psi, full_matrices=False)
        return weights._replace(readout=vt.T @ (vt @ weights.readout))

    return Edited(target, to_weights=to_weights)


def label_pcn(log_likelihood):
    return samplers.pcn(log_likelihood, 0.4)


def underdamped(step_size, **options):
    return lambda log_likelihood: samplers.underdamped(log_likelihood, step_size, **options)


MARGINAL, FUNCTION, WEIGHTS = (make_target(coordinates) for coordinates in ("marginal", "function", "weights"))
PCN, PCNL, MALA, RWMH = (make_sampler(name) for name in ("pcn", "pcnl", "mala", "rwmh"))
WEIGHTS_PCN = make_sampler("pcn", "weights")
BUGS = {
    "dropped log det": Bug(evidence(0.0, -0.5), PCN),
    "printed sign of the quadratic form": Bug(evidence(-OUTPUTS / 2, 0.5), PCN),
    "det Sigma proportional to det K": Bug(evidence(OUTPUTS / 2, -0.5), PCN),
    "log det counted once, not per output": Bug(evidence(-0.5, -0.5), PCN),
    "published pCNL potential (misfit alone)": Bug(edited("reparametrised", log_likelihood=misfit_alone), PCNL),
    "Sigma in place of its square root": Bug(edited("reparametrised", to_weights=covariance_instead_of_root), PCN),
    "readout mean in place of a draw": Bug(edited("marginal", to_weights=readout_mean_only), PCN),
    "pathwise draw without observation noise": Bug(edited("marginal", to_weights=readout_without_noise), PCN),
    "s in place of s^2": Bug(edited("weights", log_likelihood=standard_deviation_for_variance), PCN),
    "Algorithm 2's ratio": Bug(MARGINAL, with_log_ratio(PCNL, posterior_difference)),
    "printed pCNL acceptance": Bug(MARGINAL, with_log_ratio(PCNL, printed_pcnl_ratio(0.6))),
    "expanded pCNL ratio of the appendix": Bug(MARGINAL, with_log_ratio(PCNL, expanded_pcnl_ratio(0.6))),
    "equation 5 without the Gaussian factor": Bug(MARGINAL, with_log_ratio(PCN, proposal_ratio_without_prior)),
    "published acceptance without the prior": Bug(edited("reparametrised", log_likelihood=readout_prior_dropped), PCN),
    "wrong delta": Bug(MARGINAL, with_noise(PCNL, wrong_delta)),
    "missing prior term in RW-MH": Bug(MARGINAL, with_log_ratio(RWMH, likelihood_difference)),
    "MALA without proposal correction": Bug(MARGINAL, with_log_ratio(MALA, posterior_difference)),
    "pCN with 1 - b in place of sqrt(1 - b^2)": Bug(MARGINAL, pcn_with(1 - 0.5, 0.5)),
    "prior counted twice in pCN": Bug(MARGINAL, with_log_ratio(PCN, posterior_difference)),
    "HMC without the half kicks": Bug(WEIGHTS, hmc_with(0.12, without_half_kicks)),
    "HMC without the prior's energy": Bug(MARGINAL, hmc_with(0.35, energy=without_the_prior)),
    "underdamped without momentum flip": Bug(WEIGHTS, with_states(underdamped(0.3, friction=0.1), no_flip)),
    "acceptance without randomness": Bug(MARGINAL, accept_without_randomness),
    "stale gradient after a rejection": Bug(MARGINAL, with_states(MALA, gradient_of_the_rejected)),
    "stale gradient after an acceptance": Bug(MARGINAL, with_states(MALA, gradient_of_before)),
    "stale log-likelihood after an acceptance": Bug(MARGINAL, with_states(PCN, log_likelihood_of_before)),
    "Langevin without accepting or rejecting": Bug(MARGINAL, with_states(MALA, always)),
    "one key for proposal and acceptance": Bug(MARGINAL, one_key),
    "only accepted states are kept": Bug(MARGINAL, accepted_only),
    "step size that depends on the state": Bug(MARGINAL, step_size_of_the_state),
    "variance in place of standard deviation of the noise": Bug(MARGINAL, pcn_with(math.sqrt(1 - 0.25), 0.25)),
    "momentum never refreshed": Bug(MARGINAL, with_noise(make_sampler("hmc"), same_noise)),
    "momentum refreshed by 1 - c": Bug(MARGINAL, with_noise(underdamped(0.5), wrong_refreshment)),
    "HMC without kinetic energy": Bug(MARGINAL, hmc_with(0.35, energy=without_kinetic_energy)),
    "old gradient in the second half kick": Bug(WEIGHTS, hmc_with(0.05, old_gradient_in_the_second_kick)),
    "Hilbert-space HMC: work of the last kick": Bug(FUNCTION, turned(0.5, 0.5, counted=False)),
    "Hilbert-space HMC: uneven kicks": Bug(FUNCTION, turned(1.0, 0.0, counted=True)),
    "slice: threshold without a logarithm": Bug(
        FUNCTION, sliced(level=lambda value, uniform: value - uniform), slow=True
    ),
    "slice: threshold drawn anew for every candidate": Bug(FUNCTION, sliced(new_levels=True), slow=True),
    "slice: bracket that begins at the position": Bug(FUNCTION, sliced(from_position=True), slow=True),
    "scale of the hidden biases": Bug(of_another_network("marginal", bias_std=1.0), PCN),
    "features not divided by the root of the width": Bug(
        of_another_network("weights", readout_weight_std=1.5 * math.sqrt(3)), WEIGHTS_PCN
    ),
    "mean over rows in place of their sum": Bug(edited("function", log_likelihood=mean_over_rows), PCN),
    "a row left out": Bug(a_row_left_out, PCN),
    "hidden weights of least norm": Bug(with_hidden_weights(lambda known, noise: known), PCN),
    "hidden weights with all of the noise": Bug(with_hidden_weights(lambda known, noise: known + noise), PCN),
    "readout from its prior": Bug(edited("function", to_weights=readout_of_the_prior), PCN),
    "two roots of one kernel": Bug(two_roots, PCN, "two hidden layers"),
    "frames of lumped weights not turned": Bug(grid.wide_target, frames_not_turned, "all weights"),
    "unknown noise without its normalisation": Bug(
        with_unknown_noise("weights", lambda u, y: y.size * log_noise(u, y)), WEIGHTS_PCN, "unknown noise"
    ),
    "unknown noise: determinant of the primal form alone": Bug(
        with_unknown_noise("marginal", lambda u, y: y.size * log_noise(u, y)), PCN, "unknown noise"
    ),
    "unknown noise: Jacobian of the logarithm": Bug(with_unknown_noise("marginal", log_noise), PCN, "unknown noise"),
    "unknown noise: prior counted twice": Bug(
        with_unknown_noise("function", lambda u, y: -0.5 * u.z**2), PCN, "unknown noise"
    ),
    "unknown noise: readout at the median": Bug(readout_at_the_median, PCN, "unknown noise"),
    "unknown scale: readout without it": Bug(readout_without_its_scale, label_pcn, "softmax of unknown scale"),
    "classes not normalised": Bug(of_logits("weights", lambda f, y: jnp.sum(y * f)), label_pcn, "softmax"),
    "softmax over inputs": Bug(
        of_logits("weights", lambda f, y: jnp.sum(y * jax.nn.log_softmax(f, axis=0))), label_pcn, "softmax"
    ),
    "equal inputs counted once": Bug(
        of_logits("weights", lambda f, y: jnp.sum((y * jax.nn.log_softmax(f))[::4])), label_pcn, "softmax"
    ),
    "readout of least norm": Bug(readout_of_least_norm, label_pcn, "softmax"),
}
INVISIBLE = "stale gradient after a rejection"
"""A wrong force that the acceptance corrects for in part: the chain hardly shows it. ``cache_error`` does."""


# Mistakes of any size.


def too_small_a_ratio(size):
    return MARGINAL, with_log_ratio(PCN, lambda *step: (1 - size) * likelihood_difference(*step))


def too_much_noise(size):
    """Up to a constant, which nothing sees."""
    change = lambda target, u: target.log_likelihood(u) / (1 + size)  # noqa: E731
    return edited("weights", log_likelihood=change), WEIGHTS_PCN


def too_little_of_the_prior(size):
    def ratio(state, proposal):
        change = squared_norm_change(proposal.state.position, state.position)
        return likelihood_difference(state, proposal) - 0.5 * (1 - size) * change

    return MARGINAL, with_log_ratio(RWMH, ratio)


def too_many_acceptances(size):
    def ratio(*step):
        right = jnp.minimum(1.0, jnp.exp(likelihood_difference(*step)))
        return jnp.log(right + size * (1 - right))

    return MARGINAL, with_log_ratio(PCN, ratio)


def too_coarse_a_likelihood(size):
    change = lambda target, u: size * jnp.round(target.log_likelihood(u) / size)  # noqa: E731
    return edited("marginal", log_likelihood=change), PCN


def too_narrow_open_weights(size):
    basis = grid.input_directions(NETWORK, X)

    def change(known, noise):
        return known + jnp.sqrt(1 - size) * (noise - basis @ (basis.T @ noise))

    return with_hidden_weights(change), PCN


PARTS = (0.3, 0.1, 0.03, 0.01)
SUBTLE = {
    "log acceptance ratio too small": (too_small_a_ratio, PARTS),
    "noise variance too large": (too_much_noise, PARTS),
    "prior forgotten in part": (too_little_of_the_prior, PARTS),
    "rejections that are accepted": (too_many_acceptances, PARTS),
    "variance of weights the data leave open too small": (too_narrow_open_weights, PARTS),
    "log-likelihood rounded to multiples": (too_coarse_a_likelihood, (3.0, 1.0, 0.3, 0.1)),
}
"""Mistakes with a size, and sizes from plain to subtle: name -> (size -> (target_of, sampler_of), sizes)."""


@functools.cache
def subtle_program(name: str) -> Callable:
    """The kernel with a mistake whose size is its last argument, compiled once for all sizes."""

    def run(key, theta, y, momentum, begun, size):
        return kernel(*SUBTLE[name][0](size), GAUSSIAN, STEPS)(key, theta, y, momentum, begun)

    return compiled(jax.vmap(run, (0, 0, 0, 0, None, None)))


def subtle_outcome(name: str, size: float, replicates: int, seed: int) -> Outcome:
    """The joint test of a mistake of this size."""
    program, (target_of, _) = subtle_program(name), SUBTLE[name][0](size)
    return simulate(lambda *state: program(*state, size), target_of, GAUSSIAN, grid.USUAL["cycles"], replicates, seed)
