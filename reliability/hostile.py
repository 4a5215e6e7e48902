"""Hostile files are refused in one sentence.

Whatever reads a file in this package gets malformed ones from a property-based fuzzer (Hypothesis, with fixed seeds):
tables, NumPy archives, MNIST and CIFAR-10 files, downloaded archives, options, settings of runs and grids, records of
draws and states, whole runs, cells of grids, saved models. Some are valid files with bytes changed, cut, inserted or
copied, among them the numbers in headers, made huge, negative or NaN; the others are made from the grammar of the
format: JSON of the wrong structure, arrays whose header and content disagree, pickle programs with instructions
exchanged. Where a format has checksums, most inputs have right ones, also of other files, so that what lies behind them
is attacked.

An input may be accepted, if it happens to be valid; it may be mended, as a damaged run is, with a warning; or it is
refused with the package's own exception. Anything else fails: another exception, more than five seconds of computing, a
message that is empty, longer than 1000 characters or not printable (a name in a file may hold escape sequences for the
terminal). While a reader runs, the interpreter's audit events are recorded: code that is compiled or executed, imports,
what pickles look up, processes, connections, and writing, renaming or removing outside its own folder; none may occur.
Memory is the peak that tracemalloc sees. It may be twice the size of the files, or twice what they hold if they are
accepted, and two megabytes: a small file that claims to be large is refused before the memory is taken. Text is counted
as 64 bytes for each cell or value, which is what Python takes for it.

Pickles that run commands and archives with paths outside, links, pipes or bombs of 40 GB are then offered to every
reader of anything, in place of each of its files, and so are named pipes, devices, folders and links that go round in
circles. Last, malformed files meet the commands: exit code 2, one sentence on standard error, no traceback.

Not covered: the memory of libraries below Python, programs that read what this package writes, and the HDF5 library,
which can hang on a file that is made for it; nothing in this package reads HDF5 files.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("NPROC", "8")

import hostile_archives as archives
import hostile_commands as commands
from hostile_inputs import PADDING, PICKLE_FILE, Files, Reader, generate, large, readers, reseal
from hostile_watch import SECONDS, Outcome, Watch, place
from page import ROOT, Page, main

KEPT = ROOT / "build" / "hostile"
"""Where inputs that fail are kept."""
sys.path.insert(0, str(ROOT / "tools"))


@dataclasses.dataclass
class Tally:
    """What came of many inputs."""

    done: int = 0
    accepted: int = 0
    mended: int = 0
    refused: int = 0
    sentences: set[str] = dataclasses.field(default_factory=set)
    behind: int = 0
    """Inputs that no checksum stopped."""
    failed: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    """What was read, and what went wrong."""
    slowest: float = 0.0
    memory: float = 0.0
    """The largest part of what is allowed."""

    def add(self, name: str, outcome: Outcome) -> None:
        """Count an outcome."""
        self.done += 1
        if outcome.problems:
            self.failed.append((name, outcome.problems[0]))
        elif outcome.message:
            self.refused += 1
        elif outcome.warned:
            self.mended += 1
        else:
            self.accepted += 1
        self.sentences.add(re.sub(r"[0-9]+|'[^']*'|\S*/\S*", "#", outcome.message)[:80])
        self.behind += not re.search("checksum|not a whole record", outcome.message)
        self.slowest = max(self.slowest, outcome.seconds)
        self.memory = max(self.memory, outcome.memory / outcome.allowed)


def keep(name: str, outcome: Outcome, files: Files) -> None:
    """Keep an input that failed, for study."""
    if outcome.problems:
        folder = KEPT / f"{re.sub('[^a-z0-9.]+', '-', name.lower())}-{len(list(KEPT.glob('*')))}"
        place(folder, {re.sub(r"[^\w.-]", "_", key)[:100]: value for key, value in files.items()})
        print(f"       {name}: {outcome.problems[:2]}; kept in {folder}", file=sys.stderr, flush=True)


def fuzz(reader: Reader, count: int, watch: Watch, folder: Path) -> Iterator[tuple[Outcome, Files]]:
    """Read so many inputs."""
    for files in generate(reader.inputs, count, sum(reader.name.encode())):
        yield read(reader, {**reader.files, **files}, watch, folder), files


def read(reader: Reader, files: Files, watch: Watch, folder: Path) -> Outcome:
    """Read one folder of files."""
    size = place(folder, files)
    return watch(lambda: reader.read(folder), size, reader.errors)


def warm(all_readers: list[Reader], watch: Watch, folder: Path, count: int = 20) -> None:
    """Valid files, which must be accepted; and modules that are imported when first needed are imported."""
    for reader in all_readers:
        for _ in range(2):
            outcome = read(reader, reader.files, watch, folder)
        if outcome.message or outcome.problems or outcome.warned:
            raise AssertionError(f"valid {reader.name} are not accepted: {outcome}")
        for _ in fuzz(reader, count, watch, folder):
            pass


def malformed(page: Page, all_readers: list[Reader], watch: Watch, folder: Path) -> None:
    """The fuzzer against every reader."""
    tallies: dict[str, Tally] = {}
    total, done = sum(page.count(reader.count) for reader in all_readers), 0
    sealed = Tally()
    for reader in all_readers:
        tally = Tally()
        for outcome, files in fuzz(reader, page.count(reader.count), watch, folder):
            page.progress("malformed files", done, total)
            done += 1
            keep(reader.name, outcome, files)
            for one in (tally, tallies.setdefault(reader.kind, Tally()), *[sealed] * reader.sealed):
                one.add(reader.name, outcome)
        if tally.done > 500 and not 0 < tally.refused + tally.mended < tally.done:
            raise AssertionError(f"all inputs of {reader.name} come to the same, which tests nothing: {tally}")
    for kind, tally in tallies.items():
        figure = f"{tally.done} inputs: {tally.accepted} valid, {tally.mended} mended, {tally.refused} refused by "
        figure += f"{len(tally.sentences)} different sentences, {len(tally.failed)} otherwise"
        page.check(f"malformed {kind}", figure, "none otherwise", not tally.failed)
    _summary(page, list(tallies.values()), "malformed files")
    if sealed.done:
        share = sealed.behind / sealed.done
        figure = f"{share:.0%} of {sealed.done} inputs were not stopped by one"
        page.check("formats with checksums", figure, "more than 60 %", share > 0.6)


def _summary(page: Page, tallies: list[Tally], what: str) -> None:
    problems = [problem for tally in tallies for _, problem in tally.failed]
    kinds = collections.Counter(problem.split()[0] for problem in problems)
    ran = sum(count for kind, count in kinds.items() if re.fullmatch(r"(exec|compile|import|open|[a-z]+\.\w+)", kind))
    memory, slowest = max(tally.memory for tally in tallies), max(tally.slowest for tally in tallies)
    page.check(f"{what}: code run, processes, connections, writes elsewhere", str(ran), "none", ran == 0)
    page.check(f"{what}: memory", f"at most {memory:.2f} of what is allowed", "below 1", memory < 1)
    page.check(f"{what}: the slowest", f"{slowest:.1f} s", f"below {SECONDS} s", slowest < SECONDS)


def large_files(page: Page, watch: Watch, folder: Path) -> None:
    """Files of megabytes, good and with something wrong at their end."""
    tally = Tally()
    ratios = []
    for one in large(page.count(10**6, least=10**5)):
        place(folder, one.reader.files)
        outcome = watch(lambda one=one: one.reader.read(folder), one.declared, one.reader.errors, 60)  # type: ignore[misc]
        tally.add(one.reader.name, outcome)
        ratios.append(outcome.memory / one.declared)
        if bool(outcome.message) == one.good:
            tally.failed.append((one.reader.name, f"{'refused' if one.good else 'accepted'}: {outcome.message}"))
    figure = f"{tally.accepted} good and {tally.refused} bad files; memory at most {max(ratios):.2f} times their size"
    page.check(
        "large files", f"{figure}; {tally.failed or 'nothing'} wrong", "below 2 and a constant", not tally.failed
    )


def pickles_and_archives(page: Page, all_readers: list[Reader], watch: Watch, folder: Path) -> None:
    """Everything hostile to everything that reads."""
    tally = Tally()
    here = folder.parent / "here"
    here.mkdir()
    before = Path.cwd()
    os.chdir(here)  # where payloads would leave something
    offers = collections.Counter[str]()
    try:
        for kind, name, reader, files in _offers(all_readers):
            outcome = read(reader, files, watch, folder)
            offers[kind] += 1
            if not outcome.message and not outcome.warned:
                outcome.problems.append(f"accepted: {name}")
            keep(f"{reader.name} {name}", outcome, files)
            tally.add(f"{reader.name} {name}", outcome)
        for reader, name, make in _odd_entries(all_readers):
            place(folder, {**reader.files, name: None})
            make(folder / name)
            outcome = watch(lambda reader=reader: reader.read(folder), 2**20, (*reader.errors, OSError))  # type: ignore[misc]
            offers["pipes, devices, folders and links"] += 1
            keep(f"{reader.name} {name} {make.__name__}", outcome, {})
            tally.add(f"{reader.name} {name}", outcome)
        left = [path.name for path in (*here.iterdir(), *folder.parent.rglob(archives.CANARY))]
    finally:
        os.chdir(before)
    count = len(archives.PICKLES) + len(archives.PROGRAMS) + len(archives.tars()) + len(archives.zips()) + 3
    figure = f"{count}, offered {tally.done} times ({', '.join(f'{n} {kind}' for kind, n in offers.items())}): "
    figure += (
        f"{tally.refused} refused, {tally.mended} mended, {len(tally.failed)} otherwise, {len(left)} files left behind"
    )
    page.check("hostile pickles and archives", figure, "at least 30, none otherwise", not (tally.failed or left))
    _summary(page, [tally], "pickles and archives")


def _offers(all_readers: list[Reader]) -> Iterator[tuple[str, str, Reader, Files]]:
    """(kind, name, who is to read it, its files)."""
    by_name = {reader.name: reader for reader in all_readers}
    images = archives.records(archives.ROWS, seed=1)
    for name, (value, _) in archives.PICKLES.items():
        content = archives.batch(images, extra=b"U\x05extra" + value)
        yield "pickles", name, by_name["CIFAR-10 pickles"], {PICKLE_FILE: content}
    for name, program in archives.PROGRAMS.items():
        for reader in all_readers:
            for file in reader.own:
                content = program + PADDING if file == PICKLE_FILE else program
                yield "pickles", name, reader, reseal(reader, {**reader.files, file: content}, file)
    for name, archive in {**archives.tars(), **archives.bombs()}.items():
        yield "tar archives", name, by_name["downloads"], {"archive": archive}
        mnist = by_name["MNIST"]
        images_file = next(iter(mnist.files))
        yield "tar archives", name, mnist, {**mnist.files, images_file: None, f"{images_file}.gz": archive}
        if len(archive) < 10**6:
            yield "tar archives", name, by_name["npz archives"], {"table.npz": archive}
    for name, archive in archives.zips().items():
        yield "zip archives", name, by_name["npz archives"], {"table.npz": archive}
        models = by_name["models"]
        yield "zip archives", name, models, reseal(models, {**models.files, "ensemble.npz": archive}, "ensemble.npz")


def _odd_entries(all_readers: list[Reader]) -> Iterator[tuple[Reader, str, collections.abc.Callable[[Path], None]]]:
    def pipe(path: Path) -> None:
        os.mkfifo(path)

    def circle(path: Path) -> None:
        path.symlink_to(path)

    def device(path: Path) -> None:
        path.symlink_to("/dev/zero")

    def folder(path: Path) -> None:
        path.mkdir()

    for reader in all_readers:
        for name in reader.own:
            for make in (pipe, circle, device, folder):
                yield reader, name, make


def forbidden(page: Page) -> None:
    """The rule of make lint."""
    import unsafe

    found = [line for path in unsafe.files(ROOT) for line in unsafe.check(path, ROOT)]
    figure = f"{len(found)} uses in {len(unsafe.files(ROOT))} files, {len(unsafe.ALLOWED)} files excepted by name"
    page.check("pickle, allow_pickle=True, yaml.load, eval, exec", figure, "none", not found)


def run(page: Page) -> None:
    """Everything."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "watched" / "files"
        folder.parent.mkdir()
        watch = Watch(folder.parent)
        all_readers = readers()
        warm(all_readers, watch, folder)
        malformed(page, all_readers, watch, folder)
        large_files(page, watch, folder)
        pickles_and_archives(page, all_readers, watch, folder)
        commands.check(page, Path(scratch))
    forbidden(page)


if __name__ == "__main__":
    main(__file__, run)
