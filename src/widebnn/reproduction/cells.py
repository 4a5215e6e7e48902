"""One cell of a grid: a sampler with a step size on a network of some width and depth."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from rich.progress import Progress as RichProgress

from widebnn.data import Dataset
from widebnn.errors import WidebnnError
from widebnn.networks import dense
from widebnn.posteriors import Posterior, posterior
from widebnn.precision import double_precision
from widebnn.reproduction.published_pcnl import published_pcnl_target
from widebnn.sampling import Result, sample
from widebnn.sampling.collect import random_projections

NOISE = 0.1
PROJECTIONS = 100
FOLLOWED_INPUTS = 16
"""Test inputs at which the function itself is stored, for the distance from the infinite-width limit."""
START_STEPS = 150
"""Steps of Hilbert-space HMC from the prior to the bulk of the posterior, while it finds its own step size."""
MOMENTUM_REFRESH = 0.01
"""Share of the momentum's variance that the published Langevin code renews per step."""
LABELS = {
    "pcn": "pCN",
    "pcnl": "pCNL",
    "lmc": "LMC (MALA, as printed)",
    "underdamped": "LMC (underdamped, as coded)",
    "pcnl_published": "pCNL with the published potential (another distribution)",
    "marginal_pcn": "pCN, marginal-conditional",
    "hilbert_hmc": "Hilbert-space HMC",
    "elliptical_slice": "elliptical slice",
}
"""What each sampler of the experiments is called in figures."""
_last_start: dict[tuple[Any, ...], Any] = {}
"""Where the last kind of cells in this process started; a grid runs cells of one kind after each other."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run. ``step_size=None`` means tuned during burn-in, or none."""

    sampler: str
    step_size: float | None
    width: int
    depth: int
    steps: int
    burn_in: int
    thin: int
    chains: int = 1
    seed: int = 0
    start: str = "prior"
    """``prior``: chains start at draws from N(0, I), as in the paper; ``posterior``: where Hilbert-space HMC gets in
    ``START_STEPS`` steps, so that a short burn-in is enough whatever the step size."""
    data: str = ""
    """Checksum of the data set: a result of other data is not this cell's."""

    @property
    def kind(self) -> tuple[Any, ...]:
        """Cells of one kind have the same target and start at the same positions."""
        own = self.sampler if self.sampler in ("pcnl_published", "marginal_pcn") else ""
        return self.depth, self.chains, self.width, own, self.seed

    @property
    def is_reference(self) -> bool:
        """Hilbert-space HMC on one hidden layer: nearly independent draws, by which other cells are judged."""
        return self.sampler == "hilbert_hmc" and self.depth == 1 and self.chains == 1

    @property
    def name(self) -> str:
        """A file name that tells the cell from all others of a grid."""
        size = "tuned" if self.step_size is None else f"b{self.step_size:g}"
        return f"{self.sampler}-{size}-w{self.width}-d{self.depth}" + f"-{self.chains}chains" * (self.chains > 1)

    @property
    def work(self) -> float:
        """About how many seconds it takes on a small machine with 256 inputs, for the ETA only."""
        gradients = {"pcn": 0.5, "marginal_pcn": 0.5, "elliptical_slice": 4.0, "hilbert_hmc": 8.0}
        steps = self.chains * (self.steps + self.burn_in)
        return 8.0 + steps * gradients.get(self.sampler, 1.0) * self.depth * (600 + self.width) * 8e-6


def data_checksum(dataset: Dataset) -> str:
    """SHA-256 of the arrays that a cell sees: training inputs and targets, and test inputs."""
    digest = hashlib.sha256()
    for array in (dataset.x_train, dataset.y_train, dataset.x_test):
        digest.update(f"{array.shape} {array.dtype.str}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def build_target(cell: Cell, dataset: Dataset) -> Posterior:
    """The chain of the paper: on all weights where that is possible (one hidden layer), test inputs carried along."""
    network = dense(dataset.x_train.shape[1], [cell.width] * cell.depth)
    x, y, carry = dataset.x_train, dataset.y_train, dataset.x_test
    if cell.sampler == "pcnl_published":
        return published_pcnl_target(network, x, y, NOISE, carry)
    system = "full" if cell.depth == 1 and cell.sampler != "marginal_pcn" else "function"
    return posterior(network, x, y, noise=NOISE, coordinates=system, carry=carry)


def sampler_options(cell: Cell) -> tuple[str, dict[str, Any]]:
    """Return the sampler's name for ``widebnn.sample``, and its options."""
    name = {"pcnl_published": "pcnl", "marginal_pcn": "pcn", "lmc": "mala"}.get(cell.sampler, cell.sampler)
    options: dict[str, Any] = {} if cell.step_size is None else {"step_size": cell.step_size}
    if name == "underdamped":
        if cell.step_size is None:
            raise WidebnnError("underdamped needs a step size here: its friction follows from it.")
        options["friction"] = -0.5 * math.log1p(-MOMENTUM_REFRESH) / cell.step_size
    return name, options


def run_cell(
    cell: Cell, dataset: Dataset, progress: bool | RichProgress | None = False, store: Path | None = None
) -> xr.Dataset:
    """Run one cell and keep the paper's statistics of every stored draw: projections of weights and of predictions.

    Args:
        cell: What to run.
        dataset: Training data, and the test inputs at which predictions are followed.
        progress: As for ``widebnn.sample``.
        store: Folder of the chains, from which an interrupted cell resumes.

    Returns:
        ``weights``, ``predictions``, ``f_test``, ``lp`` and ``acceptance_rate`` by chain and draw.

    Raises:
        WidebnnError: The sampler needs a step size and the cell has none.
    """
    target = build_target(cell, dataset)
    name, options = sampler_options(cell)
    options |= {name: getattr(cell, name) for name in ("steps", "burn_in", "thin", "chains", "seed")}
    initial = None
    if cell.start == "posterior":
        key = *cell.kind, data_checksum(dataset)
        if key not in _last_start:
            start: dict[str, Any] = {"steps": 1, "burn_in": START_STEPS, "chains": cell.chains, "seed": cell.seed + 1}
            result = sample(target, "auto", collect=lambda key, u: {}, progress=progress, **start)
            if result.interrupted:
                raise KeyboardInterrupt
            _last_start.clear()
            _last_start[key] = result.last
        initial = _last_start[key]
    options |= {"initial": initial, "progress": progress, "store": store}
    result = sample(target, name, collect=_collect(target, dataset), **options)
    if result.interrupted:
        raise KeyboardInterrupt
    return _to_dataset(cell, result, target)


def _collect(target: Posterior, dataset: Dataset) -> Any:
    own = getattr(target.coordinates, "project", None)
    project = own or random_projections(target.sample_reference, PROJECTIONS)
    outputs = dataset.x_test.shape[0] * dataset.y_train.shape[1]
    directions = np.random.default_rng(1).normal(size=(outputs, PROJECTIONS))
    directions = directions / np.linalg.norm(directions, axis=0)

    def collect(key: Any, u: Any) -> Any:
        f = target.predict(key, u).f
        predictions = f.reshape(-1) @ jnp.asarray(directions, f.dtype)
        return {"weights": project(u), "predictions": predictions, "f_test": f[:FOLLOWED_INPUTS]}

    return collect


def _to_dataset(cell: Cell, result: Result, target: Posterior) -> xr.Dataset:
    """Everything that figures and tables need."""
    draws = result.draws | {name: result.stats[name] for name in ("lp", "acceptance_rate")}
    attributes: dict[str, Any] = {
        "dimension": target.dimension,
        "nonfinite_proposals": int(result.stats["nonfinite"].sum()),
    }
    for name in ("ms_per_step", "gradients_per_step", "burn_in_acceptance_rate"):
        attributes[name] = getattr(result, name)
    if cell.is_reference:
        draw = jax.jit(lambda key: target.log_likelihood(target.sample_reference(key)))
        with double_precision():
            prior = [draw(key) for key in jax.random.split(jax.random.key(cell.seed + 1), 64)]
        attributes["prior_log_likelihood"] = float(np.mean(prior))
    dimensions = {"weights": ("projection",), "predictions": ("projection",), "f_test": ("test_input", "output")}
    return xr.Dataset(
        {name: (("chain", "draw", *dimensions.get(name, ())), values) for name, values in draws.items()},
        coords={"draw": cell.burn_in + cell.thin * np.arange(1, result.steps // cell.thin + 1)},
        attrs=attributes,
    )
