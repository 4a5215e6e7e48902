"""Killed or interrupted at any moment, a run ends with the same bits.

Runs of every sampler are ended by SIGKILL in processes of their own, between and within chunks and inside the system
calls that write a checkpoint: with part of a file written, before and after a rename, while old files are removed.
Resumed until it ends, a run must have the SHA-256 of one that was never stopped; it must resume at the last checkpoint,
report no damage and leave no other files. Ctrl-C and SIGTERM end a run within five seconds, with its draws safe. Loss
of power is not tested.
"""

import signal
import time
from collections import Counter

import numpy as np
import pytest
from trial import CHUNK, SETTINGS, Child, counts, other_kinds, size

from widebnn.samplers import SAMPLERS

pytestmark = [pytest.mark.long, pytest.mark.ambient, pytest.mark.xdist_group("kills")]
CHUNKS = (SETTINGS["burn_in"] + SETTINGS["steps"]) // CHUNK
PLACES = [("fsync", "part"), ("fsync", "before"), ("replace", "before"), ("replace", "after"), ("unlink", "after")]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled")


def killed(cache, rng, tally, **arguments):
    """Start, or resume, and kill: in a system call, or after some chunks. The child and its exit code."""
    inside, (call, when) = rng.random() < 0.5, PLACES[rng.integers(len(PLACES))]
    kill = [call, int(rng.integers(1, 15)), when, rng.random()] if inside else None
    child = Child(cache, **arguments, kill=kill)
    if not inside:
        child.wait(rng.integers(1, CHUNKS))
        time.sleep(rng.uniform(0, 0.01))
    status = child.end(None if inside else signal.SIGKILL)
    tally["inside a system call" if inside else "elsewhere"] += status == -signal.SIGKILL
    return child, status


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_killed_runs_end_with_the_same_bits(sampler, cache, tmp_path, record):
    whole, stored = (Child(cache, sampler=sampler, folder=folder) for folder in (None, tmp_path / "whole"))
    assert whole.end() == stored.end() == 0 and whole.last["digest"] == stored.last["digest"]
    assert stored.lines > CHUNKS, "the clock did not divide the run into chunks"
    rng, tally, problems, wanted = np.random.default_rng(len(sampler)), Counter(), [], size(5, 50)
    while tally.total() < wanted:
        arguments, safe = {"sampler": sampler, "folder": tmp_path / str(tally.total())}, 0
        for left in range(min(5, wanted - tally.total()), -1, -1):
            if left:
                child, status = killed(cache, rng, tally, **arguments)
            else:
                child = Child(cache, **arguments)
                status = child.end()
            if child.lines and child.last["begun"] < safe:
                problems.append(f"resumed at step {child.last['begun']} and not {safe}")
            safe = max(safe, child.last["safe"])
            problems += child.last["warnings"]
            if status != -signal.SIGKILL:
                break
        problems += ["other bits"] * (status != 0 or child.last.get("digest") != whole.last["digest"])
        problems += other_kinds(arguments["folder"], tmp_path / "whole")
    what = f"{sampler}: kills; other bits, steps lost, damage, files left over"
    record(what, f"{counts(tally)}; {problems[:3] or 0}", f"{wanted}; 0", not problems)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_signals_end_a_run_with_its_draws_safe(number, cache, tmp_path, record):
    rng, slowest, lost, count = np.random.default_rng(number), 0.0, 0, size(3, 20)
    for i in range(count):
        arguments = {"folder": tmp_path / str(i), "steps": 10**8, "thin": 10_000, "real_time": True}
        child = Child(cache, **arguments)
        child.wait(rng.integers(1, 6))
        time.sleep(rng.uniform(0, 0.5))
        began = time.monotonic()
        assert child.end(number) == (0 if number == signal.SIGINT else -number)
        slowest = max(slowest, time.monotonic() - began)
        again = Child(cache, **arguments)
        again.wait(1)
        again.end(signal.SIGKILL)
        lost += again.last["begun"] < child.last["steps"]
    what = f"{number.name} to {count} processes: slowest end; draws lost"
    record(what, f"{slowest:.1f} s; {lost}", "below 5 s; 0", slowest < 5 and not lost)
