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
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import matplotlib
import numpy as np
from rich.console import Console
from rich.table import Table

import widebnn
from common import (
    DATA_DIR,
    INPUTS,
    MEASUREMENT_SECONDS,
    NOISE,
    Contender,
    Display,
    compile_loop,
    describe_machine,
    describe_packages,
    digits,
    load_problem,
)
from widebnn.precision import double_precision

BASE = {"n": 256, "width": 1024, "depth": 1, "test inputs": 64}
SIZES = {
    "n": [64, 128, 256, 512, 1024, 2048],
    "width": [512, 1024, 2048, 4096, 8192],
    "depth": [1, 2, 3, 4],
    "test inputs": [16, 64, 256, 1024],
}
TIMES = ("pCN step", "gradient step", "prediction")
REPEATS = 3
MANY_STEPS = (1_000, 1_000_000)


def peak_megabytes() -> float:
    """Peak resident memory of this process."""
    # Linux counts kilobytes, macOS bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def run_one(size: dict[str, int], data_dir: Path) -> dict[str, Any]:
    """Memory and times of one configuration; meant for a process of its own."""
    jax.block_until_ready(jax.numpy.zeros(1))
    before = peak_megabytes()
    problem = load_problem(data_dir, size["n"], size["test inputs"])
    network = widebnn.dense(INPUTS, [size["width"]] * size["depth"])
    target = widebnn.posterior(network, problem.x, problem.y, noise=NOISE)
    collect = widebnn.track(target, problem.x_test)
    widebnn.sample(target, "hilbert_hmc", step_size=0.1, num_steps=2, steps=4, collect=collect, progress=False)
    memory = peak_megabytes()
    times = {}
    with double_precision():
        for name, sampler, options in (
            ("pCN step", "pcn", {"step_size": 0.1}),
            ("gradient step", "hilbert_hmc", {"step_size": 0.1, "num_steps": 1}),
        ):
            times[name] = time_steps(target, sampler, options)
        times["prediction"] = time_predictions(target, problem.x_test)
    return {"baseline_mb": before, "peak_mb": memory, "ms": times, "data": problem.name}


def time_steps(target: Any, sampler: str, options: dict[str, Any]) -> float:
    """Milliseconds per step."""
    algorithm = widebnn.samplers.SAMPLERS[sampler](target.log_likelihood, **options)

    def step(key, state):
        state, info = algorithm.step(key, state)
        return state, info.acceptance_rate, ~info.is_finite

    start = jax.jit(lambda key: algorithm.init(target.sample_reference(key))).lower(jax.random.key(0)).compile()
    contender = Contender(
        sampler, "function", lambda: start(jax.random.key(0)), compile_loop(step, start.out_info), limit_blas=True
    )
    contender.steps = max(1, round(MEASUREMENT_SECONDS / contender.measure()))
    return 1000 * statistics.median(contender.measure() for _ in range(REPEATS))


def time_predictions(target: Any, x_test: np.ndarray) -> float:
    """Milliseconds per draw of predictions at new inputs."""
    predict = jax.jit(lambda key, u: target.predict(key, u, x_test).f)
    u, keys = jax.jit(target.sample_reference)(jax.random.key(0)), jax.random.split(jax.random.key(1), 8)
    jax.block_until_ready(predict(keys[0], u))
    times = []
    for key in keys:
        began = time.perf_counter()
        jax.block_until_ready(predict(key, u))
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


def run_steps(steps: int) -> dict[str, Any]:
    """Peak memory of many steps with the same number of stored draws, on a small problem."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(16, 3))
    target = widebnn.posterior(widebnn.dense(3, [32]), x, np.sin(x[:, :1]), noise=NOISE)
    before = peak_megabytes()
    widebnn.sample(target, "pcn", step_size=0.1, steps=steps, thin=steps // 1000, progress=False)
    return {"baseline_mb": before, "peak_mb": peak_megabytes()}


def in_a_process(*arguments: str) -> dict[str, Any]:
    """The result of this script's hidden options, from a fresh process."""
    environment = os.environ | ({"MALLOC_ARENA_MAX": "1"} if "--steps" in arguments else {})
    done = subprocess.run(
        [sys.executable, __file__, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        raise SystemExit(f"growth.py {' '.join(arguments)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def exponent(sizes: list[int], values: list[float]) -> float:
    """Slope on log scales through the three largest sizes."""
    return float(np.polyfit(np.log(sizes[-3:]), np.log(values[-3:]), 1)[0])


def exponents(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of every time and of the memory, against every size."""
    found = []
    for what in SIZES:
        here = [row for row in rows if row["varies"] == what]
        sizes = [row[what] for row in here]
        values = {name: [row["ms"][name] for row in here] for name in TIMES}
        values["memory"] = [row["peak_mb"] - row["baseline_mb"] for row in here]
        found.append({"varies": what} | {name: exponent(sizes, series) for name, series in values.items()})
    return found


def print_tables(report: dict[str, Any], console: Console) -> None:
    """All configurations and the fitted exponents."""
    table = Table(title="Function space: milliseconds, and megabytes above the imported package")
    for column in (*BASE, *TIMES, "memory"):
        table.add_column(column, justify="right")
    for row in report["results"]:
        cells = [digits(row["ms"][name]) for name in TIMES]
        table.add_row(*(str(row[name]) for name in BASE), *cells, digits(row["peak_mb"] - row["baseline_mb"]))
    console.print(table)
    for row in report["exponents"]:
        fits = ", ".join(f"{name} {value:.2f}" for name, value in row.items() if name != "varies")
        console.print(f"exponents in {row['varies']}: {fits}", highlight=False)
    for row in report["many_steps"]:
        console.print(
            f"{row['steps']:,} steps, 1000 stored draws: peak {row['peak_mb']:.0f} MB in all", highlight=False
        )


def draw_figure(report: dict[str, Any], path: Path) -> None:
    """Time and memory against each size."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullLocator

    styles = {"pCN step": ("#0072B2", "s"), "gradient step": ("#D55E00", "o"), "prediction": ("#009E73", "^")}
    figure, axes = plt.subplots(2, len(SIZES), figsize=(14, 6.4), sharey="row", layout="constrained")
    for column, what in enumerate(SIZES):
        here = [row for row in report["results"] if row["varies"] == what]
        fits = next(row for row in report["exponents"] if row["varies"] == what)
        sizes = [row[what] for row in here]
        for name, (colour, marker) in styles.items():
            label = f"{name}, exponent {fits[name]:.1f}"
            axes[0, column].plot(
                sizes, [row["ms"][name] for row in here], marker=marker, color=colour, linewidth=1.8, label=label
            )
        memory = [row["peak_mb"] - row["baseline_mb"] for row in here]
        label = f"exponent {fits['memory']:.1f}"
        axes[1, column].plot(sizes, memory, marker="D", color="#CC79A7", linewidth=1.8, label=label)
        for axis in axes[:, column]:
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xticks(sizes, [str(size) for size in sizes])
            axis.xaxis.set_minor_locator(NullLocator())
            axis.grid(color="#dddddd", linewidth=0.8)
            axis.legend(fontsize=8, frameon=False, loc="upper left")
        others = ", ".join(f"{name} {value}" for name, value in BASE.items() if name != what)
        axes[0, column].set_title(others, fontsize=9)
        axes[1, column].set_xlabel("number of hidden layers" if what == "depth" else what)
    axes[0, 0].set_ylabel("time (ms)")
    axes[1, 0].set_ylabel("peak memory above the package (MB)")
    for row in axes:
        low, high = row[0].get_ylim()
        row[0].set_ylim(low, high * 4)  # room for the legends
    figure.suptitle(f"Cost of function-space sampling; {report['machine']['cpu']}, {report['machine']['cores']} cores")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--data-dir", type=Path, default=DATA_DIR, help="folder with the CIFAR-10 binary files")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/growth.json"), help="default %(default)s")
    parser.add_argument("--steps-only", action="store_true", help="measure the last rows again, keep the others")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one or arguments.steps:
        result = run_one(arguments.one, arguments.data_dir) if arguments.one else run_steps(arguments.steps)
        print(json.dumps(result))
        return
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {
        "benchmark": "growth",
        "command": " ".join(["python benchmarks/growth.py", *sys.argv[1:]]),
        "machine": describe_machine(),
        "packages": describe_packages(),
        "results": [],
    }
    if arguments.steps_only:
        report = json.loads(arguments.out.read_text())
        report["many_steps"] = [{"steps": steps, **in_a_process("--steps", str(steps))} for steps in MANY_STEPS]
        finish(report, arguments.out)
        return
    configurations = [(what, BASE | {what: size}) for what, sizes in SIZES.items() for size in sizes]
    with Display(len(configurations) + 2) as show:
        for what, size in configurations:
            label = ", ".join(f"{name} {value}" for name, value in size.items())
            show.doing(label)
            found = in_a_process("--one", json.dumps(size), "--data-dir", str(arguments.data_dir))
            report["problem"] = {"data": found.pop("data").replace(f"first {size['n']} ", "first ")}
            report["results"].append({"varies": what, **size, **found})
            show.advance(1)
            show.finish_round(label)
        report["many_steps"] = []
        for steps in MANY_STEPS:
            show.doing(f"{steps:,} steps")
            report["many_steps"].append({"steps": steps, **in_a_process("--steps", str(steps))})
            show.advance(1)
    finish(report, arguments.out)


def finish(report: dict[str, Any], out: Path) -> None:
    """Fit, save and print."""
    report["exponents"] = exponents(report["results"])
    out.write_text(json.dumps(report, indent=1) + "\n")
    draw_figure(report, out.with_suffix(".png"))
    print_tables(report, Console() if sys.stdout.isatty() else Console(width=130))
    print(f"Wrote {out} and {out.with_suffix('.png')}.")


if __name__ == "__main__":
    main()
