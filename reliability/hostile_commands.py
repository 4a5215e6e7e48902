"""Hostile files at the command line, for hostile.py: in this process, and some of them in processes of their own."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from hostile_inputs import (
    CIFAR,
    CIFAR_FILES,
    COMMANDS,
    CONFIGS,
    IDX,
    NPZ,
    TABLES,
    WHOLE,
    Chunk,
    Files,
    cell_files,
    changed,
    generate,
    mnist_files,
    model_files,
    run_files,
    seal,
    spoiled,
    valid_model,
)  # fmt: skip
from hostile_watch import Hang, place, unclear
from page import Page
from widebnn import cli
from widebnn.compilation import compiled_once
from widebnn.durable import read_record

REFUSED_ANYWAY = ["--noise", "-1"]
"""So that a file that happens to be valid is not sampled from for seconds."""
QUICK = ["--n-train", "3", "--n-test", "1", "--width", "4", "--steps", "20", "--burn-in", "10", *REFUSED_ANYWAY]
RUN = ["sample", "--n-train", "20", "--n-test", "5", "--width", "8", "--sampler", "pcn", "--steps", "20"]
RUN += ["--burn-in", "10", "--thin", "5", "--chains", "1"]
GRID = ["reproduce", "acceptance", "--samplers", "pcn", "--widths", "64", "--step-sizes", "0.1"]
PROCESSES = 20
MINUTES = 5
"""After which a command hangs."""


class Attack(NamedTuple):
    """A command, and the files that it meets."""

    name: str
    count: int
    """Inputs of a whole run."""
    base: Path | None
    """A folder with what is the same for all inputs."""
    inputs: SearchStrategy[Files]
    arguments: Callable[[Path], list[Any]]


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    error: str
    """What it wrote to standard error."""


def here(arguments: list[Any]) -> Ended:
    """The entry point in this process, which has imported JAX."""
    error = io.StringIO()
    before = signal.signal(signal.SIGALRM, _alarm)
    with (
        mock.patch.object(sys, "argv", ["widebnn", *map(str, arguments)]),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(error),
    ):
        try:
            signal.alarm(MINUTES * 60)
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        except (Exception, Hang):
            traceback.print_exc()
            code = 1
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
    return Ended(code, error.getvalue())


def _alarm(*_: Any) -> None:
    raise Hang(f"more than {MINUTES} minutes")


def process(arguments: list[Any]) -> Ended:
    """A real process."""
    command = [str(Path(sys.executable).with_name("widebnn")), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, timeout=300, check=False, stdin=subprocess.DEVNULL)
    return Ended(done.returncode, done.stderr.decode(errors="replace"))


def wrong(ended: Ended) -> list[str]:
    """What should not have been: a traceback, another exit code, more or less than one sentence."""
    lines = ended.error.splitlines()
    sentences = [line for line in lines if line.startswith("error: ")]
    if "Traceback" in ended.error:
        return [f"a traceback: {lines[-1]}"]
    problems = [problem for line in lines for problem in unclear(line)]
    if ended.code not in (0, 2) or len(sentences) != (ended.code == 2):
        problems.append(f"exit code {ended.code} and {len(sentences)} sentences: {ended.error[-300:]}")
    elif ended.code == 2 and lines[-1] != sentences[-1]:
        problems.append(f"the last line is {lines[-1]!r}")
    if ended.code == 2:
        problems += [f"also {line}" for line in lines if not line.startswith(("error: ", "warning: ", "note: "))]
    return problems


def attacks(bases: Path) -> list[Attack]:
    """Every command with every kind of file that it reads; ``bases`` gets a model, a run and a grid to spoil."""
    model, run, grid = bases / "model", bases / "run", bases / "grid"
    table = bases / "table"
    place(table, {"table.csv": WHOLE})
    place(
        model, {f"model/{name}": content for name, content in valid_model("regressor").items()} | {"table.csv": WHOLE}
    )
    for arguments in ([*RUN, "--out", run], [*GRID, "--out", grid]):
        ended = here(arguments)
        if ended.code:
            raise AssertionError(f"{arguments} failed: {ended.error}")
    hostile_model = _inside("model", model_files())
    hostile_run = _inside("chains", run_files(chunks(run / "chains")))
    mnist, cifar = _based(bases / "mnist", dict(IDX)), _based(bases / "cifar", CIFAR)

    def sample(name: str) -> Callable[[Path], list[Any]]:
        images = name in ("mnist", "cifar10")
        return lambda f: ["sample", "--data", name, "--data-dir", f, *QUICK] if images else _sample(f / name)

    def resume(f: Path) -> list[Any]:
        return ["resume", f]

    def reproduce(f: Path) -> list[Any]:
        return [*GRID, "--out", f]

    def use(command: str) -> Callable[[Path], list[Any]]:
        return lambda f: [command, f / "model", f / "table.csv"]

    return [
        Attack("sample a table", 40, None, TABLES, sample("table.csv")),
        Attack("sample an archive", 40, None, NPZ, sample("table.npz")),
        Attack("sample MNIST", 20, mnist, mnist_files(), sample("mnist")),
        Attack("sample CIFAR-10", 10, cifar, CIFAR_FILES, sample("cifar10")),
        Attack("fit a table", 50, None, TABLES, _fit),
        Attack("predict a table", 40, model, TABLES, use("predict")),
        Attack("evaluate a table", 40, model, TABLES, use("evaluate")),
        Attack("predict by a model", 60, model, hostile_model, use("predict")),
        Attack("evaluate a model", 30, model, hostile_model, use("evaluate")),
        Attack("resume by settings", 60, table, _settings(), lambda f: ["resume", f / "new.run"]),
        Attack("resume a run", 20, run, hostile_run, resume),
        Attack("reproduce by config.json", 8, grid, CONFIGS, reproduce),
        Attack("reproduce from a cell", 8, grid, _cell(grid), reproduce),
    ]


def _sample(data: Path) -> list[Any]:
    return ["sample", "--data", data, *QUICK]


def _fit(folder: Path) -> list[Any]:
    return ["fit", folder / "table.csv", "--target", "price", "--out", folder / "new", *REFUSED_ANYWAY]


def _based(folder: Path, files: Files) -> Path:
    place(folder, files)
    return folder


def _inside(folder: str, inputs: SearchStrategy[Files]) -> SearchStrategy[Files]:
    return inputs.map(lambda files: {f"{folder}/{name}": content for name, content in files.items()})


def _settings() -> SearchStrategy[Files]:
    """Commands that would do nothing if they were valid: a run without draws, a fit of no units."""
    sample, fit = COMMANDS
    sample = {**sample, "settings": {**sample["settings"], "steps": 1, "thin": 2}}
    fit = {**fit, "settings": {**fit["settings"], "width": 0}}
    headers = st.one_of(changed(sample), changed(sample["settings"]).map(lambda s: {**sample, "settings": s}),
                        changed(fit), changed(fit["settings"], 1).map(lambda s: {**fit, "settings": s}))  # fmt: skip
    return headers.map(lambda header: {"new.run/command": seal(header, b"")[0]})


def _cell(grid: Path) -> SearchStrategy[Files]:
    [path] = (grid / "cells").glob("*.nc")
    return spoiled(path.read_bytes()).map(lambda content: cell_files(content, path.stem))


def chunks(folder: Path) -> dict[str, Chunk]:
    """The files of a run without the checksums in them."""
    found = {}
    for path in sorted(folder.iterdir(), key=lambda path: (path.name[0] == "c", path.name)):
        kind = path.name.split("-")[0]
        if kind in ("manifest", "draws", "checkpoint"):
            header, arrays, _ = read_record(path, kind)
            listed = {name: {"dtype": a.dtype.name, "shape": list(a.shape)} for name, a in arrays.items()}
            plain = {name: value for name, value in header.items() if name not in ("previous", "chunk")}
            found[path.name] = Chunk({**plain, "arrays": listed}, arrays)
    return found


def check(page: Page, scratch: Path) -> None:
    """Run all attacks; some of what was refused again in processes of their own."""
    scratch = scratch / "commands"
    scratch.mkdir()
    before = Path.cwd()
    failed, refused, done = [], 0, 0
    again: list[tuple[list[Any], Path]] = []
    with compiled_once():
        try:
            os.chdir(_based(scratch / "here", {}))
            all_attacks = attacks(_based(scratch / "bases", {}))
            total = sum(page.count(attack.count) for attack in all_attacks)
            for attack in all_attacks:
                kept = 0
                for files in generate(attack.inputs, page.count(attack.count)):
                    page.progress("commands", done, total)
                    folder = _prepared(scratch / "files", attack, files)
                    ended = here(attack.arguments(folder))
                    done, refused = done + 1, refused + (ended.code == 2)
                    problems = wrong(ended)
                    failed += [(attack.name, problems)] * bool(problems)
                    if problems:
                        print(f"       {attack.name}: {problems[0]}", file=sys.stderr, flush=True)
                    if ended.code == 2 and kept < max(1, round(PROCESSES * page.share / len(all_attacks))) + 1:
                        kept += 1
                        other = _prepared(scratch / f"again-{len(again)}", attack, files)
                        again.append((attack.arguments(other), other))
            again = again[: page.count(PROCESSES)]
            apart = [
                wrong(ended := process(arguments)) or ([] if ended.code == 2 else ["not refused"])
                for arguments, _ in again
            ]
        finally:
            os.chdir(before)
    figure = f"{done} commands: {refused} refused, {len(failed)} with a traceback or another end"
    page.check("commands on hostile files", figure, "no traceback; refused in one sentence, exit code 2", not failed)
    bad = [problems for problems in apart if problems]
    page.check(
        "the same in real processes",
        f"{len(apart)} refused, {len(bad)} otherwise {bad[:2] or ''}",
        "none otherwise",
        not bad,
    )


def _prepared(folder: Path, attack: Attack, files: Files) -> Path:
    place(folder, {})
    if attack.base is not None:
        shutil.copytree(attack.base, folder, dirs_exist_ok=True)
    place(folder, files, new=False)
    return folder
