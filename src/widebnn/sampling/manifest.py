"""What a run is, so that it is resumed with the same data, settings, versions and collected statistics only."""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from widebnn.errors import StoreError
from widebnn.runs.files import Record
from widebnn.samplers.target import Target
from widebnn.sampling.placement import cores

VERSION = 4
PACKAGES = ("widebnn", "jax", "jaxlib", "numpy")
ROUNDING_ONLY = ("cores", "devices of a chain")
"""Entries whose change changes rounding and no more."""
START, START_ROUNDING = "the log-likelihood", 1e-4
"""How much that may change it at the start, relatively."""
COLLECTED_ROUNDING = 1e-2
"""How much it may change what is kept of a draw, relative to its root mean square: draws of nearly equal function
values amplify rounding to its square root."""
PREFIX = "start."
"""Of the names that values at the start have in a checkpoint."""


def describe(target: Target, settings: dict[str, Any], units: int) -> dict[str, Any]:
    """What must be the same for a stored run to be resumed, in JSON; each chain is divided over ``units`` devices."""
    options = {n: v if isinstance(v, (bool, int, float, str, type(None))) else repr(v) for n, v in settings.items()}
    checksums = {
        f"SHA-256 of {name}": hashlib.sha256(np.ascontiguousarray(getattr(target, name)).tobytes()).hexdigest()
        for name in ("x", "y")
        if hasattr(target, name)
    }
    versions = {f"version of {name}": importlib.metadata.version(name) for name in PACKAGES}
    device = {"device": jax.devices()[0].device_kind, "cores": cores(), "devices of a chain": units}
    return {"version of the folder": VERSION} | versions | options | checksums | device


def check_same(folder: Path, stored: Record, manifest: dict[str, Any], start: dict[str, np.ndarray]) -> None:
    """Refuse to resume another run.

    ``start`` has the log-likelihoods of all chains and what is collected of the first one, which checkpoints repeat:
    they are equal, up to the rounding of another number of cores or devices.
    """
    old = stored.header.get("manifest")
    old = old if isinstance(old, dict) else {}
    changed = [name for name in {**old, **manifest} if old.get(name) != manifest.get(name)]
    advice = "a run is resumed with the same data, settings, versions and kind of device: use those, or another folder"
    if wrong := [name for name in changed if name not in ROUNDING_ONLY]:
        listed = ", ".join(f"{name} {old.get(name)} (now {manifest.get(name)})" for name in wrong)
        raise StoreError(f"{folder} was begun with {listed}; {advice}.")
    before = {n.removeprefix(PREFIX): array for n, array in stored.arrays.items() if n.startswith(PREFIX)}
    pairs = {name: (before.get(name), start.get(name)) for name in {**before, **start}}
    if wrong := [name for name, (a, b) in pairs.items() if not _is_same(name, a, b, bool(changed))]:
        advice = advice.replace("data", "data, test inputs, collect")
        raise StoreError(f"{folder} was begun with other values of {', '.join(wrong)} at the start; {advice}.")


def _is_same(name: str, old: np.ndarray | None, new: np.ndarray | None, rounded: bool) -> bool:
    if old is None or new is None or (old.shape, old.dtype) != (new.shape, new.dtype):
        return False
    if not rounded:
        return old.tobytes() == new.tobytes()
    with np.errstate(all="ignore"):
        scale = float(np.sqrt(np.mean(np.square(new, dtype=np.float64)))) if new.size else 0.0
    rtol, atol = (START_ROUNDING, 0.0) if name == START else (0.0, COLLECTED_ROUNDING * scale)
    return np.allclose(old, new, rtol, atol, equal_nan=True)
