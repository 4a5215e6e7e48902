"""The paper's experiments from the plan to the report: what ``widebnn reproduce`` does."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from widebnn.compilation import compile_quickly
from widebnn.data import load_dataset
from widebnn.errors import WidebnnError, check_choice, check_integer, check_real
from widebnn.reproduction.cells import LABELS, data_checksum
from widebnn.reproduction.engines import engine_named
from widebnn.reproduction.grid import EXPERIMENTS, SCALES, plan, run_grid
from widebnn.reproduction.report import write_report
from widebnn.runs.files import locked, make_folder, output, write_bytes

log = logging.getLogger("widebnn")


def reproduce(
    what: str = "all",
    *,
    scale: str = "smoke",
    data: str = "digits",
    data_dir: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] = "runs/reproduce",
    samplers: Iterable[str] | None = None,
    widths: Sequence[int | str] | None = None,
    step_sizes: Sequence[float | str] | None = None,
    seed: int = 0,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Run the paper's experiments, or resume them, and write figures, ``summary.json`` and ``report.html``.

    Args:
        what: One of ``EXPERIMENTS``, or all of them, at a ``scale`` of ``SCALES``.
        data: digits, cifar10 or mnist; ``data_dir`` is the folder of its files.
        out: Folder of the run; ``seed`` is that of all chains.
        samplers: Only these; by default all. ``widths`` and ``step_sizes`` replace those of the scale.
        engine: ``local``, with a number of ``workers``, or ``ray``, with the ``address`` of a cluster.
        progress: False shows no progress.

    Returns:
        The contents of summary.json.

    Raises:
        WidebnnError: An argument is wrong, or cells failed; the report is then of the others.

    Examples:
        >>> reproduce("acceptance", scale="smoke", out="runs/smoke")["claims"]
    """
    if scale == "smoke":
        compile_quickly()
    size = SCALES[check_choice("scale", scale, SCALES)]
    names = EXPERIMENTS if check_choice("experiment", what, (*EXPERIMENTS, "all")) == "all" else (what,)
    chosen = None if samplers is None else [check_choice("samplers", name, LABELS) for name in samplers]
    dataset = load_dataset(data, size.n_train, size.n_test, data_dir=data_dir)
    cells = plan(names, size, chosen, *_numbers(widths, step_sizes), check_integer("seed", seed, 0))
    if not cells:
        raise WidebnnError(f"{what} has no cell for samplers {chosen}; leave --samplers out, or run all.")
    config: dict[str, Any] = {"data": dataset.name, "data_checksum": data_checksum(dataset), "scale": scale}
    config |= {"seed": seed, "n_train": len(dataset.x_train), "n_test": len(dataset.x_test)}
    with locked(folder := Path(out)):
        write_config(folder, config)
        log.info(f"{len(cells)} cells, results in {folder}")
        try:
            with engine_named(engine, workers, address) as where:
                results = run_grid(cells, dataset, folder, progress, where)
        except KeyboardInterrupt:
            log.warning(f"Interrupted: finished cells are in {folder}; the same command resumes the run.")
            raise
        summary = write_report(folder, results, dataset, size, config)
    log.info(f"Wrote report.html, summary.json and figures to {folder}")
    if missing := len(cells) - len(results):
        raise WidebnnError(f"{missing} of {len(cells)} cells failed, see the warnings; the report is of the others.")
    return summary


def _numbers(widths: Sequence[int | str] | None, steps: Sequence[float | str] | None) -> tuple[list[int], list[float]]:
    """Widths and step sizes, checked; none for those of the scale."""
    if not all(str(width).strip().isdecimal() for width in widths or ()):
        given = ", ".join(map(str, widths or ()))
        raise WidebnnError(f"widths must be whole numbers separated by commas, got {given}.")
    units = [check_integer("widths", int(width), 1) for width in widths or ()]
    return units, [check_real("step_sizes", size, above=0, at_most=1) for size in steps or ()]


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Record the settings of a new folder, and refuse to mix results of two settings or data sets in it."""
    make_folder(folder)
    path = folder / "config.json"
    if not path.exists():
        with output(path):
            write_bytes(path, json.dumps(config, indent=1).encode() + b"\n")
        return
    try:
        old = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:
        raise WidebnnError(f"{path} is corrupted ({error}); remove it or choose another --out.") from None
    changed = ", ".join(f"{name} = {old.get(name)!r}" for name in config if old.get(name) != config[name])
    if changed:
        raise WidebnnError(f"{folder} holds a run with {changed}; choose another --out, or the same settings and data.")
