"""What a fit will take, before anything expensive: one gradient is compiled, checked against memory and timed."""

from __future__ import annotations

import bisect
import math
import time
from typing import NamedTuple

import jax

from widebnn.errors import WidebnnError
from widebnn.estimators.ascent import STEPS
from widebnn.posteriors import Posterior
from widebnn.precision import double_precision, one_blas_thread
from widebnn.sampling.placement import physical_memory
from widebnn.sampling.sample import LEAST_DRAWS

QUICK = 2e7
"""Multiplications of a gradient below which it takes about a millisecond, and nobody needs to be told."""
TURN = 50
"""Gradients of a step of Hilbert-space HMC, about."""
EFFECTIVE = 0.25
"""Effective draws of the slowest statistic per step where chains mix well."""
SEARCH_SECONDS = 2.7
"""Of the choice of hyperparameters with a thousand rows; it grows like their cube."""
SEARCH_ROWS = 4000
"""Rows that the choice of hyperparameters looks at, at most."""
PATIENCE = 2.0
"""How many times the limit of time a fit may be expected to take, at least, before it is refused: it is a guess."""


class Cost(NamedTuple):
    """What a gradient costs on this machine, and how many there will be."""

    rows: int
    inputs: int
    widths: tuple[int, ...]
    gradient_seconds: float
    least_gradients: float
    """Until there are ten draws per chain."""
    expected_gradients: float
    """Until there are as many effective draws as wanted, where chains mix well."""

    def seconds(self, gradients: float, rows: int | None = None) -> float:
        """Of a fit with so many gradients, to fewer rows if given."""
        rows = self.rows if rows is None else rows
        share = multiplications(rows, self.inputs, self.widths) / multiplications(self.rows, self.inputs, self.widths)
        search = SEARCH_SECONDS * (min(rows, SEARCH_ROWS) / 1000) ** 3
        return search + gradients * self.gradient_seconds * share

    def rows_within(self, seconds: float) -> int:
        """How many rows can be fitted in this time, rounded down to one digit."""
        fitting = bisect.bisect(range(self.rows), seconds, key=lambda rows: self.seconds(self.least_gradients, rows))
        rows = max(fitting - 1, 0)
        digit = 10 ** (len(str(rows)) - 1)
        return rows // digit * digit

    def __str__(self) -> str:
        least, expected = (in_words(self.seconds(count)) for count in (self.least_gradients, self.expected_gradients))
        return (
            f"{self.rows} rows: a gradient takes {self.gradient_seconds:.2g} s on this machine, the first draws about "
            f"{least}, as many as wanted about {expected} or more"
        )


def multiplications(rows: int, inputs: int, widths: tuple[int, ...]) -> float:
    """Of a gradient, up to a factor: the layers, and the smaller of the two matrices that are factorised."""
    layers = rows * sum(a * b for a, b in zip((inputs, *widths), widths, strict=False))
    return float(layers + rows * widths[-1] * min(rows, widths[-1]))


def gradients(sampler: str, chains: int, burn_in: int, wanted: int, most: int) -> tuple[float, float]:
    """How many gradients a fit takes: until there are ten draws per chain, and until there are as many as wanted."""
    a_step = TURN if sampler in ("auto", "hilbert_hmc") else 1
    before = burn_in * a_step + (STEPS if sampler == "auto" else 0)
    steps = max(min(wanted / chains / EFFECTIVE, most), LEAST_DRAWS)
    return chains * (before + LEAST_DRAWS * a_step), chains * (before + steps * a_step)


def measure_gradient(target: Posterior, chains: int) -> float:
    """Seconds of one gradient of the log-likelihood, compilation excluded.

    Args:
        target: the posterior, with hyperparameters of any value.
        chains: how many chains there will be.

    Returns:
        The least of a few measurements, or the only one where it takes long.

    Raises:
        WidebnnError: the chains would need more memory than the machine has.
    """
    with double_precision(), one_blas_thread():
        position = target.sample_reference(jax.random.key(0))
        compiled = jax.jit(jax.value_and_grad(target.log_likelihood)).lower(position).compile()
        memory = compiled.memory_analysis()
        if memory is not None:
            _check_memory(chains * memory.temp_size_in_bytes, len(target.x), chains)
        least, began = math.inf, time.perf_counter()
        while time.perf_counter() - began < 0.5:
            start = time.perf_counter()
            jax.block_until_ready(compiled(position))
            least = min(least, time.perf_counter() - start)
    return least


def check_time(cost: Cost, limit: float) -> str | None:
    """Compare the time that a fit takes at least with the limit of it.

    Args:
        cost: what ``measure_gradient`` and ``gradients`` found.
        limit: seconds; may be infinite.

    Returns:
        What to tell the user where the limit will be exceeded, None where it will not.

    Raises:
        WidebnnError: it will be exceeded by far.
    """
    least = cost.seconds(cost.least_gradients)
    if least <= limit:
        return None
    fewer = cost.rows_within(limit)
    advice = f"fit at most about {fewer} rows, " if fewer >= 10 else ""
    sentence = (
        f"{cost.rows} rows at width {cost.widths[-1]}: a gradient takes {cost.gradient_seconds:.2g} s on this machine, "
        f"and a short burn-in and {LEAST_DRAWS} draws per chain about {in_words(least)}, more than "
        f"max_minutes={limit / 60:g}: {advice}use a smaller width, or pass max_minutes={math.ceil(1.5 * least / 60)}."
    )
    if least > PATIENCE * limit:
        raise WidebnnError(sentence)
    return sentence


def in_words(seconds: float) -> str:
    """A time as people say it."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def _check_memory(needed: int, rows: int, chains: int) -> None:
    available = physical_memory()
    if available is not None and needed > available:
        raise WidebnnError(
            f"a gradient of {chains} chains with {rows} rows takes {needed / 1e9:.1f} GB, more than the "
            f"{available / 1e9:.1f} GB of this machine: use fewer rows, a smaller width or depth, or fewer chains."
        )
