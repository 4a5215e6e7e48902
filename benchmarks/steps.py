"""How long one step takes: every sampler in every coordinate system, beside the published recipe.

    python benchmarks/steps.py --out benchmarks/results/steps.json

prints a table, and writes the numbers as JSON and a figure next to it. One hidden layer, 256 CIFAR-10 images
(3072 inputs, 10 outputs) if the binary files are found, random inputs of the same shape otherwise; the time
of a step does not depend on the values.

All contenders of a width are measured in turn, one short measurement each, and that round is repeated: a
machine that is busy for a while slows all of them alike. A measurement is one call of a compiled loop over
steps, long enough to take about a second, minus a call of one step. Compilation, initialisation and a warm-up
call are not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

import published_recipe
import widebnn
from widebnn.data import load_dataset
from widebnn.precision import double_precision, one_blas_thread

ROOT = Path(__file__).resolve().parents[1]
N, INPUTS, OUTPUTS, NOISE = 256, 3072, 10, 0.1
MEASUREMENT_SECONDS = 0.8
"""What the steps of one measurement should take; a single step may take longer."""
ATTEMPTS = 3
"""How often a measurement that makes no sense is made again."""
SAMPLERS: dict[str, dict[str, Any]] = {
    "rwmh": {"step_size": 0.001},
    "pcn": {"step_size": 0.1},
    "pcnl": {"step_size": 0.1},
    "mala": {"step_size": 0.01},
    "underdamped": {"step_size": 0.01},
    "hmc": {"step_size": 0.01, "num_steps": 1},
    "hilbert_hmc": {"step_size": 0.2, "num_steps": 1},
}
COORDINATES = ("weights", "reparametrised", "marginal", "function")
RECIPE = "published recipe"
PRODUCTS = "bare products"
QUICK = [("pcn", "weights"), ("pcn", "marginal"), ("mala", "marginal"), ("pcn", "function")]
LARGE = [("pcn", "marginal"), ("pcn", "function"), ("mala", "function"), ("hilbert_hmc", "function")]
"""What is measured beyond width 4096."""
NOTES = [
    "hmc and hilbert_hmc take one step per trajectory (num_steps=1): the time of one gradient and its step.",
    "Bare products are the two float32 matrix products of a function-space step, F A and g g', and nothing else.",
    "The published recipe is pCN in weight space under the reparametrisation, all in float64, log-density cached.",
    "It runs with as many BLAS threads as the library likes, as published; all others run with one BLAS thread "
    "and float32 features, as widebnn.sample runs them.",
]


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
        return self.sampler if self.sampler in (RECIPE, PRODUCTS) else f"{self.sampler}, {self.coordinates}"

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


def widebnn_contender(sampler: str, coordinates: str, width: int, x: np.ndarray, y: np.ndarray) -> Contender:
    """A sampler of this package."""
    network = widebnn.dense(INPUTS, [width])
    target = widebnn.posterior(network, x, y, noise=NOISE, coordinates=coordinates)
    algorithm = widebnn.samplers.SAMPLERS[sampler](target.log_likelihood, **SAMPLERS[sampler])

    def step(key, state):
        state, info = algorithm.step(key, state)
        return state, info.acceptance_rate, ~info.is_finite

    start = jax.jit(lambda key: algorithm.init(target.sample_reference(key))).lower(jax.random.key(0)).compile()
    advance = compile_loop(step, start.out_info)
    return Contender(sampler, coordinates, lambda: start(jax.random.key(0)), advance, limit_blas=True)


def recipe_contender(width: int, x: np.ndarray, y: np.ndarray) -> Contender:
    """The published recipe."""
    setting = published_recipe.Setting(jnp.asarray(x), jnp.asarray(y), noise=NOISE)
    recipe = published_recipe.pcn_recipe(setting, SAMPLERS["pcn"]["step_size"])

    def step(key, state):
        new = recipe.step(key, state)
        return new, (new.accepted - state.accepted).astype(jnp.float64), ~jnp.isfinite(new.log_density)

    def initial(key):
        return recipe.init(published_recipe.sample_prior(key, INPUTS, [width], OUTPUTS))

    start = jax.jit(initial).lower(jax.random.key(0)).compile()
    advance = compile_loop(step, start.out_info)
    return Contender(RECIPE, "reparametrised", lambda: start(jax.random.key(0)), advance, limit_blas=False)


def products_contender(width: int) -> Contender:
    """The two products of a step in function space: n x n times n x width, and n x width times its transpose."""
    a = jax.random.normal(jax.random.key(0), (N, width), jnp.float32)
    factor = jax.random.normal(jax.random.key(1), (N, N), jnp.float32)

    def step(key, state):
        f = jnp.matmul(factor + state, a, precision="highest")
        # The next product depends on this one, or the compiler would do it once.
        return 1e-30 * jnp.sum(jnp.matmul(f, f.T, precision="highest")), 1.0, False

    advance = compile_loop(step, jax.ShapeDtypeStruct((), jnp.float32))
    return Contender(PRODUCTS, "function", lambda: jnp.zeros((), jnp.float32), advance, limit_blas=True)


def load_problem(data_dir: Path) -> tuple[np.ndarray, np.ndarray, str]:
    """Inputs, targets, and what they are."""
    if data_dir.is_dir():
        data = load_dataset("cifar10", N, 16, data_dir=data_dir)
        return data.x_train, data.y_train, "CIFAR-10, first 256 training images"
    rng = np.random.default_rng(0)
    labels = rng.integers(OUTPUTS, size=N)
    return rng.normal(size=(N, INPUTS)), np.eye(OUTPUTS)[labels] - 1 / OUTPUTS, "random inputs (CIFAR-10 not found)"


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


def summarise(contender: Contender, width: int) -> dict[str, Any]:
    """One row of the results."""
    ms = [1000 * s for s in contender.seconds]
    return {
        "width": width,
        "contender": contender.name,
        "sampler": contender.sampler,
        "coordinates": contender.coordinates,
        "ms_per_step": statistics.median(ms),
        "ms_min": min(ms),
        "ms_max": max(ms),
        "ms_repeats": ms,
        "steps_per_measurement": contender.steps,
        "acceptance_of_last_repeat": contender.acceptance,
        "nonfinite_of_last_repeat": contender.nonfinite,
    }


RATIOS = [(RECIPE, "pcn, marginal"), (RECIPE, "pcn, function"), ("pcn, function", PRODUCTS)]


def ratios(rows: list[dict[str, Any]], width: int) -> list[dict[str, Any]]:
    """Ratios of times per step: of the medians, and their range over the repeats."""
    named = {row["contender"]: row for row in rows if row["width"] == width}
    return [
        {
            "width": width,
            "slower": slower,
            "faster": faster,
            "ratio": named[slower]["ms_per_step"] / named[faster]["ms_per_step"],
            "min": min(paired),
            "max": max(paired),
        }
        for slower, faster in RATIOS
        for paired in [[a / b for a, b in zip(*(named[n]["ms_repeats"] for n in (slower, faster)), strict=True)]]
    ]


def agreement(x: np.ndarray, y: np.ndarray, width: int) -> float:
    """How far the recipe's log-density and widebnn's, in float64, are from differing by a constant."""
    setting = published_recipe.Setting(jnp.asarray(x), jnp.asarray(y), noise=NOISE)
    target = widebnn.posterior(
        widebnn.dense(INPUTS, [width]), x, y, noise=NOISE, coordinates="reparametrised", dtype="float64"
    )
    positions = [target.sample_reference(jax.random.key(seed)) for seed in range(3)]
    recipe = published_recipe.pcn_recipe(setting, 0.1)
    return published_recipe.disagreement(recipe.log_density, target.log_likelihood, positions)


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


def run_width(
    pairs: list[tuple[str, str]], width: int, repeats: int, x: np.ndarray, y: np.ndarray, show: Display
) -> list[dict[str, Any]]:
    """Compile and calibrate all contenders of one width, then measure them round after round."""
    work = work_of(width)
    contenders = []
    builders = {", ".join(pair): lambda pair=pair: widebnn_contender(*pair, width, x, y) for pair in pairs}
    builders |= {RECIPE: lambda: recipe_contender(width, x, y), PRODUCTS: lambda: products_contender(width)}
    for name, build in builders.items():
        show.doing(f"width {width}, compiling {name}")
        contender = build()
        contender.steps = max(1, round(MEASUREMENT_SECONDS / contender.measure()))
        contenders.append(contender)
        show.advance(work)
    show.finish_round(f"width {width}, compiled")
    for repeat in range(repeats):
        for contender in contenders:
            show.doing(f"width {width}, round {repeat + 1} of {repeats}, {contender.name}")
            contender.seconds.append(contender.measure())
            show.advance(work)
        show.finish_round(f"width {width}, round {repeat + 1} of {repeats}")
    return [summarise(contender, width) for contender in contenders]


def work_of(width: int) -> float:
    """About how long a measurement with its initialisation takes, for the ETA only."""
    return 1 + width / 2000


def digits(value: float) -> str:
    """Three digits, never an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def print_tables(report: dict[str, Any], console: Console) -> None:
    """The results, one row per contender and one column per width."""
    widths = sorted({row["width"] for row in report["results"]})
    table = Table(title="Milliseconds per step: median (fastest to slowest repeat)", title_justify="left")
    table.add_column("sampler")
    table.add_column("coordinates")
    for width in widths:
        table.add_column(f"width {width}", justify="right", no_wrap=True)
    for name in dict.fromkeys(row["contender"] for row in report["results"]):
        rows = {row["width"]: row for row in report["results"] if row["contender"] == name}
        first = next(iter(rows.values()))
        cells = [
            f"{digits(row['ms_per_step'])} ({digits(row['ms_min'])} to {digits(row['ms_max'])})" if row else "-"
            for row in map(rows.get, widths)
        ]
        table.add_row(first["sampler"], first["coordinates"], *cells, end_section=first["sampler"] == "hilbert_hmc")
    console.print(table)
    for ratio in report["ratios"]:
        console.print(
            f"width {ratio['width']}: {ratio['slower']} / {ratio['faster']} = {ratio['ratio']:.1f} "
            f"({ratio['min']:.1f} to {ratio['max']:.1f})",
            highlight=False,
        )
    console.print(f"\nData: {report['problem']['data']}.", highlight=False)
    for note in report["notes"]:
        console.print(note, highlight=False)


def draw_figure(report: dict[str, Any], path: Path) -> None:
    """Milliseconds per step against width, one panel per coordinate system, the recipe in each for reference."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    # Okabe and Ito's colours, told apart in all common kinds of colour blindness; markers for print in grey.
    styles = {
        "rwmh": ("#E69F00", "o"),
        "pcn": ("#0072B2", "s"),
        "pcnl": ("#009E73", "^"),
        "mala": ("#D55E00", "D"),
        "underdamped": ("#CC79A7", "v"),
        "hmc": ("#56B4E9", "P"),
        "hilbert_hmc": ("#F0E442", "*"),
        PRODUCTS: ("#999999", "."),
        RECIPE: ("#000000", "X"),
    }
    labels = {"pcn": "pCN", "pcnl": "pCNL", "rwmh": "RW-MH", "mala": "MALA", "hmc": "HMC, 1 leapfrog step"}
    labels["hilbert_hmc"] = "Hilbert-space HMC, 1 step"
    panels = [c for c in COORDINATES if any(r["coordinates"] == c for r in report["results"])]
    widths = sorted({row["width"] for row in report["results"]})
    figure, axes = plt.subplots(
        1, len(panels), figsize=(3.6 * len(panels) + 1.2, 4.6), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, coordinates in zip(axes[0], panels, strict=True):
        for sampler, (colour, marker) in styles.items():
            rows = [
                row
                for row in report["results"]
                if row["sampler"] == sampler and (row["coordinates"] == coordinates or sampler == RECIPE)
            ]
            if not rows:
                continue
            middle = np.array([row["ms_per_step"] for row in rows])
            spread = [middle - [row["ms_min"] for row in rows], [row["ms_max"] for row in rows] - middle]
            label = "published recipe (pCN, float64)" if sampler == RECIPE else labels.get(sampler, sampler)
            axis.errorbar(
                [row["width"] for row in rows],
                middle,
                yerr=spread,
                color=colour,
                marker=marker,
                markersize=6,
                linewidth=1.8,
                linestyle="--" if sampler == RECIPE else "-",
                capsize=2,
                elinewidth=1,
                label=label,
            )
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(widths, [str(width) for width in widths])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.set_title(f"{coordinates} coordinates", fontsize=11)
        axis.set_xlabel("width (hidden units)")
        axis.grid(which="major", color="#dddddd", linewidth=0.8)
        axis.grid(which="minor", axis="y", color="#eeeeee", linewidth=0.5)
        axis.set_axisbelow(True)
    axes[0, 0].set_ylabel("time per step (ms)")
    # The panel with most samplers has all labels, in the order of the styles.
    handles, names = max((axis.get_legend_handles_labels() for axis in axes[0]), key=lambda pair: len(pair[1]))
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
    machine = report["machine"]
    figure.suptitle(
        f"One step, {report['problem']['data']}, one hidden layer; {machine['cpu']}, {machine['cores']} cores",
        fontsize=12,
    )
    figure.savefig(path, dpi=160)
    plt.close(figure)


def positive(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return int(text)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--widths", type=positive, nargs="+", help="default: 512 1024 2048 4096 8192")
    parser.add_argument("--repeats", type=positive, help="rounds of measurements, default 3")
    parser.add_argument(
        "--data-dir", type=Path, help="folder with the CIFAR-10 binary files; default ../shared/data/cifar10"
    )
    parser.add_argument(
        "--samplers", nargs="+", choices=list(SAMPLERS), default=list(SAMPLERS), help="default: all; pcn always"
    )
    parser.add_argument("--quick", action="store_true", help="a smoke test: widths 256 512, one round, pcn and mala")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/steps.json"), help="default %(default)s")
    arguments = parser.parse_args()
    arguments.widths = sorted(
        set(arguments.widths or ([256, 512] if arguments.quick else [512, 1024, 2048, 4096, 8192]))
    )
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    if arguments.data_dir is not None and not arguments.data_dir.is_dir():
        parser.error("--data-dir: there is no such folder")
    arguments.data_dir = arguments.data_dir or ROOT.parent / "shared" / "data" / "cifar10"
    return arguments


def main() -> None:
    """Measure, print, save."""
    arguments = parse_arguments()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    x, y, data = load_problem(arguments.data_dir)
    chosen = [s for s in SAMPLERS if s == "pcn" or s in arguments.samplers]
    everything = [(s, c) for c in COORDINATES for s in chosen]
    pairs = {w: QUICK if arguments.quick else LARGE if w > 4096 else everything for w in arguments.widths}
    report: dict[str, Any] = {
        "benchmark": "steps",
        "command": " ".join(["python benchmarks/steps.py", *sys.argv[1:]]),
        "machine": describe_machine(),
        "packages": describe_packages(),
        "problem": {"data": data, "n": N, "inputs": INPUTS, "outputs": OUTPUTS, "noise": NOISE, "hidden_layers": 1},
        "options": SAMPLERS,
        "notes": NOTES,
        "repeats": arguments.repeats,
        "results": [],
        "ratios": [],
    }
    work = sum((len(pairs[w]) + 2) * (arguments.repeats + 1) * work_of(w) for w in arguments.widths)
    with double_precision(), Display(work) as show:
        report["recipe_log_density_disagreement"] = agreement(x, y, min(arguments.widths))
        for width in arguments.widths:
            report["results"] += run_width(pairs[width], width, arguments.repeats, x, y, show)
            report["ratios"] += ratios(report["results"], width)
            # After each width, so that an interrupted run leaves what it measured.
            arguments.out.write_text(json.dumps(report, indent=1) + "\n")
            jax.clear_caches()
    draw_figure(report, arguments.out.with_suffix(".png"))
    print_tables(report, Console() if sys.stdout.isatty() else Console(width=150))
    print(f"Wrote {arguments.out} and {arguments.out.with_suffix('.png')}.")


if __name__ == "__main__":
    main()
