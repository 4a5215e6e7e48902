"""Sweeps: many jobs in processes of this machine or on a Ray cluster, resumable, with one progress display.

The folder of a sweep holds ``cells/NAME.nc`` and ``NAME.sha256`` for a finished job, ``NAME.run`` with the chains of an
unfinished one and ``NAME.progress``. A sweep that was stopped, or that lost processes or machines, resumes from there.
All machines of a cluster should see the folder; otherwise results still arrive, but a job that is lost starts again.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime
import io
import json
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import xarray as xr
from rich.progress import Progress as RichProgress

from widebnn.errors import DamageWarning, WidebnnError
from widebnn.reproduction.engines import Engine
from widebnn.runs.files import damaged_files, locked, output, write_bytes, write_checksums
from widebnn.sampling.progress import display

ATTEMPTS = 3
"""How often a job is run that ends in an unexpected error or whose process is lost."""


def sweep(
    jobs: Mapping[str, Any],
    run: Callable[[Any, Path, RichProgress], xr.Dataset],
    folder: Path,
    engine: Engine,
    progress: bool | None = None,
) -> dict[str, xr.Dataset]:
    """Run all jobs that are not finished in ``folder``.

    A job that raises ``WidebnnError`` is left out with a warning. One that fails in any other way, or whose
    process or machine is lost, is retried from its last checkpoint, three runs in all. Other jobs continue.

    Args:
        jobs: Jobs by name; names become file names. A stored result belongs to a job if ``repr(job)`` is unchanged. A
            job may have the attribute ``work``, its relative cost.
        run: ``run(job, store, progress)``, a function of a module, returns an ``xarray.Dataset`` and passes
            ``store`` and ``progress`` to ``widebnn.sample``, which makes the job resumable and shows its progress.
        folder: Folder of the sweep; it is created.
        engine: From ``local_engine`` or ``ray_engine``.
        progress: Whether to show bars; by default on terminals. False leaves out the line for each event, too.

    Returns:
        The results by name, without those of jobs that failed.

    Raises:
        WidebnnError: A result cannot be written, or another process uses the folder.
    """
    found = {name: load(folder, name, job) for name, job in jobs.items()}
    waiting = [name for name, stored in found.items() if stored is None]
    attempts = dict.fromkeys(waiting, 0)
    running: dict[concurrent.futures.Future[Any], str] = {}
    work = {name: float(getattr(jobs[name], "work", 1.0)) for name in waiting}
    with locked(folder / "cells"), (shown := _Display(work, folder, progress)).bars:
        if len(waiting) < len(jobs):
            shown.say(f"{len(jobs) - len(waiting)} of {len(jobs)} cells are finished already.")
        try:
            while waiting or running:
                while waiting and (engine.at_once is None or len(running) < engine.at_once):
                    name = waiting.pop(0)
                    attempts[name] += 1
                    running[engine.submit(_work, run, jobs[name], folder, name)] = name
                done, _ = concurrent.futures.wait(running, 0.3, concurrent.futures.FIRST_COMPLETED)
                shown.update(running.values())
                for future in done:
                    name, error = running.pop(future), future.exception()
                    if isinstance(error, KeyboardInterrupt):
                        raise error
                    error = getattr(error, "cause", None) or error  # Ray wraps what a job raised
                    if error is None:
                        found[name] = _save(path_of(folder, name), jobs[name], *future.result())
                    else:
                        reason = [type(error).__name__, *str(error).strip().splitlines()][-1][:300]
                        if attempts[name] < ATTEMPTS and not isinstance(error, WidebnnError):
                            shown.say(f"{name} failed ({reason}) and is retried")
                            waiting.append(name)
                            continue
                        warnings.warn(f"{name} failed and is left out: {reason}", stacklevel=2)
                    shown.finish(name)
        except BaseException:  # Ctrl-C, or a result that cannot be written
            engine.stop()
            concurrent.futures.wait(running, 10)
            raise
    return {name: stored for name, stored in found.items() if stored is not None}


def _work(run: Any, job: Any, folder: Path, name: str) -> tuple[xr.Dataset, list[str]]:
    """Run one job, in its process: its result and its warnings."""
    cells = folder / "cells"
    cells.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", UserWarning)
        result = run(job, cells / f"{name}.run", _Recorded(cells / f"{name}.progress"))
    return result, [f"{name}: {each.message}" for each in caught if issubclass(each.category, UserWarning)]


def path_of(folder: Path, name: str) -> Path:
    """Return the path of a finished job."""
    return folder / "cells" / f"{name}.nc"


def _save(path: Path, job: Any, result: xr.Dataset, remarks: list[str]) -> xr.Dataset:
    """Write the result of a job, repeat its warnings and remove its chains."""
    for remark in remarks:
        warnings.warn(remark, stacklevel=3)
    stored = result.assign_attrs(job=repr(job))
    # The classic format is read by Python alone: the HDF5 library may hang on a file that was made for it.
    with output(path):
        write_bytes(path, stored.to_netcdf(engine="scipy"))
        write_checksums(path.with_suffix(".sha256"), [path.name])
    shutil.rmtree(path.with_suffix(".run"), ignore_errors=True)
    path.with_suffix(".progress").unlink(missing_ok=True)
    return stored


def load(folder: Path, name: str, job: Any) -> xr.Dataset | None:
    """Read a finished job; None if there is none, if it is corrupted or if it is the result of another job."""
    path = path_of(folder, name)
    if not path.is_file() or not (checksum := path.with_suffix(".sha256")).is_file():
        return None
    if damaged := damaged_files(checksum, [path.name]):
        message = f"{folder} is corrupted ({damaged[0]}): {name} is recomputed"
        warnings.warn(message, DamageWarning, stacklevel=3)
        return None
    stored = xr.load_dataset(io.BytesIO(path.read_bytes()), engine="scipy")
    return stored if stored.attrs.get("job") == repr(job) else None


class _Recorded(RichProgress):
    """Progress of a job, written to a file for the display of another process."""

    def __init__(self, path: Path):
        super().__init__(disable=True)
        self._path, self._written = path, 0.0
        path.unlink(missing_ok=True)

    def update(self, task_id: Any, **changes: Any) -> None:
        super().update(task_id, **changes)
        if time.monotonic() - self._written > 2:
            self._written = time.monotonic()
            task = self.tasks[self.task_ids.index(task_id)]
            state = [task.percentage / 100, f"{task.description}: {task.fields.get('note', '')}"]
            with contextlib.suppress(OSError):
                write_bytes(self._path, json.dumps(state).encode())


class _Display:
    """Bars for a sweep and its running jobs, and a line for each finished job."""

    def __init__(self, work: dict[str, float], folder: Path, progress: bool | None):
        self.bars, self._is_silent = display(progress), progress is False
        self._work, self._folder, self._began = work, folder, time.monotonic()
        self._finished: list[str] = []
        self._tasks: dict[str, Any] = {}
        self._all = self.bars.add_task("sweep", total=sum(work.values()) or 1.0, note="")

    def say(self, line: str) -> None:
        """A line above the bars."""
        if not self._is_silent:
            self.bars.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def update(self, running: Iterable[str]) -> None:
        """Show the progress of the running jobs."""
        done = sum(self._work[name] for name in self._finished)
        for name in running:
            with contextlib.suppress(OSError, ValueError):  # there is none yet
                share, note = json.loads((self._folder / "cells" / f"{name}.progress").read_text())
                if name not in self._tasks:
                    self._tasks[name] = self.bars.add_task(name, total=1.0, note="")
                self.bars.update(self._tasks[name], completed=share, note=note)
                done += self._work[name] * share
        self.bars.update(self._all, completed=done, note=f"{len(self._finished)} of {len(self._work)} cells")

    def finish(self, name: str) -> None:
        """A job has a result, or has failed for good."""
        self._finished.append(name)
        if name in self._tasks:
            self.bars.remove_task(self._tasks.pop(name))
        share = sum(self._work[one] for one in self._finished) / sum(self._work.values())
        left = datetime.timedelta(seconds=round((1 / share - 1) * (time.monotonic() - self._began)))
        self.say(f"[{len(self._finished)} of {len(self._work)}, {left} left] {name}")
