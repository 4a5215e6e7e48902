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
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from rich.console import Console
from rich.table import Table

import published_recipe
import widebnn
from common import (
    DATA_DIR,
    INPUTS,
    MEASUREMENT_SECONDS,
    NOISE,
    OUTPUTS,
    PRODUCTS,
    RECIPE,
    STEP_SIZE,
    Contender,
    Display,
    N,
    compile_loop,
    describe_machine,
    describe_packages,
    digits,
    load_problem,
    positive,
    recipe_contender,
)
from widebnn.noise import standard_normal
from widebnn.posteriors.readout import log_evidence
from widebnn.precision import double_precision

SAMPLERS: dict[str, dict[str, Any]] = {
    "rwmh": {"step_size": 0.001},
    "pcn": {"step_size": STEP_SIZE},
    "pcnl": {"step_size": 0.1},
    "mala": {"step_size": 0.01},
    "underdamped": {"step_size": 0.01},
    "hmc": {"step_size": 0.01, "num_steps": 1},
    "hilbert_hmc": {"step_size": 0.2, "num_steps": 1},
}
COORDINATES = ("weights", "reparametrised", "marginal", "function")
QUICK = [("pcn", "weights"), ("pcn", "marginal"), ("mala", "marginal"), ("pcn", "function")]
LARGE = [("pcn", "marginal"), ("pcn", "function"), ("mala", "function"), ("hilbert_hmc", "function")]
"""What is measured beyond width 4096."""
PARTS = (PRODUCTS, "noise and proposal", "activation", "n x n evidence")
"""Of a pCN step in function space."""
NOTES = [
    "hmc and hilbert_hmc take one step per trajectory (num_steps=1): the time of one gradient and its step.",
    "Bare products are the two float32 matrix products of a function-space step, F A and g g', as dense products; the "
    "step itself leaves out the zeros of F and half of the symmetric g g'. The next rows are the other parts of the "
    "step, each timed alone; n x n evidence is a 256 x 256 product, its Cholesky factor and a solve.",
    "The published recipe is pCN in weight space under the reparametrisation, all in float64, log-density cached.",
    "It runs with as many BLAS threads as the library likes, as published; all others run with one BLAS thread "
    "and float32 features, as widebnn.sample runs them.",
]


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


def parts(width: int) -> dict[str, tuple[Any, Callable[[Any, Any], Any]]]:
    """What a pCN step in function space is made of: name -> (start, (key, state) -> state), each part alone.

    The next round of a part depends on the one before, or the compiler would do it once.
    """
    a = jax.random.normal(jax.random.key(0), (N, width), jnp.float32)
    factor = jnp.tril(jax.random.normal(jax.random.key(1), (N, N), jnp.float32)) / 16
    psi = jnp.asarray(np.random.default_rng(0).normal(size=(N, N)) / 16)
    y = jnp.ones((N, OUTPUTS))
    nothing = jnp.zeros((), jnp.float32)

    def products(key, state):
        f = jnp.matmul(factor + state, a, precision="highest")
        return 1e-30 * jnp.sum(jnp.matmul(f, f.T, precision="highest"))

    def noise(key, state):
        return np.float32(0.9) * state + np.float32(0.1) * standard_normal(key, state.shape, state.dtype)

    def activation(key, state):
        return jax.nn.gelu(state, approximate=False) + np.float32(0.1)

    def evidence(key, state):
        return 1e-30 * log_evidence(psi + state, y, NOISE)

    return {
        PRODUCTS: (nothing, products),
        "noise and proposal": (a, noise),
        "activation": (a, activation),
        "n x n evidence": (jnp.zeros(()), evidence),
    }


def part_contender(name: str, width: int) -> Contender:
    """One part of a step, timed like a sampler."""
    start, part = parts(width)[name]
    shapes = jax.eval_shape(lambda: start)
    advance = compile_loop(lambda key, state: (part(key, state), 1.0, False), shapes)
    return Contender(name, "function", lambda: jnp.array(start), advance, limit_blas=True)


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


def run_width(
    pairs: list[tuple[str, str]], width: int, repeats: int, x: np.ndarray, y: np.ndarray, show: Display
) -> list[dict[str, Any]]:
    """Compile and calibrate all contenders of one width, then measure them round after round."""
    work = work_of(width)
    contenders = []
    builders = {", ".join(pair): lambda pair=pair: widebnn_contender(*pair, width, x, y) for pair in pairs}
    builders |= {name: lambda name=name: part_contender(name, width) for name in PARTS}
    builders[RECIPE] = lambda: recipe_contender(width, x, y)
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
    arguments.data_dir = arguments.data_dir or DATA_DIR
    return arguments


def main() -> None:
    """Measure, print, save."""
    arguments = parse_arguments()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    x, y, _, data = load_problem(arguments.data_dir)
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
    work = sum((len(pairs[w]) + 1 + len(PARTS)) * (arguments.repeats + 1) * work_of(w) for w in arguments.widths)
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
