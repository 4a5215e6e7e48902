"""Sweeps: processes and nodes are lost, jobs fail, and the others continue."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import widebnn
from widebnn.errors import WidebnnError
from widebnn.reproduction.engines import engine_named, local_engine, ray_engine
from widebnn.reproduction.sweeps import ATTEMPTS, path_of, sweep

pytestmark = [pytest.mark.ambient, pytest.mark.xdist_group("sweep")]


def chain(job, store, progress):
    """A job: a chain that is kept often, and may be slow, fail or kill its process once."""
    mean, marker = job["mean"], Path(job.get("marker", ""))

    def slow(value):
        time.sleep(job["seconds"])
        return np.float32(0)

    def log_likelihood(u):
        value = -0.5 * jnp.sum((u - mean) ** 2) / 0.1
        if job.get("seconds"):
            value += jax.pure_callback(slow, jax.ShapeDtypeStruct((), jnp.float32), value)
        return value

    if job.get("fails") == "always":
        raise RuntimeError("the disk is on fire")
    if job.get("fails") == "with a sentence":
        raise WidebnnError("the mean must be a number.")
    if job.get("fails") == "once" and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if job.get("node"):
        with marker.open("a") as file:
            file.write(os.environ.get("NODE_OF_TEST", "?") + "\n")
    target = widebnn.Target(log_likelihood, lambda key: jax.random.normal(key, (2,)))
    result = widebnn.sample(
        target, "pcn", step_size=0.5, steps=job.get("steps", 40), store=store, checkpoint_seconds=0, progress=progress
    )
    if result.interrupted:
        raise KeyboardInterrupt
    return xr.Dataset({"u": (("chain", "draw", "i"), result.draws["u"])})


def jobs(count, **changes):
    return {f"job-{i}": {"mean": float(i), **changes} for i in range(count)}


@pytest.mark.long
def test_failures_are_reported_and_retried_and_the_rest_is_unharmed(tmp_path, capsys):
    work = jobs(5)
    work["job-1"] |= {"fails": "once", "marker": str(tmp_path / "marker")}
    work["job-2"] |= {"fails": "always"}
    work["job-3"] |= {"fails": "with a sentence"}
    with (
        local_engine(2) as engine,
        pytest.warns(UserWarning, match="job-2 failed and is left out: the disk is on fire"),
        pytest.warns(UserWarning, match="job-3 failed and is left out: the mean must be a number"),
    ):
        found = sweep(work, chain, tmp_path, engine)
    assert list(found) == ["job-0", "job-1", "job-4"]
    said = capsys.readouterr().err.splitlines()
    assert sum("job-2 failed (the disk is on fire) and is retried" in line for line in said) == ATTEMPTS - 1
    assert any("job-1 failed" in line and "is retried" in line for line in said)
    assert not any("job-3 failed" in line for line in said)
    assert sorted(path.name for path in (tmp_path / "cells").glob("*.nc")) == [f"job-{i}.nc" for i in (0, 1, 4)]
    times = {name: path_of(tmp_path, name).stat().st_mtime_ns for name in found}
    work |= {"job-2": {"mean": 2.0}, "job-3": {"mean": 3.0}, "job-4": {"mean": -4.0}}
    with local_engine(1) as engine:
        again = sweep(work, chain, tmp_path, engine)
    assert list(again) == list(work) and capsys.readouterr().err.startswith("2 of 5 cells are finished already.\n")
    for name in ("job-0", "job-1"):
        xr.testing.assert_identical(again[name], found[name])
        assert path_of(tmp_path, name).stat().st_mtime_ns == times[name]
    assert not again["job-4"].equals(found["job-4"]), "another job under the same name is not taken"


SCRIPT = """
import sys, json
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_sweep import chain
from widebnn.reproduction import local_engine, sweep
if __name__ == "__main__":
    with local_engine(2) as engine:
        sweep(json.loads({work!r}), chain, Path({folder!r}), engine, progress=False)
"""


@pytest.mark.long
def test_ctrl_c_keeps_the_chains_and_the_sweep_goes_on(tmp_path):
    work = jobs(3, steps=300, seconds=0.02)
    script = tmp_path / "script.py"
    tests = str(Path(__file__).parent)
    script.write_text(SCRIPT.format(tests=tests, work=json.dumps(work), folder=str(tmp_path / "sweep")))
    child = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    runs = tmp_path / "sweep" / "cells"
    deadline = time.monotonic() + 60
    while len(list(runs.glob("job-*.run/draws-*"))) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, stderr = child.communicate(timeout=60)
    assert child.returncode != 0 and "KeyboardInterrupt" in stderr
    kept = list(runs.glob("job-*.run/draws-*"))
    assert kept and len(list(runs.glob("*.nc"))) < 3
    with local_engine(2) as engine:
        found = sweep(work, chain, tmp_path / "sweep", engine, progress=False)
    with local_engine(2) as engine:
        whole = sweep(work, chain, tmp_path / "whole", engine, progress=False)
    for name in work:
        xr.testing.assert_identical(found[name], whole[name])
    assert not list(runs.glob("*.run")) and not list(runs.glob("*.progress"))


def test_engines_that_do_not_fit_are_refused():
    with pytest.raises(WidebnnError, match=r"an address .x:1. is for the engine 'ray'"):
        engine_named("local", address="x:1")
    with pytest.raises(WidebnnError, match="workers are for the local engine"):
        engine_named("ray", workers=2)
    with pytest.raises(WidebnnError, match="workers must be at least 1"), local_engine(0):
        pass
    for address in ("127.0.0.1:1", "127.0.0.1:99999999"):
        with pytest.raises(WidebnnError, match=f"there is no Ray cluster at {address}"), ray_engine(address):
            pass


def test_a_result_that_cannot_be_written_ends_the_sweep_at_once(tmp_path):
    (tmp_path / "cells" / "job-0.nc").mkdir(parents=True)
    work = jobs(2)
    work["job-1"] |= {"steps": 100_000, "seconds": 0.02}
    began = time.monotonic()
    with pytest.raises(WidebnnError, match=r"job-0\.nc cannot be written"), local_engine(2) as engine:
        sweep(work, chain, tmp_path, engine, progress=False)
    assert time.monotonic() - began < 120, "the other job takes half an hour"


@pytest.fixture
def cluster(monkeypatch):
    """A Ray cluster of two nodes on this machine, each with one core, and the second node."""
    # Ray takes the address of the machine for 127.0.0.1 unless it believes that there are no clusters here.
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    from ray._private import ray_constants
    from ray.cluster_utils import Cluster

    # For this process, where it may be imported already.
    monkeypatch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)
    settings = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 10**8}
    monkeypatch.setenv("NODE_OF_TEST", "first")
    cluster = Cluster(initialize_head=True, head_node_args={**settings, "include_dashboard": False})
    monkeypatch.setenv("NODE_OF_TEST", "second")
    yield cluster, cluster.add_node(**settings)
    cluster.shutdown()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:os.fork", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_node_is_lost_in_the_middle_of_a_sweep(cluster, tmp_path):
    cluster, second = cluster
    assert cluster.address.startswith("127.0.0.1:")
    work = jobs(4, steps=250, seconds=0.02, node=True, marker=str(tmp_path / "nodes"))
    work["job-3"] |= {"fails": "with a sentence"}
    runs = tmp_path / "sweep" / "cells"
    lost = []

    def watch():
        marker = tmp_path / "nodes"
        while not (marker.exists() and set(marker.read_text().split()) == {"first", "second"}):
            time.sleep(0.05)
        while len(list(runs.glob("job-*.run/draws-*"))) < 4:
            time.sleep(0.05)
        cluster.remove_node(second, allow_graceful=False)
        lost.append(len(list(runs.glob("*.nc"))))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    with (
        ray_engine(cluster.address) as engine,
        pytest.warns(UserWarning, match="job-3 failed and is left out: the mean must be a number"),
    ):
        found = sweep(work, chain, tmp_path / "sweep", engine, progress=False)
    assert lost and lost[0] < 3, "the node must go while jobs run"
    assert len((tmp_path / "nodes").read_text().split()) > 3, "a job that was on it runs again"
    del work["job-3"]
    with local_engine(2) as engine:
        whole = sweep(work, chain, tmp_path / "whole", engine, progress=False)
    assert list(found) == list(whole)
    for name in whole:
        np.testing.assert_array_equal(found[name]["u"], whole[name]["u"])
