"""sample(store=...): the same bits however often a run is stopped, and a refusal of what does not fit."""

import dataclasses
import os
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trial import Child

import widebnn
from killing import Killed, kill_after, save_often
from widebnn.errors import DamageWarning, WidebnnError
from widebnn.runs.folder import open_run
from widebnn.sampling import manifest

pytestmark = pytest.mark.ambient
TARGET = widebnn.Target(
    log_likelihood=lambda u: -0.5 * jnp.sum((u["a"] - 1.0) ** 2) / 0.3**2,
    sample_reference=lambda key: {"a": jax.random.normal(key, (3,))},
)
SETTINGS = {"steps": 400, "burn_in": 60, "thin": 4, "chains": 2, "seed": 3}


def run(target=TARGET, sampler="pcn", **options):
    return widebnn.sample(target, sampler, **{**SETTINGS, "progress": False, **options})


@pytest.fixture
def many_chunks(monkeypatch):
    save_often(monkeypatch)


def same(a, b):
    for x, y in zip(
        jax.tree.leaves((a.stats, a.draws, a.last)), jax.tree.leaves((b.stats, b.draws, b.last)), strict=True
    ):
        np.testing.assert_array_equal(x, y)
    assert a.burn_in_acceptance_rate == pytest.approx(b.burn_in_acceptance_rate, rel=1e-12)
    assert a.steps == b.steps


@pytest.mark.some(1)
@pytest.mark.parametrize("sampler", ["hilbert_hmc", "pcn", "underdamped"])
def test_stopped_anywhere_it_ends_with_the_same_bits(tmp_path, many_chunks, monkeypatch, sampler):
    options = {"step_size": 0.1} if sampler == "underdamped" else {}
    whole = run(sampler=sampler, **options)
    for updates in (1, 7, 19):
        kill_after(monkeypatch, updates)
        try:
            run(sampler=sampler, store=tmp_path / "run", checkpoint_seconds=0, **options)
        except Killed:
            continue
        break
    kill_after(monkeypatch, None)
    same(run(sampler=sampler, store=tmp_path / "run", **options), whole)
    same(run(sampler=sampler, store=tmp_path / "run", **options), whole)  # a finished one is only read


def test_more_steps_extend_a_run(tmp_path):
    run(steps=200, store=tmp_path)
    same(run(store=tmp_path), run())
    with pytest.raises(WidebnnError, match="has 100 draws per chain already"):
        run(steps=200, store=tmp_path)


def test_a_collected_array_may_have_the_name_of_a_statistic(tmp_path):
    short = {"sampler": "pcn", "steps": 40, "collect": lambda key, u: {"lp": u["a"], "header": u["a"][0]}}
    whole = run(**short)
    run(store=tmp_path, **short | {"steps": 20})
    same(run(store=tmp_path, **short), whole)


def test_draws_are_stored_once(tmp_path, many_chunks):
    run(store=tmp_path, checkpoint_seconds=0)
    chunks = list(tmp_path.glob("draws-*"))
    per_draw = 2 * (3 * 4 + 3 * 8 + 2 * 8)
    assert len(chunks) > 10 and sum(path.stat().st_size for path in chunks) < 100 * per_draw + 2500 * len(chunks)


def test_a_corrupted_run_ends_with_the_same_bits(tmp_path, many_chunks):
    whole = run()
    run(store=tmp_path, checkpoint_seconds=0)
    chunks = sorted(tmp_path.glob("draws-*"))
    path = chunks[len(chunks) // 2]
    path.write_bytes(path.read_bytes().replace(b"NUMPY", b"NUMPI", 1))
    with pytest.warns(DamageWarning, match="checksum of draws-.* resuming from draw"):
        same(run(store=tmp_path), whole)


def test_draws_after_the_last_checkpoint_are_not_counted(tmp_path):
    """They are found, but the run that resumes is out of time before it has made them again."""
    bad = widebnn.Target(
        lambda u: jnp.where(u > 0, jnp.nan, 0.0).sum(), lambda key: -jnp.abs(jax.random.normal(key, (1,)))
    )
    options = {"sampler": "pcn", "step_size": 0.5, "burn_in": 0, "thin": 1, "chains": 1, "store": tmp_path}
    with pytest.warns(UserWarning, match="proposals"):
        run(bad, max_seconds=0, **options)
        first = {path.name: path.read_bytes() for path in tmp_path.glob("checkpoint-*")}
        run(bad, **options)
    for path in tmp_path.glob("checkpoint-*"):
        if path.name not in first:
            path.unlink()
    with pytest.warns(UserWarning, match=r"\d of 10 proposals"):
        assert run(bad, max_seconds=0, **options).steps == 10


def test_other_data_settings_and_versions_are_refused(tmp_path, monkeypatch):
    run(store=tmp_path)
    moved = dataclasses.replace(TARGET, log_likelihood=lambda u: -0.5 * jnp.sum((u["a"] - 1.1) ** 2) / 0.3**2)
    with pytest.raises(WidebnnError, match=r"of the log-likelihood at the start; .* same data, test inputs, collect"):
        run(moved, store=tmp_path)
    with pytest.raises(WidebnnError, match=r"was begun with seed 3 .now 4."):
        run(store=tmp_path, seed=4)
    with pytest.raises(WidebnnError, match=r"sampler pcn .now pcnl."):
        run(sampler="pcnl", store=tmp_path)
    with open_run(tmp_path, {}) as stored:
        found = stored.newest.header["manifest"]
    assert found["seed"] == 3 and found["version of jax"] == jax.__version__
    monkeypatch.setattr(manifest.importlib.metadata, "version", lambda name: "0.0")
    with pytest.raises(WidebnnError, match=r"version of widebnn .* .now 0.0."):
        run(store=tmp_path)


@pytest.mark.long
def test_another_number_of_cores_may_change_rounding_only(tmp_path, monkeypatch):
    """Sums are divided among cores: what is computed at the start may have other last bits, no more than that."""

    def again(likelihood, collected, of_one_row=0.0):
        target = dataclasses.replace(TARGET, log_likelihood=lambda u: TARGET.log_likelihood(u) + likelihood)

        def collect(key, u):
            many = jnp.full(999, 3.0).at[700].add(of_one_row) + collected
            return {"a": u["a"] + collected, "nothing": u["a"][:0], "many": many}

        return run(target, "pcn", store=tmp_path, collect=collect)

    other_start, other_values = "other values of the log-likelihood at", "other values of a, many at the start"
    again(0.0, 0.0)
    for changes, message in {(1e-9, 0.0): other_start, (0.0, 1e-4): other_values}.items():
        with pytest.raises(WidebnnError, match=message):
            again(*changes)
    monkeypatch.setattr(manifest, "cores", lambda: 64)
    again(1e-9, 1e-4)  # and its last checkpoint says 64
    monkeypatch.setattr(manifest, "cores", lambda: 128)
    refused = {(1.0, 0.0): other_start, (0.0, 1.0): other_values, (0.0, 0.0, 3.0): "other values of many at the start"}
    for changes, message in refused.items():
        with pytest.raises(WidebnnError, match=message):
            again(*changes)


def test_a_full_disk_is_named_and_loses_nothing(tmp_path, many_chunks, monkeypatch):
    whole = run()
    real, calls = os.fsync, [0]

    def full(descriptor):
        calls[0] += 1
        if calls[0] > 12:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WidebnnError, match=r"cannot be written .No space left .*safe up to its last checkpoint"):
        run(store=tmp_path, checkpoint_seconds=0)
    monkeypatch.setattr(os, "fsync", real)
    assert not list(tmp_path.glob(".*"))
    same(run(store=tmp_path), whole)


def test_what_cannot_be_read_now_is_not_removed(tmp_path, many_chunks, monkeypatch):
    whole = run()
    run(store=tmp_path, steps=200, checkpoint_seconds=0)
    before = {path: path.stat().st_ino for path in tmp_path.iterdir()}
    real, bad = Path.read_bytes, sorted(tmp_path.glob("draws-*"))[3]

    def read_bytes(path):
        if path == bad:
            raise OSError(5, "Input/output error", str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with pytest.raises(WidebnnError, match=rf"{bad.name} cannot be read .Input/output error.*or remove that file"):
        run(store=tmp_path)
    assert {path: path.stat().st_ino for path in tmp_path.iterdir()} == before
    monkeypatch.setattr(Path, "read_bytes", real)
    same(run(store=tmp_path), whole)


@pytest.mark.some(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_save_what_is_there(tmp_path, number):
    """A real process: its draws are on disk when it ends."""
    settings = {"steps": 10**8, "burn_in": 0, "thin": 1000, "step_size": 0.2, "real_time": True}
    child = Child(tmp_path / "cache", folder=tmp_path / "run", **settings)
    child.wait(1)
    assert child.end(number) == (-signal.SIGTERM if number == signal.SIGTERM else 0)
    assert list((tmp_path / "run").glob("draws-*")) and list((tmp_path / "run").glob("checkpoint-*"))
