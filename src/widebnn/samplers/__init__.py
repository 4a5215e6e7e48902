"""Samplers for any target written against N(0, I): one algorithm per file.

Each takes a log-likelihood function and a step size, and returns a ``SamplingAlgorithm`` with
``init(position)`` and ``step(key, state)``. The step size is always the coefficient of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from widebnn.errors import WidebnnError, check_choice
from widebnn.samplers.algorithm import Info, Proposal, SamplingAlgorithm, metropolis
from widebnn.samplers.elliptical_slice import elliptical_slice
from widebnn.samplers.hilbert_hmc import MOST_STEPS, SEARCH_STEPS, hilbert_hmc
from widebnn.samplers.hmc import hmc, underdamped
from widebnn.samplers.langevin import mala, pcnl
from widebnn.samplers.pcn import pcn, rwmh
from widebnn.samplers.tuning import Tuner, acceptance_rate, squared_jump, tuned

__all__ = [
    "SAMPLERS",
    "Info",
    "Proposal",
    "SamplingAlgorithm",
    "build_sampler",
    "elliptical_slice",
    "hilbert_hmc",
    "hmc",
    "mala",
    "metropolis",
    "pcn",
    "pcnl",
    "rwmh",
    "underdamped",
]

_ALL = (rwmh, pcn, pcnl, mala, underdamped, hmc, hilbert_hmc, elliptical_slice)
SAMPLERS: dict[str, Callable[..., SamplingAlgorithm]] = {build.__name__: build for build in _ALL}
ALIASES = {"lmc": "mala", "auto": "hilbert_hmc"}

TUNERS: dict[str, Callable[[int], Tuner]] = {
    "rwmh": lambda _: squared_jump(lambda b: b**2),
    "pcn": lambda _: squared_jump(lambda b: 2 * (1 - jnp.sqrt(1 - b**2))),
    "pcnl": lambda burn_in: acceptance_rate(0.6, first=0.1, most=1.0, burn_in=burn_in),
    "mala": lambda burn_in: acceptance_rate(0.574, first=0.01, most=2.0, burn_in=burn_in),
    "underdamped": lambda burn_in: acceptance_rate(0.9, first=0.01, most=2.0, burn_in=burn_in),
    "hmc": lambda burn_in: acceptance_rate(0.8, first=0.01, most=2.0, burn_in=burn_in),
    "hilbert_hmc": lambda burn_in: acceptance_rate(0.8, first=0.1, most=math.pi / 2, burn_in=burn_in),
}
"""How each step size is found; the number is the acceptance rate aimed at."""


def build_sampler(name: str, log_likelihood: Any, burn_in: int = 0, **options: Any) -> SamplingAlgorithm:
    """The sampler called ``name``; without a ``step_size`` it is tuned over ``burn_in`` steps.

    Args:
        name: One of ``SAMPLERS``; ``lmc`` is the paper's name for ``mala``, ``auto`` is Hilbert-space HMC with
            trajectories of a quarter turn.
        log_likelihood: l(u), the log-density against N(0, I) up to a constant.
        burn_in: Steps of warm-up over which a step size is tuned.
        **options: Of the sampler.

    Returns:
        The kernel; a tuned one keeps its step size after ``burn_in`` steps.

    Raises:
        WidebnnError: If the name or an option is unknown or out of range, or there is no step size and no warm-up.
    """
    name = check_choice("sampler", name, [*SAMPLERS, *ALIASES])
    name = ALIASES.get(name, name)
    build = SAMPLERS[name]
    try:
        if name not in TUNERS or options.get("step_size") is not None:
            return build(log_likelihood, **options)
        options.pop("step_size", None)
        if burn_in < 1:
            raise WidebnnError(f"sampler {name!r} needs a step_size, or a burn_in over which to tune one.")
        build(log_likelihood, step_size=0.1, **options)  # bad options are reported here, outside jit

        def build_at(step_size: Any, is_tuning: Any) -> SamplingAlgorithm:
            if name != "hilbert_hmc":
                return build(log_likelihood, step_size=step_size, **options)
            most = options.get("most_steps", MOST_STEPS)
            shorter = {"most_steps": jnp.where(is_tuning, min(SEARCH_STEPS, most), most)}
            return hilbert_hmc(log_likelihood, step_size, **(options | shorter))

        return tuned(build_at, TUNERS[name](burn_in), burn_in)
    except TypeError as error:
        raise WidebnnError(f"sampler {name!r}: {str(error).split('() ', 1)[-1]}.") from None
