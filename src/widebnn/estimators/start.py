"""Where the chains of a fit start, in which coordinates, and in which precision.

Tables often have little noise and nearly equal rows, where float32 is not exact enough. Its error is measured where the
chains are: at the end of the climb, and again after the burn-in of short trajectories.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from widebnn.errors import PrecisionWarning
from widebnn.estimators.ascent import ascend
from widebnn.estimators.cost import PILOT_GRADIENTS
from widebnn.estimators.ensemble import collect_networks
from widebnn.estimators.plan import Plan
from widebnn.posteriors import Posterior
from widebnn.precision import double_precision, one_blas_thread
from widebnn.samplers.preconditioning import Scaling
from widebnn.samplers.target import Target
from widebnn.sampling import sample
from widebnn.sampling.rounding import BULK_TOLERANCE, START_STEPS, START_TOLERANCE, precision_error

MOST_PILOTS = 6
"""How often the way to the bulk may be as long as the burn-in."""
PILOT_SHARE = 0.5
"""Of the time of a fit: no further pilot is begun after it."""
NO_SCALING = Scaling(())
SAFELY = 0.5
"""The part of what sample() tolerates that float32 may be wrong by where the chains start."""


@dataclass(frozen=True)
class Start:
    """A posterior, the coordinates its chains move in, and where they start."""

    posterior: Posterior
    positions: Any
    """One for every chain, stacked, in the coordinates of the posterior."""
    scaling: Scaling = NO_SCALING

    @property
    def target(self) -> Target:
        """What the sampler sees."""
        return self.scaling.apply(self.posterior) if self.scaling.precisions else self.posterior

    @property
    def initial(self) -> Any:
        """The positions in the coordinates of the target."""
        return _stacked([self.scaling.to_v(position) for position in _unstacked(self.positions)])

    def collect(self, key: jax.Array, v: Any) -> dict[str, jax.Array]:
        """The networks of a draw."""
        return collect_networks(self.posterior)(key, self.scaling.to_u(v))


def start_precisely(build: Callable[[str], Posterior], plan: Plan, seed: int) -> Start:
    """A position for every chain, in the first of float32, mixed and float64 that is exact enough."""
    for dtype in ("float32", "mixed", "float64"):
        posterior = build(dtype)
        start = Start(posterior, first_positions(posterior, plan, seed))
        if not _is_precise(start, seed):
            continue
        if plan.sampler != "auto":
            return start
        start = _scaled_by_curvature(start, plan, seed)
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
    ends = [start.scaling.to_u(position) for position in _unstacked(last)]
    error = rounding_error(start.posterior, _stacked(ends), seed)
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


def _scaled_by_curvature(start: Start, plan: Plan, seed: int) -> Start:
    """Coordinates scaled by the curvature where chains are after a burn-in of short trajectories."""
    posterior, last = start.posterior, start.positions
    # Without what sample() says of precision: it is measured again where the pilot ends.
    target = Target(posterior.log_likelihood, posterior.sample_reference)
    for attempt in range(MOST_PILOTS):
        pilot = sample(
            target,
            "hilbert_hmc",
            num_steps=PILOT_GRADIENTS,
            steps=max(plan.burn_in - plan.burn_in // 2, 2),
            burn_in=plan.burn_in // 2,
            chains=plan.chains,
            seed=seed + 7919 * attempt,
            collect=lambda key, u: {},
            initial=last,
            progress=plan.progress,
            store=plan.folder(posterior, f"pilot-{attempt}"),
        )
        if pilot.interrupted:
            raise KeyboardInterrupt
        last = pilot.last
        if not _drifts(pilot.stats["lp"]) or not plan.clock.left(PILOT_SHARE):
            break
    scaling = Scaling.by_curvature(posterior, jax.tree.map(lambda leaf: leaf[0], last))
    return Start(posterior, last, scaling)


def _drifts(lp: np.ndarray) -> bool:
    """Whether the log-likelihood of some chain (chains x steps) is still on its way: its second half is elsewhere."""
    half = lp.shape[1] // 2
    before, after = lp[:, :half], lp[:, half:]
    return bool(np.any(np.abs(after.mean(axis=1) - before.mean(axis=1)) > 1.5 * after.std(axis=1) + 1.0))
