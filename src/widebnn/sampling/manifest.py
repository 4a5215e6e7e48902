"""What a run is, so that it is resumed with the same data, settings, versions and collected statistics only."""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from widebnn.errors import StoreError
from widebnn.samplers.target import Target
from widebnn.sampling.placement import cores

VERSION = 3
START, START_ROUNDING = "log-likelihood at the start", 1e-4
"""How much another number of cores or devices may change it, relatively."""
COLLECTED, COLLECTED_ROUNDING = "collected", 1e-2
"""How much it may change what is kept of a draw, relative to its root mean square: draws of nearly equal function
values amplify rounding to its square root."""
ROUNDING_ONLY = ("cores", "devices of a chain")
"""Entries of ``device`` whose change changes rounding and no more."""
DIRECTIONS, BLOCK = 4, 2**20
REASONS = {
    "version": "it was written by another version of widebnn: use that one",
    "settings": "a run is resumed with the same settings: give them",
    "data": "a run is resumed with the same data: give them",
    COLLECTED: "a run is resumed with the same test inputs and collect: give them",
    "packages": "other versions round differently: install those",
    "device": "other devices round differently: use that one",
}


def describe(
    target: Target, settings: dict[str, Any], start: np.ndarray, collected: dict[str, np.ndarray], units: int
) -> dict[str, Any]:
    """What must be the same for a stored run to be resumed.

    Args:
        target: The target of the chains.
        settings: Of the sampler and of the run.
        start: The log-likelihood at the first position of each chain.
        collected: What ``collect`` returns at the first position of the first chain.
        units: Over how many devices the units of a chain are divided.

    Returns:
        A dictionary of JSON values for ``widebnn.runs.folder.open_run``.
    """
    arrays = {name: getattr(target, name, None) for name in ("x", "y")}
    checksums = {
        f"SHA-256 of {name}": hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        for name, array in arrays.items()
        if array is not None
    }
    options = {n: v if isinstance(v, (bool, int, float, str, type(None))) else repr(v) for n, v in settings.items()}
    return {
        "version": {"version": VERSION},
        "settings": options | {"kept": {name: f"{a.dtype.name}{list(a.shape)}" for name, a in collected.items()}},
        "data": {START: [float(value).hex() for value in start]} | checksums,
        COLLECTED: {name: [value.hex() for value in fingerprint(array)] for name, array in collected.items()},
        "packages": {name: importlib.metadata.version(name) for name in ("widebnn", "jax", "jaxlib", "numpy")},
        "device": {"device": jax.devices()[0].device_kind, "cores": cores(), "devices of a chain": units},
    }


def fingerprint(array: np.ndarray) -> list[float]:
    """A few numbers by which an array is recognised: its root mean square, and projections on fixed directions.

    With a of size m and fixed w_k ~ N(0, I), |a| / sqrt(m) and w_k' a / sqrt(m): rounding of a changes these by no more
    than rounding, and other numbers in one of r equal rows change them by about |a| / sqrt(m r).

    Examples:
        scale, *projections = fingerprint(np.ones((100, 3)))
    """
    rng, flat = np.random.default_rng(0), np.asarray(array).reshape(-1)
    sums = np.zeros(1 + DIRECTIONS)
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, BLOCK):
            block = flat[start : start + BLOCK].astype(np.float64)
            sums += [np.sum(block**2), *np.sum(rng.standard_normal((DIRECTIONS, block.size)) * block, axis=1)]
        size = max(flat.size, 1)
        return [float(np.sqrt(sums[0] / size)), *(sums[1:] / np.sqrt(size)).tolist()]


def check_same(folder: Path, stored: dict[str, Any], manifest: dict[str, Any]) -> None:
    """Refuse to resume another run.

    Args:
        folder: The folder of the run, for the message.
        stored: Its manifest.
        manifest: What would be resumed.

    Raises:
        StoreError: They differ, by more than the rounding of another number of cores or devices.
    """
    parts = {name: part if isinstance(part := stored.get(name), dict) else {} for name in REASONS}
    rounded = any(parts["device"].get(name) != manifest["device"][name] for name in ROUNDING_ONLY)
    for part, reason in REASONS.items():
        old, new = parts[part], manifest[part]
        changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        if rounded:
            changed = [name for name in changed if not _is_rounding(part, name, old.get(name), new.get(name))]
        if changed and part == COLLECTED:
            raise StoreError(
                f"{folder} was begun with other values of {', '.join(changed)} at the start; {reason}, or choose "
                "another folder."
            )
        if changed:
            listed = ", ".join(f"{name} {old.get(name)} (now {new.get(name)})" for name in changed)
            raise StoreError(f"{folder} was begun with {listed}; {reason}, or choose another folder.")


def _is_rounding(part: str, name: str, old: Any, new: Any) -> bool:
    """Whether another number of cores or devices explains the difference of two entries."""
    if part == "device":
        return name in ROUNDING_ONLY
    if part != COLLECTED and name != START:
        return False
    try:
        before, now = (np.array([float.fromhex(value) for value in values]) for values in (old, new))
        atol = COLLECTED_ROUNDING * abs(now[0]) if part == COLLECTED else 0.0
        rtol = 0.0 if part == COLLECTED else START_ROUNDING
        return np.allclose(before, now, rtol=rtol, atol=atol, equal_nan=True)
    except (TypeError, ValueError, IndexError):
        return False  # not what this version writes
