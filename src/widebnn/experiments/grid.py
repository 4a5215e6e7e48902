"""Which cells an experiment needs at which scale, and running them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import xarray as xr
from rich.progress import Progress as RichProgress

from widebnn.data import Dataset
from widebnn.durable import DamageError, make_folder, output, read_record, write_bytes, write_record
from widebnn.errors import WidebnnError
from widebnn.experiments.cells import Cell, build_target, cell_of, find_start, is_whole, run_cell
from widebnn.experiments.published import RHAT_STEP_SIZE
from widebnn.experiments.sweep import Engine, load, local_engine, sweep
from widebnn.sampling.driver import position_shapes

EXPERIMENTS = ("acceptance", "ess", "rhat", "traces", "beyond")
PAPER_SAMPLERS = ("lmc", "underdamped", "pcn", "pcnl")
BEYOND = ("marginal_pcn", "pcnl_published", "hilbert_hmc", "elliptical_slice")
RHAT_CHAINS = 3
LARGEST_CONFIG = 4096


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
    """Where chains start, see :class:`Cell`."""
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
    """The cells that the experiments need, each once, cheapest first."""
    chosen = tuple(samplers or PAPER_SAMPLERS + BEYOND)
    widths, step_sizes = tuple(widths or scale.widths), tuple(step_sizes or scale.step_sizes)
    cells: dict[str, Cell] = {}

    def add(sampler, step_size, width, depth=1, steps=None, burn_in=scale.burn_in, thin=scale.thin, chains=1):
        if sampler in chosen:
            steps = scale.steps_at(width) if steps is None else steps
            # The published potential is never far from its bulk: the whitened readout always fits.
            start = "prior" if sampler == "pcnl_published" else scale.start
            cell = Cell(sampler, step_size, width, depth, steps, burn_in, thin, chains, seed, start)
            cells.setdefault(cell.name, cell)

    for experiment in experiments:
        if experiment in ("acceptance", "ess", "traces"):
            for sampler in PAPER_SAMPLERS:
                for width in widths:
                    for step_size in step_sizes:
                        add(sampler, step_size, width)
        if experiment == "rhat":
            for sampler in PAPER_SAMPLERS:
                for width in scale.rhat_widths:
                    steps = max(scale.rhat_steps)
                    add(sampler, RHAT_STEP_SIZE, width, steps=steps, burn_in=0, chains=RHAT_CHAINS)
        if experiment == "beyond":
            for width in widths:
                for sampler in ("marginal_pcn", "pcnl_published"):
                    for step_size in step_sizes[:2]:
                        add(sampler, step_size, width)
                add("pcn", None, width)
                for sampler in ("hilbert_hmc", "elliptical_slice"):
                    add(sampler, None, width, steps=scale.fast_steps, burn_in=scale.fast_steps, thin=1)
            for depth in scale.depths:
                width = min(widths, key=lambda width: abs(width - 1024))
                add("pcn", step_sizes[len(step_sizes) // 2], width, depth)
                add("hilbert_hmc", None, width, depth, steps=scale.fast_steps, burn_in=scale.fast_steps, thin=1)
    return sorted(cells.values(), key=lambda cell: cell.work)


def cell_path(folder: Path, cell: Cell) -> Path:
    """Where a finished cell is."""
    return folder / "cells" / f"{cell.name}.nc"


def running_path(folder: Path, cell: Cell) -> Path:
    """Where the chains of a cell are until it is finished."""
    return folder / "cells" / f"{cell.name}.run"


def load_cell(folder: Path, cell: Cell) -> xr.Dataset | None:
    """A finished cell, or None; a file that is damaged or another cell's counts as missing."""
    return load(folder, cell.name, lambda stored: _is_of(cell, stored), cell.label)


def _is_of(cell: Cell, stored: xr.Dataset) -> bool:
    return cell_of(stored) == cell and is_whole(stored)


def run_grid(
    cells: list[Cell],
    dataset: Dataset,
    folder: Path,
    say: Callable[[str], Any] | None = None,
    engine: Engine | None = None,
) -> dict[str, xr.Dataset]:
    """Run the cells that are not there yet, see :func:`widebnn.experiments.sweep`; the results of all, by name.

    ``engine`` is by default processes of this machine, as many as half its cores.
    """
    # Cells of one kind follow each other: they have programs in common.
    ordered = sorted(cells, key=lambda cell: (cell.depth, cell.chains, cell.width, cell.kind, cell.work))
    run = functools.partial(run_one, dataset, folder)
    with contextlib.nullcontext(engine) if engine is not None else local_engine() as chosen:
        results = sweep(
            {cell.name: cell for cell in ordered},
            run,
            folder,
            chosen,
            accept=_is_of,
            label=lambda cell: cell.label,
            work=lambda cell: cell.work,
            say=say,
        )
    for path in (folder / "cells").glob("start-*"):
        path.unlink()
    return results


def run_one(dataset: Dataset, folder: Path, cell: Cell, store: Path, progress: RichProgress) -> xr.Dataset:
    """A cell, with the start that it has in common with others."""
    try:
        start = shared_start(cell, dataset, folder, progress) if cell.start == "posterior" else None
        return run_cell(cell, dataset, progress, start, store)
    finally:
        jax.clear_caches()


def shared_start(cell: Cell, dataset: Dataset, folder: Path, progress: RichProgress) -> Any:
    """Found by the first cell of its kind, and kept for the others."""
    path = folder / "cells" / f"start-{'-'.join(map(str, cell.kind))}"
    shapes = position_shapes(build_target(cell, dataset))
    leaves, structure = jax.tree.flatten(shapes)
    if path.exists():
        with contextlib.suppress(DamageError, OSError, KeyError):
            arrays = read_record(path, "start").arrays
            return jax.tree.unflatten(structure, [arrays[str(i)] for i in range(len(leaves))])
    start = find_start(cell, dataset, progress)
    write_record(path, {"kind": "start"}, {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(start))})
    return start


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Record what the folder is about, or refuse to mix two configurations in it."""
    make_folder(folder)
    path = folder / "config.toml"
    text = "".join(f"{name} = {_toml(value)}\n" for name, value in config.items())
    if path.exists():
        try:
            if not path.is_file() or path.stat().st_size > LARGEST_CONFIG:
                raise ValueError("no small file")
            old = tomllib.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise WidebnnError(f"{path} is damaged ({error}); remove it or choose another --out.") from None
        changed = [name for name in config if old.get(name) != tomllib.loads(text)[name]]
        if changed:
            what = ", ".join(f"{name} = {old.get(name)!r}" for name in changed)
            raise WidebnnError(f"{folder} holds a run with {what}; choose another --out, or the same settings.")
        return
    with output(path):
        write_bytes(path, text.encode())


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    return "[" + ", ".join(_toml(part) for part in value) + "]"
