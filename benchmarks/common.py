"""What the benchmarks share: the problem, timing of compiled loops, the description of the machine, progress."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import published_recipe
from widebnn.data import load_dataset
from widebnn.precision import one_blas_thread
from widebnn.runs.files import write_bytes
from widebnn.samplers import SAMPLERS

ROOT = Path(__file__).resolve().parents[1]
DATA_DIR = ROOT.parent / "shared" / "data" / "cifar10"
N, N_TEST, INPUTS, OUTPUTS, NOISE = 256, 16, 3072, 10, 0.1
MEASUREMENT_SECONDS = 0.5
"""What the steps of one measurement should take; a single step may take longer."""
ATTEMPTS = 3
"""How often a measurement that makes no sense is made again."""
RECIPE = "published recipe"
PRODUCTS = "bare products"
STEP_SIZE = 0.1
"""Of the published pCN."""


class Problem(NamedTuple):
    """Training data, inputs at which predictions are followed, and what they are."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    name: str


def load_problem(data_dir: Path, n: int = N, n_test: int = N_TEST) -> Problem:
    """The first CIFAR-10 images if the files are there, random inputs of that shape otherwise."""
    if data_dir.is_dir():
        data = load_dataset("cifar10", n, n_test, data_dir=data_dir)
        return Problem(data.x_train, data.y_train, data.x_test, f"CIFAR-10, first {n} training images")
    rng = np.random.default_rng(0)
    labels = rng.integers(OUTPUTS, size=n)
    y = np.eye(OUTPUTS)[labels] - 1 / OUTPUTS
    x, x_test = rng.normal(size=(n, INPUTS)), rng.normal(size=(n_test, INPUTS))
    return Problem(x, y, x_test, "random inputs (CIFAR-10 not found)")


def describe_machine() -> dict[str, Any]:
    """The class of machine, without anything that tells which one it is."""
    model, memory = platform.machine(), None
    if (cpuinfo := Path("/proc/cpuinfo")).is_file():
        named = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = named[0].split(":", 1)[1].strip() if named else model
    if hasattr(os, "sysconf"):
        memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": model, "cores": cores, "memory_gib": memory, "backend": jax.default_backend()}


def describe_packages() -> dict[str, str]:
    """Python and the packages that matter to speed."""
    names = ["widebnn", "jax", "jaxlib", "numpy", "scipy"]
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in names}


def digits(value: float) -> str:
    """Three digits, never an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def saved_rows(path: Path) -> list[dict[str, Any]]:
    """All rows of a benchmark so far."""
    return json.loads(path.read_text())["rows"] if path.exists() else []


def save_row(path: Path, settings: dict[str, Any], row: dict[str, Any], cell_of: Callable[..., Any]) -> None:
    """Add a row, in place of an older one of the same cell; other processes may be doing the same."""
    with path.with_name(f".{path.stem}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = [other for other in saved_rows(path) if cell_of(other) != cell_of(row)]
        write_bytes(path, json.dumps({"settings": settings, "rows": [*rows, row]}, indent=1).encode() + b"\n")


def positive(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return int(text)


@dataclass
class Contender:
    """Something whose steps are timed: how to make a start, and the compiled loop over steps."""

    sampler: str
    coordinates: str
    start: Callable[[], Any]
    """A fresh initial state."""
    advance: Callable[[Any, Any], tuple[Any, Any]]
    """(state, number of steps) -> state and (acceptance, non-finite proposals), summed over the steps."""
    limit_blas: bool
    steps: int = 1
    seconds: list[float] = field(default_factory=list)
    """Per step, one entry per repeat."""
    acceptance: float = 0.0
    nonfinite: int = 0

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{self.sampler}, {self.coordinates}" if self.sampler in SAMPLERS else self.sampler

    def measure(self) -> float:
        """Seconds per step: what ``self.steps`` more steps add to a call of one step, from a fresh start.

        The difference leaves out what each call pays once, mostly fresh memory for its arrays.
        """
        with one_blas_thread() if self.limit_blas else contextlib.nullcontext():
            # The warm-up also lets BLAS threads of the contender before, which spin a while, go to sleep.
            state, _ = jax.block_until_ready(self.advance(self.start(), 1))
            for _ in range(ATTEMPTS):
                state, short = self._time(state, 1)
                state, long = self._time(state, 1 + self.steps)
                if long > short:
                    break
            else:
                raise SystemExit(f"{self.name}: more steps took less time, {ATTEMPTS} times; the machine is too busy.")
        # Positions have up to 100 MB: they must be gone before the next contender starts.
        del state
        gc.collect()
        return (long - short) / self.steps

    def _time(self, state: Any, count: int) -> tuple[Any, float]:
        began = time.perf_counter()
        state, (acceptance, nonfinite) = jax.block_until_ready(self.advance(state, count))
        elapsed = time.perf_counter() - began
        self.acceptance, self.nonfinite = float(acceptance) / count, int(nonfinite)
        return state, elapsed


def compile_loop(step: Callable[[jax.Array, Any], tuple[Any, Any, Any]], state: Any) -> Callable[[Any, Any], Any]:
    """The compiled loop over ``step``, with the key of step t derived as in widebnn.sample."""

    def loop(state, key, count):
        def body(t, carry):
            state, (acceptance, nonfinite) = carry
            state, rate, bad = step(jax.random.fold_in(key, t), state)
            return state, (acceptance + rate, nonfinite + bad)

        totals = jnp.zeros((), jnp.float64), jnp.zeros((), jnp.int64)
        return jax.lax.fori_loop(0, count, body, (state, totals))

    key = jax.random.key(1)
    compiled = jax.jit(loop, donate_argnums=0).lower(state, key, np.int64(1)).compile()
    return lambda state, count: compiled(state, key, np.int64(count))


def recipe_contender(width: int, x: np.ndarray, y: np.ndarray) -> Contender:
    """The published recipe."""
    setting = published_recipe.Setting(jnp.asarray(x), jnp.asarray(y), noise=NOISE)
    recipe = published_recipe.pcn_recipe(setting, STEP_SIZE)

    def step(key, state):
        new = recipe.step(key, state)
        return new, (new.accepted - state.accepted).astype(jnp.float64), ~jnp.isfinite(new.log_density)

    def initial(key):
        return recipe.init(published_recipe.sample_prior(key, INPUTS, [width], OUTPUTS))

    start = jax.jit(initial).lower(jax.random.key(0)).compile()
    advance = compile_loop(step, start.out_info)
    return Contender(RECIPE, "reparametrised", lambda: start(jax.random.key(0)), advance, limit_blas=False)


class Display:
    """Progress with ETA: a bar on terminals, a line per round elsewhere."""

    def __init__(self, total: float):
        self._console = Console(stderr=True)
        self._began = time.perf_counter()
        self._total, self._done = total, 0.0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
            speed_estimate_period=600,
        )
        self._task = self._bar.add_task("starting", total=total)

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        self._bar.stop()

    def doing(self, what: str) -> None:
        """Say what comes next."""
        self._bar.update(self._task, description=what)

    def advance(self, work: float) -> None:
        """Some of the total is done."""
        self._done += work
        self._bar.advance(self._task, work)

    def finish_round(self, what: str) -> None:
        """A line for logs."""
        if not self._console.is_terminal:
            elapsed = time.perf_counter() - self._began
            left = elapsed * (self._total / self._done - 1)
            self._console.print(f"{what}: {elapsed:.0f} s so far, ETA {max(left, 0):.0f} s", highlight=False)
