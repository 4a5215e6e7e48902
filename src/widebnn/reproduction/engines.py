"""Where the jobs of a sweep run: processes of this machine, or a Ray cluster."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any, get_args

from widebnn import names
from widebnn.compilation import keep_compiled_in
from widebnn.errors import WidebnnError, check_choice, check_integer


@dataclasses.dataclass
class Engine:
    """Where jobs run: ``submit`` starts one, ``stop`` asks all to write a checkpoint and end."""

    submit: Callable[..., concurrent.futures.Future[Any]]
    stop: Callable[[], Any]
    at_once: int | None = None
    """How many jobs to submit at a time, None for all."""


@contextlib.contextmanager
def local_engine(workers: int | None = None) -> Iterator[Engine]:
    """Run jobs in processes of this machine.

    Args:
        workers: Number of processes; by default half the number of cores.

    Yields:
        An engine for ``sweep``.

    Raises:
        WidebnnError: ``workers`` is not a positive integer.
    """
    workers = max(1, (os.cpu_count() or 1) // 2) if workers is None else check_integer("workers", workers, 1)
    spawn = multiprocessing.get_context("spawn")
    pools: list[concurrent.futures.ProcessPoolExecutor] = []
    with tempfile.TemporaryDirectory(prefix="widebnn-") as compiled, contextlib.ExitStack() as stack:

        def submit(*call: Any) -> concurrent.futures.Future[Any]:
            with contextlib.suppress(BrokenProcessPool, IndexError):
                return pools[-1].submit(*call)
            # There is none yet, or a killed process took its pool with it.
            pool = concurrent.futures.ProcessPoolExecutor(workers, spawn, _start_worker, (compiled,))
            pools.append(stack.enter_context(pool))
            return pool.submit(*call)

        def stop() -> None:
            for child in multiprocessing.active_children():
                child.terminate()

        yield Engine(submit, stop, workers)


def _start_worker(compiled: str) -> None:
    """Share compiled programs; leave Ctrl-C to the main process, which passes it on as SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_compiled_in(compiled)


@contextlib.contextmanager
def ray_engine(address: str | None = None) -> Iterator[Engine]:
    """Run jobs on a Ray cluster.

    Args:
        address: ``HOST:PORT`` of the cluster or ``auto``; by default a cluster is started on this machine.

    Yields:
        An engine for ``sweep``.

    Raises:
        WidebnnError: Ray is not installed, or there is no cluster at the address.
    """
    try:
        import ray
    except ImportError:
        raise WidebnnError("the engine 'ray' needs Ray: pip install 'widebnn[ray]'.") from None
    if own := not ray.is_initialized():
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        quiet |= {"include_dashboard": False} if address is None else {}
        quiet |= {"_node_ip_address": "127.0.0.1"} if (address or "127.0.0.1").startswith("127.0.0.1") else {}
        host, _, port = (address or "").rpartition(":")
        try:
            if host and "/" not in host and port.isdigit():
                # Ray itself would try for minutes and then end the process.
                socket.create_connection((host, int(port)), 10).close()
            ray.init(address=address, **quiet)
        except (RuntimeError, ValueError, OSError, OverflowError) as error:
            reason = (str(error).splitlines() or ["no answer"])[0]
            raise WidebnnError(f"there is no Ray cluster at {address} ({reason}); start one with ray start.") from None
    flags = {name: os.environ[name] for name in ("XLA_FLAGS", "NPROC") if name in os.environ}
    options: dict[str, Any] = {"runtime_env": {"env_vars": flags}} if flags else {}
    task: Any = ray.remote(num_cpus=1, max_retries=0, **options)(lambda function, *rest: function(*rest))
    running: list[Any] = []

    def submit(*call: Any) -> concurrent.futures.Future[Any]:
        running.append(task.remote(*call))
        return running[-1].future()

    try:
        yield Engine(submit, lambda: [ray.cancel(reference) for reference in running])
    finally:
        if own:
            ray.shutdown()


def engine_named(name: str, workers: int | None = None, address: str | None = None) -> Any:
    """Return the context manager of the engine ``local`` or ``ray``; refuse options of the other one."""
    check_choice("engine", name, get_args(names.Engine))
    if name == "ray" and workers is not None:
        raise WidebnnError("workers are for the local engine: a Ray cluster has its own number of cores.")
    if name != "ray" and address is not None:
        raise WidebnnError(f"an address ({address}) is for the engine 'ray'.")
    return ray_engine(address) if name == "ray" else local_engine(workers)
