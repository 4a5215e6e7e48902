"""What a run has computed so far: on the host, and in checkpoints on disk."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from widebnn.errors import StoreError, WidebnnError, check_integer
from widebnn.runs.folder import RunFolder, open_run
from widebnn.sampling.manifest import PREFIX, START, check_same
from widebnn.sampling.program import Chains
from widebnn.sampling.result import Result

CHECKPOINT_SHARE = 0.01
"""Checkpoints take at most this part of the time: where writing is slow they are less frequent."""
MOST_CHAINS = 10_000
STORE_BYTES = 2**33
"""How much the stored draws may take before sample() refuses and asks for a smaller collect."""


class Plan(NamedTuple):
    """How long chains are, and how many."""

    draws: int
    burn_in: int
    thin: int
    chains: int
    seed: int

    @classmethod
    def checked(cls, steps: int, burn_in: int, thin: int, chains: int, seed: int) -> Plan:
        """From the arguments of sample()."""
        draws = check_integer("steps", steps, 1) // check_integer("thin", thin, 1)
        if draws == 0:
            raise WidebnnError(f"thin={thin} keeps nothing of {steps} steps; use thin of at most {steps}.")
        chains = check_integer("chains", chains, 1, MOST_CHAINS)
        return cls(draws, check_integer("burn_in", burn_in, 0), int(thin), chains, check_integer("seed", seed, 0))


@dataclass
class Trace:
    """What a run has computed so far, on the host; arrays have shape (chains, draws, ...)."""

    plan: Plan
    stats: dict[str, np.ndarray]
    kept: dict[str, np.ndarray]
    done: int = 0
    """Draws per chain."""
    burned: int = 0
    """Steps of burn-in per chain."""
    burn_totals: np.ndarray = field(default_factory=lambda: np.zeros(4))
    """Sums over chains and burn-in of what ``widebnn.sampling.program.TOTALS`` names."""
    seconds: float = 0.0
    compile_seconds: float = 0.0

    @classmethod
    def empty(cls, plan: Plan, states: Chains) -> Trace:
        """Arrays for all draws, unless they are too many."""
        leaves = jax.tree.leaves(states.row)
        total = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) * plan.draws * plan.chains
        if total > STORE_BYTES:
            raise WidebnnError(
                f"keeping {plan.draws} draws of {plan.chains} chains takes {total / 1e9:.1f} GB: pass a collect "
                "function that keeps less (for networks widebnn.track(target, x_test)), or a larger thin."
            )
        return cls(plan, *jax.tree.map(lambda s: np.zeros((plan.chains, plan.draws, *s.shape), s.dtype), states.row))

    def arrays(self) -> dict[str, np.ndarray]:
        """All that is stored of draws."""
        parts = {"stats": self.stats, "draws": self.kept}
        return {f"{part}.{name}": array for part, arrays in parts.items() for name, array in arrays.items()}

    def keep(self, rows: list[Any], count: int) -> None:
        """Append the first ``count`` rows of every chain."""
        for chain, own in enumerate(rows):
            for array, new in zip(jax.tree.leaves((self.stats, self.kept)), jax.tree.leaves(own), strict=True):
                array[chain, self.done : self.done + count] = new[:count]
        self.done += count

    def result(self, states: Chains, interrupted: bool) -> Result:
        """What sample() returns."""
        plan = self.plan
        parts = [(state.position, getattr(state, "step_size", None)) for state in states.states]
        last, sizes = zip(*(own for part in parts for own in states.place.to_host(part)), strict=True)
        return Result(
            draws={name: array[:, : self.done] for name, array in self.kept.items()},
            stats={name: array[:, : self.done] for name, array in self.stats.items()},
            target=states.target,
            steps=self.done * plan.thin,
            burn_in=self.burned,
            thin=plan.thin,
            chains=plan.chains,
            seed=plan.seed,
            seconds=self.seconds,
            compile_seconds=self.compile_seconds,
            burn_in_acceptance_rate=self.burn_totals[0] / max(self.burned * plan.chains, 1),
            interrupted=interrupted,
            step_size=None if sizes[0] is None else np.array(sizes, np.float64),
            last=jax.tree.map(lambda *leaves: np.stack(leaves), *last),
        )


class Saver:
    """Writes checkpoints when they are due; never without an ``interval``. Only the lead process has a folder."""

    def __init__(self, states: Chains, trace: Trace, interval: float | None):
        self.states, self.trace, self.interval = states, trace, interval
        self.folder: RunFolder | None = None
        self.stored = 0
        self.saved_at, self.wait = time.perf_counter(), interval or 0.0

    def resume(self, folder: Path, manifest: dict[str, Any], stack: contextlib.ExitStack) -> None:
        """Lock the folder, refuse it if it holds another run, and resume from the last good checkpoint."""
        trace, place = self.trace, self.states.place
        values, collected = self.states.at_start()
        self.start = {**collected, START: values}
        state = self._state()

        def opened() -> Any:
            self.folder = stack.enter_context(open_run(folder, manifest))
            if self.folder.newest is not None:
                check_same(folder, self.folder.newest, manifest, self.start)
            found = self.folder.restore(trace.arrays(), state)
            if found and not 0 <= found[1]["burned"] <= manifest["burn_in"]:
                raise StoreError(f"{folder} has a wrong number of steps of burn-in; choose another folder.")
            return found

        done, state = place.on_lead(opened) or (-1, state)
        done = int(place.from_lead(np.array(done)))
        if done < 0:
            return
        state = {name: place.from_lead(array) for name, array in state.items()}
        trace.done = self.stored = done
        trace.burned, trace.seconds, trace.burn_totals = int(state["burned"]), float(state["seconds"]), +state["totals"]
        for array in trace.arrays().values():
            array[:, :done] = place.from_lead(array[:, :done])
        self.states.from_host(state)
        self.saved_at = time.perf_counter()

    def is_due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return self.interval is not None and time.perf_counter() - self.saved_at >= self.wait

    def write(self) -> None:
        """Write the new draws and a checkpoint."""
        if self.interval is None:
            return
        began, state, rows = time.perf_counter(), self._state(), slice(self.stored, self.trace.done)

        def write() -> None:
            assert self.folder is not None
            if rows.start < rows.stop:
                self.folder.append(rows.start, {name: a[:, rows] for name, a in self.trace.arrays().items()})
            self.folder.save(state)

        self.states.place.on_lead(write)
        self.stored, self.saved_at = self.trace.done, time.perf_counter()
        self.wait = max(self.interval, (self.saved_at - began) / CHECKPOINT_SHARE)

    def _state(self) -> Mapping[str, np.ndarray]:
        numbers = {"burned": self.trace.burned, "seconds": self.trace.seconds, "totals": self.trace.burn_totals}
        start = {PREFIX + name: array for name, array in self.start.items()}
        return {name: np.array(value) for name, value in numbers.items()} | start | self.states.to_host()
