"""What a step over several devices costs: communication, time, and a model of both.

    python benchmarks/scaling.py

Measures a step on one device over a grid of sizes, then the same network over forced host devices and over processes
that talk through the loopback interface, and counts what the compiled programs send. A model with six numbers is
fitted to that, compared with it, and then evaluated with the data-sheet figures of accelerators. Writes
benchmarks/results/scaling.json and docs/scaling.md; ``--page`` writes the page again from the results. Ten minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "scaling.json"
PAGE = ROOT / "docs" / "scaling.md"
TEXT = ROOT / "benchmarks" / "scaling.md"
INPUTS, OUTPUTS, NOISE = 3072, 10, 0.1
MEASUREMENT_SECONDS, REPEATS = 0.4, 5
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
    import jax

    import widebnn
    from widebnn.samplers import build_sampler
    from widebnn.sampling.placement import Placement, position_shapes

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
    import jax

    from widebnn.precision import one_blas_thread

    with one_blas_thread():

        def loop(count: int) -> float:
            began = time.perf_counter()
            jax.block_until_ready(program(state, key, np.int64(count)))
            return time.perf_counter() - began

        loop(1)
        # Every process must make as many steps: the first says how many.
        from jax.experimental import multihost_utils

        count = max(1, int(MEASUREMENT_SECONDS / loop(2) * 2))
        if jax.process_count() > 1:
            count = int(multihost_utils.broadcast_one_to_all(np.int32(count)))
        return statistics.median(loop(count) / count for _ in range(REPEATS))


def all_reduce_seconds(n: int) -> float:
    """Of one n x n matrix of float32 over all devices."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("units",))
    parts = jax.jit(
        lambda: jnp.ones((len(jax.devices()), n, n), jnp.float32),
        out_shardings=NamedSharding(mesh, PartitionSpec("units")),
    )()

    def reduce(parts):
        def body(_, carry):
            return carry * 0.5 + jnp.sum(parts * carry[0, 0], axis=0)

        return jax.lax.fori_loop(0, 20, body, jnp.ones((n, n), jnp.float32))

    program = jax.jit(reduce, out_shardings=NamedSharding(mesh, PartitionSpec()))
    jax.block_until_ready(program(parts))
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        jax.block_until_ready(program(parts))
        times.append((time.perf_counter() - began) / 20)
    return statistics.median(times)


def work(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What one process measures."""
    from widebnn.precision import double_precision

    rows = []
    for job in jobs:
        if job["what"] == "all-reduce":
            rows.append({**job, "seconds": all_reduce_seconds(job["n"])})
            continue
        with double_precision():
            program, state, key = compiled_steps(job["sampler"], job["n"], job["width"])
            rows.append({**job, "seconds": seconds_per_step(program, state, key)})
            rows[-1]["collectives"] = collectives(program.as_text())
    return rows


def spread(jobs: list[dict[str, Any]], devices: int = 1, processes: int = 1) -> list[dict[str, Any]]:
    """Measure in new processes with so many devices each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "NPROC": "8"}
    children = [
        subprocess.Popen(
            [sys.executable, __file__, "--worker", json.dumps([process, processes, port, jobs])],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for process in range(processes)
    ]
    lines = [child.communicate(timeout=900)[0] for child in children]
    if any(child.returncode for child in children):
        raise SystemExit("a process of the benchmark failed")
    found = json.loads(lines[0].splitlines()[-1])  # Gloo says something before
    return [{**row, "devices": devices * processes, "processes": processes} for row in found]


def measure(say: Any) -> list[dict[str, Any]]:
    """Everything."""
    steps = [
        {"what": "step", "sampler": sampler, "n": n, "width": width}
        for n, width in ONE_DEVICE
        for sampler in ("pcn", "pcnl")
    ]
    reduces = [{"what": "all-reduce", "n": n} for n in (64, 256, 512, 1024)]
    n, width = SHARED
    shared = [
        {"what": "step", "sampler": sampler, "n": n, "width": own}
        for own in (width // 4, width)
        for sampler in ("pcn", "pcnl")
    ]
    plans = [(steps, 1, 1)]
    plans += [(shared + reduces, devices, 1) for devices in DEVICES]
    plans += [(shared + reduces, 1, processes) for processes in PROCESSES]
    rows = []
    for i, (jobs, devices, processes) in enumerate(plans):
        say(f"{i + 1} of {len(plans)}: {len(jobs)} measurements, {devices} devices in each of {processes} processes")
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
    own = [row for row in rows if row["what"] == "step" and row["sampler"] == sampler and row["devices"] == 1]
    sizes = np.array([[r["n"] ** 2 * r["width"], r["n"] * r["width"], r["n"] ** 3, 1.0] for r in own])
    times = np.array([row["seconds"] for row in own])
    compute, _ = nnls(sizes / times[:, None], np.ones(len(own)))
    sent = [r for r in rows if r["what"] == "all-reduce" and (r["processes"] > 1) == (kind == "processes")]
    design = np.array(
        [[r["devices"] - 1, 2 * (r["devices"] - 1) / r["devices"] * 4 * r["n"] ** 2] for r in sent], float
    )
    times = np.array([row["seconds"] for row in sent])
    network, _ = nnls(design / times[:, None], np.ones(len(sent)))
    return Model(*compute, *network)


@dataclass(frozen=True)
class Accelerator:
    """Data-sheet figures, and the part of them that is reached."""

    name: str
    single: float
    """Operations per second in float32 products."""
    double: float
    """The same in float64 factorisations."""
    memory_bandwidth: float
    memory: float
    latency: float
    """Of one all-reduce, per device of a ring of nodes."""
    bandwidth: float
    """Bytes per second of an all-reduce."""

    def model(self) -> Model:
        """A gradient step: two products and their transposes, a dozen passes, a factorisation and an inverse."""
        return Model(
            products=4 * 2 * 0.625 / self.single,
            elements=12 * 4 / self.memory_bandwidth,
            factor=(1 / 3 + 2 / 3) / self.double,
            fixed=1e-4,
            latency=self.latency,
            inverse_bandwidth=1 / self.bandwidth,
        )


ACCELERATORS = {
    8: Accelerator("8 in one machine", 0.6 * 19.5e12, 0.3 * 9.7e12, 1.5e12, 80e9, 3e-6, 2e11),
    256: Accelerator("256 in 32 machines", 0.6 * 19.5e12, 0.3 * 9.7e12, 1.5e12, 80e9, 1e-6, 2e10),
}
COPIES = 8
"""Arrays of the size of a position that a gradient sampler holds: position, gradient, proposal, features, ..."""
SQUARE_BYTES = 4 + 8 + 8 + 4 + 4
"""Per entry of n x n on every device: the kernel in float32 and float64, its factor, and two for the gradient."""


def memory(n: int, width: int, devices: int) -> tuple[float, float]:
    """Bytes on a device: of what is divided, and of what every device holds."""
    return COPIES * 4 * n * width / devices, SQUARE_BYTES * n * n


def predict() -> list[dict[str, Any]]:
    """Time and memory of a gradient step on accelerators."""
    rows = []
    for devices, accelerator in ACCELERATORS.items():
        model = accelerator.model()
        for width in (100_000, 1_000_000):
            for n in (256, 1_000, 10_000, 100_000):
                divided, whole = memory(n, width, devices)
                one = model.compute(n, width, 1)
                total = model.seconds(n, width, devices)
                rows.append(
                    {
                        "devices": devices,
                        "width": width,
                        "n": n,
                        "seconds": total,
                        "replicated": model.replicated(n) / total,
                        "communication": model.communication(n, devices) / total,
                        "speed-up": one / total,
                        "gigabytes": (divided + whole) / 1e9,
                        "fits": divided + whole < accelerator.memory,
                        "fits one": sum(memory(n, width, 1)) < accelerator.memory,
                    }
                )
    return rows


def number(value: float) -> str:
    """Three digits."""
    return f"{value:.3g}" if value < 1e5 else f"{value:.1e}"


def table(header: list[str], rows: list[list[str]]) -> str:
    """As Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]
    return "\n".join(lines)


def predictions_table(rows: list[dict[str, Any]]) -> str:
    """What :func:`predict` says."""
    lines = [
        [
            str(r["devices"]),
            f"{r['width']:.0e}".replace("e+0", "e"),
            str(r["n"]),
            number(1e3 * r["seconds"]),
            f"{r['replicated']:.0%}",
            f"{r['communication']:.0%}",
            number(r["speed-up"]) if r["fits one"] else "does not fit one",
            number(r["gigabytes"]) + ("" if r["fits"] else " (does not fit)"),
        ]
        for r in rows
    ]
    header = ["devices", "width", "n", "ms per step", "replicated", "communication", "speed-up", "GB per device"]
    return table(header, lines)


def page(results: dict[str, Any]) -> str:
    """docs/scaling.md."""
    rows = results["rows"]
    one = {(r["sampler"], r["n"], r["width"]): r for r in rows if r["what"] == "step" and r["devices"] == 1}
    models = {(s, k): fit(rows, s, k) for s in ("pcn", "pcnl") for k in ("forced", "processes")}
    volume: dict[tuple[str, ...], list[str]] = {}
    timing = []
    for row in rows:
        if row["what"] != "step" or row["devices"] == 1:
            continue
        kind = "processes" if row["processes"] > 1 else "forced"
        model = models[row["sampler"], kind]
        # On one device XLA has all cores already: dividing the work gains nothing on this machine.
        expected = model.compute(row["n"], row["width"], 1) + model.communication(row["n"], row["devices"])
        alone = one[row["sampler"], row["n"], row["width"]]["seconds"]
        sent = row["collectives"]
        matrices = [c for c in sent if c["bytes"] >= 1000]
        devices = f"{row['processes']} x {row['devices'] // row['processes']}"
        what = (
            row["sampler"],
            str(row["width"]),
            ", ".join(sorted({c["kind"] for c in sent})),
            ", ".join(sorted({" + ".join(c["arrays"]) for c in matrices})),
            f"{sum(c['bytes'] for c in sent):,}".replace(",", " "),
        )
        volume.setdefault(what, []).append(devices)
        timing.append(
            [
                devices,
                row["sampler"],
                str(row["width"]),
                number(1e3 * row["seconds"]),
                number(1e3 * alone),
                number(row["seconds"] / alone),
                number(row["seconds"] / expected),
            ]
        )
    fitted = [
        [sampler, kind, *(number(value) for value in vars(model).values())] for (sampler, kind), model in models.items()
    ]
    errors = [abs(models[s, "forced"].compute(n, w, 1) / row["seconds"] - 1) for (s, n, w), row in one.items()]
    places = {
        "MACHINE": f"{results['machine']['cores']} cores ({results['machine']['cpu']}), "
        + ", ".join(f"{name} {version}" for name, version in results["packages"].items()),
        "VOLUME": table(
            ["sampler", "width", "operations", "matrices", "bytes per step", "processes x devices"],
            [[*what, ", ".join(devices)] for what, devices in volume.items()],
        ),
        "TIMING": table(
            ["processes x devices", "sampler", "width", "ms per step", "one device", "ratio", "measured / model"],
            timing,
        ),
        "MODEL": table(
            ["sampler", "devices", "products", "elements", "factor", "fixed", "latency", "1 / bandwidth"], fitted
        ),
        "ERROR": f"{np.median(errors):.0%} (median), {np.max(errors):.0%} (largest)",
        "PREDICTIONS": predictions_table(results["predictions"]),
    }
    places["SQUARE"] = f"{SQUARE_BYTES * 1e10 / 1e9:.0f}"
    text = TEXT.read_text()
    for name, value in places.items():
        text = text.replace(f"<!-- {name} -->", value)
    return text


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--page", action="store_true", help="write docs/scaling.md from the results")
    arguments = parser.parse_args()
    if arguments.worker:
        process, processes, port, jobs = json.loads(arguments.worker)
        import jax

        if processes > 1:
            address = f"127.0.0.1:{port}"
            jax.distributed.initialize(address, processes, process, coordinator_bind_address=address)
        found = work(jobs)
        if process == 0:
            print(json.dumps(found))
        return
    if not arguments.page:
        from common import describe_machine, describe_packages

        began = time.perf_counter()
        rows = measure(lambda text: print(text, file=sys.stderr, flush=True))
        results = {
            "machine": describe_machine(),
            "packages": describe_packages(),
            "seconds": round(time.perf_counter() - began),
            "rows": rows,
            "predictions": predict(),
        }
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
