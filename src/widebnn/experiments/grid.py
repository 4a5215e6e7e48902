"""Which cells an experiment needs at which scale, and running them: in any order, resumable, with one ETA."""

from __future__ import annotations

import dataclasses
import io
import os
import shutil
import time
import tomllib
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import xarray as xr

from widebnn.compilation import compiled_once
from widebnn.data import Dataset
from widebnn.durable import damaged_files, write_checksums
from widebnn.errors import DamageWarning, WidebnnError
from widebnn.experiments.cells import Cell, cell_of, find_start, is_whole, run_cell
from widebnn.experiments.published import RHAT_STEP_SIZE
from widebnn.sampling.progress import display

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


def keep_cell(folder: Path, cell: Cell, stored: xr.Dataset) -> None:
    """Write a finished cell, with its checksum, and remove its chains."""
    path = cell_path(folder, cell)
    temporary = path.with_name(f".{path.name}.tmp")
    # The classic format, which is read by Python alone: the HDF5 library may hang on a file that was made for it.
    stored.to_netcdf(temporary, engine="scipy")
    os.replace(temporary, path)
    write_checksums(path.with_name(f"{cell.name}.sha256"), [path.name])
    shutil.rmtree(running_path(folder, cell), ignore_errors=True)


def load_cell(folder: Path, cell: Cell) -> xr.Dataset | None:
    """A finished cell, or None; a file that is damaged or another cell's counts as missing."""
    path = cell_path(folder, cell)
    if not path.is_file():
        return None
    if damaged := damaged_files(path.with_name(f"{cell.name}.sha256"), [path.name]):
        warnings.warn(f"{folder} was damaged ({damaged[0]}): {cell.label} is run again", DamageWarning, stacklevel=3)
        return None
    try:
        stored = xr.load_dataset(io.BytesIO(path.read_bytes()), engine="scipy")
        return stored if cell_of(stored) == cell and is_whole(stored) else None
    except Exception:  # what somebody has changed fails anywhere
        return None


def run_grid(
    cells: list[Cell], dataset: Dataset, folder: Path, say: Callable[[str], Any] | None = None
) -> dict[str, xr.Dataset]:
    """Run the cells that are not there yet; the results of all, by name.

    A cell that is interrupted or killed goes on where it stopped. A cell that fails is left out with a warning. On a
    terminal one display shows the whole grid and the running cell; elsewhere ``say`` gets a line per cell.
    """
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    found = {cell.name: stored for cell in cells if (stored := load_cell(folder, cell)) is not None}
    left = [cell for cell in cells if cell.name not in found]
    # Single chains first; cells of one kind follow each other, so one start is kept at a time.
    left.sort(key=lambda cell: (cell.depth, cell.chains, cell.width, cell.kind, cell.work))
    starts: dict[Any, Any] = {}
    # Cells have many programs in common.
    with compiled_once(), _Overall(cells, left, say) as overall:
        for cell in left:
            overall.begin(cell)
            try:
                if cell.start == "posterior" and cell.kind not in starts:
                    starts = {cell.kind: find_start(cell, dataset, overall.display)}
                stored = run_cell(cell, dataset, overall.display, starts.get(cell.kind), running_path(folder, cell))
            except WidebnnError as error:
                warnings.warn(f"{cell.label} failed and is left out: {error}", stacklevel=2)
                continue
            keep_cell(folder, cell, stored)
            found[cell.name] = stored
            overall.end(cell)
            jax.clear_caches()
    return found


class _Overall:
    """What the user sees of a grid: one bar with ETA on a terminal, otherwise one line per cell."""

    def __init__(self, cells: list[Cell], left: list[Cell], say: Callable[[str], Any] | None):
        self.display = display(None if say is None else False)
        self._say = say or (lambda text: self.display.console.print(text, highlight=False))
        self._quiet = say is None and self.display.console.is_terminal
        self._number, self._count, self._there = 0, len(left), len(cells) - len(left)
        self._total, self._done = sum(cell.work for cell in left), 0.0

    def __enter__(self) -> _Overall:
        if self._there:
            self._say(f"{self._there} of {self._there + self._count} cells are there already.")
        self._began = time.perf_counter()
        self.display.start()
        self._task = self.display.add_task("grid", total=self._total or 1.0, note="")
        return self

    def __exit__(self, *_) -> None:
        self.display.stop()

    def begin(self, cell: Cell) -> None:
        """The next cell."""
        self._number += 1
        where = f"{self._number} of {self._count}"
        self.display.update(self._task, description=f"cell {where}", note=cell.label)
        if not self._quiet:
            share = self._done / self._total
            eta = f", ETA {duration((time.perf_counter() - self._began) * (1 / share - 1))}" if share > 0.01 else ""
            self._say(f"[{where}{eta}] {cell.label}")

    def end(self, cell: Cell) -> None:
        """It is stored."""
        self._done += cell.work
        self.display.update(self._task, completed=self._done)


def duration(seconds: float) -> str:
    """For people."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Record what the folder is about, or refuse to mix two configurations in it."""
    folder.mkdir(parents=True, exist_ok=True)
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
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    return "[" + ", ".join(_toml(part) for part in value) + "]"
