"""A million steps: memory does not grow, checkpoints are cheap, nothing drifts.

A small posterior is sampled in a process of its own, stored with a checkpoint every second. Growth of resident memory
is from the first tenth of the run, when all programs and buffers are there, to the largest value after it. The cost of
checkpoints is the time in ``os.fsync``. The log-likelihood that the chain carries is compared with the one computed
again from the position of each draw.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import psutil
import pytest
from trial import Watched, size

import widebnn

pytestmark = [pytest.mark.long, pytest.mark.ambient, pytest.mark.xdist_group("soak")]
OPTIONS = {"pcn": {"step_size": 0.2}, "pcnl": {"step_size": 0.2}, "hilbert_hmc": {"step_size": 0.5, "num_steps": 2}}


def soak(sampler, steps):
    """One run in this process, watched: memory at the end of each chunk, share of time in fsync, drift."""
    x = np.random.default_rng(0).normal(size=(16, 4))
    target = widebnn.posterior(widebnn.dense(4, [32]), x, np.sin(x[:, :1]), noise=0.3)
    memory, syncing, real = [], [], os.fsync

    def fsync(descriptor):
        began = time.perf_counter()
        real(descriptor)
        syncing.append(time.perf_counter() - began)

    os.fsync = fsync
    watched = Watched(lambda _: memory.append(psutil.Process().memory_info().rss))
    with tempfile.TemporaryDirectory() as folder:
        result = widebnn.sample(
            target, sampler, steps=steps, burn_in=1000, thin=steps // 1000, chains=2, store=folder, progress=watched,
            checkpoint_seconds=1.0, collect=lambda key, u: {"again": target.log_likelihood(u)}, **OPTIONS[sampler],
        )  # fmt: skip
    drift = np.abs(result.draws["again"] - result.stats["lp"]).max()
    return memory, sum(syncing) / result.seconds, float(drift)


@pytest.mark.parametrize("sampler", OPTIONS)
def test_a_long_run_neither_grows_nor_drifts(sampler, record):
    steps = size(100_000, 1_000_000)
    # With several arenas per thread the memory of any program with threads wanders for a minute before it settles.
    environment = os.environ | {"MALLOC_ARENA_MAX": "1"}
    memory, syncing, drift = json.loads(
        subprocess.check_output([sys.executable, __file__, sampler, str(steps)], text=True, env=environment)
    )
    settled = memory[len(memory) // 10 :]
    growth = max(settled) / settled[0] - 1
    what = f"{sampler}, {steps} steps of two chains: growth of memory; time in fsync; drift of the log-likelihood"
    figure, goal = f"{growth:.2%} of {settled[0] / 1e6:.0f} MB; {syncing:.2%}; {drift:.0e}", "below 1 %; 2 %; 1e-3"
    record(what, figure, goal, len(memory) >= 10 and growth < 0.01 and syncing < 0.02 and drift < 1e-3)


if __name__ == "__main__":
    print(json.dumps(soak(sys.argv[1], int(sys.argv[2]))))
