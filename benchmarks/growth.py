"""How time and memory of a run grow with n, width, depth and the number of test inputs.

    python benchmarks/growth.py --out benchmarks/results/growth.json

Function-space coordinates on CIFAR-10 (random inputs of that shape where it is absent). One size varies at a time,
the others stay at n = 256, width 1024, one hidden layer, 64 test inputs. Every configuration runs in a process of
its own, whose peak resident memory after a short ``widebnn.sample`` (Hilbert-space HMC, tracking predictions) is
reported, less what the process had after importing the package. Exponents are slopes on log scales through the
three largest sizes. The last rows compare the memory of a thousand and of a million steps, with one malloc arena: glibc
gives each thread its own and fills them in the first half minute of any program, whatever it does.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

import common
import report as pages
import widebnn
from common import BASE, INPUTS, NOISE, TIMES, peak_megabytes
from widebnn.precision import double_precision
from widebnn.reproduction.figures import size_axis

SIZES = {
    "n": [64, 128, 256, 512, 1024, 2048],
    "width": [512, 1024, 2048, 4096, 8192],
    "depth": [1, 2, 3, 4],
    "test inputs": [16, 64, 256, 1024],
}


def run_one(size: dict[str, int], data_dir: Path) -> dict[str, Any]:
    """Memory and times of one configuration; meant for a process of its own."""
    jax.block_until_ready(jax.numpy.zeros(1))
    before = peak_megabytes()
    problem = common.load_problem(data_dir, size["n"], size["test inputs"])
    network = widebnn.dense(INPUTS, [size["width"]] * size["depth"])
    target = widebnn.posterior(network, problem.x, problem.y, noise=NOISE)
    collect = widebnn.track(target, problem.x_test)
    widebnn.sample(target, "hilbert_hmc", step_size=0.1, num_steps=2, steps=4, collect=collect, progress=False)
    memory = peak_megabytes()
    times = {}
    with double_precision():
        for name, sampler, options in (("pCN step", "pcn", {}), ("gradient step", "hilbert_hmc", {"num_steps": 1})):
            contender = common.sampler_contender(target, sampler, "function", step_size=0.1, **options)
            contender.calibrate()
            times[name] = 1000 * statistics.median(contender.measure() for _ in range(3))
        predict, key = jax.jit(lambda key, u: target.predict(key, u, problem.x_test).f), jax.random.key(1)
        u = jax.jit(target.sample_reference)(jax.random.key(0))
        times["prediction"] = 1000 * common.median_seconds(lambda: predict(key, u), 8)
    return {"baseline_mb": before, "peak_mb": memory, "ms": times, "data": problem.name}


def run_steps(steps: int) -> dict[str, Any]:
    """Peak memory of many steps with the same number of stored draws, on a small problem."""
    x = np.random.default_rng(0).normal(size=(16, 3))
    target = widebnn.posterior(widebnn.dense(3, [32]), x, np.sin(x[:, :1]), noise=NOISE)
    before = peak_megabytes()
    widebnn.sample(target, "pcn", step_size=0.1, steps=steps, thin=steps // 1000, progress=False)
    return {"steps": steps, "baseline_mb": before, "peak_mb": peak_megabytes()}


def exponent(sizes: list[int], values: list[float]) -> float:
    """Slope on log scales through the three largest sizes."""
    return float(np.polyfit(np.log(sizes[-3:]), np.log(values[-3:]), 1)[0])


def series_of(rows: list[dict[str, Any]], what: str) -> tuple[list[int], dict[str, list[float]]]:
    """The values of one size, and every time and the memory against it."""
    here = [row for row in rows if row["varies"] == what]
    values = {name: [row["ms"][name] for row in here] for name in TIMES}
    return [row[what] for row in here], values | {"memory": [pages.memory_of(row) for row in here]}


def draw_figure(report: dict[str, Any], out: Path) -> None:
    """Time and memory against each size."""
    figure = Figure(figsize=(14, 6.4), layout="constrained")
    axes = figure.subplots(2, len(SIZES), sharey="row")
    for column, fits in zip(axes.T, report["exponents"], strict=True):
        what = fits["varies"]
        sizes, values = series_of(report["results"], what)
        for name, (colour, marker) in zip((*TIMES, "memory"), common.STYLES, strict=False):
            label = f"{name}, exponent {fits[name]:.1f}"
            axis = column[int(name == "memory")]
            axis.plot(sizes, values[name], marker=marker, color=colour, linewidth=1.8, label=label)
        for axis in column:
            size_axis(axis, sizes, "number of hidden layers" if what == "depth" else what)
            axis.legend(fontsize=8, frameon=False, loc="upper left")
        others = ", ".join(f"{name} {value}" for name, value in BASE.items() if name != what)
        column[0].set_title(others, fontsize=9)
    for axis, label in zip(axes[:, 0], ("time (ms)", "peak memory above the package (MB)"), strict=True):
        low, high = axis.get_ylim()
        axis.set(ylabel=label, ylim=(low, high * 4))  # room for the legends
    common.save_figure(figure, None, report, "Cost of function-space sampling", out)


def measure(data_dir: Path) -> dict[str, Any]:
    """Every configuration in a process of its own."""
    report: dict[str, Any] = {"benchmark": "growth", **common.new_report()}
    report |= {"results": [], "many_steps": [], "exponents": []}
    configurations = [(what, BASE | {what: size}) for what, sizes in SIZES.items() for size in sizes]
    progress = common.Progress(len(configurations))
    for what, size in configurations:
        found = common.in_a_process(__file__, "--one", json.dumps(size), "--data-dir", str(data_dir))
        report["problem"] = {"data": found.pop("data").replace(f"first {size['n']} ", "first ")}
        report["results"].append({"varies": what, **size, **found})
        progress.done(", ".join(f"{name} {value}" for name, value in size.items()))
    return report


def main() -> None:
    """Measure, print, save."""
    parser = common.parser(__doc__, "growth")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one or arguments.steps:
        result = run_one(arguments.one, arguments.data_dir) if arguments.one else run_steps(arguments.steps)
        print(json.dumps(result))
        return
    report = measure(arguments.data_dir)
    for steps in ("1000", "1000000"):
        report["many_steps"].append(common.in_a_process(__file__, "--steps", steps, MALLOC_ARENA_MAX="1"))
    for what in SIZES:
        sizes, values = series_of(report["results"], what)
        report["exponents"].append({"varies": what} | {name: exponent(sizes, y) for name, y in values.items()})
    common.finish(report, draw_figure, pages.growth_places, arguments.out)


if __name__ == "__main__":
    main()
