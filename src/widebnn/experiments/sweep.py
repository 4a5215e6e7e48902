"""Many runs: each in a process of its own, on this machine or on a Ray cluster, resumable, with one display.

A job is run by ``run(job, store, progress)``, a function of a module, which returns an :class:`xarray.Dataset` and
keeps its chains in ``store`` (``widebnn.sample(..., store=store)``). In the folder of a sweep are

    cells/NAME.nc, NAME.sha256    a finished job
    cells/NAME.run                the chains of one that is not
    cells/NAME.progress           how far it is

so a sweep that was stopped, or whose processes or nodes were lost, goes on where it was. On several machines the folder
should be one that all of them see; if it is not, results still come back, but a job that is lost begins again.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import io
import json
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import xarray as xr
from rich.progress import Progress as RichProgress

from widebnn.compilation import keep_compiled_in
from widebnn.durable import damaged_files, locked, output, replacing, write_bytes, write_checksums
from widebnn.errors import DamageWarning, WidebnnError, check_integer
from widebnn.sampling.progress import LINE_SECONDS, display

ATTEMPTS = 3
"""How often a job is tried that ends without a sentence of its own."""
POLL_SECONDS = 0.3

Run = Callable[[Any, Path, RichProgress], xr.Dataset]


class Engine(Protocol):
    """Where jobs run."""

    at_once: int | None
    """How many jobs to submit at a time, None for all."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> concurrent.futures.Future:
        """Start a job."""

    def stop(self) -> None:
        """Ask running jobs to keep their chains and end."""


@contextlib.contextmanager
def local_engine(workers: int | None = None) -> Iterator[Engine]:
    """Processes of this machine; by default one for every two cores."""
    workers = max(1, (os.cpu_count() or 1) // 2) if workers is None else check_integer("workers", workers, 1)
    with tempfile.TemporaryDirectory(prefix="widebnn-") as compiled:
        engine = _Processes(workers, compiled)
        try:
            yield engine
        finally:
            engine.pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def ray_engine(address: str | None = None, cpus_per_job: float = 1) -> Iterator[Engine]:
    """A Ray cluster: the one at ``address``, or one that is started on this machine for the time being."""
    _check_address(address)
    try:
        import ray
    except ImportError:
        raise WidebnnError("the engine 'ray' needs Ray: pip install 'widebnn[ray]'.") from None
    own = not ray.is_initialized()
    if own:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        if address is None or address.startswith("127.0.0.1"):
            options["_node_ip_address"] = "127.0.0.1"
        if address is None:
            options["include_dashboard"] = False
        try:
            ray.init(address=address, **options)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            first = (str(error).splitlines() or ["no answer"])[0]
            raise WidebnnError(f"there is no Ray cluster at {address} ({first}); start one with ray start.") from None
    try:
        yield _Ray(ray, cpus_per_job)
    finally:
        if own:
            ray.shutdown()


def _check_address(address: str | None) -> None:
    """Ray itself tries for minutes, and then ends the process."""
    host, _, port = (address or "").rpartition(":")
    if host and "/" not in host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), 10).close()
        except (OSError, OverflowError) as error:
            raise WidebnnError(f"there is no Ray cluster at {address} ({error}); start one with ray start.") from None


def engine_named(name: str, workers: int | None = None, address: str | None = None) -> Any:
    """The engine of a command line, as a context."""
    if name == "ray":
        if workers is not None:
            raise WidebnnError("workers are for the local engine: a Ray cluster has its own number of cores.")
        return ray_engine(address)
    if address is not None:
        raise WidebnnError(f"an address ({address}) is for the engine 'ray'.")
    return local_engine(workers)


class _Processes:
    def __init__(self, workers: int, compiled: str):
        self.at_once: int | None = workers
        self._compiled = compiled
        self._new_pool()

    def _new_pool(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pool = concurrent.futures.ProcessPoolExecutor(
            self.at_once, context, initializer=_begin_worker, initargs=(self._compiled,)
        )

    def submit(self, function: Callable[..., Any], *arguments: Any) -> concurrent.futures.Future:
        try:
            return self.pool.submit(function, *arguments)
        except concurrent.futures.process.BrokenProcessPool:
            # A process was killed, and the pool with it; whoever ran there is told, and tried again.
            self._new_pool()
            return self.pool.submit(function, *arguments)

    def stop(self) -> None:
        for child in multiprocessing.active_children():
            child.terminate()


def _begin_worker(compiled: str) -> None:
    """Jobs have many programs in common, which are compiled once.

    Ctrl-C is for the process that has the display; it passes it on as SIGTERM, upon which chains are kept.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_compiled_in(compiled)


class _Ray:
    at_once: int | None = None

    def __init__(self, ray: Any, cpus: float):
        self._ray, self._cpus = ray, cpus
        self._running: list[Any] = []
        flags = {name: os.environ[name] for name in ("XLA_FLAGS", "NPROC") if name in os.environ}
        self._environment = {"runtime_env": {"env_vars": flags}} if flags else {}

    def submit(self, function: Callable[..., Any], *arguments: Any) -> concurrent.futures.Future:
        # Ray itself tries again where a node or a process was lost.
        task = self._ray.remote(num_cpus=self._cpus, max_retries=ATTEMPTS - 1, **self._environment)(_call)
        reference = task.remote(function, *arguments)
        self._running.append(reference)
        return reference.future()

    def stop(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Ray wants a plain function."""
    return function(*arguments)


class _Written(RichProgress):
    """Progress that goes to a file, for the display of another process."""

    def __init__(self, path: Path):
        super().__init__(disable=True)
        self._path, self._at = path, 0.0

    def update(self, task_id: Any, **changes: Any) -> None:
        super().update(task_id, **changes)
        if time.monotonic() - self._at > 1:
            self._at = time.monotonic()
            task = self.tasks[self.task_ids.index(task_id)]
            with contextlib.suppress(OSError):
                text = json.dumps([task.percentage, task.description, task.fields.get("note", "")])
                write_bytes(self._path, text.encode(), lasting=False)


def _work(run: Run, job: Any, folder: Path, name: str) -> tuple[xr.Dataset, list[str]]:
    """One job, in its process: its result and its warnings."""
    cells = folder / "cells"
    cells.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", UserWarning)
        stored = run(job, cells / f"{name}.run", _Written(cells / f"{name}.progress"))
    return stored, [str(each.message) for each in caught if issubclass(each.category, UserWarning)]


def path_of(folder: Path, name: str) -> Path:
    """Where a finished job is."""
    return folder / "cells" / f"{name}.nc"


def keep(folder: Path, name: str, stored: xr.Dataset) -> None:
    """Write a finished job, with its checksum, and remove its chains."""
    path = path_of(folder, name)
    with output(path):
        with replacing(path) as temporary:
            # The classic format, read by Python alone: the HDF5 library may hang on a file that was made for it.
            stored.to_netcdf(temporary, engine="scipy")
        write_checksums(path.with_suffix(".sha256"), [path.name])
    shutil.rmtree(path.with_suffix(".run"), ignore_errors=True)
    path.with_suffix(".progress").unlink(missing_ok=True)


def load(folder: Path, name: str, accept: Callable[[xr.Dataset], bool], label: str | None = None) -> xr.Dataset | None:
    """A finished job, or None; a file that is damaged, or that ``accept`` does not take, counts as missing."""
    path = path_of(folder, name)
    if not path.is_file():
        return None
    if damaged := damaged_files(path.with_suffix(".sha256"), [path.name]):
        warnings.warn(f"{folder} was damaged ({damaged[0]}): {label or name} is run again", DamageWarning, stacklevel=3)
        return None
    try:
        stored = xr.load_dataset(io.BytesIO(path.read_bytes()), engine="scipy")
        return stored if accept(stored) else None
    except Exception:  # what somebody has changed fails anywhere
        return None


def description(job: Any) -> str:
    """A job as text, by which a finished one is known again."""
    plain = dataclasses.asdict(job) if dataclasses.is_dataclass(job) and not isinstance(job, type) else job
    return json.dumps(plain, sort_keys=True, default=repr)


def sweep(
    jobs: Mapping[str, Any],
    run: Run,
    folder: Path,
    engine: Engine,
    *,
    accept: Callable[[Any, xr.Dataset], bool] | None = None,
    label: Callable[[Any], str] | None = None,
    work: Callable[[Any], float] = lambda job: 1.0,
    say: Callable[[str], Any] | None = None,
) -> dict[str, xr.Dataset]:
    """Run the jobs, by name, that are not in ``folder`` yet; the results of all.

    A job that fails with a :class:`WidebnnError` is left out with a warning; one that fails otherwise, or whose process
    or node is lost, is tried again, ``ATTEMPTS`` times in all, and goes on from its last checkpoint. The others are not
    affected. ``accept(job, stored)`` says whether a finished job is this one, if the text of the job is not enough;
    ``work`` weighs jobs for the ETA. On a terminal one display shows the sweep and the running jobs; elsewhere ``say``
    gets a line per job.
    """
    names = {name: label(job) if label else name for name, job in jobs.items()}

    def is_its(job, stored):
        return accept(job, stored) if accept else stored.attrs.get("job") == description(job)

    found = {}
    for name, job in jobs.items():
        stored = load(folder, name, functools.partial(is_its, job), names[name])
        if stored is not None:
            found[name] = stored
    waiting = [name for name in jobs if name not in found]
    attempts = dict.fromkeys(waiting, 0)
    running: dict[concurrent.futures.Future, str] = {}
    weights = {name: work(jobs[name]) for name in waiting}
    with locked(folder / "cells"), _Overall(len(jobs), weights, names, folder, say) as overall:
        for name in waiting:
            (folder / "cells" / f"{name}.progress").unlink(missing_ok=True)
        try:
            while waiting or running:
                while waiting and (engine.at_once is None or len(running) < engine.at_once):
                    name = waiting.pop(0)
                    attempts[name] += 1
                    running[engine.submit(_work, run, jobs[name], folder, name)] = name
                done, _ = concurrent.futures.wait(running, POLL_SECONDS, concurrent.futures.FIRST_COMPLETED)
                overall.look(running.values())
                for future in done:
                    name = running.pop(future)
                    stored, remarks, problem = _outcome(future)
                    for remark in remarks:
                        warnings.warn(f"{names[name]}: {remark}", stacklevel=2)
                    if stored is not None:
                        stored = stored.assign_attrs(job=description(jobs[name]))
                        keep(folder, name, stored)
                        found[name] = stored
                    elif isinstance(problem, WidebnnError) or attempts[name] >= ATTEMPTS:
                        warnings.warn(f"{names[name]} failed and is left out: {_sentence(problem)}", stacklevel=2)
                    else:
                        overall.tell(f"{names[name]} failed ({_sentence(problem)}) and is tried again")
                        waiting.append(name)
                        continue
                    overall.end(name, stored is not None)
        except BaseException:
            # Ctrl-C, or a result that cannot be written: nobody waits for the others to end.
            engine.stop()
            concurrent.futures.wait(running, 10)
            raise
    return {name: found[name] for name in jobs if name in found}


def _outcome(future: concurrent.futures.Future) -> tuple[xr.Dataset | None, list[str], BaseException | None]:
    try:
        return *future.result(), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # Ray wraps what a job raised.
        return None, [], getattr(error, "cause", None) or error


def _sentence(problem: BaseException | None) -> str:
    text = str(problem).strip()
    return (text.splitlines()[-1] if text else type(problem).__name__)[:300]


class _Overall:
    """What the user sees of a sweep: one display on a terminal, otherwise lines."""

    def __init__(
        self,
        count: int,
        weights: Mapping[str, float],
        names: Mapping[str, str],
        folder: Path,
        say: Callable[[str], Any] | None,
    ):
        self.display = display(None if say is None else False)
        self._say = say or (lambda text: self.display.console.print(text, highlight=False, soft_wrap=True))
        self._quiet = say is None and self.display.console.is_terminal
        self._weights, self._names, self._folder = weights, names, folder
        self._finished: dict[str, float] = {}
        self._count = count
        self._bars: dict[str, Any] = {}

    def __enter__(self) -> _Overall:
        if len(self._weights) < self._count:
            self._say(f"{self._count - len(self._weights)} of {self._count} cells are there already.")
        self._began = self._said = time.perf_counter()
        self.display.start()
        self._task = self.display.add_task("sweep", total=sum(self._weights.values()) or 1.0, note="")
        return self

    def __exit__(self, *_: object) -> None:
        self.display.stop()

    def tell(self, text: str) -> None:
        """A line, also on a terminal."""
        self._say(text)

    def look(self, names: Any) -> None:
        """Show how far the running ones are."""
        shares = {}
        for name in names:
            try:
                percent, phase, note = json.loads((self._folder / "cells" / f"{name}.progress").read_text())
                shares[name] = float(percent) / 100
            except (OSError, ValueError, TypeError):
                continue
            if name not in self._bars:
                self._bars[name] = self.display.add_task(self._names[name], total=1.0, note="")
            self.display.update(self._bars[name], completed=shares[name], note=f"{phase}: {note}")
        partly = sum(self._weights[name] * share for name, share in shares.items())
        done = sum(self._finished.values()) + partly
        note = f"{len(self._finished)} of {len(self._weights)} cells"
        self.display.update(self._task, completed=done, note=note)
        if not self._quiet and time.perf_counter() - self._said > LINE_SECONDS and shares:
            running = ", ".join(f"{self._names[name]} {share:.0%}" for name, share in list(shares.items())[:4])
            self._say(f"[{note}{self._eta(done)}] running: {running}")
            self._said = time.perf_counter()

    def end(self, name: str, is_stored: bool) -> None:
        """It is stored, or given up."""
        self._finished[name] = self._weights[name]
        if name in self._bars:
            self.display.remove_task(self._bars.pop(name))
        if not self._quiet and is_stored:
            eta = self._eta(sum(self._finished.values()))
            self._say(f"[{len(self._finished)} of {len(self._weights)}{eta}] {self._names[name]}")
            self._said = time.perf_counter()

    def _eta(self, done: float) -> str:
        share = done / sum(self._weights.values())
        if not 0.01 < share < 1:
            return ""
        return f", ETA {duration((time.perf_counter() - self._began) * (1 / share - 1))}"


def duration(seconds: float) -> str:
    """For people."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
