"""How fast each sampler mixes on the function-space target: ours and BlackJAX's, beside the published recipe.

    python benchmarks/mixing.py --out benchmarks/results/mixing.json

Effective samples per step, per gradient and per second of three statistics: the log-likelihood, the predictive
mean at test inputs (mean over 100 random projections) and the slowest of 100 random projections of the chain's
coordinates. One hidden layer, 256 CIFAR-10 images. Every sampler starts from the same draw of the posterior,
finds its step size in a burn-in, and gets the same wall time. BlackJAX's kernels run on our target through the
same driver, and their step sizes are tuned by the same dual averaging to the acceptance rates they recommend.

The published recipe's chain (pCN, beta = 0.1, weight space) has exactly the law of our pCN with that step size,
so its effective samples per step are the same; its seconds per step are measured here, in the same run.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import blackjax
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import widebnn
from steps import INPUTS, NOISE, ROOT, N, describe_machine, describe_packages, load_problem, recipe_contender
from widebnn.data import load_dataset
from widebnn.diagnostics import ess
from widebnn.precision import double_precision
from widebnn.samplers import Info, SamplingAlgorithm, build_sampler
from widebnn.samplers.tree import inner
from widebnn.samplers.tuning import dual_averaging, tuned
from widebnn.sampling.projections import random_projections

BURN_IN = 400
PUBLISHED = "published recipe, pCN 0.1"
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "auto (Hilbert-space HMC)": ("auto", {}),
    "pCNL": ("pcnl", {}),
    "MALA": ("mala", {}),
    "HMC, 10 steps": ("hmc", {"num_steps": 10}),
    "elliptical slice": ("elliptical_slice", {}),
    "pCN, tuned": ("pcn", {}),
    "pCN 0.1": ("pcn", {"step_size": 0.1}),
}


class PeerState(NamedTuple):
    """A BlackJAX state with what our driver looks at."""

    inner: Any
    position: Any
    log_likelihood: jax.Array


def peer(kernel: Any, log_likelihood: Any, gradients: Any) -> SamplingAlgorithm:
    """A BlackJAX sampling algorithm in our driver; ``gradients(info)`` counts its gradients."""

    def wrapped(state):
        value = getattr(state, "logdensity", None)
        # BlackJAX's density includes the prior; the slice sampler's state holds the log-likelihood alone.
        value = value + 0.5 * inner(state.position, state.position) if gradients(None) else value
        return PeerState(state, state.position, value)

    def step(key, state):
        new, info = kernel.step(key, state.inner)
        rate = getattr(info, "acceptance_rate", jnp.ones(()))
        finite = jnp.isfinite(new.logdensity)
        return wrapped(new), Info(rate, rate > 0, finite, gradients(info))

    return SamplingAlgorithm(lambda position: wrapped(kernel.init(position)), step)


def peers(target: widebnn.Target, position: Any) -> dict[str, SamplingAlgorithm]:
    """BlackJAX's samplers on our target."""
    dimension = sum(leaf.size for leaf in jax.tree.leaves(position))
    mass = jnp.ones(dimension, jnp.float32)

    def log_density(u):
        return target.log_likelihood(u) - 0.5 * inner(u, u)

    def mala(step_size):
        # BlackJAX's step size is the variance of the noise over two.
        return peer(blackjax.mala(log_density, step_size**2 / 2), target.log_likelihood, lambda info: 1)

    def hmc(step_size):
        steps = jnp.clip(jnp.round(math.pi / 2 / step_size), 1, 200).astype(int)
        kernel = blackjax.hmc(log_density, step_size, mass, steps)
        return peer(kernel, target.log_likelihood, lambda info: steps)

    def nuts(step_size):
        kernel = blackjax.nuts(log_density, step_size, mass)
        return peer(kernel, target.log_likelihood, lambda info: 1 if info is None else info.num_integration_steps)

    flat, unravel = jax.flatten_util.ravel_pytree(position)
    return {
        "BlackJAX MALA": tuned(mala, dual_averaging(0.574, 0.01, 2.0), BURN_IN),
        "BlackJAX HMC, quarter turn": tuned(hmc, dual_averaging(0.8, 0.05, 1.5), BURN_IN // 4),
        "BlackJAX NUTS": tuned(nuts, dual_averaging(0.8, 0.05, 1.5), BURN_IN // 8),
        "BlackJAX elliptical slice": blackjax_slice(target, flat, unravel),
    }


def blackjax_slice(target: widebnn.Target, flat: jax.Array, unravel: Any) -> SamplingAlgorithm:
    """BlackJAX's elliptical slice wants a flat position and the prior's mean and covariance."""
    kernel = blackjax.elliptical_slice(
        lambda v: target.log_likelihood(unravel(v)), mean=jnp.zeros_like(flat), cov=jnp.ones_like(flat)
    )

    def wrapped(state):
        return PeerState(state, unravel(state.position), state.logdensity)

    def step(key, state):
        new, _ = kernel.step(key, state.inner)
        return wrapped(new), Info(jnp.ones(()), jnp.ones((), bool), jnp.isfinite(new.logdensity), 0)

    return SamplingAlgorithm(lambda u: wrapped(kernel.init(jax.flatten_util.ravel_pytree(u)[0])), step)


def measure(target: Any, sampler: SamplingAlgorithm, x_test: np.ndarray, start: Any, burn_in: int, seconds: float):
    """ESS per step and seconds per step of one sampler."""
    nothing = widebnn.sample(
        target, sampler, steps=8, burn_in=burn_in, initial=start, collect=lambda key, u: {}, progress=False
    )
    # Whoever needs few steps per effective sample is kept often, the others thinned.
    step_seconds = nothing.seconds / nothing.steps
    project = random_projections(target.sample_reference, 100)
    directions = np.random.default_rng(0).normal(size=(x_test.shape[0] * target.y.shape[1], 100))
    directions = jnp.asarray(directions / np.linalg.norm(directions, axis=0), jnp.float32)
    thin = max(1, round(0.04 / step_seconds))
    steps = max(64, round(seconds / step_seconds)) // thin * thin or thin

    def collect(key, u):
        return {"weights": project(u), "mean": target.predict(key, u).mean.reshape(-1) @ directions}

    result = widebnn.sample(
        target, sampler, steps=steps, thin=thin, burn_in=burn_in, initial=start, collect=collect, progress=False
    )
    timing = widebnn.sample(
        target,
        sampler,
        steps=max(8, round(2.0 / step_seconds)),
        burn_in=burn_in,
        initial=start,
        collect=lambda key, u: {},
        progress=False,
    )
    per_step = {
        "log-likelihood": float(ess(result.stats["lp"][..., None])[0]) / result.steps,
        "predictive mean": float(np.mean(ess(result.draws["mean"]))) / result.steps,
        "slowest projection": float(np.min(ess(result.draws["weights"]))) / result.steps,
    }
    return {
        "ess_per_step": per_step,
        "ms_per_step": 1000 * timing.seconds / timing.steps,
        "gradients_per_step": result.gradients_per_step,
        "acceptance_rate": result.acceptance_rate,
        "steps": result.steps,
        "draws": result.steps // thin,
    }


def finish(name: str, width: int, row: dict[str, Any]) -> dict[str, Any]:
    """Rates per gradient and per second from those per step."""
    gradients = row["gradients_per_step"]
    per_second = {key: 1000 * value / row["ms_per_step"] for key, value in row["ess_per_step"].items()}
    per_gradient = {key: value / gradients for key, value in row["ess_per_step"].items()} if gradients else None
    return {"width": width, "sampler": name, **row, "ess_per_second": per_second, "ess_per_gradient": per_gradient}


def run_width(width: int, x, y, x_test, seconds: float, console: Console) -> list[dict[str, Any]]:
    """All samplers at one width."""
    target = widebnn.posterior(widebnn.dense(INPUTS, [width]), x, y, noise=NOISE, carry=x_test)
    start = widebnn.sample(target, "auto", steps=40, burn_in=100, collect=lambda key, u: {}, progress=False).last
    with double_precision():
        one = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), start)
        contenders: dict[str, tuple[SamplingAlgorithm, int]] = {
            name: (build_sampler(sampler, target.log_likelihood, BURN_IN, **options), BURN_IN)
            for name, (sampler, options) in OURS.items()
        }
        shorter = {"BlackJAX HMC, quarter turn": BURN_IN // 4, "BlackJAX NUTS": BURN_IN // 8}
        contenders |= {name: (s, shorter.get(name, BURN_IN)) for name, s in peers(target, one).items()}
        contenders["auto (Hilbert-space HMC)"] = (build_sampler("auto", target.log_likelihood, 150), 150)
    rows = []
    for name, (sampler, burn_in) in contenders.items():
        began = time.perf_counter()
        rows.append(finish(name, width, measure(target, sampler, x_test, start, burn_in, seconds)))
        console.print(f"width {width}: {name}, {time.perf_counter() - began:.0f} s", highlight=False)
    with double_precision():
        recipe = recipe_contender(width, x, y)
        recipe.steps = max(1, round(2.0 / recipe.measure()))
        milliseconds = 1000 * min(recipe.measure() for _ in range(3))
    same_chain = next(row for row in rows if row["sampler"] == "pCN 0.1")
    rows.append(finish(PUBLISHED, width, {**same_chain, "ms_per_step": milliseconds}) | {"sampler": PUBLISHED})
    return rows


def print_table(rows: list[dict[str, Any]], console: Console) -> None:
    """One table per width, best first."""
    for width in sorted({row["width"] for row in rows}):
        table = Table(title=f"width {width}", title_justify="left")
        for column in ("sampler", "ms/step", "acceptance", "gradients/step"):
            table.add_column(column, justify="left" if column == "sampler" else "right")
        for column in ("ESS/s lp", "ESS/s mean", "ESS/s slowest", "gradients/ESS lp", "gradients/ESS slowest"):
            table.add_column(column, justify="right")
        here = [row for row in rows if row["width"] == width]
        for row in sorted(here, key=lambda row: -row["ess_per_second"]["slowest projection"]):
            rates = [f"{row['ess_per_second'][key]:.3g}" for key in row["ess_per_second"]]
            per = row["ess_per_gradient"]
            costs = [f"{1 / per[key]:.1f}" if per else "-" for key in ("log-likelihood", "slowest projection")]
            table.add_row(
                row["sampler"],
                f"{row['ms_per_step']:.3g}",
                f"{row['acceptance_rate']:.2f}",
                f"{row['gradients_per_step']:.1f}",
                *rates,
                *costs,
            )
        console.print(table)
        named = {row["sampler"]: row["ess_per_second"] for row in here}
        auto, published = named["auto (Hilbert-space HMC)"], named[PUBLISHED]
        best = max(
            (rates for name, rates in named.items() if name.startswith("BlackJAX")), key=lambda r: min(r.values())
        )
        for key in auto:
            console.print(
                f"{key}: auto / published pCN = {auto[key] / published[key]:.0f}, "
                f"auto / best BlackJAX = {auto[key] / best[key]:.2f}",
                highlight=False,
            )


def test_inputs(data_dir: Path) -> np.ndarray:
    """Sixteen inputs at which the predictive mean is followed."""
    if data_dir.is_dir():
        return load_dataset("cifar10", N, 16, data_dir=data_dir).x_test
    return np.random.default_rng(1).normal(size=(16, INPUTS))


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--widths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--seconds", type=float, default=30.0, help="sampling time per sampler and width")
    parser.add_argument("--data-dir", type=Path, default=ROOT.parent / "shared" / "data" / "cifar10")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/mixing.json"))
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    x, y, data = load_problem(arguments.data_dir)
    x_test = test_inputs(arguments.data_dir)
    console = Console(width=170)
    report = {
        "benchmark": "mixing",
        "command": " ".join(["python benchmarks/mixing.py", *sys.argv[1:]]),
        "machine": describe_machine(),
        "packages": describe_packages() | {"blackjax": blackjax.__version__},
        "problem": {"data": data, "noise": NOISE, "seconds_per_sampler": arguments.seconds},
        "results": [],
    }
    for width in arguments.widths:
        report["results"] += run_width(width, x, y, x_test, arguments.seconds, console)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
        jax.clear_caches()
    print_table(report["results"], console)
    print(f"Wrote {arguments.out}.")


if __name__ == "__main__":
    main()
