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

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

import common
import report as pages
import widebnn
from common import INPUTS, NOISE, OUTPUTS, PRODUCTS, RECIPE, STEP_SIZE, Contender, N
from widebnn.likelihoods.readout import log_evidence
from widebnn.noise import standard_normal
from widebnn.reproduction.figures import size_axis

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
LARGE = [("pcn", "marginal"), ("pcn", "function"), ("mala", "function"), ("hilbert_hmc", "function")]
"""What is measured beyond width 4096."""
RATIOS = [(RECIPE, "pcn, marginal"), (RECIPE, "pcn, function"), ("pcn, function", PRODUCTS)]
LABELS = {"rwmh": "RW-MH", "pcn": "pCN", "pcnl": "pCNL", "mala": "MALA", "underdamped": "underdamped"}
LABELS |= {"hmc": "HMC, 1 leapfrog step", "hilbert_hmc": "Hilbert-space HMC, 1 step", PRODUCTS: PRODUCTS}
LABELS |= {RECIPE: "published recipe (pCN, float64)"}
NOTES = [
    "hmc and hilbert_hmc take one step per trajectory (num_steps=1): the time of one gradient and its step.",
    "Bare products are the two float32 matrix products of a function-space step, F A and g g', as dense products; the "
    "step itself leaves out the zeros of F and half of the symmetric g g'. The next rows are the other parts of the "
    "step, each timed alone; n x n evidence is a 256 x 256 product, its Cholesky factor and a solve.",
    "The published recipe is pCN in weight space under the reparametrisation, all in float64, log-density cached.",
    "It runs with as many BLAS threads as the library likes, as published; all others run with one BLAS thread "
    "and float32 features, as widebnn.sample runs them.",
]


def parts(width: int) -> dict[str, tuple[Any, Callable[[Any, Any], Any]]]:
    """What a pCN step in function space is made of: name -> (start, (key, state) -> state), each part alone.

    The next round of a part depends on the one before, or the compiler would do it once.
    """
    a = jax.random.normal(jax.random.key(0), (N, width), jnp.float32)
    factor = jnp.tril(jax.random.normal(jax.random.key(1), (N, N), jnp.float32)) / 16
    psi = jnp.asarray(np.random.default_rng(0).normal(size=(N, N)) / 16)
    y = jnp.ones((N, OUTPUTS))

    def products(key, state):
        f = jnp.matmul(factor + state, a, precision="highest")
        return 1e-30 * jnp.sum(jnp.matmul(f, f.T, precision="highest"))

    def noise(key, state):
        return np.float32(0.9) * state + np.float32(0.1) * standard_normal(key, state.shape, state.dtype)

    return {
        PRODUCTS: (jnp.zeros((), jnp.float32), products),
        "noise and proposal": (a, noise),
        "activation": (a, lambda key, state: jax.nn.gelu(state, approximate=False) + np.float32(0.1)),
        "n x n evidence": (jnp.zeros(()), lambda key, state: 1e-30 * log_evidence(psi + state, y, NOISE)),
    }


def summarise(contender: Contender, width: int) -> dict[str, Any]:
    """One row of the results."""
    ms = [1000 * s for s in contender.seconds]
    row = {"width": width, "contender": contender.name, "sampler": contender.sampler}
    row |= {"coordinates": contender.coordinates, "ms_per_step": statistics.median(ms), "ms_repeats": ms}
    return row | {"ms_min": min(ms), "ms_max": max(ms), "steps_per_measurement": contender.steps}


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ratios of times per step: of the medians, and their range over the repeats."""
    named, found = {row["contender"]: row for row in rows}, []
    for slower, faster in RATIOS:
        a, b = named[slower], named[faster]
        paired = [s / f for s, f in zip(a["ms_repeats"], b["ms_repeats"], strict=True)]
        ratio = {"width": a["width"], "slower": slower, "faster": faster, "ratio": a["ms_per_step"] / b["ms_per_step"]}
        found.append(ratio | {"min": min(paired), "max": max(paired)})
    return found


def run_width(
    pairs: list[tuple[str, str]], width: int, repeats: int, x: np.ndarray, y: np.ndarray, progress: common.Progress
) -> list[dict[str, Any]]:
    """Compile and calibrate all contenders of one width, then measure them round after round."""
    contenders = []
    for sampler, system in pairs:
        target = widebnn.posterior(widebnn.dense(INPUTS, [width]), x, y, noise=NOISE, coordinates=system)
        contenders.append(common.sampler_contender(target, sampler, system, **SAMPLERS[sampler]))
    for name, (start, part) in parts(width).items():
        contenders.append(common.contender_of(name, "function", lambda key, start=start: jnp.array(start), part))
    contenders.append(common.recipe_contender(width, x, y))
    for contender in contenders:
        contender.calibrate()
    work = 1 + width / 2000  # about how long a measurement with its initialisation takes, for the ETA only
    progress.done(f"width {width}, compiled", work)
    for repeat in range(repeats):
        for contender in contenders:
            contender.seconds.append(contender.measure())
        progress.done(f"width {width}, round {repeat + 1} of {repeats}", work)
    return [summarise(contender, width) for contender in contenders]


def draw_figure(report: dict[str, Any], out: Path) -> None:
    """Milliseconds per step against width, one panel per coordinate system, the recipe in each for reference."""
    results = report["results"]
    panels = [c for c in COORDINATES if any(r["coordinates"] == c for r in results)]
    figure = Figure(figsize=(3.6 * len(panels) + 1.2, 4.6), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, coordinates in zip(axes, panels, strict=True):
        for (sampler, label), style in zip(LABELS.items(), common.STYLES, strict=True):
            here = (coordinates, "reparametrised") if sampler == RECIPE else (coordinates,)
            rows = [r for r in results if r["sampler"] == sampler and r["coordinates"] in here]
            ranges = [{"value": r["ms_per_step"], "min": r["ms_min"], "max": r["ms_max"]} for r in rows]
            if rows:
                common.error_bars(axis, rows, ranges, (label, *style, "--" if sampler == RECIPE else "-"))
        size_axis(axis, sorted({row["width"] for row in results}))
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.set_title(f"{coordinates} coordinates", fontsize=11)
    axes[0].set_ylabel("time per step (ms)")
    common.save_figure(figure, axes, report, f"One step, {report['problem']['data']}, one hidden layer", out)


def main() -> None:
    """Measure, print, save."""
    parser = common.parser(__doc__, "steps")
    parser.add_argument("--widths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    repeats = arguments.repeats
    x, y, _, data = common.load_problem(arguments.data_dir)
    everything = [(sampler, coordinates) for coordinates in COORDINATES for sampler in SAMPLERS]
    report: dict[str, Any] = {
        "benchmark": "steps",
        **common.new_report(),
        "problem": {"data": data, "n": N, "inputs": INPUTS, "outputs": OUTPUTS, "noise": NOISE, "hidden_layers": 1},
        "options": SAMPLERS,
        "notes": NOTES,
        "repeats": repeats,
    }
    progress = common.Progress(sum((repeats + 1) * (1 + width / 2000) for width in arguments.widths))

    def rows_of(width):
        return run_width(LARGE if width > 4096 else everything, width, repeats, x, y, progress)

    common.measure_widths(report, arguments.widths, rows_of, ratios, arguments.out)
    common.finish(report, draw_figure, pages.steps_places, arguments.out)


if __name__ == "__main__":
    main()
