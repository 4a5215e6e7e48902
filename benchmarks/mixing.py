"""How fast each sampler mixes: ours and BlackJAX's on the function-space target, beside the published recipe.

    python benchmarks/mixing.py --out benchmarks/results/mixing.json

Effective samples per step, per gradient and per second of three statistics: the log-likelihood, the predictive
mean at 16 test inputs (the mean over 100 random combinations of outputs) and the slowest of 100 random projections
of the chain's coordinates. One hidden layer, 256 CIFAR-10 images. Every sampler starts from the same draw of the
posterior, finds its step size in a burn-in, and then gets the same wall time, in three segments whose range is
the spread. Only the steps are timed, not the computation of the statistics.

BlackJAX's kernels run on our target in the same compiled loop, with step sizes tuned by the same dual averaging to
the usual acceptance rates. The published recipe's chain (pCN, beta = 0.1, weight space) has exactly the law of our
pCN with that step size, so its effective samples per step are taken from there; its time per step is measured here.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import blackjax
import jax
import jax.flatten_util
import jax.numpy as jnp
import matplotlib
import numpy as np
from rich.console import Console
from rich.table import Table

import widebnn
from common import (
    DATA_DIR,
    INPUTS,
    NOISE,
    RECIPE,
    STEP_SIZE,
    Display,
    Problem,
    describe_machine,
    describe_packages,
    digits,
    load_problem,
    positive,
    recipe_contender,
)
from widebnn.diagnostics import ess
from widebnn.precision import double_precision, one_blas_thread
from widebnn.samplers import Info, SamplingAlgorithm, build_sampler
from widebnn.samplers.tree import inner
from widebnn.samplers.tuning import acceptance_rate, tuned
from widebnn.sampling.projections import random_projections

SEGMENTS = 3
LEAST_DRAWS = 12
"""Per segment, however long they take."""
DRAW_SECONDS = 0.03
"""How long the steps between two stored draws should take at least."""
AUTO = "auto (Hilbert-space HMC)"
PUBLISHED = f"{RECIPE}, pCN {STEP_SIZE:g}"
SAME_CHAIN = f"pCN {STEP_SIZE:g}"
STATISTICS = ("log-likelihood", "predictive mean", "slowest projection")


class Contender(NamedTuple):
    """A sampler and the number of steps in which it finds its step size."""

    algorithm: SamplingAlgorithm
    burn_in: int
    allow_double: bool = True
    """False for kernels that mix float32 positions with float64 numbers wherever JAX allows those."""


class PeerState(NamedTuple):
    """A BlackJAX state with what our loop looks at."""

    inner: Any
    position: Any
    log_likelihood: jax.Array


def peer(kernel: Any, gradients: Callable[[Any], Any]) -> SamplingAlgorithm:
    """A BlackJAX kernel on our target; ``gradients(info)`` counts its gradients."""

    def wrapped(state):
        # BlackJAX's density includes the prior.
        return PeerState(state, state.position, state.logdensity + 0.5 * inner(state.position, state.position))

    def step(key, state):
        new, info = kernel.step(key, state.inner)
        rate = info.acceptance_rate
        return wrapped(new), Info(rate, rate > 0, jnp.isfinite(new.logdensity), gradients(info))

    return SamplingAlgorithm(lambda position: wrapped(kernel.init(position)), step)


def peers(target: widebnn.Target, position: Any) -> dict[str, Contender]:
    """BlackJAX's samplers."""
    mass = jnp.ones(sum(leaf.size for leaf in jax.tree.leaves(position)), jnp.float32)

    def log_density(u):
        return target.log_likelihood(u) - 0.5 * inner(u, u)

    # A double step size would turn BlackJAX's float32 positions into float64.
    def mala(step_size):
        # BlackJAX's step size is half the variance of the noise.
        return peer(blackjax.mala(log_density, (step_size**2 / 2).astype(jnp.float32)), lambda info: 1)

    def hmc(step_size):
        steps = jnp.clip(jnp.round(math.pi / 2 / step_size), 1, 200).astype(int)
        return peer(blackjax.hmc(log_density, step_size.astype(jnp.float32), mass, steps), lambda info: steps)

    def nuts(step_size):
        kernel = blackjax.nuts(log_density, step_size.astype(jnp.float32), mass)
        return peer(kernel, lambda info: info.num_integration_steps)

    return {
        "BlackJAX MALA": Contender(tuned(mala, acceptance_rate(0.574, 0.01, 2.0), 400), 400, False),
        "BlackJAX HMC, quarter turn": Contender(tuned(hmc, acceptance_rate(0.65, 0.05, 1.5), 80), 80),
        "BlackJAX NUTS": Contender(tuned(nuts, acceptance_rate(0.8, 0.05, 1.5), 30), 30),
        "BlackJAX elliptical slice": Contender(blackjax_slice(target, position), 50, False),
    }


def blackjax_slice(target: widebnn.Target, position: Any) -> SamplingAlgorithm:
    """BlackJAX's elliptical slice wants a flat position and the prior's mean and covariance."""
    flat, unravel = jax.flatten_util.ravel_pytree(position)
    kernel = blackjax.elliptical_slice(
        lambda v: target.log_likelihood(unravel(v)), mean=jnp.zeros_like(flat), cov=jnp.ones_like(flat)
    )

    def wrapped(state):
        return PeerState(state, unravel(state.position), state.logdensity)

    def step(key, state):
        new, _ = kernel.step(key, state.inner)
        return wrapped(new), Info(jnp.ones(()), jnp.ones((), bool), jnp.isfinite(new.logdensity), 0)

    return SamplingAlgorithm(lambda u: wrapped(kernel.init(jax.flatten_util.ravel_pytree(u)[0])), step)


def contenders(target: widebnn.Target, position: Any) -> dict[str, Contender]:
    """Every sampler that is compared."""

    def ours(name, burn_in, **options):
        return Contender(build_sampler(name, target.log_likelihood, burn_in, **options), burn_in)

    return {
        AUTO: ours("auto", 150),
        "pCNL": ours("pcnl", 400),
        "MALA": ours("mala", 400),
        "elliptical slice": ours("elliptical_slice", 50),
        "pCN, tuned": ours("pcn", 600),
        SAME_CHAIN: ours("pcn", 100, step_size=STEP_SIZE),
    } | peers(target, position)


def statistics_of(target: Any) -> Callable[[Any], dict[str, jax.Array]]:
    """What is followed of a position."""
    project = random_projections(target.sample_reference, 100)
    outputs = len(target.carry) * target.y.shape[1]
    directions = np.random.default_rng(0).normal(size=(outputs, 100)) / math.sqrt(outputs)
    key = jax.random.key(0)

    def collect(position):
        mean = target.predict(key, position).mean.reshape(-1)
        return {"projections": project(position), "mean": mean @ jnp.asarray(directions, mean.dtype)}

    return collect


def measure(contender: Contender, collect: Any, position: Any, seconds: float) -> list[dict[str, Any]]:
    """One row per segment: time, acceptance and gradients per step, and the draws of the statistics."""
    algorithm = contender.algorithm

    def steps_of(state, key, first, count):
        def body(i, carry):
            state, totals = carry
            state, info = algorithm.step(jax.random.fold_in(key, first + i), state)
            return state, totals + jnp.stack([info.acceptance_rate, jnp.asarray(info.gradients, float)])

        return jax.lax.fori_loop(0, count, body, (state, jnp.zeros(2)))

    key, zero = jax.random.key(1), np.int32(0)
    state = jax.jit(algorithm.init)(position)
    advance = jax.jit(steps_of, donate_argnums=0).lower(state, key, zero, zero).compile()
    observe = jax.jit(lambda state: collect(state.position) | {"lp": state.log_likelihood})
    done = 0

    def go(state, count):
        nonlocal done
        began = time.perf_counter()
        state, totals = jax.block_until_ready(advance(state, key, np.int32(done), np.int32(count)))
        done += count
        return state, np.asarray(totals), time.perf_counter() - began

    state, _, _ = go(state, contender.burn_in)
    state, _, elapsed = go(state, probe := 4)
    thin = max(1, round(DRAW_SECONDS * probe / elapsed))
    jax.block_until_ready(observe(state))
    segments = []
    for _ in range(SEGMENTS):
        rows, totals, spent = [], np.zeros(2), 0.0
        while spent < seconds / SEGMENTS or len(rows) < LEAST_DRAWS:
            state, more, elapsed = go(state, thin)
            totals, spent = totals + more, spent + elapsed
            rows.append(jax.tree.map(np.asarray, observe(state)))
        steps = thin * len(rows)
        segments.append(
            {
                "steps": steps,
                "thin": thin,
                "ms_per_step": 1000 * spent / steps,
                "acceptance_rate": totals[0] / steps,
                "gradients_per_step": totals[1] / steps,
                "draws": {name: np.stack([row[name] for row in rows]) for name in rows[0]},
            }
        )
    return segments


def ess_per_step(segments: list[dict[str, Any]]) -> dict[str, float]:
    """Effective samples per step of the three statistics, from segments that follow each other."""
    steps = sum(segment["steps"] for segment in segments)
    draws = {
        name: np.concatenate([segment["draws"][name] for segment in segments])[None] for name in segments[0]["draws"]
    }
    return {
        "log-likelihood": float(ess(draws["lp"])) / steps,
        "predictive mean": float(np.mean(ess(draws["mean"]))) / steps,
        "slowest projection": float(np.min(ess(draws["projections"]))) / steps,
    }


def summarise(name: str, width: int, segments: list[dict[str, Any]], milliseconds: list[float]) -> dict[str, Any]:
    """One row of the results; the range over segments is the spread."""
    whole = ess_per_step(segments)
    each = [ess_per_step([segment]) for segment in segments]
    gradients = statistics.mean(segment["gradients_per_step"] for segment in segments)
    ms = statistics.median(milliseconds)
    per_second = {
        key: {
            "value": 1000 * whole[key] / ms,
            "min": min(1000 * part[key] / t for part, t in zip(each, milliseconds, strict=True)),
            "max": max(1000 * part[key] / t for part, t in zip(each, milliseconds, strict=True)),
        }
        for key in STATISTICS
    }
    return {
        "width": width,
        "sampler": name,
        "steps": sum(segment["steps"] for segment in segments),
        "thin": segments[0]["thin"],
        "ms_per_step": ms,
        "ms_min": min(milliseconds),
        "ms_max": max(milliseconds),
        "acceptance_rate": statistics.mean(segment["acceptance_rate"] for segment in segments),
        "gradients_per_step": gradients,
        "ess_per_step": whole,
        "ess_per_gradient": {key: value / gradients for key, value in whole.items()} if gradients else None,
        "ess_per_second": per_second,
    }


def run_width(width: int, problem: Problem, seconds: float, show: Display) -> list[dict[str, Any]]:
    """All samplers at one width."""
    show.doing(f"width {width}, finding the posterior")
    target = widebnn.posterior(widebnn.dense(INPUTS, [width]), problem.x, problem.y, noise=NOISE, carry=problem.x_test)
    start = widebnn.sample(target, steps=20, burn_in=150, collect=lambda key, u: {}, progress=False).last
    position = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), start)
    collect, rows = statistics_of(target), []
    for name, contender in contenders(target, position).items():
        show.doing(f"width {width}, {name}")
        with one_blas_thread(), jax.enable_x64(contender.allow_double):
            segments = measure(contender, collect, position, seconds)
        rows.append(summarise(name, width, segments, [segment["ms_per_step"] for segment in segments]))
        show.advance(1)
        if name == SAME_CHAIN:
            show.doing(f"width {width}, {RECIPE}")
            recipe = recipe_contender(width, problem.x, problem.y)
            recipe.steps = max(1, round(1.0 / recipe.measure()))
            milliseconds = [1000 * recipe.measure() for _ in range(SEGMENTS)]
            rows.append(summarise(PUBLISHED, width, segments, milliseconds))
            del recipe
            show.advance(1)
        show.finish_round(f"width {width}, {name}")
        jax.clear_caches()
    return rows


def ratios(rows: list[dict[str, Any]], width: int) -> list[dict[str, Any]]:
    """The default sampler against the published one and against the best of BlackJAX, per statistic."""
    rates = {
        row["sampler"]: {key: value["value"] for key, value in row["ess_per_second"].items()}
        for row in rows
        if row["width"] == width
    }
    found = []
    for key in STATISTICS:
        best = max((name for name in rates if name.startswith("BlackJAX")), key=lambda name: rates[name][key])
        for other, label in ((PUBLISHED, PUBLISHED), (best, f"best of BlackJAX ({best.removeprefix('BlackJAX ')})")):
            ratio = rates[AUTO][key] / rates[other][key]
            found.append({"width": width, "statistic": key, "against": label, "ratio": ratio})
    return found


def print_tables(report: dict[str, Any], console: Console) -> None:
    """One table per width, best first."""
    for width in sorted({row["width"] for row in report["results"]}):
        table = Table(title=f"width {width}", title_justify="left")
        for column in ("sampler", "ms/step", "acceptance", "gradients/step"):
            table.add_column(column, justify="left" if column == "sampler" else "right")
        for column in (*(f"ESS/s {name}" for name in STATISTICS), "gradients/ESS lp", "gradients/ESS slowest"):
            table.add_column(column, justify="right")
        here = [row for row in report["results"] if row["width"] == width]
        for row in sorted(here, key=lambda row: -row["ess_per_second"]["slowest projection"]["value"]):
            rates = [digits(row["ess_per_second"][key]["value"]) for key in STATISTICS]
            per = row["ess_per_gradient"]
            costs = [digits(1 / per[key]) if per else "-" for key in ("log-likelihood", "slowest projection")]
            cells = [digits(row["ms_per_step"]), f"{row['acceptance_rate']:.2f}", f"{row['gradients_per_step']:.1f}"]
            table.add_row(row["sampler"], *cells, *rates, *costs)
        console.print(table)
        for ratio in (ratio for ratio in report["ratios"] if ratio["width"] == width):
            console.print(
                f"{ratio['statistic']}: auto / {ratio['against']} = {digits(ratio['ratio'])}", highlight=False
            )


def draw_figure(report: dict[str, Any], path: Path) -> None:
    """Effective samples per second against width, one panel per statistic."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullLocator

    # Okabe and Ito's colours; ours solid, BlackJAX's dashed, the published chain dotted.
    styles = {
        AUTO: ("#D55E00", "*", "-"),
        "pCNL": ("#009E73", "^", "-"),
        "MALA": ("#CC79A7", "D", "-"),
        "elliptical slice": ("#E69F00", "o", "-"),
        "pCN, tuned": ("#0072B2", "s", "-"),
        "BlackJAX HMC, quarter turn": ("#56B4E9", "P", "--"),
        "BlackJAX NUTS": ("#000000", "X", "--"),
        "BlackJAX MALA": ("#CC79A7", "D", "--"),
        "BlackJAX elliptical slice": ("#E69F00", "o", "--"),
        PUBLISHED: ("#777777", "v", ":"),
    }
    widths = sorted({row["width"] for row in report["results"]})
    figure, axes = plt.subplots(1, 3, figsize=(13, 5.4), sharey=True, layout="constrained")
    for axis, key in zip(axes, STATISTICS, strict=True):
        for name, (colour, marker, line) in styles.items():
            rows = [row for row in report["results"] if row["sampler"] == name]
            rates = [row["ess_per_second"][key] for row in rows]
            middle = np.array([rate["value"] for rate in rates])
            low = np.clip(middle - [rate["min"] for rate in rates], 0, 0.999 * middle)
            high = np.clip([rate["max"] for rate in rates] - middle, 0, None)
            axis.errorbar(
                [row["width"] for row in rows], middle, yerr=[low, high], color=colour, marker=marker, linestyle=line,
                markersize=7, linewidth=1.8, capsize=2, elinewidth=0.8, label=name,
            )  # fmt: skip
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(widths, [str(width) for width in widths])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set(title=key, xlabel="width (hidden units)")
        axis.grid(color="#dddddd", linewidth=0.8)
        axis.set_axisbelow(True)
    axes[0].set_ylabel("effective samples per second")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    machine = report["machine"]
    figure.suptitle(f"{report['problem']['data']}, one hidden layer; {machine['cpu']}, {machine['cores']} cores")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--widths", type=positive, nargs="+", default=[512, 1024, 4096, 8192])
    parser.add_argument("--seconds", type=float, default=20.0, help="sampling time per sampler and width")
    parser.add_argument("--data-dir", type=Path, default=DATA_DIR, help="folder with the CIFAR-10 binary files")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/mixing.json"), help="default %(default)s")
    return parser.parse_args()


def main() -> None:
    """Measure, print, save."""
    arguments = parse_arguments()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    problem = load_problem(arguments.data_dir)
    report: dict[str, Any] = {
        "benchmark": "mixing",
        "command": " ".join(["python benchmarks/mixing.py", *sys.argv[1:]]),
        "machine": describe_machine(),
        "packages": describe_packages() | {"blackjax": blackjax.__version__},
        "problem": {"data": problem.name, "n": len(problem.x), "noise": NOISE, "seconds": arguments.seconds},
        "results": [],
        "ratios": [],
    }
    with double_precision(), Display(11 * len(arguments.widths)) as show:
        for width in arguments.widths:
            report["results"] += run_width(width, problem, arguments.seconds, show)
            report["ratios"] += ratios(report["results"], width)
            # After each width, so that an interrupted run leaves what it measured.
            arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    draw_figure(report, arguments.out.with_suffix(".png"))
    print_tables(report, Console() if sys.stdout.isatty() else Console(width=170))
    print(f"Wrote {arguments.out} and {arguments.out.with_suffix('.png')}.")


if __name__ == "__main__":
    main()
