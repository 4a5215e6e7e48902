"""Random-walk Metropolis-Hastings. Not robust in high dimension; the baseline pCN improves on."""

from __future__ import annotations

from widebnn.errors import check_real
from widebnn.samplers.algorithm import (
    LogLikelihood,
    Proposal,
    SamplingAlgorithm,
    State,
    metropolis_algorithm,
    plain_init,
)
from widebnn.samplers.tree import combine, squared_norm_change


def rwmh(log_likelihood: LogLikelihood, step_size: float) -> SamplingAlgorithm:
    """v = u + b w;   log ratio = l(v) - l(u) - (|v|^2 - |u|^2)/2."""
    b = check_real("step_size", step_size, above=0)

    def propose(state, noise):
        v = combine((1.0, state.position), (b, noise))
        new = State(v, log_likelihood(v))
        log_ratio = new.log_likelihood - state.log_likelihood - 0.5 * squared_norm_change(v, state.position)
        return Proposal(new, state, log_ratio)

    return metropolis_algorithm(plain_init(log_likelihood), propose, gradients_per_step=0)
