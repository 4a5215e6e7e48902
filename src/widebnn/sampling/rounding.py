"""Whether float32 features are precise enough where the chains are: at the start, after warm-up and at the end."""

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
from widebnn.sampling.program import Chains

START_TOLERANCE = 1e-2
"""How much float32 features may change a log acceptance ratio, or a gradient, at the start before sample() warns."""
BULK_TOLERANCE = 5e-2
"""The same after warm-up and at the end, where the change is part of the result."""
HOPELESS = 1.0
"""A change of the log acceptance ratio by more than this decides what is accepted: sample() stops.

Two such changes leave the distribution of the draws as it is, and stop a chain only if it does not move: a wrong
gradient is no more than a bad proposal; and in function coordinates of a deep network the roots of nearly singular
kernels depend on rounding, but any root gives the right distribution (function_space.py).
"""
STUCK, ENOUGH = 0.01, 100
"""A chain that accepts less than STUCK in at least ENOUGH steps does not move."""
GENTLE = 100.0
"""A gradient's error is relative to the gradient, or to this if that is more: a small gradient does no harm."""
START_STEPS = (0.1,)
BULK_STEPS = (0.1, 0.01, 0.001)
"""Sizes of the proposals that are compared: in the bulk of a narrow posterior only small ones are ever accepted."""


def precision_error(target: Target) -> Callable[[Any, Any, Any], jax.Array] | None:
    """How much float32 features change a proposal.

    For the proposal v = sqrt(1 - step^2) u + step w and the exact log-likelihood l in float64, the error of
    l(v) - l(u) divided by max(1, |l(v) - l(u)|): far from the bulk, where a chain may start, ratios are huge and an
    error in them decides nothing. Where only gradients are in float32, the relative error of the gradient at u.
    Returns (u, w, step) -> that error, or None where everything is in float64.
    """
    dtype = getattr(target, "dtype", "float64")
    if dtype == "float64":
        return None
    exact = target.in_dtype("float64").log_likelihood  # type: ignore[attr-defined]

    def ratio_error(u: Any, w: Any, step: Any) -> Any:
        v = combine((jnp.sqrt(1 - step**2), u), (step, w))
        wide_u, wide_v = (jax.tree.map(lambda leaf: leaf.astype(jnp.float64), tree) for tree in (u, v))
        ratio = exact(wide_v) - exact(wide_u)
        error = jnp.abs(target.log_likelihood(v) - target.log_likelihood(u) - ratio)
        return _unless_exact_fails(error / jnp.maximum(1.0, jnp.abs(ratio)), ratio)

    def gradient_error(u: Any, w: Any, step: Any) -> Any:
        found, gradient = jax.grad(target.log_likelihood)(u), jax.grad(exact)(u)
        error, size = combine((1.0, found), (-1.0, gradient)), jnp.sqrt(inner(gradient, gradient))
        return _unless_exact_fails(jnp.sqrt(inner(error, error)) / jnp.maximum(GENTLE, size), size)

    return gradient_error if dtype == "mixed" else ratio_error


def _unless_exact_fails(error: jax.Array, exact: jax.Array) -> jax.Array:
    """NaN counts against float32 only where float64 has a number."""
    return jnp.where(jnp.isfinite(exact), jnp.where(jnp.isnan(error), jnp.inf, error), 0.0)


class PrecisionCheck:
    """The comparison for the chains of one call of sample(), which must have been started."""

    def __init__(self, chains: Chains):
        self.chains, target = chains, chains.target
        error = precision_error(target)
        self.error = None if error is None else chains.place.jit(error, shared=1)
        self.mixed = getattr(target, "dtype", None) == "mixed"
        is_function = getattr(getattr(target, "coordinates", None), "name", "") == "function"
        has_roots = is_function and len(target.network.widths) > 1  # type: ignore[attr-defined]
        self.exact_anyway = self.mixed or has_roots
        what = "the gradient relatively" if self.mixed else "the log acceptance ratio"
        instead = "'float64'" if self.mixed else "'mixed', or 'float64',"
        self.change = f"float32 features change {what} by about"
        self.advice = f"pass dtype={instead} to posterior(), or use more noise if any"
        self.warned = False

    def at_start(self) -> None:
        """Warn before anything expensive is begun."""
        error = self._worst(START_STEPS)
        if error >= START_TOLERANCE:
            self._warn(f"{self.change} {error:.2g} at the start")

    def in_bulk(self, when: str, gradients: bool, acceptance: float, steps: int) -> None:
        """Warn once, or stop, where the chains are ``when``, after so many ``steps`` with such an ``acceptance`` rate.

        Raises a PrecisionError if rounding decides what is accepted, or keeps a chain where it is.
        """
        if self.mixed and not gradients:  # nobody uses them
            return
        error = self._worst(BULK_STEPS)
        stuck = steps >= ENOUGH and acceptance < STUCK
        text = f"{self.change} {error:.2g} where the chains are {when}"
        if error >= HOPELESS and (stuck or not self.exact_anyway):
            so = f"only {acceptance:.1%} of the steps are accepted" if stuck else "rounding decides what is accepted"
            raise PrecisionError(f"{text}, and {so}: {self.advice}.")
        if error >= BULK_TOLERANCE and not self.warned:
            self.warned = True
            self._warn(text)

    def _worst(self, steps: Sequence[float]) -> float:
        """The largest error of all chains."""
        if self.error is None:
            return 0.0
        errors = []
        for state, key in zip(self.chains.states, self.chains.noise_keys, strict=True):
            noise = self.chains.reference(key)
            for step in steps[:1] if self.mixed else steps:
                errors += self.chains.place.to_host(self.error(state.position, noise, np.float64(step)))
        return float(np.max(errors))

    def _warn(self, text: str) -> None:
        reason = "nearly equal inputs, or noise that is tiny beside the outputs"
        warnings.warn(f"{text} ({reason}): {self.advice}", PrecisionWarning, stacklevel=5)
