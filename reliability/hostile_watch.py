"""Reading one hostile input under watch: what it raised, what it took, what it did."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import os
import shutil
import signal
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from widebnn.errors import DamageWarning

ROOM = 2**21
"""Bytes that a reader may take whatever the file: two megabytes."""
SECONDS = 5
"""Seconds of computing that a reader may take, and minutes of waiting."""
LONGEST = 1000
"""Characters of a message."""
WATCHED = ("exec", "compile", "import", "pickle.find_class", "marshal.loads", "code.__new__", "os.system", "os.exec",
           "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "subprocess.Popen", "socket.connect", "socket.bind",
           "socket.getaddrinfo", "urllib.Request", "ctypes.dlopen", "ctypes.call_function", "pty.spawn")  # fmt: skip
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
           "os.chown", "os.utime", "shutil.rmtree", "shutil.move", "shutil.copyfile")  # fmt: skip
CODECS = ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "unicode_escape",
          "latin-1", "ascii", "cp437", "raw_unicode_escape")  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Hang(BaseException):
    """Not an Exception, so that no reader catches it."""


@dataclasses.dataclass
class Outcome:
    """What reading an input came to."""

    message: str = ""
    """Of the refusal; empty if it was accepted."""
    problems: list[str] = dataclasses.field(default_factory=list)
    """What should not have been."""
    seconds: float = 0.0
    memory: int = 0
    """Bytes taken at the peak."""
    allowed: int = 1
    warned: bool = False
    """Whether something was found to be damaged, and mended."""


class Watch:
    """Runs readers one at a time in ``folder``. The interpreter's audit hooks stay for good: make one of these."""

    def __init__(self, folder: Path):
        self.folder = str(folder.resolve())
        self._on = False
        self._seen: list[str] = []
        sys.addaudithook(self._hook)
        for name in CODECS:
            codecs.lookup(name)  # imported when first used

    def __call__(
        self, read: Callable[[], Any], size: int, errors: tuple[type[Exception], ...], seconds: float = SECONDS
    ) -> Outcome:
        """Read an input whose files have ``size`` bytes."""
        outcome = Outcome()
        held = 0
        with warnings.catch_warnings(record=True) as said, self._watched(outcome, seconds):
            warnings.simplefilter("always")
            for hidden in (DeprecationWarning, PendingDeprecationWarning):  # nobody sees them
                warnings.simplefilter("ignore", hidden)
            try:
                held = nbytes(read())
            except errors as error:
                outcome.message = str(error)
                if not outcome.message:
                    outcome.problems.append(f"{type(error).__name__} without a message")
            except Hang:
                outcome.problems.append(f"takes more than {seconds} seconds ({HANGS[-1]})")
            except Exception as error:
                outcome.problems.append(f"{type(error).__name__}: {error}"[:300])
        outcome.warned = any(issubclass(one.category, DamageWarning) for one in said)
        for message in [outcome.message, *(str(one.message) for one in said)]:
            outcome.problems += unclear(message)
        outcome.allowed = 2 * max(size, held) + ROOM
        if outcome.memory > outcome.allowed:
            outcome.problems.append(f"takes {outcome.memory} bytes, {outcome.allowed} are allowed")
        return outcome

    @contextlib.contextmanager
    def _watched(self, outcome: Outcome, limit: float) -> Iterator[None]:
        self._seen = []
        timers = {signal.SIGPROF: (signal.ITIMER_PROF, limit), signal.SIGALRM: (signal.ITIMER_REAL, 60 * limit)}
        before = {number: signal.signal(number, _alarm) for number in timers}
        for timer, seconds in timers.values():
            signal.setitimer(timer, seconds)
        tracemalloc.start()
        began, self._on = time.process_time(), True
        try:
            yield
        finally:
            self._on = False
            for timer, _ in timers.values():
                signal.setitimer(timer, 0)
            outcome.seconds = time.process_time() - began
            outcome.memory = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            for number, handler in before.items():
                signal.signal(number, handler)
            outcome.problems += self._seen

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._on:
            return
        # ast.literal_eval, which NumPy reads headers with, parses what it calls <unknown>, and runs nothing.
        parsed = event == "compile" and arguments[1] == "<unknown>"
        if (event in WATCHED or event.startswith("ctypes.")) and not parsed:
            self._seen.append(f"{event} {str(arguments)[:200]}")
        elif (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING) or event in CHANGES:
            two = event in ("os.rename", "os.link", "os.symlink", "shutil.move", "shutil.copyfile")
            folder = arguments[-1] if event in ("os.remove", "os.rmdir", "os.mkdir") else -1
            if not all(self._inside(path, folder, event == "open") for path in arguments[: 2 if two else 1]):
                self._seen.append(f"{event} {str(arguments)[:200]}")

    def _inside(self, path: Any, folder: int, through_links: bool) -> bool:
        """Whether a path, relative to an open folder if there is one, is in the folder that may be written to."""
        if isinstance(path, int):
            return True
        base = "" if folder == -1 else os.readlink(f"/proc/self/fd/{folder}")
        path = os.path.join(base, os.fsdecode(path))
        parent, name = os.path.split(path.rstrip(os.sep))
        real = os.path.realpath(path) if through_links else os.path.join(os.path.realpath(parent), name)
        return real == self.folder or real.startswith(self.folder + os.sep)


HANGS: list[str] = []
"""Where readers were when their time was over."""


def _alarm(_: int, frame: Any) -> None:
    HANGS.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
    raise Hang


def unclear(message: str) -> list[str]:
    """What is wrong with a message for people."""
    problems = []
    if len(message) > LONGEST:
        problems.append(f"a message of {len(message)} characters: {message[:80]!r}")
    if not message.isprintable():
        problems.append(f"a message with characters that no terminal should get: {message[:300]!r}")
    if message and len(message.split()) < 3:
        problems.append(f"a message that says nothing: {message!r}")
    return problems


def nbytes(value: Any) -> int:
    """Bytes of the arrays in what a reader returns."""
    if isinstance(value, np.ndarray) or hasattr(value, "nbytes"):
        return int(value.nbytes)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return nbytes([getattr(value, field.name) for field in dataclasses.fields(value)])
    if isinstance(value, dict):
        return sum(map(nbytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(nbytes, value))
    return 0


def place(folder: Path, files: dict[str, bytes | None], new: bool = True) -> int:
    """Put files into a folder, a new one or one that has others; how many bytes they have."""
    if new:
        folder.mkdir(parents=True, exist_ok=True)
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry)
            else:
                os.unlink(entry)
    for name, content in files.items():
        path = folder / name
        if content is None:
            path.unlink(missing_ok=True)
            continue
        if "/" in name:
            path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    return sum(len(content) for content in files.values() if content is not None)
