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

import collections
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blackjax
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import common
import report as pages
import widebnn
from common import AUTO, INPUTS, NOISE, RECIPE, STATISTICS, STEP_SIZE, Problem
from widebnn.diagnostics import ess
from widebnn.precision import one_blas_thread
from widebnn.reproduction.figures import size_axis
from widebnn.samplers import Info, SamplingAlgorithm, build_sampler
from widebnn.samplers.tree import inner
from widebnn.samplers.tuning import acceptance_rate, tuned
from widebnn.sampling.collect import random_projections

SEGMENTS, LEAST_DRAWS, DRAW_SECONDS = 3, 12, 0.03
"""Of a chain; draws per segment, however long they take; time of the steps between two stored draws, at least."""
PUBLISHED = f"{RECIPE}, pCN {STEP_SIZE:g}"
SAME_CHAIN = f"pCN {STEP_SIZE:g}"
DRAWN = (AUTO, "pCNL", "MALA", "elliptical slice", "pCN, tuned", "HMC, quarter turn", "NUTS", PUBLISHED)
"""Samplers, each with its colour and marker: ours solid, BlackJAX's dashed, the published chain dotted."""


Contender = collections.namedtuple("Contender", "algorithm burn_in allow_double", defaults=(True,))
"""A sampler, the steps that tune it, and False if it mixes float32 positions with float64 numbers where it can."""
PeerState = collections.namedtuple("PeerState", "inner position log_likelihood")
"""A BlackJAX state with what our loop looks at."""


def peer(kernel: Any, gradients: Callable[[Any], Any], position: Any = None) -> SamplingAlgorithm:
    """A BlackJAX kernel on our target; ``gradients(info)`` counts its gradients.

    With a ``position`` the kernel is elliptical slice: it wants positions flat and has a density without the prior.
    """
    is_slice = position is not None
    unravel = jax.flatten_util.ravel_pytree(position)[1] if is_slice else lambda v: v

    def wrapped(state):
        prior = 0.0 if is_slice else 0.5 * inner(state.position, state.position)
        return PeerState(state, unravel(state.position), state.logdensity + prior)

    def init(position):
        return wrapped(kernel.init(jax.flatten_util.ravel_pytree(position)[0] if is_slice else position))

    def step(key, state):
        new, info = kernel.step(key, state.inner)
        rate = jnp.ones(()) if is_slice else info.acceptance_rate
        return wrapped(new), Info(rate, rate > 0, jnp.isfinite(new.logdensity), gradients(info))

    return SamplingAlgorithm(init, step)


def peers(target: widebnn.Target, position: Any) -> dict[str, Contender]:
    """BlackJAX's samplers."""
    flat, unravel = jax.flatten_util.ravel_pytree(position)
    mass = jnp.ones(flat.size, jnp.float32)

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

    prior = {"mean": jnp.zeros_like(flat), "cov": jnp.ones_like(flat)}
    ellipse = blackjax.elliptical_slice(lambda v: target.log_likelihood(unravel(v)), **prior)

    def adapted(kernel, aim, first, most, burn_in, **options):
        return Contender(
            tuned(lambda e, _: kernel(e), acceptance_rate(aim, first, most, burn_in), burn_in), burn_in, **options
        )

    return {
        "BlackJAX MALA": adapted(mala, 0.574, 0.01, 2.0, 400, allow_double=False),
        "BlackJAX HMC, quarter turn": adapted(hmc, 0.65, 0.05, 1.5, 80),
        "BlackJAX NUTS": adapted(nuts, 0.8, 0.05, 1.5, 30),
        "BlackJAX elliptical slice": Contender(peer(ellipse, lambda info: 0, position), 50, False),
    }


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


def statistics_of(target: Any, inputs: int) -> Callable[[Any], dict[str, jax.Array]]:
    """What is followed of a position, which carries so many test inputs."""
    project = random_projections(target.sample_reference, 100)
    outputs = inputs * target.y.shape[1]
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
        segment = {"steps": steps, "thin": thin, "ms_per_step": 1000 * spent / steps}
        segment |= {"acceptance_rate": totals[0] / steps, "gradients_per_step": totals[1] / steps}
        segments.append(segment | {"draws": {name: np.stack([row[name] for row in rows]) for name in rows[0]}})
    return segments


def ess_per_step(segments: list[dict[str, Any]]) -> dict[str, float]:
    """Effective samples per step of the three statistics, from segments that follow each other."""
    steps = sum(segment["steps"] for segment in segments)
    lp, mean, projections = (
        ess(np.concatenate([segment["draws"][name] for segment in segments])[None])
        for name in ("lp", "mean", "projections")
    )
    sizes = float(lp), float(np.mean(mean)), float(np.min(projections))
    return {name: size / steps for name, size in zip(STATISTICS, sizes, strict=True)}


def summarise(name: str, width: int, segments: list[dict[str, Any]], milliseconds: list[float]) -> dict[str, Any]:
    """One row of the results; the range over segments is the spread."""
    whole, ms = ess_per_step(segments), statistics.median(milliseconds)
    each = [ess_per_step([segment]) for segment in segments]
    row: dict[str, Any] = {"width": width, "sampler": name, "steps": sum(segment["steps"] for segment in segments)}
    row |= {"thin": segments[0]["thin"], "ms_per_step": ms, "ms_min": min(milliseconds), "ms_max": max(milliseconds)}
    for key in ("acceptance_rate", "gradients_per_step"):
        row[key] = statistics.mean(segment[key] for segment in segments)
    gradients, row["ess_per_step"], row["ess_per_second"] = row["gradients_per_step"], whole, {}
    row["ess_per_gradient"] = {key: value / gradients for key, value in whole.items()} if gradients else None
    for key in STATISTICS:
        rates = [1000 * part[key] / t for part, t in zip(each, milliseconds, strict=True)]
        row["ess_per_second"][key] = {"value": 1000 * whole[key] / ms, "min": min(rates), "max": max(rates)}
    return row


def run_width(width: int, problem: Problem, seconds: float, progress: common.Progress) -> list[dict[str, Any]]:
    """All samplers at one width."""
    target = widebnn.posterior(widebnn.dense(INPUTS, [width]), problem.x, problem.y, noise=NOISE, carry=problem.x_test)
    start = widebnn.sample(target, steps=20, burn_in=150, collect=lambda key, u: {}, progress=False).last
    position = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), start)
    collect, rows = statistics_of(target, len(problem.x_test)), []
    for name, contender in contenders(target, position).items():
        with one_blas_thread(), jax.enable_x64(contender.allow_double):
            segments = measure(contender, collect, position, seconds)
        rows.append(summarise(name, width, segments, [segment["ms_per_step"] for segment in segments]))
        if name == SAME_CHAIN:
            recipe = common.recipe_contender(width, problem.x, problem.y)
            recipe.calibrate(1.0)
            rows.append(summarise(PUBLISHED, width, segments, [1000 * recipe.measure() for _ in range(SEGMENTS)]))
            del recipe
        progress.done(f"width {width}, {name}")
        jax.clear_caches()
    return rows


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At one width, the default sampler against the published one and against the best of BlackJAX, per statistic."""
    width = rows[0]["width"]
    rates = {row["sampler"]: {key: row["ess_per_second"][key]["value"] for key in STATISTICS} for row in rows}
    found = []
    for key in STATISTICS:
        best = max((name for name in rates if name.startswith("BlackJAX")), key=lambda name: rates[name][key])
        for other, label in ((PUBLISHED, PUBLISHED), (best, f"best of BlackJAX ({best.removeprefix('BlackJAX ')})")):
            ratio = rates[AUTO][key] / rates[other][key]
            found.append({"width": width, "statistic": key, "against": label, "ratio": ratio})
    return found


def draw_figure(report: dict[str, Any], out: Path) -> None:
    """Effective samples per second against width, one panel per statistic."""
    figure = Figure(figsize=(13.5, 5.4), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    for axis, key in zip(axes, STATISTICS, strict=True):
        for name in dict.fromkeys(row["sampler"] for row in report["results"] if row["sampler"] != SAME_CHAIN):
            rows = [row for row in report["results"] if row["sampler"] == name]
            style = common.STYLES[DRAWN.index(name.removeprefix("BlackJAX "))]
            line = "--" if name.startswith("BlackJAX") else ":" if name == PUBLISHED else "-"
            common.error_bars(axis, rows, [row["ess_per_second"][key] for row in rows], (name, *style, line))
        size_axis(axis, sorted({row["width"] for row in report["results"]}))
        axis.set_title(key)
    axes[0].set_ylabel("effective samples per second")
    common.save_figure(figure, axes, report, f"{report['problem']['data']}, one hidden layer", out)


def main() -> None:
    """Measure, print, save."""
    parser = common.parser(__doc__, "mixing")
    parser.add_argument("--widths", type=int, nargs="+", default=[512, 1024, 4096, 8192])
    parser.add_argument("--seconds", type=float, default=20.0, help="sampling time per sampler and width")
    arguments = parser.parse_args()
    problem = common.load_problem(arguments.data_dir)
    setting = {"data": problem.name, "n": len(problem.x), "noise": NOISE, "seconds": arguments.seconds}
    report = {"benchmark": "mixing", **common.new_report("blackjax"), "problem": setting}
    progress = common.Progress(10 * len(arguments.widths))

    def rows_of(width):
        return run_width(width, problem, arguments.seconds, progress)

    common.measure_widths(report, arguments.widths, rows_of, ratios, arguments.out)
    common.finish(report, draw_figure, pages.mixing_places, arguments.out)


if __name__ == "__main__":
    main()
