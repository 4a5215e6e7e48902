"""Where the chains of a fit start, with which step size, and in which precision.

Tables often have little noise and nearly equal rows, where float32 is not exact enough. Its error is measured where the
chains are: at the end of the climb, and again after the burn-in.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from widebnn.errors import PrecisionWarning
from widebnn.estimators.ascent import ascend
from widebnn.estimators.plan import Plan
from widebnn.posteriors import Posterior
from widebnn.precision import double_precision, one_blas_thread
from widebnn.samplers.target import Target
from widebnn.sampling import sample
from widebnn.sampling.rounding import BULK_TOLERANCE, START_STEPS, START_TOLERANCE, precision_error

MOST_PILOTS = 6
"""How often the way to the bulk may be as long as the burn-in."""
PILOT_SHARE = 0.5
"""Of the time of a fit: no further pilot is begun after it."""
SAFELY = 0.5
"""The part of what sample() tolerates that float32 may be wrong by where the chains start."""


@dataclass(frozen=True)
class Start:
    """A posterior, where its chains start, and with which step size."""

    posterior: Posterior
    positions: Any
    """One for every chain, stacked."""
    step_size: float | None = None
    """The geometric mean of what the chains have found; None where it was given."""

    @property
    def target(self) -> Target:
        """What the sampler sees; without what sample() says of precision, which is measured here."""
        return Target(self.posterior.log_likelihood, self.posterior.sample_reference)


def start_precisely(build: Callable[[str], Posterior], plan: Plan, seed: int) -> Start:
    """A position for every chain, in the first of float32, mixed and float64 that is exact enough."""
    for dtype in ("float32", "mixed", "float64"):
        posterior = build(dtype)
        start = Start(posterior, first_positions(posterior, plan, seed))
        if not _is_precise(start, seed):
            continue
        if plan.sampler != "auto":
            return start
        start = _warmed_up(start, plan, seed)
        if _is_precise(start, seed):
            return start
    raise AssertionError("float64 has no rounding error")


def _is_precise(start: Start, seed: int) -> bool:
    return rounding_error(start.posterior, start.positions, seed) < SAFELY * START_TOLERANCE


def first_positions(target: Posterior, plan: Plan, seed: int) -> Any:
    """One for every chain, stacked: the end of a climb, or a draw of the prior where a sampler was asked for."""
    if plan.sampler == "auto":
        return ascend(target, plan.chains, seed)
    with double_precision():
        draw = jax.jit(target.sample_reference)
        return _stacked([draw(key) for key in jax.random.split(jax.random.key(seed), plan.chains)])


def rounding_error(target: Posterior, positions: Any, seed: int) -> float:
    """How wrong float32 features make the log acceptance ratio (mixed: the gradient, relatively) at these positions.

    Args:
        target: in any precision; float64 has no error.
        positions: one for every chain, stacked.
        seed: of the proposals that are compared.

    Returns:
        The largest over chains; infinite where it is not a number.
    """
    error_at = precision_error(target)
    if error_at is None:
        return 0.0
    chains = _unstacked(positions)
    with double_precision(), one_blas_thread():
        compare = jax.jit(lambda key, u: error_at(u, target.sample_reference(key), *START_STEPS))
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1), len(chains))
        errors = [float(compare(key, position)) for key, position in zip(keys, chains, strict=True)]
    return max(errors) if np.all(np.isfinite(errors)) else math.inf


def warn_of_rounding(start: Start, last: Any, seed: int) -> None:
    """Say so where float32 turns out not to be exact enough at the end of the chains."""
    error = rounding_error(start.posterior, last, seed)
    if error >= BULK_TOLERANCE:
        warnings.warn(
            f"float32 features change what the chains follow by about {error:.2g} where they end: use more noise, or "
            "remove rows that are nearly equal",
            PrecisionWarning,
            stacklevel=5,
        )


def _stacked(positions: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *positions)


def _unstacked(positions: Any) -> list[Any]:
    chains = len(jax.tree.leaves(positions)[0])
    return [jax.tree.map(lambda leaf: leaf[i], positions) for i in range(chains)]  # noqa: B023


def _warmed_up(start: Start, plan: Plan, seed: int) -> Start:
    """The chains after as many burn-ins as it takes until their log-likelihood no longer drifts.

    All chains then have the same step size: one that has missed its own in a short burn-in would hardly move.
    """
    half = plan.burn_in // 2
    for attempt in range(MOST_PILOTS):
        pilot = sample(
            start.target,
            "hilbert_hmc",
            step_size=plan.step_size,
            steps=max(half, 2),
            burn_in=plan.burn_in - half,
            chains=plan.chains,
            seed=seed + 7919 * attempt,
            collect=lambda key, u: {},
            initial=start.positions,
            progress=plan.progress,
            store=plan.folder(start.posterior, f"warm-up-{attempt}"),
            max_seconds=plan.clock.left(PILOT_SHARE),
        )
        if pilot.interrupted:
            raise KeyboardInterrupt
        step_size = None if pilot.step_size is None else float(np.exp(np.log(pilot.step_size).mean()))
        start = replace(start, positions=pilot.last, step_size=step_size)
        if not _drifts(pilot.stats["lp"]) or not plan.clock.left(PILOT_SHARE):
            break
    return start


def _drifts(lp: np.ndarray) -> bool:
    """Whether the log-likelihood of some chain (chains x steps) is still on its way: its second half is elsewhere."""
    half = lp.shape[1] // 2
    if half < 2:
        return True
    before, after = lp[:, :half], lp[:, half:]
    return bool(np.any(np.abs(after.mean(axis=1) - before.mean(axis=1)) > 1.5 * after.std(axis=1) + 1.0))
