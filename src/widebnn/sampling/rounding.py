"""Are float32 features precise enough where the chains are? Asked at the start, after warm-up and at the end."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widebnn.errors import PrecisionError, PrecisionWarning
from widebnn.samplers.target import Target
from widebnn.samplers.tree import combine, inner
from widebnn.sampling.placement import Placement

START_TOLERANCE = 1e-2
"""How much float32 features may change a log acceptance ratio, or a gradient, at the start before sample() warns."""
BULK_TOLERANCE = 5e-2
"""The same after warm-up and at the end, where the change is part of the result."""
HOPELESS = 1.0
"""A change of the log acceptance ratio by more than this decides what is accepted: sample() stops.

Two such changes leave the law of a chain as it is, and stop it only if it does not move. A wrong gradient is no more
than a bad proposal. And in function coordinates of a deep network the roots of nearly singular kernels depend on
rounding, but any root has the right law (function_space.py).
"""
STUCK = 0.01
"""A chain that accepts less than this does not move ..."""
ENOUGH = 100
"""... if it has made so many steps."""
GENTLE = 100.0
"""A gradient's error is relative to the gradient, or to this if that is more: a small gradient does no harm."""
START_STEPS = (0.1,)
BULK_STEPS = (0.1, 0.01, 0.001)
"""Sizes of the proposals that are compared: in the bulk of a narrow posterior only small ones are ever accepted."""


def precision_error(target: Target) -> Callable[[Any, Any, Any], jax.Array] | None:
    """How wrong float32 features are near a position.

    Args:
        target: The target of the chains.

    Returns:
        (u, w, step) -> the change of the log acceptance ratio of the proposal sqrt(1 - step^2) u + step w by float32
        features, in units of the ratio where that is above 1. Where only gradients are in float32: the relative error
        of the gradient at u. None where there is nothing to compare.
    """
    dtype = getattr(target, "dtype", "float64")
    if dtype == "float64":
        return None
    exact = target.in_dtype("float64").log_likelihood  # type: ignore[attr-defined]
    if dtype == "mixed":
        return lambda u, w, step: _gradient_error(jax.grad(target.log_likelihood)(u), jax.grad(exact)(u))

    def error(u, w, step):
        v = combine((jnp.sqrt(1 - step**2), u), (step, w))
        wide_u, wide_v = (jax.tree.map(lambda leaf: leaf.astype(jnp.float64), tree) for tree in (u, v))
        ratio = exact(wide_v) - exact(wide_u)
        # Far from the bulk, where a chain may start, ratios are huge and an error in them decides nothing.
        found = jnp.abs(target.log_likelihood(v) - target.log_likelihood(u) - ratio) / jnp.maximum(1.0, jnp.abs(ratio))
        return _unless_exact_fails(found, ratio)

    return error


def _gradient_error(found: Any, exact: Any) -> jax.Array:
    """Relative to the gradient, or to GENTLE where that is more."""
    error, size = combine((1.0, found), (-1.0, exact)), jnp.sqrt(inner(exact, exact))
    return _unless_exact_fails(jnp.sqrt(inner(error, error)) / jnp.maximum(GENTLE, size), size)


def _unless_exact_fails(error: jax.Array, exact: jax.Array) -> jax.Array:
    """Not a number counts against float32 only where float64 has one."""
    return jnp.where(jnp.isfinite(exact), jnp.where(jnp.isnan(error), jnp.inf, error), 0.0)


def _has_kernel_roots(target: Target) -> bool:
    is_function = getattr(getattr(target, "coordinates", None), "name", "") == "function"
    return is_function and len(target.network.widths) > 1  # type: ignore[attr-defined]


class PrecisionCheck:
    """The comparison for the chains of one call of sample()."""

    def __init__(self, target: Target, place: Placement, noise: Callable[[Any], Any], keys: Sequence[Any]):
        """``noise(key)``: a draw from N(0, I) for a group of chains; ``keys``: one for each group."""
        error = precision_error(target)
        self.error = None if error is None else place.jit(error, shared=1)
        self.mixed = getattr(target, "dtype", None) == "mixed"
        self.same_law = self.mixed or _has_kernel_roots(target)
        self.place, self.noise, self.keys = place, noise, keys
        self.warned = False

    def at_start(self, positions: Sequence[Any]) -> None:
        """Warn before anything expensive is begun. ``positions``: one for each group of chains."""
        error = self._worst(positions, START_STEPS)
        if error >= START_TOLERANCE:
            self._warn(f"{self._change(error)} at the start", stacklevel=5)

    def in_bulk(self, positions: Sequence[Any], when: str, gradients: bool, acceptance: float, steps: int) -> None:
        """Warn, once, or stop, where the chains are.

        Args:
            positions: Of the chains, one for each group.
            when: Words for the message.
            gradients: Whether the sampler uses any.
            acceptance: Its rate of acceptance in the last ``steps`` steps.
            steps: See there.

        Raises:
            PrecisionError: rounding decides what is accepted, or keeps a chain where it is.
        """
        if self.mixed and not gradients:
            return
        error = self._worst(positions, BULK_STEPS)
        stuck = steps >= ENOUGH and acceptance < STUCK
        if error >= HOPELESS and (stuck or not self.same_law):
            so = f"only {acceptance:.1%} of the steps are accepted" if stuck else "rounding decides what is accepted"
            raise PrecisionError(f"{self._change(error)} where the chains are {when}, and {so}: {self._advice()}.")
        if error >= BULK_TOLERANCE and not self.warned:
            self.warned = True
            self._warn(f"{self._change(error)} where the chains are {when}", stacklevel=5)

    def _worst(self, positions: Sequence[Any], steps: Sequence[float]) -> float:
        """The largest error of all chains."""
        if self.error is None:
            return 0.0
        groups = list(zip(positions, map(self.noise, self.keys), strict=True))
        errors = [
            self.error(u, w, np.float64(step)) for u, w in groups for step in (steps[:1] if self.mixed else steps)
        ]
        return max(float(np.max(self.place.to_host(error))) for error in errors)

    def _change(self, error: float) -> str:
        what = "the gradient relatively" if self.mixed else "the log acceptance ratio"
        return f"float32 features change {what} by about {error:.2g}"

    def _advice(self) -> str:
        instead = "'float64'" if self.mixed else "'mixed', or 'float64',"
        return f"pass dtype={instead} to posterior(), or use more noise if any"

    def _warn(self, text: str, stacklevel: int) -> None:
        reason = "nearly equal inputs, or noise that is tiny beside the outputs"
        warnings.warn(f"{text} ({reason}): {self._advice()}", PrecisionWarning, stacklevel=stacklevel)
