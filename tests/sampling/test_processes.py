"""Processes started after JAX was used: joblib's loky backend starts new ones, where a fork would hang."""

import joblib
import numpy as np
import pytest

import widebnn


def run(seed):
    x = np.linspace(-1, 1, 6)[:, None]
    target = widebnn.posterior(widebnn.dense(1, [8]), x, np.sin(x), noise=0.3)
    return widebnn.sample(target, "pcn", step_size=0.3, steps=20, seed=seed, progress=False).stats["lp"]


@pytest.mark.long
@pytest.mark.ambient
def test_runs_in_processes_of_joblib():
    here = [run(seed) for seed in (0, 1)]
    with joblib.parallel_config(backend="loky", inner_max_num_threads=1):
        there = joblib.Parallel(n_jobs=2)(joblib.delayed(run)(seed) for seed in (0, 1))
    for a, b in zip(here, there, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert not np.allclose(there[0], there[1])
