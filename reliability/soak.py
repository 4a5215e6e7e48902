"""A million steps: no growth of memory, cheap checkpoints, no drift.

Each sampler takes a million steps on a small network posterior, kept on disk with a checkpoint every second, in a
process of its own. Resident memory is read whenever the progress display is told of new steps, and its growth is from
the first tenth of the run, when all programs and buffers are there, to the largest value after it. The cost of
checkpoints is the time spent in writing them, with the syncing of the disk, over the time of the whole run. At every
such moment the log-likelihood that the chain carries is compared with the one computed anew from its position. glibc's
allocator is given one arena (MALLOC_ARENA_MAX=1): with its default of several per thread, resident memory of any
program with threads wanders for a minute before it settles.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
import numpy as np
import psutil

import widebnn
from page import Page, main
from widebnn.precision import double_precision, one_blas_thread
from widebnn.sampling import driver

STEPS = 1_000_000
SAMPLERS: dict[str, dict[str, Any]] = {
    "pcn": {"step_size": 0.2},
    "pcnl": {"step_size": 0.2},
    "hilbert_hmc": {"step_size": 0.5, "num_steps": 2},
}
GROWTH, SHARE, DRIFT = 0.01, 0.02, 1e-3


def soak(sampler: str, steps: int) -> dict[str, float]:
    """One run in this process, watched."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, 4)), rng.normal(size=(16, 1))
    target = widebnn.posterior(widebnn.dense(4, [32]), x, y, noise=0.3)
    process, memory, drift, writing = psutil.Process(), [], [0.0], [0.0]
    with double_precision():
        log_likelihood = jax.jit(target.log_likelihood)
    runs: list[Any] = []

    class Watching(driver.Progress):
        def update(self, phase: str, count: int, acceptance: float) -> None:
            memory.append(process.memory_info().rss)
            with double_precision(), one_blas_thread():
                for state in runs[0].states:
                    difference = float(state.log_likelihood) - float(log_likelihood(state.position))
                    drift[0] = max(drift[0], abs(difference))

    class Run(driver._Run):
        def start(self, initial: Any) -> None:
            super().start(initial)
            runs.append(self)

        def checkpoint(self) -> None:
            began = time.perf_counter()
            super().checkpoint()
            writing[0] += time.perf_counter() - began

    driver.Progress, driver._Run = Watching, Run  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        result = widebnn.sample(
            target,
            sampler,
            steps=steps,
            burn_in=1000,
            thin=max(1, steps // 1000),
            chains=2,
            store=folder,
            checkpoint_seconds=1.0,
            **SAMPLERS[sampler],
        )
        seconds = time.perf_counter() - began - runs[0].compile_seconds
        files = [path.stat().st_size for path in os.scandir(folder)]
    settled = memory[len(memory) // 10]
    return {
        "steps": result.steps,
        "seconds": seconds,
        "memory": settled / 1e6,
        "growth": max(memory[len(memory) // 10 :]) / settled - 1,
        "checkpoints": writing[0] / seconds,
        "drift": drift[0],
        "acceptance": result.acceptance_rate,
        "megabytes": sum(files) / 1e6,
    }


def run(page: Page) -> None:
    """Every sampler of the list, each in a new process."""
    steps = page.count(STEPS)
    for i, sampler in enumerate(SAMPLERS):
        page.progress("samplers", i, len(SAMPLERS))
        command = [sys.executable, __file__, "--one", sampler, str(steps)]
        environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
        found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True, env=environment).stdout)
        about = f"{sampler}, {found['steps']:.0f} steps of two chains in {found['seconds']:.0f} s"
        page.check(
            f"{about}: growth of {found['memory']:.0f} MB of resident memory",
            f"{100 * found['growth']:.2f} %",
            "below 1 %",
            found["growth"] < GROWTH,
        )
        page.check(
            f"{sampler}: time spent in checkpoints", f"{100 * found['checkpoints']:.2f} %", "below 2 %",
            found["checkpoints"] < SHARE,
        )  # fmt: skip
        page.check(
            f"{sampler}: largest difference of the log-likelihood from its value computed anew",
            f"{found['drift']:.1e}",
            "below 1e-3",
            found["drift"] < DRIFT,
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(soak(sys.argv[2], int(sys.argv[3]))))
    else:
        main(__file__, run)
