"""Killed at any moment, a run goes on to the same bits.

For every sampler, runs of two chains on a small network posterior are ended by SIGKILL again and again, each time in a
new process: at moments drawn uniformly while they burn in and sample, and inside the writing of a checkpoint (some of
the bytes written, all written but not renamed, renamed but the folder not yet synced, while older checkpoints are
removed). After five kills the run is left alone until it ends. Its draws, statistics and last states must then have
the SHA-256 of those of a run that was never stopped and never stored, and the chunks on disk, read one after the other,
must hold every draw once. Chunks that a checkpoint had made sure of before a kill must be the same files afterwards:
they are not made again. A kill of the process is not a loss of power: what the disk itself does to data that it has
confirmed is not tested.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from page import ROOT, Page, main
from trial import SETTINGS, Child, compile_once, run_once, store_often
from widebnn import durable
from widebnn.durable import read_record
from widebnn.samplers import SAMPLERS

KILLS = 50
IN_A_ROW = 5
KEPT = ROOT / "build" / "kills"
"""Where runs that went wrong are kept."""
PLACES = ("part of the bytes", "before the rename", "after the rename", "removing older ones")


def kill_inside(place: str, nth: int, fraction: float) -> None:
    """Make this process kill itself in the n-th checkpoint that it writes."""
    real = {name: getattr(os, name) for name in ("fsync", "replace", "unlink")}
    write, seen, current = durable.write_bytes, [0], [False]

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def write_bytes(path: Path, data: Any) -> None:
        if path.name.startswith("checkpoint"):
            seen[0] += 1
            current[0] = seen[0] == nth
        write(path, data)

    def fsync(descriptor: int) -> None:
        if current[0] and place == PLACES[0]:
            os.ftruncate(descriptor, int(fraction * os.fstat(descriptor).st_size))
            die()
        real["fsync"](descriptor)

    def replace(source: Any, destination: Any) -> None:
        if current[0] and place == PLACES[1]:
            die()
        real["replace"](source, destination)
        if current[0] and place == PLACES[2]:
            die()

    def unlink(path: Any, **options: Any) -> None:
        real["unlink"](path, **options)
        if seen[0] >= nth and place == PLACES[3] and Path(path).name.startswith("checkpoint"):
            die()

    durable.write_bytes, os.fsync, os.replace, os.unlink = write_bytes, fsync, replace, unlink  # type: ignore[assignment]


def start(sampler: str, folder: Path | None, kill: tuple[str, int, float] | None = None) -> Child:
    """A process that runs, or goes on, and may kill itself."""

    def work() -> str:
        store_often()
        if kill is not None:
            kill_inside(*kill)
        return run_once(sampler, folder)

    return Child(work)


def sure_chunks(folder: Path) -> dict[str, int]:
    """Chunks that the newest whole checkpoint counts, with the file numbers of the system."""
    for path in sorted(folder.glob("checkpoint-*"), reverse=True):
        try:
            count = read_record(path, "checkpoint").header["chunks"]
        except durable.DamageError:
            continue
        return {name: (folder / name).stat().st_ino for name in (f"draws-{i:06d}" for i in range(count))}
    return {}


def holds_every_draw_once(folder: Path) -> bool:
    """Whether the chunks follow one another from the first draw to the last."""
    end = 0
    for path in sorted(folder.glob("draws-*")):
        header = read_record(path, "draws").header
        if header["first"] != end:
            return False
        end += header["count"]
    return end == SETTINGS["steps"] // SETTINGS["thin"]


class Tally(Counter):
    """Kills by where they came, and what went wrong."""

    def one_run(self, sampler: str, folder: Path, whole: str, seconds: float, most: int, rng: Any) -> None:
        """Kill a run up to ``most`` times, let it end, and compare."""
        kills = 0
        moments = []
        while kills < most:
            inside = bool(rng.random() < 0.4)
            place = PLACES[rng.integers(len(PLACES))]
            moment = (place, int(rng.integers(1, 9)), rng.random()) if inside else float(rng.uniform(0, seconds / 3))
            moments.append(moment)
            child = start(sampler, folder, moment if isinstance(moment, tuple) else None)
            child.wait_until_it_moves()
            before = sure_chunks(folder)
            status, said = child.end(None if isinstance(moment, tuple) else moment)
            if status == 0:
                self["ended early"] += 1
                self.compare(sampler, folder, moments, status, said, whole)
                break
            self["not killed"] += status != -signal.SIGKILL
            kills += 1
            self["inside" if inside else "anywhere"] += 1
            self["unfinished files"] += len(list(folder.glob(".*.tmp")))
            after = sure_chunks(folder)
            self["made again"] += sum(after.get(name) != number for name, number in before.items())
        sure = sure_chunks(folder)
        status, said = start(sampler, folder).end()
        self["runs"] += 1
        self.compare(sampler, folder, moments, status, said, whole)
        self["lost or twice"] += not holds_every_draw_once(folder)
        self["made again"] += sum((folder / name).stat().st_ino != number for name, number in sure.items())
        self["left over"] += len(list(folder.glob(".*.tmp")))

    def compare(self, sampler: str, folder: Path, moments: list, status: int, said: str, whole: str) -> None:
        """Count a run that ended otherwise than it should, and keep it for study."""
        self["other end"] += status != 0
        self["other bits"] += status == 0 and said != whole
        if status != 0 or said != whole:
            kept = KEPT / f"{sampler}-{len(list(KEPT.glob('*')))}"
            shutil.copytree(folder, kept)
            print(
                f"       {sampler}: status {status}, killed at {moments}, kept in {kept}", file=sys.stderr, flush=True
            )


def run(page: Page) -> None:
    """Every sampler."""
    names = list(SAMPLERS) if page.share > 0.1 else ["pcn", "underdamped"]
    kills = page.count(KILLS, 4)
    rng = np.random.default_rng(1)
    totals = Tally()
    with tempfile.TemporaryDirectory() as scratch:
        compile_once(f"{scratch}/compiled")
        for i, sampler in enumerate(names):
            page.progress("samplers", i, len(names))
            status, whole = start(sampler, None).end()
            if status:
                raise SystemExit(f"{sampler}: a run without any kill ended with {status}")
            child = start(sampler, Path(scratch) / "timed")
            child.wait_until_it_moves()
            began = time.perf_counter()
            child.end()
            seconds = time.perf_counter() - began
            shutil.rmtree(Path(scratch) / "timed")
            tally = Tally()
            while (left := kills - tally["inside"] - tally["anywhere"]) > 0:
                folder = Path(scratch) / "run"
                tally.one_run(sampler, folder, whole, seconds, min(left, IN_A_ROW), rng)
                shutil.rmtree(folder)
            bad = sum(
                tally[what]
                for what in ("other bits", "other end", "lost or twice", "made again", "left over", "not killed")
            )
            figure = f"{tally['inside']} inside a checkpoint, {tally['anywhere']} elsewhere, {tally['runs']} runs, "
            page.check(
                f"{sampler}: kills, and runs with other draws",
                figure + f"{tally['other bits']} with other bits, {tally['other end']} that failed",
                f"{kills} kills, at least {kills // 5} inside; 0",
                bad == 0 and tally["inside"] >= kills // 5,
            )
            totals.update(tally)
    for what, key in (
        ("draws missing or stored twice", "lost or twice"),
        ("chunks made again that a checkpoint had made sure of", "made again"),
        ("temporary files left over at the end", "left over"),
    ):
        page.check(what, str(totals[key]), "0", totals[key] == 0)
    page.check(
        "kills that left a temporary file, so came while it was written",
        str(totals["unfinished files"]),
        "some",
        totals["unfinished files"] > 0,
    )


if __name__ == "__main__":
    main(__file__, run)
