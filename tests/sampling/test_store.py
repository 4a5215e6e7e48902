"""Runs on disk: the same bits however often they are stopped, damage found and mended, what does not fit refused."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widebnn
from widebnn.errors import DamageWarning, WidebnnError
from widebnn.sampling import driver
from widebnn.sampling.store import Checkpoint, fingerprint, open_store, read_manifest

pytestmark = pytest.mark.ambient
TARGET = widebnn.Target(
    log_likelihood=lambda u: -0.5 * jnp.sum((u["a"] - 1.0) ** 2) / 0.3**2,
    sample_reference=lambda key: {"a": jax.random.normal(key, (3,))},
)
SETTINGS = {"steps": 400, "burn_in": 60, "thin": 4, "chains": 2, "seed": 3}


def run(target=TARGET, sampler="hilbert_hmc", **options):
    return widebnn.sample(target, sampler, **{**SETTINGS, "progress": False, **options})


class Killed(BaseException):
    """Ends a run without any clean-up of its own."""


@pytest.fixture
def many_chunks(monkeypatch):
    monkeypatch.setattr(driver, "CHUNK_SECONDS", 1e-4)
    monkeypatch.setattr(driver, "CHECKPOINT_SHARE", float("inf"))


@pytest.fixture
def stop_after(monkeypatch):
    """Make the next run end abruptly after so many updates of its progress."""

    def stop(updates):
        left = [updates]

        class Stopping(driver.Progress):
            def update(self, phase, steps, acceptance):
                left[0] -= 1
                if left[0] == 0:
                    raise Killed

        monkeypatch.setattr(driver, "Progress", Stopping)

    return stop


def same(a, b):
    for name in a.stats:
        np.testing.assert_array_equal(a.stats[name], b.stats[name])
    for name in a.draws:
        np.testing.assert_array_equal(a.draws[name], b.draws[name])
    for x, y in zip(jax.tree.leaves(a.last), jax.tree.leaves(b.last), strict=True):
        np.testing.assert_array_equal(x, y)
    assert a.burn_in_acceptance_rate == pytest.approx(b.burn_in_acceptance_rate, rel=1e-12)
    assert a.steps == b.steps


@pytest.mark.parametrize("sampler", ["hilbert_hmc", "pcn", "underdamped"])
def test_stopped_anywhere_it_ends_with_the_same_bits(tmp_path, many_chunks, stop_after, sampler):
    options = {"step_size": 0.1} if sampler == "underdamped" else {}
    whole = run(sampler=sampler, **options)
    for updates in (1, 7, 19):
        stop_after(updates)
        try:
            run(sampler=sampler, store=tmp_path / "run", checkpoint_seconds=0, **options)
        except Killed:
            continue
        break
    stop_after(-1)
    same(run(sampler=sampler, store=tmp_path / "run", **options), whole)
    same(run(sampler=sampler, store=tmp_path / "run", **options), whole)  # a finished one is only read


def test_more_steps_go_on_beyond_the_end(tmp_path):
    run(steps=200, store=tmp_path)
    same(run(store=tmp_path), run())
    with pytest.raises(WidebnnError, match="has 100 draws per chain already"):
        run(steps=200, store=tmp_path)


def test_states_are_few_and_draws_are_stored_once(tmp_path, many_chunks):
    run(store=tmp_path, checkpoint_seconds=0)
    chunks, states = list(tmp_path.glob("draws-*")), list(tmp_path.glob("checkpoint-*"))
    last = max(int(path.name.split("-")[1]) for path in states)
    assert last > 20 and len(states) <= 2 * np.log2(last) + 2
    per_draw = 2 * (3 * 4 + 3 * 8 + 2 * 8)
    assert sum(path.stat().st_size for path in chunks) < 100 * per_draw * 2 + 1000 * len(chunks)


def write_run(folder, upto=40):
    """A store as a run leaves it, without one: checkpoint k has state k, and a chunk before each from the tenth on."""
    with open_store(folder, MANIFEST) as store:
        checkpoint, rows = store.restore()
        first = 0 if checkpoint is None else checkpoint.burned
        found = [int(value) for _, arrays in rows for value in arrays["f"][0]]
        for k in range(first, upto):
            done = max(0, 3 * (k - 9))
            if k >= 10:
                store.append(done - 3, {"f": np.arange(done - 3, done)[None], "none": np.zeros((1, 3, 0))})
            store.save(Checkpoint(k + 1, done, [0.0] * 4, 0.5, {"0.0": np.array(k), "0.1": np.full(5, k / 3)}))
        return first, found


MANIFEST = {"version": 2, "settings": {"seed": 1}, "data": {}, "packages": {"jax": "1"}, "device": {"device": "cpu"}}


def damage(path, how, rng):
    data = bytearray(path.read_bytes())
    place = int(rng.integers(len(data)))
    if how == "remove":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[:place])
    else:
        data[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)


@pytest.mark.parametrize("how", ["flip", "cut", "remove"])
def test_damage_anywhere_is_found_and_mended(tmp_path, how):
    rng = np.random.default_rng(0)
    write_run(tmp_path / "good")
    names = sorted(path.name for path in (tmp_path / "good").iterdir() if path.name != "lock")
    newest = max(name for name in names if "checkpoint" in name)
    for i in range(60):
        folder = tmp_path / str(i)
        shutil.copytree(tmp_path / "good", folder)
        name = names[rng.integers(len(names))]
        damage(folder / name, how, rng)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            first, found = write_run(folder)
        # It went on from a whole state with all draws before it, and ended as if nothing had been.
        assert found == list(range(max(0, 3 * (first - 10))))
        for other in (name for name in names if "checkpoint" not in name or name == newest):
            assert (folder / other).read_bytes() == (tmp_path / "good" / other).read_bytes()
        if how != "remove" or "checkpoint" not in name:  # one that is gone is missed by nobody
            assert any("was damaged" in str(w.message) and w.category is DamageWarning for w in said), name
        if "draws" in name:
            # The last checkpoint before it, of those that are kept.
            lost = 10 + int(name.split("-")[1])
            assert lost - (40 - lost) * 2 - 2 <= first <= lost


def test_a_damaged_run_ends_with_the_same_bits(tmp_path, many_chunks):
    whole = run()
    run(store=tmp_path, checkpoint_seconds=0)
    chunks = sorted(tmp_path.glob("draws-*"))
    damage(chunks[len(chunks) // 2], "flip", np.random.default_rng(1))
    with pytest.warns(DamageWarning, match="checksum of draws-.* going on from draw"):
        same(run(store=tmp_path), whole)


def test_other_data_settings_and_versions_are_refused(tmp_path, monkeypatch):
    run(store=tmp_path)
    moved = dataclasses.replace(TARGET, log_likelihood=lambda u: -0.5 * jnp.sum((u["a"] - 1.1) ** 2) / 0.3**2)
    with pytest.raises(WidebnnError, match=r"log-likelihood at the start .* give them, or choose another folder"):
        run(moved, store=tmp_path)
    with pytest.raises(WidebnnError, match=r"was begun with seed 3 .now 4."):
        run(store=tmp_path, seed=4)
    with pytest.raises(WidebnnError, match=r"sampler hilbert_hmc .now pcn."):
        run(sampler="pcn", store=tmp_path)
    version = driver.importlib.metadata.version
    monkeypatch.setattr(driver.importlib.metadata, "version", lambda name: "0.0" if name == "jax" else version(name))
    with pytest.raises(WidebnnError, match=r"now 0.0.; other versions round differently"):
        run(store=tmp_path)


NETWORK = widebnn.dense(1, [4])
X, X_TEST = np.linspace(-1, 1, 5)[:, None], np.array([[-0.7], [0.2], [0.9]])
FINITE = widebnn.posterior(NETWORK, X, np.sin(X), noise=0.3, dtype="float64")


def test_other_test_rows_and_another_collect_are_refused(tmp_path):
    """Everything that is stored of a draw must go on as it was begun, not only the chain."""
    short = {"sampler": "pcn", "step_size": 0.5, "steps": 8, "burn_in": 0, "thin": 1}
    whole = run(FINITE, collect=widebnn.track(FINITE, X_TEST), **short)
    run(FINITE, store=tmp_path, collect=widebnn.track(FINITE, X_TEST), **short | {"steps": 4})
    moved = X_TEST + np.array([[0.0], [0.0], [1e-6]])
    with pytest.raises(WidebnnError, match=r"other values of .*mean_test.* at the start; test inputs and collect"):
        run(FINITE, store=tmp_path, collect=widebnn.track(FINITE, moved), **short)

    def halved(key, position):
        kept = widebnn.track(FINITE, X_TEST)(key, position)
        return {**kept, "y_test": kept["y_test"] / 2}

    with pytest.raises(WidebnnError, match=r"other values of y_test at the start"):
        run(FINITE, store=tmp_path, collect=halved, **short)
    same(run(FINITE, store=tmp_path, collect=widebnn.track(FINITE, X_TEST), **short), whole)


def test_with_another_number_of_cores_the_collected_may_differ_by_rounding_only(tmp_path, monkeypatch):
    def collect(shift):
        return lambda key, u: {"a": u["a"] + shift, "nothing": u["a"][:0], "many": jnp.full(999, 3.0) + shift}

    run(sampler="pcn", store=tmp_path, collect=collect(0.0))
    with pytest.raises(WidebnnError, match=r"other values of a, many at the start"):
        run(sampler="pcn", store=tmp_path, collect=collect(1e-4))
    monkeypatch.setattr(driver, "cores", lambda: 64)
    run(sampler="pcn", store=tmp_path, collect=collect(1e-4))
    with pytest.raises(WidebnnError, match=r"other values of a, many at the start"):
        run(sampler="pcn", store=tmp_path, collect=collect(1.0))


def test_a_fingerprint_shows_one_row_of_many():
    rows = np.random.default_rng(1).normal(size=(1000, 3))
    other = rows.copy()
    other[700] = -other[700]
    scale, *found = np.array(fingerprint(rows))
    assert scale == pytest.approx(np.sqrt(np.mean(rows**2)))
    assert np.max(np.abs(found - np.array(fingerprint(other)[1:]))) > 1e-2 * scale
    assert np.max(np.abs(found - np.array(fingerprint(rows.astype(np.float32))[1:]))) < 1e-6 * scale
    assert fingerprint(rows[:0]) == [0.0] * 5


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="asks /proc which file a descriptor is of")
def test_every_file_is_synced_and_then_renamed(tmp_path, many_chunks, monkeypatch):
    """A checkpoint under its own name is whole, and on the disk, whenever the machine stops."""
    calls = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor):
        calls.append(("fsync", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
        real_fsync(descriptor)

    def replace(source, destination):
        assert not Path(destination).exists()
        calls.append(("replace", Path(source), Path(destination)))
        real_replace(source, destination)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    run(store=tmp_path, checkpoint_seconds=0)
    triples = list(zip(calls[::3], calls[1::3], calls[2::3], strict=True))
    for (first, written), (second, source, destination), (third, folder) in triples:
        assert (first, second, third) == ("fsync", "replace", "fsync")
        assert written == source and source.parent == folder == destination.parent == tmp_path
    named = {destination.name for _, (_, _, destination), _ in triples}
    assert {path.name for path in tmp_path.iterdir()} - {"lock"} <= named
    assert {name.split("-")[0] for name in named} == {"manifest", "draws", "checkpoint"} and len(named) > 20


def test_a_folder_that_is_no_run(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(WidebnnError, match="holds no run that can be read"):
        run(store=tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name != "lock"] == ["notes.txt"]
    with pytest.raises(WidebnnError, match="must be a folder"):
        run(store=tmp_path / "notes.txt")


def test_one_process_at_a_time(tmp_path):
    with open_store(tmp_path, MANIFEST), pytest.raises(WidebnnError, match="in use by another process"):
        open_store(tmp_path, MANIFEST).__enter__()


def test_manifest_says_what_it_is(tmp_path):
    run(store=tmp_path)
    manifest = read_manifest(tmp_path)
    assert manifest["settings"]["seed"] == 3 and manifest["settings"]["sampler"] == "hilbert_hmc"
    assert {"widebnn", "jax", "jaxlib", "numpy"} == set(manifest["packages"])
    assert manifest["device"]


def test_a_full_disk_is_named_and_loses_nothing(tmp_path, many_chunks, monkeypatch):
    whole = run()
    real, calls = os.fsync, [0]

    def full(descriptor):
        calls[0] += 1
        if calls[0] > 12:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        WidebnnError, match=r"cannot be written .No space left on device.*safe up to its last checkpoint"
    ):
        run(store=tmp_path, checkpoint_seconds=0)
    monkeypatch.setattr(os, "fsync", real)
    assert not list(tmp_path.glob(".*"))
    same(run(store=tmp_path), whole)


def test_what_cannot_be_read_now_is_not_thrown_away(tmp_path, many_chunks, monkeypatch):
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_save_what_is_there(tmp_path, number):
    """A real process: what it had is on disk when it ends, and the same program goes on."""
    program = textwrap.dedent(
        f"""
        import sys, warnings, jax, jax.numpy as jnp, widebnn
        from widebnn.sampling import driver
        class Telling(driver.Progress):
            def update(self, phase, steps, acceptance):
                print(phase, flush=True)
        driver.Progress = Telling
        target = widebnn.Target(lambda u: -jnp.sum(u**4), lambda key: jax.random.normal(key, (3,)))
        result = widebnn.sample(target, "pcn", step_size=0.3, steps=10**9, thin=1000, store={str(tmp_path / "run")!r})
        """
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("sampling"):
            process.send_signal(number)
            break
    process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGTERM if number == signal.SIGTERM else 0)
    assert list((tmp_path / "run").glob("draws-*")) and list((tmp_path / "run").glob("checkpoint-*"))


def test_another_number_of_cores_is_no_other_run(tmp_path, monkeypatch):
    """Sums are divided among cores: the log-likelihood at the start may have other last bits, no more than that."""
    store = tmp_path / "run"
    run(store=store)

    def target(shift):
        return dataclasses.replace(TARGET, log_likelihood=lambda u: TARGET.log_likelihood(u) + shift)

    with pytest.raises(WidebnnError, match="was begun with log-likelihood at the start"):
        run(target(1e-9), store=store)
    monkeypatch.setattr(driver, "cores", lambda: 64)
    assert run(target(1e-9), store=store, steps=500).draws["a"].shape == (2, 125, 3)
    with pytest.raises(WidebnnError, match="was begun with log-likelihood at the start"):
        run(target(1.0), store=store, steps=500)
