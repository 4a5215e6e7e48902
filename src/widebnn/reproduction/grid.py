"""Which cells an experiment needs at which scale, and running them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import jax
import xarray as xr
from rich.progress import Progress as RichProgress

from widebnn.data import Dataset
from widebnn.names import Reproduction
from widebnn.reproduction.cells import Cell, data_checksum, run_cell
from widebnn.reproduction.engines import Engine, local_engine
from widebnn.reproduction.published import RHAT_STEP_SIZE
from widebnn.reproduction.sweeps import sweep

EXPERIMENTS = tuple(name for name in get_args(Reproduction) if name != "all")
PAPER_SAMPLERS = ("lmc", "underdamped", "pcn", "pcnl")


@dataclasses.dataclass(frozen=True)
class Scale:
    """How large an experiment is."""

    n_train: int
    n_test: int
    widths: tuple[int, ...]
    step_sizes: tuple[float, ...]
    steps: int
    burn_in: int
    thin: int
    rhat_widths: tuple[int, ...]
    rhat_steps: tuple[int, ...]
    """Numbers of steps at which R-hat is looked at; the chains run to the last."""
    depths: tuple[int, ...] = (2, 3)
    fast_steps: int = 500
    """For samplers whose every step is (nearly) a new draw."""
    start: str = "prior"
    """Where chains start, see ``Cell``."""
    full_steps_to: int | None = None
    """Above this width the number of steps falls as width^-0.75, so that wide networks do not take all the time."""

    def steps_at(self, width: int) -> int:
        """Steps of a chain of the main grid, a multiple of ``thin``."""
        share = 1.0 if self.full_steps_to is None else min(1.0, (self.full_steps_to / width) ** 0.75)
        return self.thin * round(self.steps * share / self.thin)


SCALES = {
    "smoke": Scale(16, 8, (64, 256), (0.1,), 400, 400, 10, (64,), (100, 200, 300, 400), (), 100),
    "laptop": Scale(
        256, 32, (128, 512, 1024, 2048, 4096, 8192), (0.2, 0.1, 0.01), 3_600, 250, 25,
        (512, 4096), (200, 400, 600), (2, 3), 150, "posterior", 512,
    ),
    "paper": Scale(
        256, 128, (128, 512, 1024, 2048, 4096, 8192), (0.2, 0.1, 0.01), 1_000_000, 20_000, 25,
        (512, 1024, 2048, 4096), (5_000, 10_000, 15_000, 20_000), (2, 3), 2_000, "prior",
    ),
}  # fmt: skip


def plan(
    experiments: Iterable[str],
    scale: Scale,
    samplers: Iterable[str] | None = None,
    widths: Iterable[int] | None = None,
    step_sizes: Iterable[float] | None = None,
    seed: int = 0,
) -> list[Cell]:
    """Plan the cells of some experiments.

    Args:
        experiments: Names from ``EXPERIMENTS``.
        scale: How large they are.
        samplers: Only these; by default all.
        widths: Instead of the scale's.
        step_sizes: Instead of the scale's.
        seed: Seed of all chains.

    Returns:
        The cells that are needed, each once, cheapest first.
    """
    chosen = None if samplers is None else tuple(samplers)
    widths, step_sizes = tuple(widths or scale.widths), tuple(step_sizes or scale.step_sizes)
    cells: dict[str, Cell] = {}

    def add(sampler: str, step_size: float | None, width: int, depth: int = 1, **changed: Any) -> None:
        if not chosen or sampler in chosen:
            sizes = {"steps": scale.steps_at(width), "burn_in": scale.burn_in, "thin": scale.thin} | changed
            # The published potential is never far from its bulk: the whitened readout always fits.
            start = "prior" if sampler == "pcnl_published" else scale.start
            cell = Cell(sampler, step_size, width, depth, **sizes, seed=seed, start=start)
            cells.setdefault(cell.name, cell)

    wanted = set(experiments)
    if wanted & {"acceptance", "ess", "traces"}:
        for sampler, width, step_size in itertools.product(PAPER_SAMPLERS, widths, step_sizes):
            add(sampler, step_size, width)
    if "rhat" in wanted:
        for sampler, width in itertools.product(PAPER_SAMPLERS, scale.rhat_widths):
            add(sampler, RHAT_STEP_SIZE, width, steps=max(scale.rhat_steps), burn_in=0, chains=3)
    if "beyond" in wanted:
        fast = {"steps": scale.fast_steps, "burn_in": scale.fast_steps, "thin": 1}
        for width in widths:
            for sampler, step_size in itertools.product(("marginal_pcn", "pcnl_published"), step_sizes[:2]):
                add(sampler, step_size, width)
            add("pcn", None, width)
            add("hilbert_hmc", None, width, **fast)
            add("elliptical_slice", None, width, **fast)
        width = min(widths, key=lambda width: abs(width - 1024))
        for depth in scale.depths:
            add("pcn", step_sizes[len(step_sizes) // 2], width, depth)
            add("hilbert_hmc", None, width, depth, **fast)
    return sorted(cells.values(), key=lambda cell: cell.work)


def run_grid(
    cells: list[Cell],
    dataset: Dataset,
    folder: Path,
    progress: bool | None = None,
    engine: Engine | None = None,
) -> dict[str, xr.Dataset]:
    """Run the cells that are not finished, see ``widebnn.reproduction.sweep``.

    Args:
        cells: From ``plan``.
        dataset: What all of them are run on.
        folder: Where results are kept.
        progress: As for ``widebnn.reproduction.sweep``.
        engine: By default processes of this machine, half as many as it has cores.

    Returns:
        The results by name, without those of cells that failed.
    """
    # Cells of one kind follow each other: they share compiled programs and where they start.
    ordered = sorted(cells, key=lambda cell: (cell.kind, cell.work))
    with contextlib.nullcontext(engine) if engine is not None else local_engine() as chosen:
        return sweep(with_data(ordered, dataset), functools.partial(_run_one, dataset), folder, chosen, progress)


def with_data(cells: Iterable[Cell], dataset: Dataset) -> dict[str, Cell]:
    """The cells by name, bound to a data set by its checksum."""
    checksum = data_checksum(dataset)
    return {cell.name: dataclasses.replace(cell, data=checksum) for cell in cells}


def _run_one(dataset: Dataset, cell: Cell, store: Path, progress: RichProgress) -> xr.Dataset:
    try:
        return run_cell(cell, dataset, progress, store=store)
    finally:
        jax.clear_caches()
