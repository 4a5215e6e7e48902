"""sample(): run chains in compiled chunks, with bounded memory, progress, checkpoints and partial results."""

from __future__ import annotations

import contextlib
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from rich.progress import Progress as RichProgress

from widebnn.errors import WidebnnError, check_real
from widebnn.precision import double_precision, one_blas_thread
from widebnn.samplers import SamplingAlgorithm, build_sampler
from widebnn.samplers.target import Target
from widebnn.sampling.collect import Collect, everything
from widebnn.sampling.manifest import describe
from widebnn.sampling.placement import Placement, position_shapes
from widebnn.sampling.program import Chains
from widebnn.sampling.progress import Progress
from widebnn.sampling.result import Result
from widebnn.sampling.rounding import PrecisionCheck
from widebnn.sampling.stop import Stop
from widebnn.sampling.trace import Plan, Saver, Trace

CHUNK_SECONDS = 0.5
"""How long a compiled chunk should take: the latency of Ctrl-C and of the progress display."""
Until = Callable[[dict[str, np.ndarray], dict[str, np.ndarray]], int]
EVERY = 20
"""Draws after which ``until`` is asked: never in between, so that a resumed run ends where another would."""
LEAST_DRAWS = 10
"""Draws per chain that a limit of time leaves: with fewer of them nothing could be said about the chains."""


def sample(
    target: Target,
    sampler: str | SamplingAlgorithm = "auto",
    *,
    steps: int,
    burn_in: int = 0,
    thin: int = 1,
    chains: int = 1,
    seed: int = 0,
    collect: Collect | None = None,
    initial: Any = None,
    progress: bool | RichProgress | None = None,
    store: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 30.0,
    max_seconds: float | None = None,
    until: Until | None = None,
    mesh: Mesh | None = None,
    **options: Any,
) -> Result:
    """Run Markov chains on a target and keep every ``thin``-th step after ``burn_in`` steps.

    Ctrl-C returns the draws so far; a second one does not wait for the step that is running.

    Args:
        target: The distribution to sample from, for example ``widebnn.posterior``.
        sampler: ``auto``, ``pcn``, ``pcnl``, ``mala``, ``underdamped``, ``rwmh``, ``hmc``, ``hilbert_hmc`` or
            ``elliptical_slice``, with its options as keywords; or a ``SamplingAlgorithm``.
        steps: Steps of each chain after burn-in.
        burn_in: Steps before that are not kept. A step size that is not given is tuned here and fixed afterwards.
        thin: Keep one draw of so many steps.
        chains: Number of chains.
        seed: Of all random numbers. The same seed gives the same bits.
        collect: (key, position) -> dictionary of arrays to keep of a draw, such as ``widebnn.track``; the whole
            position if not given.
        initial: First positions, stacked along a leading chain axis; draws from N(0, I) if not given.
        progress: None shows a progress bar on terminals and a line every half minute elsewhere, False nothing; a
            display of ``widebnn.sampling.progress.display`` gets a bar among its others.
        store: A folder for draws and checkpoints. The same call resumes a run that was stopped or killed and ends with
            the same bits (up to rounding if the number of cores or devices is another); more ``steps`` extend it.
        checkpoint_seconds: Time between checkpoints; Ctrl-C and SIGTERM write one too.
        max_seconds: End once the call has taken so long: without draws in the burn-in, and with at least ten per chain
            after it. How many depends on the speed of the machine; each is the same as without a limit.
        until: (statistics, draws) -> number of draws per chain to end with, asked after every 20 draws with all so far,
            arrays of chains x draws x ...; ``steps`` is then the most.
        mesh: Devices for the chains and hidden units (``widebnn.device_mesh``), also of several processes that all
            make this call; the draws are the same up to the rounding of sums over units.
        **options: Options of the sampler, for example ``step_size=0.1``.

    Returns:
        Draws and statistics; ``to_datatree()`` converts them for ArviZ.

    Raises:
        WidebnnError: An argument is wrong, no chain can move from its start, or memory would not suffice.
        PrecisionError: Rounding of float32 features decides what is accepted; less than that is a PrecisionWarning.
        StoreError: ``store`` holds another run, is in use, or cannot be written.

    Examples:
        >>> target = widebnn.posterior(widebnn.dense(4, [1024]), x, y, noise=0.1)  # doctest: +SKIP
        >>> result = widebnn.sample(target, steps=1000, burn_in=500, chains=4)  # doctest: +SKIP
    """
    began = time.perf_counter()
    plan = Plan.checked(steps, burn_in, thin, chains, seed)
    limit = math.inf if max_seconds is None else check_real("max_seconds", max_seconds, at_least=0, at_most=math.inf)
    interval = None if store is None else check_real("checkpoint_seconds", checkpoint_seconds, at_least=0)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((initial, jnp.add(0, 0)))):
        raise WidebnnError(
            "sample() compiles and runs programs of its own and cannot be called inside jax.jit, jax.vmap or jax.grad: "
            "call it outside, or use the samplers in widebnn.samplers there, whose init and step can be traced."
        )
    with double_precision(), one_blas_thread(), contextlib.ExitStack() as stack:
        if not isinstance(sampler, SamplingAlgorithm):
            algorithm = build_sampler(sampler, target.log_likelihood, plan.burn_in, **options)
        elif options:
            raise WidebnnError(f"options {sorted(options)} need the sampler's name, not a built sampler.")
        else:
            algorithm = sampler
        place = Placement(mesh, plan.chains, position_shapes(target))
        stack.enter_context(place.together())
        started = time.perf_counter()
        states = Chains(target, algorithm, collect or everything, place, plan.thin)
        trace = Trace.empty(plan, states)
        states.start(plan.seed, initial)
        precision = PrecisionCheck(states)
        precision.at_start()
        states.compile(plan.draws)
        trace.compile_seconds = time.perf_counter() - started
        saver = Saver(states, trace, interval)
        if store is not None:
            name = sampler if isinstance(sampler, str) else "custom"
            settings = {"sampler": name, **options, **plan._asdict()}
            del settings["draws"]
            saver.resume(Path(store), describe(target, settings, place.units), stack)
        interrupted = _run(saver, precision, progress if place.leads else False, began + limit, until)
        _warn_of_nonfinite(trace)
        return trace.result(states, interrupted)


def _run(saver: Saver, precision: PrecisionCheck, show: Any, deadline: float, until: Until | None) -> bool:
    """Burn in and draw until all is done or the deadline has passed; whether Ctrl-C ended it."""
    states, trace, plan = saver.states, saver.trace, saver.trace.plan
    whole = plan.burn_in + plan.draws * plan.thin
    done = trace.burned + trace.done * plan.thin
    with Progress(whole, done, plan.chains, show) as bar, Stop(saver.interval is not None) as stop:
        is_fresh = trace.done == 0
        for t, count in _chunks(trace.burned, lambda _: plan.burn_in, plan.burn_in, stop, saver, deadline, least=0):
            totals = states.advance(t, count)
            trace.burn_totals += totals.sum(axis=0)
            trace.burned = t + count
            bar.update("burn-in", count, totals[:, 0].mean() / count)
        is_burned = trace.burned == plan.burn_in
        if is_fresh and trace.burned and is_burned and not stop.asked:
            rate = trace.burn_totals[0] / (trace.burned * plan.chains)
            precision.in_bulk("after warm-up", trace.burn_totals[3] > 0, rate, trace.burned)
        before, began = trace.seconds, time.perf_counter()
        draws = plan.draws if is_burned else 0
        wanted = draws

        def goal(done: int) -> int:
            nonlocal wanted
            if until is not None and done and done % EVERY == 0:
                so_far = ({name: a[:, :done] for name, a in part.items()} for part in (trace.stats, trace.kept))
                wanted = min(math.ceil(until(*so_far) / EVERY) * EVERY, draws)
                bar.set_total(plan.burn_in + max(wanted, done) * plan.thin)
            return wanted

        most = states.rows if until is None else min(states.rows, EVERY)
        for start, count in _chunks(trace.done, goal, most, stop, saver, deadline):
            trace.keep(states.gather(plan.burn_in + start * plan.thin, count), count)
            trace.seconds = before + time.perf_counter() - began
            bar.update("sampling", count * plan.thin, trace.stats["acceptance_rate"][:, start : trace.done].mean())
        saver.write()
    stop.pass_on()
    if stop.asked:
        warnings.warn(f"interrupted: {trace.done} of {plan.draws} draws per chain were kept", stacklevel=3)
    elif trace.done:
        rate, gradients = (trace.stats[name][:, : trace.done].mean(axis=1) for name in ("acceptance_rate", "gradients"))
        precision.in_bulk("at the end", bool(gradients.any()), rate.min(), trace.done * plan.thin)
    return stop.asked


def _chunks(
    start: int,
    goal: Callable[[int], int],
    most: int,
    stop: Stop,
    saver: Saver,
    deadline: float,
    least: int = LEAST_DRAWS,
) -> Iterator[tuple[int, int]]:
    """(start, count) of chunks of about CHUNK_SECONDS each, with checkpoints between; ``least`` whatever the time."""
    count, due = 1, False
    while start < (total := goal(start)):
        end = min(total, max(start, least)) if time.perf_counter() > deadline else total
        count = min(max(count, 1), most - start % most, end - start)
        count, due, stop.asked = saver.states.place.agree(count, due, stop.asked)
        if due:
            saver.write()
        if stop.asked or count == 0:
            return
        began = time.perf_counter()
        yield start, count
        elapsed = max(time.perf_counter() - began, 1e-6)
        start, due = start + count, saver.is_due()
        count = int(count * float(np.clip(CHUNK_SECONDS / elapsed, 0.2, 10)))


def _warn_of_nonfinite(trace: Trace) -> None:
    plan = trace.plan
    nonfinite, accepted = (trace.stats[name][:, : trace.done].sum() for name in ("nonfinite", "accepted"))
    proposals = plan.chains * (trace.burned + trace.done * plan.thin)
    count = int(nonfinite + trace.burn_totals[2])
    stuck = 0 < count == proposals and accepted + trace.burn_totals[1] == 0
    if nonfinite == 0 and not stuck:  # steps that are too large are part of the search for a step size
        return
    what = f"all {count} proposals" if stuck else f"{count} of {proposals} proposals"
    warnings.warn(
        f"{what} had a log-likelihood or a gradient that is not a finite number and were rejected"
        f"{': no chain has moved' if stuck else ''}; "
        "the target may overflow or its covariance may not be positive definite there",
        stacklevel=3,
    )
