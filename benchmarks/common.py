"""What the benchmarks share: the problem, the JSON report, timing of compiled loops, processes, tables and figures."""

from __future__ import annotations

import argparse
import collections
import contextlib
import fcntl
import gc
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import published_recipe
from widebnn.data import load_dataset
from widebnn.precision import double_precision, one_blas_thread
from widebnn.reproduction.figures import legend
from widebnn.runs.files import write_bytes
from widebnn.samplers import SAMPLERS

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
SHARED_DATA = ROOT.parent / "shared" / "data"
DATA_DIR = SHARED_DATA / "cifar10"
N, N_TEST, INPUTS, OUTPUTS, NOISE = 256, 16, 3072, 10, 0.1
RECIPE = "published recipe"
PRODUCTS = "bare products"
STEP_SIZE = 0.1
"""Of the published pCN."""
AUTO = "auto (Hilbert-space HMC)"
STATISTICS = ("log-likelihood", "predictive mean", "slowest projection")
BASE = {"n": 256, "width": 1024, "depth": 1, "test inputs": 64}
TIMES = ("pCN step", "gradient step", "prediction")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#777777", "#F0E442")
"""Okabe and Ito's, told apart in all common kinds of colour blindness."""
STYLES = list(zip(COLOURS, "so^DPX*v.", strict=True))
"""Colours and markers."""


Problem = collections.namedtuple("Problem", "x y x_test name")
"""Training data, inputs at which predictions are followed, and what they are."""


def load_problem(data_dir: Path, n: int = N, n_test: int = N_TEST) -> Problem:
    """The first CIFAR-10 images if the files are there, random inputs of that shape otherwise."""
    if data_dir.is_dir():
        data = load_dataset("cifar10", n, n_test, data_dir=data_dir)
        return Problem(data.x_train, data.y_train, data.x_test, f"CIFAR-10, first {n} training images")
    rng = np.random.default_rng(0)
    y = np.eye(OUTPUTS)[rng.integers(OUTPUTS, size=n)] - 1 / OUTPUTS
    x, x_test = rng.normal(size=(n, INPUTS)), rng.normal(size=(n_test, INPUTS))
    return Problem(x, y, x_test, "random inputs (CIFAR-10 not found)")


def new_report(*packages: str) -> dict[str, Any]:
    """What every JSON report begins with: command, class of machine, versions and commit."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    names = ("widebnn", "jax", "jaxlib", "numpy", "scipy", *packages)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "command": " ".join([f"python benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "machine": {"cpu": (models or [platform.machine()])[0], "cores": cores, "memory_gib": memory},
        "packages": {"python": platform.python_version()} | {n: importlib.metadata.version(n) for n in names},
        "commit": commit.stdout.strip() or None,
    }


def save(report: Any, path: Path) -> None:
    """Write JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, json.dumps(report, indent=1).encode() + b"\n")


def read(path: Path) -> Any:
    """What a benchmark measured so far."""
    return json.loads(path.read_text()) if path.exists() else {"rows": []}


def save_row(path: Path, settings: dict[str, Any], row: dict[str, Any], cell_of: Callable[..., Any]) -> None:
    """Add a row, in place of an older one of the same cell; other processes may be doing the same."""
    with path.with_name(f".{path.stem}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = [other for other in read(path)["rows"] if cell_of(other) != cell_of(row)]
        save({"settings": settings, "rows": [*rows, row]}, path)


def parser(description: str | None, name: str = "", data_dir: Path = DATA_DIR) -> argparse.ArgumentParser:
    """A command line with ``--data-dir`` and, for the benchmark ``name``, ``--out``."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data-dir", type=Path, default=data_dir, help="folder with the data, if there are any")
    if name:
        made.add_argument("--out", type=Path, default=RESULTS / f"{name}.json", help="default benchmarks/results/")
    return made


def measure_widths(
    report: dict[str, Any], widths: list[int], rows_of: Callable[[int], Any], ratios: Callable[..., Any], out: Path
) -> None:
    """Measure width after width; the report is saved after each, so that an interrupted run leaves what it measured."""
    with double_precision():
        for width in widths:
            rows = rows_of(width)
            report.setdefault("results", []).extend(rows)
            report.setdefault("ratios", []).extend(ratios(rows))
            save(report, out)
            jax.clear_caches()


def finish(report: dict[str, Any], draw: Callable[..., None], places: Callable[..., dict[str, str]], out: Path) -> None:
    """Save a report and its figure, and print what its page will say."""
    save(report, out)
    draw(report, out)
    print(*places(report).values(), f"Wrote {out} and its figure.", sep="\n\n")


def median_seconds(call: Callable[[], Any], repeats: int, count: int = 1) -> float:
    """Seconds of one of ``count`` repetitions inside a call, the median over several calls after one to warm up."""
    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(call())
        times.append((time.perf_counter() - began) / count)
    return statistics.median(times)


def in_a_process(file: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """The JSON in the last line that a benchmark prints with hidden options, in a fresh process."""
    command = [sys.executable, file, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    if done.returncode:
        raise SystemExit(f"{Path(file).name} {' '.join(arguments)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def peak_megabytes() -> float:
    """Peak resident memory of this process."""
    # Linux counts kilobytes, macOS bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def digits(value: float) -> str:
    """Three digits, never an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def fill(name: str, **places: str) -> str:
    """A page: the template of this name with every ``<!-- NAME -->`` replaced."""
    text = (ROOT / "benchmarks" / f"{name}.md").read_text()
    for name, value in places.items():
        text = text.replace(f"<!-- {name} -->", value)
    return text


def error_bars(axis: Axes, rows: list[dict[str, Any]], ranges: list[dict[str, float]], style: tuple[str, ...]) -> None:
    """A line of values and their ranges against width; ``style`` is label, colour, marker and kind of line."""
    label, colour, marker, line = style
    value, low, high = (np.array([each[name] for each in ranges]) for name in ("value", "min", "max"))
    errors = [np.clip(value - low, 0, 0.999 * value), np.clip(high - value, 0, None)]
    options: dict[str, Any] = {"markersize": 6, "linewidth": 1.8, "capsize": 2, "elinewidth": 0.9}
    options |= {"color": colour, "marker": marker, "linestyle": line, "label": label}
    axis.errorbar([row["width"] for row in rows], value, yerr=errors, **options)


def save_figure(figure: Figure, axes: Any, report: dict[str, Any], title: str, out: Path) -> None:
    """One legend below all panels, the machine in the title, beside the JSON."""
    if axes is not None:
        legend(figure, axes)
    figure.suptitle(f"{title}; {report['machine']['cpu']}, {report['machine']['cores']} cores", fontsize=12)
    figure.savefig(out.with_suffix(".png"), dpi=150)


class Progress:
    """A line on stderr for each part of the work, with ETA."""

    def __init__(self, total: float):
        self._total, self._done, self._began = total, 0.0, time.perf_counter()

    def done(self, what: str, work: float = 1.0) -> None:
        """Some of the total is done."""
        self._done += work
        elapsed = time.perf_counter() - self._began
        left = elapsed * (self._total / self._done - 1)
        print(f"{what}: {elapsed:.0f} s so far, ETA {max(left, 0):.0f} s", file=sys.stderr, flush=True)


@dataclass
class Contender:
    """Something whose steps are timed: how to make a start, and the compiled loop over steps."""

    sampler: str
    coordinates: str
    start: Callable[[], Any]
    """A fresh initial state."""
    advance: Callable[[Any, int], Any]
    """(state, number of steps) -> state."""
    limit_blas: bool = True
    steps: int = 1
    seconds: list[float] = field(default_factory=list)
    """Per step, one entry per repeat."""

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{self.sampler}, {self.coordinates}" if self.sampler in SAMPLERS else self.sampler

    def calibrate(self, seconds: float = 0.5) -> None:
        """Choose the number of steps of a measurement by its time; a single step may take longer."""
        self.steps = max(1, round(seconds / self.measure()))

    def measure(self) -> float:
        """Seconds per step: what ``self.steps`` more steps add to a call of one step, from a fresh start.

        The difference leaves out what each call pays once, mostly fresh memory for its arrays.
        """
        with one_blas_thread() if self.limit_blas else contextlib.nullcontext():
            # The warm-up also lets BLAS threads of the contender before, which spin a while, go to sleep.
            state = jax.block_until_ready(self.advance(self.start(), 1))
            for _ in range(3):
                times = []
                for count in (1, 1 + self.steps):
                    began = time.perf_counter()
                    state = jax.block_until_ready(self.advance(state, count))
                    times.append(time.perf_counter() - began)
                if times[1] > times[0]:
                    break
            else:
                raise SystemExit(f"{self.name}: more steps took less time, 3 times; the machine is too busy.")
        # Positions have up to 100 MB: they must be gone before the next contender starts.
        del state
        gc.collect()
        return (times[1] - times[0]) / self.steps


def contender_of(sampler: str, coordinates: str, initial: Callable, step: Callable, **options: Any) -> Contender:
    """From ``initial(key) -> state`` and ``step(key, state) -> state``; keys of steps are made as in widebnn.sample."""
    start = jax.jit(initial).lower(jax.random.key(0)).compile()

    def loop(state, key, count):
        return jax.lax.fori_loop(0, count, lambda t, state: step(jax.random.fold_in(key, t), state), state)

    key = jax.random.key(1)
    compiled = jax.jit(loop, donate_argnums=0).lower(start.out_info, key, np.int64(1)).compile()
    advance = lambda state, count: compiled(state, key, np.int64(count))  # noqa: E731
    return Contender(sampler, coordinates, lambda: start(jax.random.key(0)), advance, **options)


def sampler_contender(target: Any, sampler: str, coordinates: str, **options: Any) -> Contender:
    """A sampler of this package."""
    algorithm = SAMPLERS[sampler](target.log_likelihood, **options)

    def initial(key):
        return algorithm.init(target.sample_reference(key))

    return contender_of(sampler, coordinates, initial, lambda key, state: algorithm.step(key, state)[0])


def recipe_contender(width: int, x: np.ndarray, y: np.ndarray) -> Contender:
    """The published recipe."""
    setting = published_recipe.Setting(jax.numpy.asarray(x), jax.numpy.asarray(y), noise=NOISE)
    recipe = published_recipe.pcn_recipe(setting, STEP_SIZE)

    def initial(key):
        return recipe.init(published_recipe.sample_prior(key, INPUTS, [width], OUTPUTS))

    return contender_of(RECIPE, "reparametrised", initial, recipe.step, limit_blas=False)
