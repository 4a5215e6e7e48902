"""The paper's experiments from the plan to the report: what ``widebnn reproduce`` does."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from widebnn.errors import WidebnnError, check_choice, check_integer, check_real
from widebnn.names import Engine, Reproduction, Scale
from widebnn.runs.command import begin
from widebnn.runs.files import locked

log = logging.getLogger("widebnn")


def reproduce(
    what: Reproduction = "all",
    *,
    scale: Scale = "smoke",
    data: str = "digits",
    data_dir: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] = "runs/reproduce",
    samplers: Sequence[str] | str | None = None,
    widths: Sequence[int | str] | str | None = None,
    step_sizes: Sequence[float | str] | str | None = None,
    seed: int = 0,
    engine: Engine = "local",
    workers: int | None = None,
    address: str | None = None,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Re-run the paper's experiments and write figures, a table of its numbers beside ours, and report.html.

    Interrupt it whenever you like: finished cells are kept, and the same command resumes the run, with either engine.

    Args:
        what: Which experiment; all runs every one.
        scale: smoke: two minutes, a toy to see that all works, speeds mean nothing; laptop: two hours, the paper's
            widths and step sizes with short chains; paper: a million steps per cell, days.
        data: digits, cifar10 or mnist.
        data_dir: Folder of the data files.
        out: Folder of the run; the same command resumes it.
        samplers: Only these, separated by commas: pcn,pcnl,lmc,...
        widths: Instead of the scale's, separated by commas.
        step_sizes: Instead of the scale's, separated by commas.
        seed: Seed of all chains.
        engine: Where cells run: processes of this machine, or a Ray cluster.
        workers: Processes of the local engine; by default half the number of cores.
        address: Of a Ray cluster, HOST:PORT or auto; by default one on this machine.
        progress: False shows no progress.

    Returns:
        The contents of summary.json.

    Raises:
        WidebnnError: An argument is wrong, or cells failed; the report is then of the others.

    Examples:
        >>> reproduce("acceptance", scale="smoke", out="runs/smoke")["claims"]
    """
    from widebnn.compilation import compile_quickly
    from widebnn.data import load_dataset
    from widebnn.reproduction.cells import LABELS, data_checksum
    from widebnn.reproduction.engines import engine_named
    from widebnn.reproduction.grid import EXPERIMENTS, SCALES, plan, run_grid
    from widebnn.reproduction.report import write_report

    if scale == "smoke":
        compile_quickly()
    size = SCALES[check_choice("scale", scale, SCALES)]
    names = EXPERIMENTS if check_choice("experiment", what, (*EXPERIMENTS, "all")) == "all" else (what,)
    chosen = [check_choice("samplers", name, LABELS) for name in _parts(samplers)]
    if not all(str(width).strip().isdecimal() for width in _parts(widths)):
        raise WidebnnError(f"widths must be whole numbers separated by commas, got {widths}.")
    units = [check_integer("widths", int(width), 1) for width in _parts(widths)]
    steps = [check_real("step_sizes", size, above=0, at_most=1) for size in _parts(step_sizes)]
    dataset = load_dataset(data, size.n_train, size.n_test, data_dir=data_dir)
    cells = plan(names, size, chosen, units, steps, check_integer("seed", seed, 0))
    if not cells:
        raise WidebnnError(f"{what} has no cell for samplers {', '.join(chosen)}; leave --samplers out, or run all.")
    config: dict[str, Any] = {"data": dataset.name, "data_checksum": data_checksum(dataset), "scale": scale}
    config |= {"seed": seed, "n_train": len(dataset.x_train), "n_test": len(dataset.x_test)}
    with locked(folder := Path(out)):
        begin(folder, "reproduce", config)
        log.info(f"{len(cells)} cells, results in {folder}")
        try:
            with engine_named(engine, workers, address) as where:
                results = run_grid(cells, dataset, folder, progress, where)
        except KeyboardInterrupt:
            log.warning(f"Interrupted: finished cells are in {folder}; the same command resumes the run.")
            raise
        finished = {cell: results[cell.name] for cell in cells if cell.name in results}
        summary = write_report(folder, finished, dataset, size, config)
    log.info(f"Wrote report.html, summary.json and figures to {folder}")
    if missing := len(cells) - len(finished):
        raise WidebnnError(f"{missing} of {len(cells)} cells failed, see the warnings; the report is of the others.")
    return summary


def _parts(given: Sequence[Any] | str | None) -> list[Any]:
    """Values that may be separated by commas; none for those of the scale."""
    return given.split(",") if isinstance(given, str) else list(given or ())
