"""Damaged files, failing disks and signals: said so, and nothing lost that was safe.

*Damage.* A run of ``widebnn sample --out`` is copied a thousand times, and each time one byte is flipped, or one file
cut, at a random position of a random file. Going on must warn of it, or refuse in a sentence where there is nothing to
go on from (the record of the command itself), and end with the bits of the run that nothing happened to. For files
that a chain depends on, the draws before the newest checkpoint that does not depend on the damaged file must not be
made again. *Disk.* A call that opens, writes, syncs, renames, removes or reads a file fails, with one of four errors
(no space, read-only, input/output, quota), another one of all calls of a run each time; then the fault is taken away.
The failure must be one sentence that names the error, and the run must end with the same bits. Two failures are real,
in processes of their own: a limit on the size of files, and a folder without permission to write. *Signals.* Ctrl-C and
SIGTERM reach real processes at random moments while they burn in or sample, also with steps of a quarter of a second.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

import widebnn
from page import Page, main
from trial import Child, compile_once, digest, problem, run_once, store_often
from widebnn import cli, durable
from widebnn.errors import DamageWarning, StoreError, WidebnnError
from widebnn.unfinished import begun

DAMAGES = 1000
SHORT: dict[str, Any] = {"steps": 120, "burn_in": 30, "thin": 2}
ERRORS = (errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT)
SECONDS = 5.0
COMMAND = ["--n-train", "16", "--n-test", "4", "--width", "8", "--sampler", "pcn", "--step-size", "0.2"]


# --- damage


def begin(folder: Path) -> str:
    """A run with everything that the command writes, and its chains replaced by those of the small problem."""
    program = str(Path(sys.executable).with_name("widebnn"))
    command = [program, "sample", *COMMAND, "--steps", "50", "--out", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    shutil.rmtree(folder / cli.CHAINS)
    return run_once("pcn", folder / cli.CHAINS, **SHORT)


def hurt(path: Path, rng: np.random.Generator) -> str:
    """Flip a byte or cut the file, somewhere."""
    data = bytearray(path.read_bytes())
    place = int(rng.integers(len(data)))
    if rng.random() < 0.5:
        data[place] ^= int(rng.integers(1, 256))
        path.write_bytes(data)
        return "flipped"
    path.write_bytes(data[:place])
    return "cut"


def safe_draws(folder: Path, hurt_name: str) -> int:
    """Draws up to the newest checkpoint that does not depend on the damaged file."""
    best = 0
    for path in folder.glob("checkpoint-*"):
        if path.name != hurt_name:
            header = durable.read_record(path, "checkpoint").header
            if not hurt_name.startswith("draws") or int(hurt_name.split("-")[1]) >= header["chunks"]:
                best = max(best, header["done"])
    return best


class Steps:
    """How many draws a run made that were not there."""

    def __init__(self) -> None:
        self.made = 0

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count what is appended."""
        real = widebnn.sampling.driver.Store.append

        def append(store: Any, first: int, arrays: Any) -> None:
            self.made += next(iter(arrays.values())).shape[1]
            real(store, first, arrays)

        widebnn.sampling.driver.Store.append = append
        try:
            yield
        finally:
            widebnn.sampling.driver.Store.append = real


def one_damage(good: Path, copy: Path, name: str, whole: str, rng: np.random.Generator, tally: Counter) -> None:
    """Copy, damage, go on, compare."""
    shutil.copytree(good, copy)
    path = copy / name
    tally[hurt(path, rng)] += 1
    if path.parent == copy:
        if name == "command":
            with contextlib.suppress(WidebnnError):
                begun(copy)
                tally["unnoticed"] += 1
        else:
            tally["unnoticed"] += not durable.damaged_files(copy / cli.CHECKSUMS, cli.OUTPUTS)
        return
    safe, steps = safe_draws(path.parent, path.name), Steps()
    with warnings.catch_warnings(record=True) as said, steps.counted():
        warnings.simplefilter("always")
        found = run_once("pcn", path.parent, **SHORT)
    tally["unnoticed"] += not any(w.category is DamageWarning and path.name in str(w.message) for w in said)
    tally["other bits"] += found != whole
    tally["lost"] += steps.made > SHORT["steps"] // SHORT["thin"] - safe


def damages(page: Page, scratch: Path) -> None:
    """A thousand of them."""
    whole = begin(scratch / "good")
    files = [path for path in sorted((scratch / "good").rglob("*")) if path.is_file() and path.stat().st_size]
    names = [str(path.relative_to(scratch / "good")) for path in files]
    rng, tally = np.random.default_rng(2), Counter()
    count = page.count(DAMAGES, 12)
    chosen = [*rng.permutation(names), *rng.choice(names, max(0, count - len(names)))][:count]  # all files, if many
    for i, name in enumerate(chosen):
        page.progress("damages", i, len(chosen))
        one_damage(scratch / "good", scratch / "copy", str(name), whole, rng, tally)
        shutil.rmtree(scratch / "copy")
    kinds = ", ".join(sorted({name.split("/")[-1].split("-")[0] for name in names}))
    page.check(
        f"damages: {tally['flipped']} bytes flipped, {tally['cut']} files cut ({kinds}); not noticed",
        str(tally["unnoticed"]),
        f"{count} damages, 0",
        tally["unnoticed"] == 0,
    )
    page.check("runs with other bits after damage", str(tally["other bits"]), "0", tally["other bits"] == 0)
    page.check("draws made again that were safe", str(tally["lost"]), "0", tally["lost"] == 0)


# --- the disk


class Faults:
    """The n-th call that touches a file fails."""

    def __init__(self, nth: int, number: int):
        self.left, self.number, self.happened = nth, number, ""

    def _strike(self, what: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.happened = what
            raise OSError(self.number, os.strerror(self.number))

    @contextlib.contextmanager
    def injected(self, folder: Path) -> Iterator[None]:
        """In calls of the store; other files of the process are left alone."""
        real = {name: getattr(os, name) for name in ("fsync", "replace", "unlink")}
        opening = pathlib.Path.open

        def failing(name: str) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                self._strike(name)
                return real[name](*arguments, **options)

            return call

        def open_file(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if not str(path).startswith(str(folder)):
                return opening(path, mode, *arguments, **options)
            self._strike("read" if mode == "rb" else "open")
            file = opening(path, mode, *arguments, **options)
            return _Failing(file, self) if mode == "xb" else file

        pathlib.Path.open = open_file  # type: ignore[method-assign, assignment]
        for name in real:
            setattr(os, name, failing(name))
        try:
            yield
        finally:
            pathlib.Path.open = opening  # type: ignore[method-assign]
            for name, function in real.items():
                setattr(os, name, function)


class _Failing:
    """A file whose write may fail after half of the bytes."""

    def __init__(self, file: Any, faults: Faults):
        self._file, self._faults = file, faults

    def write(self, data: Any) -> int:
        try:
            self._faults._strike("write")
        except OSError:
            self._file.write(bytes(data)[: len(data) // 2])
            raise
        return self._file.write(data)

    def __enter__(self) -> _Failing:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def faults(page: Page, scratch: Path) -> None:
    """Calls at equal distances over all that a run makes."""
    whole = run_once("pcn", None, **SHORT)
    # Half of a run is there already, so that reading can fail too.
    run_once("pcn", scratch / "half", **SHORT | {"steps": SHORT["steps"] // 2})
    tally: Counter = Counter()
    none = Faults(0, 0)
    shutil.copytree(scratch / "half", scratch / "counted")
    _with_fault(none, scratch / "counted", tally)
    chosen = sorted(set(np.linspace(1, -none.left, page.count(120, 8)).astype(int).tolist()))
    for i, (nth, number) in enumerate(zip(chosen, itertools.cycle(ERRORS), strict=False)):
        page.progress("failing calls", i, len(chosen))
        folder = scratch / "faulty"
        shutil.copytree(scratch / "half", folder)
        fault = Faults(nth, number)
        _with_fault(fault, folder, tally)
        tally["faults"] += bool(fault.happened)
        tally[fault.happened] += 1
        tally["other bits"] += run_once("pcn", folder, **SHORT) != whole
        tally["left over"] += len(list(folder.glob(".*.tmp")))
        shutil.rmtree(folder)
    calls = ", ".join(f"{tally[name]} {name}" for name in ("open", "write", "fsync", "replace", "unlink", "read"))
    page.check(
        f"{tally['faults']} failing calls ({calls}); not named in one sentence",
        str(tally["unnamed"]),
        "0",
        tally["unnamed"] == 0 and tally["faults"] >= len(chosen) // 2,
    )
    page.check("runs with other bits after a failing call", str(tally["other bits"]), "0", tally["other bits"] == 0)
    page.check("temporary files left over", str(tally["left over"]), "0", tally["left over"] == 0)


def _with_fault(fault: Faults, folder: Path, tally: Counter) -> None:
    try:
        with fault.injected(folder):
            run_once("pcn", folder, **SHORT)
    except StoreError as error:
        text = str(error)
        tally["unnamed"] += os.strerror(fault.number) not in text or "\n" in text
    except Exception:
        tally["unnamed"] += 1


def real_failures(page: Page, scratch: Path) -> None:
    """A limit of the system on the size of files, and a folder that must not be written."""

    def limited() -> str:
        jax.config.update("jax_compilation_cache_dir", None)  # its files have a size too
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
        return _sentence(scratch / "limited")

    def forbidden() -> str:
        run_once("pcn", None, **SHORT)  # what must be loaded is loaded
        (scratch / "forbidden").mkdir()
        (scratch / "forbidden").chmod(0o555)
        if os.getuid() == 0:
            os.setuid(65534)  # root may write anywhere
        return _sentence(scratch / "forbidden" / "run")

    for what, work, expected in (
        ("a file larger than the system allows", limited, os.strerror(errno.EFBIG)),
        ("a folder without permission to write", forbidden, os.strerror(errno.EACCES)),
    ):
        said = Child(work).end()[1]
        page.check(what, said.replace(str(scratch), "...") or "no sentence", expected, expected in said)


def _sentence(folder: Path) -> str:
    try:
        run_once("pcn", folder, **SHORT)
    except StoreError as error:
        return str(error)
    return ""


# --- signals


def slow_problem() -> Any:
    """Steps of about a quarter of a second."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(1500, 3)), rng.normal(size=(1500, 1))
    return widebnn.posterior(widebnn.dense(3, [2000]), x, y, noise=0.3)


def endless(folder: Path, slow: bool) -> str:
    """A run that only a signal ends, with the defaults of chunks and checkpoints."""
    target, collect = (slow_problem(), lambda key, u: {}) if slow else problem()
    warnings.simplefilter("ignore")
    result = widebnn.sample(
        target, "pcn", step_size=0.2, steps=10**7, burn_in=50, thin=1, collect=collect, store=folder, progress=False
    )
    return digest(result)


def signals(page: Page, scratch: Path) -> None:
    """Time from the signal to the end of the process, and whether its draws are there."""
    rng = np.random.default_rng(3)
    for number, slow in itertools.product((signal.SIGINT, signal.SIGTERM), (False, True)):
        times, bad, count = [], 0, page.count(4 if slow else 16)
        for _ in range(count):
            folder = scratch / "signalled"
            child = Child(lambda slow=slow, folder=folder: endless(folder, slow))
            child.wait_until_it_moves()
            time.sleep(float(rng.uniform(0, 3)))
            began = time.perf_counter()
            os.kill(child.pid, number)
            status, _ = child.end(kill_after=60)
            times.append(time.perf_counter() - began)
            bad += status != (0 if number == signal.SIGINT else -number)
            bad += not list(folder.glob("checkpoint-*"))
            shutil.rmtree(folder)
        steps = "slow steps" if slow else "fast steps"
        page.check(
            f"{number.name}, {steps}: {count} processes, {bad} without their draws; longest time to the end",
            f"{max(times):.1f} s",
            "below 5 s",
            max(times) < SECONDS and bad == 0,
        )


def run(page: Page) -> None:
    """All of it; first what forks, before JAX is used here."""
    store_often()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        scratch.chmod(0o755)
        compile_once(f"{scratch}/compiled")
        signals(page, scratch)
        real_failures(page, scratch)
        faults(page, scratch)
        damages(page, scratch)


if __name__ == "__main__":
    main(__file__, run)
