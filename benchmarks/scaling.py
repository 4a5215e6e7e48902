"""What a step over several devices costs: communication, time, and a model of both.

    python benchmarks/scaling.py

Measures a step on one device over a grid of sizes, then the same network over forced host devices and over processes
that talk through the loopback interface, and counts what the compiled programs send. A model with six numbers is
fitted to that, compared with it, and then evaluated with the data-sheet figures of accelerators. Writes
benchmarks/results/scaling.json and docs/scaling.md; ``--page`` writes the page again from the results. Ten minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import socket
import subprocess
import sys
import time
from dataclasses import astuple, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from scipy.optimize import nnls

import widebnn
from common import INPUTS, NOISE, OUTPUTS, RESULTS, ROOT, fill, median_seconds, new_report, parser, read, save
from widebnn.precision import double_precision, one_blas_thread
from widebnn.reproduction.report import table
from widebnn.samplers import build_sampler
from widebnn.sampling.placement import Placement, position_shapes

OUT, PAGE = RESULTS / "scaling.json", ROOT / "docs" / "scaling.md"
REPEATS = 5
ONE_DEVICE = [(n, width) for n in (128, 256, 512, 1024) for width in (2048, 8192, 32768) if n * width <= 2**24]
SHARED = (256, 8192)
"""Rows and width of what is divided over devices and processes."""
DEVICES, PROCESSES = (2, 4, 8), (2, 4)
BYTES = {"f32": 4, "f64": 8, "u32": 4, "s32": 4, "pred": 1, "s64": 8, "u64": 8}
COLLECTIVE = re.compile(
    r"= (\(?[^=]*?\)?) (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)
ARRAY = re.compile(r"(f32|f64|u32|s32|pred|s64|u64)\[([\d,]*)\]")


def collectives(program: str) -> list[dict[str, Any]]:
    """What a compiled program sends each time it runs: kind, shapes and bytes of every collective operation."""
    found = []
    for result, kind in COLLECTIVE.findall(program):
        shapes = [(dtype, [int(size) for size in sizes.split(",") if size]) for dtype, sizes in ARRAY.findall(result)]
        size = sum(BYTES[dtype] * int(np.prod(shape)) for dtype, shape in shapes)
        found.append({"kind": kind, "arrays": [f"{dtype}{shape}" for dtype, shape in shapes], "bytes": size})
    return found


def compiled_steps(sampler: str, n: int, width: int, depth: int = 1) -> tuple[Any, Any, Any]:
    """(program of so many steps, first state, key) of a network whose units are divided over all devices."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(n, INPUTS)), rng.normal(size=(n, OUTPUTS))
    target = widebnn.posterior(widebnn.dense(INPUTS, [width] * depth), x, y, noise=NOISE)
    algorithm = build_sampler(sampler, target.log_likelihood, 0, step_size=0.1)
    place = Placement(widebnn.device_mesh(), 1, position_shapes(target))
    key = place.put_keys([jax.random.key(0)])
    state = place.jit(algorithm.init, None)(place.jit(target.sample_reference, "position")(key))

    def steps(state, key, count):
        return jax.lax.fori_loop(0, count, lambda i, s: algorithm.step(jax.random.fold_in(key, i), s)[0], state)

    program = place.jit(steps, place.places(state), shared=1)
    return program.lower(state, key, np.int64(1)).compile(), state, key


def seconds_per_step(program: Any, state: Any, key: Any) -> float:
    """The median of several loops that each take a while."""

    def seconds(count):
        return median_seconds(lambda: program(state, key, np.int64(count)), REPEATS, count)

    with one_blas_thread():
        count = max(1, int(0.4 / seconds(2)))
        if jax.process_count() > 1:  # every process must make as many steps: the first says how many
            count = int(multihost_utils.broadcast_one_to_all(np.int32(count)))
        return seconds(count)


def all_reduce_seconds(n: int, count: int = 20) -> float:
    """Of one n x n matrix of float32 over all devices."""
    mesh = Mesh(np.array(jax.devices()), ("units",))
    divided, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("units",), ()))
    parts = jax.jit(lambda: jnp.ones((len(jax.devices()), n, n), jnp.float32), out_shardings=divided)()

    def reduce(parts):
        def body(_, carry):
            return carry * 0.5 + jnp.sum(parts * carry[0, 0], axis=0)

        return jax.lax.fori_loop(0, count, body, jnp.ones((n, n), jnp.float32))

    program = jax.jit(reduce, out_shardings=whole)
    return median_seconds(lambda: program(parts), REPEATS, count)


def work(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What one process measures."""
    rows = []
    for job in jobs:
        if job["what"] == "all-reduce":
            rows.append(job | {"seconds": all_reduce_seconds(job["n"])})
            continue
        with double_precision():
            program, *start = compiled_steps(job["sampler"], job["n"], job["width"])
            rows.append(job | {"seconds": seconds_per_step(program, *start)})
            rows[-1]["collectives"] = collectives(program.as_text())
    return rows


def spread(jobs: list[dict[str, Any]], devices: int = 1, processes: int = 1) -> list[dict[str, Any]]:
    """Measure in new processes with so many devices each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "NPROC": "8"}
    children = []
    for process in range(processes):
        command = [sys.executable, __file__, "--worker", json.dumps([process, processes, port, jobs])]
        children.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    lines = [child.communicate(timeout=900)[0] for child in children]
    if any(child.returncode for child in children):
        raise SystemExit("a process of the benchmark failed")
    found = json.loads(lines[0].splitlines()[-1])  # Gloo says something before
    return [{**row, "devices": devices * processes, "processes": processes} for row in found]


def steps(sizes: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Jobs: steps of both samplers at these numbers of rows and units."""
    return [{"what": "step", "sampler": s, "n": n, "width": width} for n, width in sizes for s in ("pcn", "pcnl")]


def measure() -> list[dict[str, Any]]:
    """Everything."""
    n, width = SHARED
    shared = steps([(n, width // 4), (n, width)]) + [{"what": "all-reduce", "n": n} for n in (64, 256, 512, 1024)]
    plans = [(steps(ONE_DEVICE), 1, 1)]
    plans += [(shared, devices, 1) for devices in DEVICES] + [(shared, 1, processes) for processes in PROCESSES]
    rows = []
    for i, (jobs, devices, processes) in enumerate(plans):
        what = f"{len(jobs)} measurements, {devices} devices in each of {processes} processes"
        print(f"{i + 1} of {len(plans)}: {what}", file=sys.stderr, flush=True)
        rows += spread(jobs, devices, processes)
    return rows


@dataclass(frozen=True)
class Model:
    """Seconds of a step = products n^2 N / D + elements n N / D + factor n^3 + fixed + all-reduces.

    An all-reduce of an n x n float32 matrix over D devices takes latency (D - 1) + 2 (D - 1) / D 4 n^2 / bandwidth.
    """

    products: float
    elements: float
    factor: float
    fixed: float
    latency: float
    inverse_bandwidth: float

    def compute(self, n: int, width: int, devices: float) -> float:
        """Without communication."""
        return self.products * n * n * width / devices + self.elements * n * width / devices + self.replicated(n)

    def replicated(self, n: int) -> float:
        """What every device does for itself."""
        return self.factor * n**3 + self.fixed

    def communication(self, n: int, devices: int) -> float:
        """One all-reduce."""
        if devices == 1:
            return 0.0
        return self.latency * (devices - 1) + 2 * (devices - 1) / devices * 4 * n * n * self.inverse_bandwidth

    def seconds(self, n: int, width: int, devices: int) -> float:
        """A step."""
        return self.compute(n, width, devices) + self.communication(n, devices)


def fit(rows: list[dict[str, Any]], sampler: str, kind: str) -> Model:
    """Relative least squares with numbers that are not negative; ``kind`` of devices: processes or forced."""

    def solve(rows, terms):
        design = np.array([[term / row["seconds"] for term in terms(row)] for row in rows])
        return nnls(design, np.ones(len(rows)))[0]

    own = [row for row in rows if row["what"] == "step" and row["sampler"] == sampler and row["devices"] == 1]
    sent = [r for r in rows if r["what"] == "all-reduce" and (r["processes"] > 1) == (kind == "processes")]
    compute = solve(own, lambda r: (r["n"] ** 2 * r["width"], r["n"] * r["width"], r["n"] ** 3, 1.0))
    network = solve(sent, lambda r: (r["devices"] - 1, 2 * (r["devices"] - 1) / r["devices"] * 4 * r["n"] ** 2))
    return Model(*compute, *network)


SINGLE, DOUBLE = 0.6 * 19.5e12, 0.3 * 9.7e12
"""Operations per second of an accelerator in float32 products and float64 factorisations: data sheet, part reached."""
MEMORY_BANDWIDTH, MEMORY = 1.5e12, 80e9
NETWORKS = {8: (3e-6, 2e11), 256: (1e-6, 2e10)}
"""Of 8 accelerators in one machine and 256 in 32: seconds of an all-reduce per device, and its bytes per second."""


def accelerators(devices: int) -> Model:
    """A gradient step: two products and their transposes, a dozen passes, a factorisation and an inverse."""
    latency, bandwidth = NETWORKS[devices]
    compute = 4 * 2 * 0.625 / SINGLE, 12 * 4 / MEMORY_BANDWIDTH, (1 / 3 + 2 / 3) / DOUBLE
    return Model(*compute, 1e-4, latency, 1 / bandwidth)


SQUARE_BYTES = 4 + 8 + 8 + 4 + 4
"""Per entry of n x n on every device: the kernel in float32 and float64, its factor, and two for the gradient."""


def memory(n: int, width: int, devices: int) -> float:
    """Bytes on a device: of what is divided, and of what every device holds."""
    # A gradient sampler holds eight arrays of the size of a position: position, gradient, proposal, features, ...
    return 8 * 4 * n * width / devices + SQUARE_BYTES * n * n


def predict() -> list[dict[str, Any]]:
    """Time and memory of a gradient step on accelerators."""
    rows = []
    for devices, width, n in itertools.product(NETWORKS, (100_000, 1_000_000), (256, 1_000, 10_000, 100_000)):
        model, needed = accelerators(devices), memory(n, width, devices)
        total = model.seconds(n, width, devices)
        row = {"devices": devices, "width": width, "n": n, "seconds": total, "replicated": model.replicated(n) / total}
        row |= {"communication": model.communication(n, devices) / total, "gigabytes": needed / 1e9}
        row |= {"speed-up": model.compute(n, width, 1) / total, "fits": needed < MEMORY}
        rows.append(row | {"fits one": memory(n, width, 1) < MEMORY})
    return rows


def number(value: float) -> str:
    """Three digits."""
    return f"{value:.3g}" if value < 1e5 else f"{value:.1e}"


def predictions_table(rows: list[dict[str, Any]]) -> str:
    """What :func:`predict` says."""
    lines = []
    for r in rows:
        line = [str(r["devices"]), f"{r['width']:.0e}".replace("e+0", "e"), str(r["n"]), number(1e3 * r["seconds"])]
        line += [f"{r[name]:.0%}" for name in ("replicated", "communication")]
        line.append(number(r["speed-up"]) if r["fits one"] else "does not fit one")
        lines.append([*line, number(r["gigabytes"]) + ("" if r["fits"] else " (does not fit)")])
    header = ["devices", "width", "n", "ms per step", "replicated", "communication", "speed-up", "GB per device"]
    return table(header, lines, "---")


def communication_tables(rows: list[dict[str, Any]], models: dict[tuple[str, str], Model]) -> tuple[str, str]:
    """What is sent per step, and how long steps on several devices take beside one device and the model."""
    shared = [row for row in rows if row["what"] == "step" and row["devices"] > 1]
    one = {(r["sampler"], r["n"], r["width"]): r["seconds"] for r in rows if r["what"] == "step" and r["devices"] == 1}
    volume: dict[tuple[str, ...], list[str]] = {}
    timing = []
    for row in shared:
        model = models[row["sampler"], "processes" if row["processes"] > 1 else "forced"]
        # On one device XLA has all cores already: dividing the work gains nothing on this machine.
        expected = model.compute(row["n"], row["width"], 1) + model.communication(row["n"], row["devices"])
        alone, sent = one[row["sampler"], row["n"], row["width"]], row["collectives"]
        devices = f"{row['processes']} x {row['devices'] // row['processes']}"
        name = row["sampler"], str(row["width"])
        kinds = ", ".join(sorted({c["kind"] for c in sent}))
        matrices = ", ".join(sorted({" + ".join(c["arrays"]) for c in sent if c["bytes"] >= 1000}))
        size = f"{sum(c['bytes'] for c in sent):,}".replace(",", " ")
        volume.setdefault((*name, kinds, matrices, size), []).append(devices)
        numbers = [1e3 * row["seconds"], 1e3 * alone, row["seconds"] / alone, row["seconds"] / expected]
        timing.append([devices, *name, *map(number, numbers)])
    header = ["sampler", "width", "operations", "matrices", "bytes per step", "processes x devices"]
    sent_table = table(header, [[*what, ", ".join(devices)] for what, devices in volume.items()], "---")
    header = ["processes x devices", "sampler", "width", "ms per step", "one device", "ratio", "measured / model"]
    return sent_table, table(header, timing, "---")


def page(results: dict[str, Any]) -> str:
    """docs/scaling.md."""
    rows, machine = results["rows"], results["machine"]
    models = {(s, k): fit(rows, s, k) for s in ("pcn", "pcnl") for k in ("forced", "processes")}
    volume, timing = communication_tables(rows, models)
    alone = [row for row in rows if row["what"] == "step" and row["devices"] == 1]
    expected = [models[r["sampler"], "forced"].compute(r["n"], r["width"], 1) for r in alone]
    errors = [abs(e / r["seconds"] - 1) for e, r in zip(expected, alone, strict=True)]
    header = ["sampler", "devices", "products", "elements", "factor", "fixed", "latency", "1 / bandwidth"]
    packages = ", ".join(f"{name} {version}" for name, version in results["packages"].items())
    return fill(
        "scaling",
        MACHINE=f"{machine['cores']} cores ({machine['cpu']}), {packages}",
        VOLUME=volume,
        TIMING=timing,
        MODEL=table(header, [[*kind, *map(number, astuple(model))] for kind, model in models.items()], "---"),
        ERROR=f"{np.median(errors):.0%} (median), {np.max(errors):.0%} (largest)",
        PREDICTIONS=predictions_table(results["predictions"]),
        SQUARE=f"{SQUARE_BYTES * 1e10 / 1e9:.0f}",
    )


def main() -> None:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    options.add_argument("--page", action="store_true", help="write docs/scaling.md from the results")
    arguments = options.parse_args()
    if arguments.worker:
        process, processes, port, jobs = arguments.worker
        if processes > 1:
            address = f"127.0.0.1:{port}"
            jax.distributed.initialize(address, processes, process, coordinator_bind_address=address)
        found = work(jobs)
        if process == 0:
            print(json.dumps(found))
        return
    if not arguments.page:
        began = time.perf_counter()
        results = new_report() | {"rows": measure(), "predictions": predict()}
        save(results | {"seconds": round(time.perf_counter() - began)}, OUT)
    PAGE.write_text(page(read(OUT)))


if __name__ == "__main__":
    main()
