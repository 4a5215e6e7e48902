"""One process of a run over several devices or processes: a script of test_placement.py.

python many_devices.py WHAT PROCESS PROCESSES DEVICES PORT FOLDER
"""

import importlib
import itertools
import json
import os
import sys
from pathlib import Path

WHAT, PROCESS, PROCESSES, DEVICES, PORT, FOLDER = sys.argv[1], *map(int, sys.argv[2:6]), Path(sys.argv[6])
os.environ.setdefault("NPROC", "8")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import widebnn
from widebnn.compilation import compile_quickly
from widebnn.errors import WidebnnError
from widebnn.precision import double_precision
from widebnn.sampling import trace

CHAINS, INPUTS = 4, 12
JOBS = {"pcn, one layer": ("pcn", 1, "float32"), "hilbert_hmc, two layers": ("hilbert_hmc", 2, "float64")}
RUNS = {
    ("pcn, one layer", 1): (1, 4),
    ("hilbert_hmc, two layers", 1): (2,),
    ("hilbert_hmc, two layers", 2): (1,),
    ("pcn, one layer", 4): (2,),
}
"""Rows of the mesh, by job and number of processes: every program is compiled by every process."""
SETTINGS = {"steps": 40, "burn_in": 20, "step_size": 0.3, "chains": CHAINS, "seed": 1, "progress": False}


def network_target(depth=1, width=64, **options):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(INPUTS, 5)), rng.normal(size=(INPUTS, 2))
    return widebnn.posterior(widebnn.dense(5, [width] * depth), x, y, noise=0.3, **options)


def draw(name, rows):
    """What a run gives, by the number of rows of the mesh; 0: without one."""
    sampler, depth, dtype = JOBS[name]
    mesh = widebnn.device_mesh(rows) if rows else None
    result = widebnn.sample(network_target(depth, dtype=dtype), sampler, mesh=mesh, **SETTINGS)
    if PROCESS == 0:
        np.savez(FOLDER / f"{name}, {rows}.npz", **result.stats, **{f"draw {k}": v for k, v in result.draws.items()})


def refusals():
    """Sentences on meshes that do not fit."""
    devices = np.array(jax.devices())
    wrong = {
        "axes": (network_target(), Mesh(devices, ("batch",)), 4),
        "chains": (network_target(), widebnn.device_mesh(4), 6),
        "units": (network_target(width=60), widebnn.device_mesh(1), 4),
        "coordinates": (network_target(coordinates="weights"), widebnn.device_mesh(1), 4),
    }
    said = {}
    for name, (target, mesh, chains) in wrong.items():
        try:
            widebnn.sample(target, "pcn", steps=2, chains=chains, mesh=mesh, step_size=0.1)
        except WidebnnError as error:
            said[name] = str(error)
    try:
        widebnn.device_mesh(3, 3)
    except WidebnnError as error:
        said["too many"] = str(error)
    (FOLDER / "refusals.json").write_text(json.dumps(said))


def other_targets():
    """What is divided by chains alone, and targets with more coordinates, against no mesh."""
    plain = widebnn.Target(
        log_likelihood=lambda u: -0.5 * jnp.sum((u["a"] - 1.0) ** 2) / 0.3**2,
        sample_reference=lambda key: {"a": jax.random.normal(key, (3,))},
    )
    unknown = network_target(carry=np.ones((2, 5)), coordinates="function")
    wide = widebnn.posterior(
        widebnn.dense(5, [64]), unknown.x, unknown.y, noise=widebnn.LogNormal(0.3), coordinates="function"
    )
    classes = widebnn.posterior(widebnn.dense(5, [64]), unknown.x, np.arange(INPUTS) % 3, likelihood="softmax")
    cases = {
        "carried": (unknown, widebnn.device_mesh(2, 4), widebnn.track(unknown)),
        "plain": (plain, widebnn.device_mesh(4, 1), None),
        "unknown noise": (wide, widebnn.device_mesh(2, 4), widebnn.track(wide, np.ones((2, 5)))),
        "softmax": (classes, widebnn.device_mesh(2, 4), None),
    }
    for name, (target, mesh, collect) in itertools.islice(cases.items(), 1 if WHAT == "few" else None):
        results = [widebnn.sample(target, "pcn", mesh=each, collect=collect, **SETTINGS) for each in (mesh, None)]
        for which, result in zip(("mesh", "none"), results, strict=True):
            np.savez(FOLDER / f"{name}, {which}.npz", **result.draws, **result.stats)


def communication():
    """What the compiled programs of a step send."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
    from scaling import collectives, compiled_steps

    sent = {}
    with double_precision():
        for sampler, depth in (("pcn", 1), *([("pcnl", 1), ("pcnl", 2)] if WHAT == "others" else [])):
            program, _, _ = compiled_steps(sampler, INPUTS, 64, depth)
            sent[f"{sampler} {depth}"] = collectives(program.as_text())
    (FOLDER / "communication.json").write_text(json.dumps(sent))


def stored():
    """A run that is kept in a folder."""
    if WHAT == "slowly":
        loop = importlib.import_module("widebnn.sampling.sample")
        loop.CHUNK_SECONDS, trace.CHECKPOINT_SHARE = 0.02, float("inf")
    target = network_target()
    try:
        result = widebnn.sample(
            target,
            "pcn",
            **SETTINGS | {"steps": 480 if WHAT == "longer" else 240},
            mesh=widebnn.device_mesh(),
            collect=widebnn.track(target, np.ones((2, 5))),
            store=FOLDER / "store",
            checkpoint_seconds=0,
        )
    except WidebnnError as error:
        print(error, flush=True)
        # The runtime waits for the lost process for a minute, and ends in a trace of the stack.
        os._exit(2)
    if PROCESS == 0:
        np.savez(FOLDER / f"{WHAT}.npz", **result.stats, **result.draws)


if __name__ == "__main__":
    os.environ.pop("XLA_FLAGS", None)
    compile_quickly()
    os.environ["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={DEVICES}"
    if PROCESSES > 1:
        address = f"127.0.0.1:{PORT}"
        jax.distributed.initialize(address, PROCESSES, PROCESS, coordinator_bind_address=address)
    if WHAT == "draws":
        for name in JOBS:
            if (name, PROCESSES) in RUNS:
                for rows in RUNS[name, PROCESSES] if PROCESSES * DEVICES > 1 else (0,):
                    draw(name, rows)
    elif WHAT in ("few", "others"):
        refusals()
        other_targets()
        communication()
    else:
        stored()
