"""The same seed gives the same bits.

A small posterior is sampled as a base, then with one thing changed: the size of compiled chunks, checkpoints,
interruptions by Ctrl-C, thinning, the number of chains and of steps, other work in another thread, JAX's settings of
the caller. The steps and chains in common must be the same bit for bit, for every sampler and for other coordinates and
likelihoods. Then one seed is run in fresh processes with other hash seeds, threads and cores: digests must agree for
each number of cores (XLA divides sums among them). Other machines and versions of JAX, where rounding may differ, are
not covered.
"""

import concurrent.futures
import os
import signal
import subprocess
import sys
import warnings

import jax
import numpy as np
import pytest
from trial import Watched, clock, size

import widebnn
from widebnn.samplers import SAMPLERS

pytestmark = [pytest.mark.long, pytest.mark.ambient, pytest.mark.xdist_group("invariance")]
SETTINGS = {"steps": 30, "burn_in": 12, "chains": 2, "seed": 3, "progress": False}
FIXED = {name: {} if name == "elliptical_slice" else {"step_size": 0.2} for name in SAMPLERS}
CASES = {name: (name, options, {}) for name, options in FIXED.items()}
CASES |= {f"{name}, tuned": (name, {}, {}) for name in ("auto", "pcn")}
CASES |= {
    f"{sampler}, {name}": (sampler, FIXED[sampler], {"coordinates": name})
    for sampler in ("pcn", "hilbert_hmc")
    for name in ("weights", "reparametrised", "marginal", "full")
}
CASES |= {
    "softmax": ("auto", {}, {"likelihood": "softmax"}),
    "unknown noise": ("auto", {}, {"noise": widebnn.LogNormal(0.2)}),
    "a noise for every row": ("auto", {}, {"likelihood": widebnn.HeavyTails(0.2)}),
    "float64": ("auto", {}, {"dtype": "float64"}),
    "mixed precision": ("auto", {}, {"dtype": "mixed"}),
}
MODERATE = ("pcn", "auto, tuned", "pcn, full", "softmax")
OVER_STEPS = ("acceptance_rate", "accepted", "nonfinite", "gradients")
"""Statistics over the steps since the draw before: others with thinning."""


def draw(case, **settings):
    """A run that keeps positions and predictions."""
    sampler, own, options = CASES[case]
    x = np.random.default_rng(0).normal(size=(10, 16 if options.get("coordinates") == "full" else 3))
    softmax = "likelihood" in options
    y = (x[:, 0] > 0) + (x[:, 1] > 0) if softmax else np.sin(2 * x[:, :1])
    options = options if softmax else {"noise": 0.2} | options
    target = widebnn.posterior(widebnn.dense(x.shape[1], [16], "erf"), x, y, **options)
    predictions = widebnn.track(target, x[:2] + 0.1, projections=5)

    def collect(key, u):
        return {f"u{i}": leaf for i, leaf in enumerate(jax.tree.leaves(u))} | predictions(key, u)

    return widebnn.sample(target, sampler, **SETTINGS | own | {"collect": collect} | settings)


def chunked(case, chunk, stop=None, **settings):
    """In chunks of so many steps; with Ctrl-C after some of them."""
    watched = Watched(lambda w: os.kill(os.getpid(), signal.SIGINT) if len(w.chunks) == stop else None)
    with clock(watched, chunk), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="interrupted")
        result = draw(case, progress=watched, **settings)
    assert result.interrupted == (stop is not None) and max(watched.chunks) <= max(chunk, 10)
    return result


def beside_other_work(case):
    """In a thread, beside another run and LAPACK."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(draw, case)
        draw(case, seed=11)
        while not future.done():
            np.linalg.eigh(np.eye(200))
        return future.result()


def changed(case, folder):
    """A name and a run for everything that is changed."""
    for chunk in (1, 5):
        yield f"chunks of {chunk}", chunked(case, chunk)
    yield "checkpoints", chunked(case, 3, store=folder / "whole", checkpoint_seconds=0.0)
    for stop in (2, 5, None):
        result = chunked(case, 4, stop, store=folder / "interrupted", checkpoint_seconds=0.0)
    yield "Ctrl-C and resuming", result
    for settings in ({"thin": 3}, {"chains": 1}, {"chains": 5}, {"steps": 20}, {"steps": 45}):
        yield str(settings), draw(case, **settings)
    yield "another thread", beside_other_work(case)
    for name, context in {"x64": jax.enable_x64(True), "matmul": jax.default_matmul_precision("bfloat16")}.items():
        with context:
            yield name, draw(case)


def differences(base, other):
    """Arrays of common chains and steps that are not the same."""
    common, found = min(base.chains, other.chains), []
    for name, ours in {**base.draws, **base.stats}.items():
        if other.thin == 1 or name not in OVER_STEPS:
            theirs, ours = {**other.draws, **other.stats}[name][:common], ours[:common, other.thin - 1 :: other.thin]
            length = min(ours.shape[1], theirs.shape[1])
            found += [name] * (length == 0 or ours[:, :length].tobytes() != theirs[:, :length].tobytes())
    if base.steps == other.steps:
        lasts = zip(jax.tree.leaves(base.last), jax.tree.leaves(other.last), strict=True)
        found += ["last"] * any(a[:common].tobytes() != b[:common].tobytes() for a, b in lasts)
    return found


@pytest.mark.parametrize("case", [name for name in CASES if size(name in MODERATE, True)])
def test_nothing_changes_a_chain(case, tmp_path, record):
    base = draw(case)
    found = {name: differences(base, other) for name, other in changed(case, tmp_path)}
    different = {name: names[:3] for name, names in found.items() if names}
    record(f"{case}: runs that differ, of {len(found)} changes", different or 0, "0", not different)


def test_a_bit_is_a_difference():
    base, other = draw("pcn"), draw("pcn")
    assert differences(base, other) == []
    other.draws["u0"].flat[7] = np.nextafter(other.draws["u0"].flat[7], np.float32(9))
    assert differences(base, other) == ["u0"]


PROGRAM = """
import os
os.sched_setaffinity(0, {cores})
import numpy as np, widebnn
from trial import digest
x = np.random.default_rng(0).normal(size=(600, 20))
small = widebnn.posterior(widebnn.dense(20, [256], "erf"), x[:128], np.sin(x[:128, :2]), noise=0.2)
for _ in range({runs}):
    print("run", digest(widebnn.sample(small, steps=10, burn_in=10, chains=2, progress=False)))
wide = widebnn.posterior(widebnn.dense(20, [2048], "relu"), x, np.sin(x[:, :1]), noise=0.3, coordinates="weights")
print("wide run", digest(widebnn.sample(wide, "mala", step_size=0.02, steps=10, progress=False)))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_fresh_processes_agree(record):
    cores, processes, found = sorted(os.sched_getaffinity(0)), size(4, 20), {}
    for i in range(processes):
        chosen = cores[:1] if i // 2 % 2 else cores
        path = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
        environment = {"PYTHONHASHSEED": str(i), "OPENBLAS_NUM_THREADS": str(1 + i % 2), "PYTHONPATH": path}
        command = [sys.executable, "-c", PROGRAM.format(cores=chosen, runs=size(2, 5))]
        text = subprocess.check_output(command, text=True, env=os.environ | environment)
        for what, value in (line.rsplit(" ", 1) for line in text.splitlines()):
            found.setdefault(f"{what} on {len(chosen)} cores", []).append(value)
    figure = ", ".join(f"{what}: {len(set(values))} of {len(values)}" for what, values in sorted(found.items()))
    right = all(len(set(values)) == 1 for values in found.values()) and len(found) == 2 * len({1, len(cores)})
    record(f"one seed in {processes} processes: different digests", figure, "1 each", right)
