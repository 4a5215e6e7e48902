"""A small run for the reliability tests, in this process or as a program of its own that a test kills.

All goes through public behaviour: ``widebnn.sample``, the ``widebnn`` command, a progress display that records the
steps it is given, a clock that such steps move, and functions of ``os`` that fail or end the process.
"""

import contextlib
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from unittest import mock

import jax
import numpy as np
from rich.progress import Progress

import widebnn
from widebnn.cli import main as command_line

FULL = os.environ.get("WIDEBNN_RELIABILITY_SCALE") == "full"
SETTINGS = {"steps": 1200, "burn_in": 200, "thin": 2, "chains": 2, "seed": 5}
OPTIONS = {"rwmh": {"step_size": 0.05}, "mala": {"step_size": 0.05}, "underdamped": {"step_size": 0.1}}
OPTIONS |= {"hmc": {"step_size": 0.05, "num_steps": 3}}
COMMAND = "sample --n-train 16 --n-test 4 --width 8 --sampler pcn --step-size 0.2 --steps 40 --burn-in 10 --thin 2"
CHUNK = 40
CALLS = ("fsync", "replace", "rename", "unlink", "remove", "mkdir", "open", "link")
"""Functions of ``os`` that a run on disk may use."""


def size(moderate, full):
    """How many trials to make: ``full`` in ``make reliability``, ``moderate`` in ``make test-long``."""
    return full if FULL else moderate


class Watched(Progress):
    """A progress display that shows nothing and records what it is given."""

    def __init__(self, tell=lambda watched: None):
        super().__init__(disable=True)
        self.tell, self.begun, self.chunks = tell, 0, []

    def add_task(self, description, *, completed=0, **_):
        self.begun = int(completed)
        return super().add_task(description)

    def update(self, task_id, *, advance=None, **_):
        if advance is not None:
            self.chunks.append(int(advance))
            self.tell(self)


def clock(watched, chunk=CHUNK):
    """A clock that only steps move: chunks have ``chunk`` steps, and writing takes no time, so it is done often."""
    return mock.patch.object(time, "perf_counter", lambda: 0.5 * sum(watched.chunks) / chunk)


def run(sampler="pcn", store=None, watched=None, real_time=False, **settings):
    """One run, or what is left of it, with a checkpoint after every chunk; the SHA-256 of all that it returns."""
    watched, rng = watched or Watched(), np.random.default_rng(0)
    target = widebnn.posterior(widebnn.dense(3, [16]), rng.normal(size=(8, 3)), rng.normal(size=(8, 1)), noise=0.3)
    settings = SETTINGS | OPTIONS.get(sampler, {}) | {"collect": widebnn.track(target, np.ones((4, 3)))} | settings
    settings |= {"store": store, "checkpoint_seconds": 0.0} if store else {}
    with contextlib.nullcontext() if real_time else clock(watched):
        return digest(widebnn.sample(target, sampler, progress=watched, **settings))


def digest(result):
    """The SHA-256 of draws, statistics and last positions."""
    arrays = [part[name] for part in (result.stats, result.draws) for name in sorted(part)]
    arrays += jax.tree.leaves(result.last)
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()


def files_of(folder):
    """All files with something in them."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def other_kinds(folder, good):
    """Names of files, without their numbers, that are in one of two folders only."""
    names = ({path.name.rstrip("0123456789") for path in each.rglob("*")} for each in (folder, good))
    return sorted(set.symmetric_difference(*names))


def counts(tally):
    """What was counted, in words."""
    return ", ".join(f"{count} {what}" for what, count in sorted(tally.items()) if count)


def command(*arguments):
    """``widebnn`` in this process: exit code and standard error."""
    error, argv, code = io.StringIO(), mock.patch.object(sys, "argv", ["widebnn", *map(str, arguments)]), 0
    with argv, warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(error):
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", UserWarning)
        try:
            command_line()
        except SystemExit as end:
            code = end.code or 0
    return code, error.getvalue()


def intercepted(folder, strike):
    """``strike(name, go, argument)`` in place of calls of ``os`` on files in a folder; ``go()`` is the real call."""

    def replacement(name, real):
        def call(first, *others, **options):
            path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else os.fspath(first)
            if not str(path).startswith(str(folder)):
                return real(first, *others, **options)
            return strike(name, lambda: real(first, *others, **options), first)

        return call

    return mock.patch.multiple(os, **{name: replacement(name, getattr(os, name)) for name in CALLS})


def deadly(call, nth, when, fraction):
    """The n-th call of this name ends the process: before it, after it, or with a part of the file written."""
    seen = []

    def strike(name, go, argument):
        seen.extend([name] * (name == call))
        if name != call or len(seen) != nth:
            return go()
        if when == "after":
            go()
        elif when == "part":
            with contextlib.suppress(OSError):  # a folder
                os.truncate(f"/proc/self/fd/{argument}", int(fraction * os.fstat(argument).st_size))
        return os.kill(os.getpid(), signal.SIGKILL)

    return strike


class Child:
    """``python trial.py`` with arguments as JSON: it says a line after every chunk, and the result at the end."""

    def __init__(self, cache, **arguments):
        environment = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        command = [sys.executable, __file__, json.dumps(arguments, default=str)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environment)
        self.last, self.lines = {"begun": 0, "steps": 0, "safe": 0, "warnings": []}, 0

    def wait(self, lines=10**9):
        """Until it has said so many lines, or has ended; the last is kept."""
        while self.lines < lines and (line := self.process.stdout.readline()).endswith("}\n"):
            self.last, self.lines = json.loads(line), self.lines + 1

    def end(self, number=None):
        """Send a signal if one is given, and wait for the end; the exit code, negative for a signal."""
        if number is not None:
            self.process.send_signal(number)
        with self.process.stdout:
            self.wait()
        return self.process.wait(timeout=60)


def program(folder, kill=None, **arguments):
    """What a child does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background of a shell ignore it

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)

        def say(watched, **more):
            # Checkpoints come before the next chunk, and none between the burn-in and the first draws.
            steps, safe = (watched.begun + sum(watched.chunks[:end]) for end in (None, -2))
            line = {"begun": watched.begun, "steps": steps, "safe": safe, **more}
            line["warnings"] = [str(said.message) for said in caught if issubclass(said.category, UserWarning)]
            print(json.dumps(line), flush=True)

        watched = Watched(say)
        with intercepted(folder, deadly(*kill)) if kill else contextlib.nullcontext():
            found = run(store=folder, watched=watched, **arguments)
        say(watched, digest=found)


if __name__ == "__main__":
    program(**json.loads(sys.argv[1]))
