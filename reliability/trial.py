"""A small run, the checksum of all that it returns, and processes of their own to have it interrupted in."""

from __future__ import annotations

import hashlib
import os
import select
import signal
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import widebnn
from widebnn.compilation import compile_quickly
from widebnn.sampling import driver

# The same bits from every process are what matters here, not speed.
compile_quickly()
SETTINGS: dict[str, Any] = {"steps": 3000, "burn_in": 300, "thin": 2, "chains": 2, "seed": 5, "progress": False}
OPTIONS: dict[str, dict[str, Any]] = {"rwmh": {"step_size": 0.05}, "mala": {"step_size": 0.05}}
OPTIONS |= {"underdamped": {"step_size": 0.1}, "hmc": {"step_size": 0.05, "num_steps": 3}}


def problem() -> tuple[widebnn.Target, Any]:
    """A posterior, and what is kept of it."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 3)), rng.normal(size=(8, 1))
    target = widebnn.posterior(widebnn.dense(3, [16]), x, y, noise=0.3)
    return target, widebnn.track(target, rng.normal(size=(4, 3)))


def run_once(sampler: str, folder: Path | None, **settings: Any) -> str:
    """One run, or what is left of it; the SHA-256 of all that it returns."""
    target, collect = problem()
    options = {"store": folder, "checkpoint_seconds": 0.0} if folder else {}
    options |= SETTINGS | OPTIONS.get(sampler, {}) | settings
    return digest(widebnn.sample(target, sampler, collect=collect, **options))


def digest(result: Any) -> str:
    """The SHA-256 of draws, statistics and last positions."""
    found = hashlib.sha256()
    for part in (result.stats, result.draws):
        for name in sorted(part):
            found.update(np.ascontiguousarray(part[name]).tobytes())
    for leaf in jax.tree.leaves(result.last):
        found.update(np.ascontiguousarray(leaf).tobytes())
    return found.hexdigest()


def store_often() -> None:
    """Small chunks, and a checkpoint after each, from now on in this process."""
    driver.CHUNK_SECONDS, driver.CHECKPOINT_SHARE = 0.02, float("inf")


def compile_once(folder: str) -> None:
    """Keep compiled programs for the processes and runs that follow, which only makes them start faster."""
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


class Child:
    """A process of its own that does some work: it says a byte when chains move, and the result at the end.

    JAX must not have been used in this process before; only imported.
    """

    def __init__(self, work: Callable[[], str]):
        self._read, writing = os.pipe()
        self._said = b""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX warns of forks; its backend has not been started here
            self.pid = os.fork()
        if self.pid:
            os.close(writing)
            return
        status = 1
        try:
            os.close(self._read)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background of a shell ignore it
            self._tell(writing)
            os.write(writing, work().encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    @staticmethod
    def _tell(writing: int) -> None:
        told = [False]

        class Telling(driver.Progress):
            def update(self, *arguments: Any) -> None:
                if not told[0]:
                    os.write(writing, b"+")
                    told[0] = True

        driver.Progress = Telling  # type: ignore[misc]

    def wait_until_it_moves(self) -> bool:
        """Whether it does; False if it ended before, as it may where nothing is left to do: then it said its result."""
        self._said = os.read(self._read, 1)
        return self._said == b"+"

    def end(self, kill_after: float | None = None) -> tuple[int, str]:
        """Exit status, negative for a signal, and what it said; killed if it has not ended by then."""
        if kill_after is not None and not select.select([self._read], [], [], kill_after)[0]:
            os.kill(self.pid, signal.SIGKILL)
        said = self._said
        while part := os.read(self._read, 4096):
            said += part
        os.close(self._read)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), said.decode().lstrip("+")
