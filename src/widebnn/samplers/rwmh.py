"""Random-walk Metropolis-Hastings. Not robust in high dimension; the baseline pCN improves on."""

from __future__ import annotations

from typing import Any

from widebnn.samplers.algorithm import (
    LogLikelihood,
    Proposal,
    SamplingAlgorithm,
    State,
    metropolis_algorithm,
    plain_init,
    step_size_in,
)
from widebnn.samplers.tree import combine, squared_norm_change


def rwmh(log_likelihood: LogLikelihood, step_size: float) -> SamplingAlgorithm:
    """Random walk:  v = u + b w,  log ratio = l(v) - l(u) - (|v|^2 - |u|^2)/2.

    Args:
        log_likelihood: l(u), the log-density against N(0, I) up to a constant; u is any pytree of arrays.
        step_size: b, the coefficient of the noise.

    Returns:
        The kernel: ``init(position)`` and ``step(key, state)``.

    Raises:
        WidebnnError: If an option is out of range.
    """
    b = step_size_in(step_size)

    def propose(state: State, noise: Any) -> Proposal:
        v = combine((1.0, state.position), (b, noise))
        new = State(v, log_likelihood(v))
        log_ratio = new.log_likelihood - state.log_likelihood - 0.5 * squared_norm_change(v, state.position)
        return Proposal(new, state, log_ratio)

    return metropolis_algorithm(plain_init(log_likelihood), propose, gradients=0)
