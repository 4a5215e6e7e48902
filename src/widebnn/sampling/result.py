"""What a run returns, and its conversion to ArviZ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from arviz_base import from_dict

from widebnn.samplers.target import Target

GROUPS = {"y": "posterior_predictive", "f_test": "predictions", "y_test": "predictions", "mean_test": "predictions"}
"""The ArviZ group of the names that ``widebnn.track`` uses; everything else goes to ``posterior``."""
DIMENSIONS = {"y": ["row", "output"], "weights": ["projection"]}
DIMENSIONS |= {name: ["test_row", "output"] for name in ("y_test", "f_test", "mean_test")}


@dataclass(frozen=True)
class Result:
    """Draws and statistics of a run; arrays have shape (chains, draws, ...)."""

    draws: dict[str, np.ndarray]
    """What ``collect`` kept."""
    stats: dict[str, np.ndarray]
    """Per stored draw: ``lp`` (the log-likelihood against N(0, I)); over the ``thin`` steps before it the means
    ``acceptance_rate`` and ``accepted`` and the counts ``nonfinite`` (proposals rejected because they were NaN)
    and ``gradients``."""
    target: Target
    steps: int
    burn_in: int
    thin: int
    chains: int
    seed: int
    seconds: float
    """Wall time of the kept steps, compilation and burn-in excluded."""
    compile_seconds: float
    burn_in_acceptance_rate: float
    interrupted: bool
    step_size: np.ndarray | None
    """The step size that every chain has found; None where it was given."""
    last: Any
    """The positions after the last step, stacked over chains: pass them as ``initial`` to continue."""

    @property
    def acceptance_rate(self) -> float:
        """Mean acceptance probability after burn-in."""
        return float(self.stats["acceptance_rate"].mean()) if self.steps else float("nan")

    @property
    def gradients_per_step(self) -> float:
        """Gradients of the log-likelihood per step."""
        return float(self.stats["gradients"].mean()) / self.thin if self.steps else float("nan")

    @property
    def ms_per_step(self) -> float:
        """Milliseconds of wall time per step, all chains counted as steps."""
        return 1e3 * self.seconds / (self.steps * self.chains) if self.steps else float("nan")

    def to_datatree(self) -> xr.DataTree:
        """An ArviZ DataTree: posterior, sample_stats, posterior_predictive, predictions, observed_data."""
        groups: dict[str, dict[str, np.ndarray]] = {"sample_stats": dict(self.stats)}
        for name, array in self.draws.items():
            groups.setdefault(GROUPS.get(name, "posterior"), {})[name] = array
        observed = getattr(self.target, "y", None)
        if observed is not None:
            groups["observed_data"] = {"y": np.asarray(observed)}
        attributes = {name: getattr(self, name) for name in ("steps", "burn_in", "thin", "seed", "gradients_per_step")}
        return datatree(groups, attributes | {"sampling_time": self.seconds})


def datatree(groups: dict[str, dict[str, np.ndarray]], attributes: dict[str, Any]) -> xr.DataTree:
    """Arrays by group and name, with the names of their dimensions."""
    tree = from_dict(groups, dims=DIMENSIONS, pred_dims=DIMENSIONS)
    tree.attrs.update(attributes)
    return tree
