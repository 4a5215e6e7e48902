"""Samplers for any target written against N(0, I): one algorithm per file.

Each takes a log-likelihood function and a step size, and returns a :class:`SamplingAlgorithm` with
``init(position)`` and ``step(key, state)``. The step size is always the coefficient of the noise.
"""

from __future__ import annotations

from typing import Any

from widebnn.errors import WidebnnError, check_choice
from widebnn.samplers.algorithm import Info, Proposal, SamplingAlgorithm, metropolis
from widebnn.samplers.hmc import hmc
from widebnn.samplers.langevin import mala, underdamped
from widebnn.samplers.pcn import pcn
from widebnn.samplers.pcnl import pcnl
from widebnn.samplers.rwmh import rwmh

__all__ = [
    "SAMPLERS",
    "Info",
    "Proposal",
    "SamplingAlgorithm",
    "build_sampler",
    "hmc",
    "mala",
    "metropolis",
    "pcn",
    "pcnl",
    "rwmh",
    "underdamped",
]

SAMPLERS = {
    "rwmh": rwmh,
    "pcn": pcn,
    "pcnl": pcnl,
    "mala": mala,
    "underdamped": underdamped,
    "hmc": hmc,
}
ALIASES = {"lmc": "mala"}


def build_sampler(name: str, log_likelihood: Any, **options: Any) -> SamplingAlgorithm:
    """The sampler called ``name`` (``lmc`` is the paper's name for ``mala``)."""
    name = check_choice("sampler", name, [*SAMPLERS, *ALIASES])
    name = ALIASES.get(name, name)
    try:
        return SAMPLERS[name](log_likelihood, **options)
    except TypeError as error:
        raise WidebnnError(f"sampler {name!r}: {str(error).split('() ', 1)[-1]}.") from None
