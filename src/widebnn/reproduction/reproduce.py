"""The paper's experiments from the plan to the report: what ``widebnn reproduce`` does."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from widebnn.compilation import compile_quickly
from widebnn.data import load_dataset
from widebnn.durable import locked
from widebnn.errors import WidebnnError, check_choice, check_integer, check_real
from widebnn.reproduction.cells import LABELS
from widebnn.reproduction.engines import engine_named
from widebnn.reproduction.grid import EXPERIMENTS, SCALES, plan, run_grid, write_config
from widebnn.reproduction.report import write_report

log = logging.getLogger("widebnn")


def reproduce(
    what: str = "all",
    *,
    scale: str = "smoke",
    data: str = "digits",
    data_dir: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] = "runs/reproduce",
    samplers: Iterable[str] | None = None,
    widths: Iterable[int | str] | None = None,
    step_sizes: Iterable[float | str] | None = None,
    seed: int = 0,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Run the paper's experiments, or resume them, and write figures, ``summary.json`` and ``report.html``.

    Args:
        what: One of ``EXPERIMENTS``, or all of them.
        scale: One of ``SCALES``.
        data: digits, cifar10 or mnist, in ``data_dir``.
        data_dir: Folder of the data files.
        out: Folder of the run.
        samplers: Only these; by default all.
        widths: Instead of the scale's, like ``step_sizes``.
        step_sizes: Between 0 and 1.
        seed: Seed of all chains.
        engine: ``local`` or ``ray``, see :mod:`widebnn.reproduction.engines`, with its ``workers`` or ``address``.
        workers: Number of processes.
        address: Of a Ray cluster.
        progress: False shows no progress.

    Returns:
        The contents of summary.json.

    Raises:
        WidebnnError: An argument is wrong, or cells failed; the report is then of the others.

    Example:
        >>> reproduce("acceptance", scale="smoke", out="runs/smoke")["claims"]
    """
    if scale == "smoke":
        compile_quickly()
    size = SCALES[check_choice("scale", scale, SCALES)]
    names = EXPERIMENTS if what == "all" else (check_choice("experiment", what, EXPERIMENTS),)
    chosen = None if samplers is None else [check_choice("samplers", name, LABELS) for name in samplers]
    own_widths = None if widths is None else [_width(width) for width in widths]
    own_sizes = None if step_sizes is None else [check_real("step_sizes", b, above=0, at_most=1) for b in step_sizes]
    dataset = load_dataset(data, size.n_train, size.n_test, data_dir=data_dir)
    cells = plan(names, size, chosen, own_widths, own_sizes, check_integer("seed", seed, 0))
    if not cells:
        raise WidebnnError(f"{what} has no cell for samplers {chosen}; leave --samplers out, or run all.")
    config = {"data": dataset.name, "n_train": len(dataset.x_train), "n_test": len(dataset.x_test)}
    config |= {"scale": scale, "seed": seed}
    folder = Path(out)
    with locked(folder):
        write_config(folder, config)
        log.info(f"{len(cells)} cells, results in {folder}")
        with engine_named(engine, workers, address) as where:
            results = run_grid(cells, dataset, folder, (lambda line: None) if progress is False else None, where)
        summary = write_report(folder, results, dataset, size, config)
    log.info(f"Wrote report.html, summary.json and figures to {folder}")
    if missing := len(cells) - len(results):
        raise WidebnnError(f"{missing} of {len(cells)} cells failed, see the warnings; the report is of the others.")
    return summary


def _width(width: int | str) -> int:
    if isinstance(width, str):
        if not width.strip().isdecimal():
            raise WidebnnError(f"widths must be whole numbers separated by commas, got {width!r}.")
        width = int(width)
    return check_integer("widths", width, 1)
