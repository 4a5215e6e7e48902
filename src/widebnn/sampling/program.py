"""The compiled chunks of a run, and the states of its chains on the devices.

Step t of chain i uses the key fold_in(key of chain i, t), so that a chain is the same whatever the chunk size, the
number of chains or the progress display. All chains run the same compiled single-chain program.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widebnn.errors import WidebnnError
from widebnn.precision import double_precision
from widebnn.samplers import SamplingAlgorithm
from widebnn.samplers.target import Target
from widebnn.sampling.collect import Collect
from widebnn.sampling.placement import Placement, cores, physical_memory, position_shapes

BUFFER_BYTES = 2**26
"""How much a chunk may hold on the device before it is moved to the host."""
STATISTICS: dict[str, Any] = {"lp": np.float64, "acceptance_rate": np.float64, "accepted": np.float64}
STATISTICS |= {"nonfinite": np.int64, "gradients": np.int64}
TOTALS = tuple(STATISTICS)[1:]
"""Sums over steps, or means where the statistic of a draw is a float."""


class Chains:
    """The chains of one call of sample(): compiled programs, and states by group (see ``Placement``)."""

    def __init__(self, target: Target, algorithm: SamplingAlgorithm, collect: Collect, place: Placement, thin: int):
        self.target, self.algorithm, self.collect, self.place, self.thin = target, algorithm, collect, place, thin
        self.position = position_shapes(target)
        self.reference = place.jit(target.sample_reference, "position")
        kept = jax.eval_shape(collect, jax.random.key(0), self.position)
        if not isinstance(kept, dict):
            raise WidebnnError(f"collect must return a dictionary of arrays, got {type(kept).__name__}.")
        self.row = {name: jax.ShapeDtypeStruct((), dtype) for name, dtype in STATISTICS.items()}, kept
        """Statistics and what is kept of one draw of one chain."""

    def start(self, seed: int, initial: Any) -> None:
        """Put every chain at its first position, and refuse one that no chain can leave."""
        pairs = [jax.random.split(jax.random.fold_in(jax.random.key(seed), i)) for i in range(self.place.chains)]
        self.step_keys = self._keys([step_key for _, step_key in pairs])
        self.noise_keys = self._keys([jax.random.fold_in(start_key, 1) for start_key, _ in pairs])
        if initial is None:
            positions = [self.reference(key) for key in self._keys([start_key for start_key, _ in pairs])]
        else:
            given = _split(initial, self.position, self.place.chains)
            positions = [self.place.put([given[chain] for chain in group], "position") for group in self.place.groups]
        init = _compile(self.place, self.place.jit(self._init, (None, "whole")), positions[0])
        started = [init(position) for position in positions]
        self.states = [state for state, _ in started]
        _check_start([health for _, healths in started for health in self.place.to_host(healths)])

    def compile(self, draws: int) -> None:
        """Compile the program and allocate its buffers."""
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.row))
        self.rows = int(np.clip(BUFFER_BYTES // size, 1, min(draws, 1000)))
        slots = jax.tree.map(lambda s: np.zeros((self.rows, *s.shape), s.dtype), self.row)
        self.buffers = [self.place.put([slots] * len(group)) for group in self.place.groups]
        state, key, zero = self.states[0], self.step_keys[0], np.int64(0)
        out = self.place.places(state), "whole"
        gather = self.place.jit(self._gather, out, shared=3, donate_argnums=(0, 1))
        self._program = _compile(self.place, gather, state, self.buffers[0], key, zero, zero, zero)

    def advance(self, t: int, count: int) -> np.ndarray:
        """Make ``count`` steps from step t on, of which nothing is kept; chains x sums of TOTALS.

        It is one draw after so many steps, so that one program serves burn-in and draws.
        """
        self._run(t, 1, count)
        rows = [own for statistics, _ in self.buffers for own in self.place.to_host(statistics)]
        weights = {name: count if STATISTICS[name] is np.float64 else 1 for name in TOTALS}
        return np.array([[row[name][0] * weight for name, weight in weights.items()] for row in rows], np.float64)

    def gather(self, t: int, count: int) -> list[Any]:
        """Make ``count`` draws, each after ``thin`` steps, from step t on; for each chain (statistics, kept)."""
        self._run(t, count, self.thin)
        return [rows for buffers in self.buffers for rows in self.place.to_host(buffers)]

    def _run(self, t: int, count: int, thin: int) -> None:
        """Run the program of every group.

        XLA runs a program with a loop in the thread that calls it, and much of a step keeps one core busy only: on the
        CPU every group has a thread, and at most as many run at a time as there are cores.
        """
        shared = np.int64(t), np.int64(count), np.int64(thin)
        groups = self.states, self.buffers, self.step_keys

        def run(*own: Any) -> Any:
            with double_precision():
                return jax.block_until_ready(self._program(*own, *shared))

        if self.place.mesh is None and len(self.states) > 1:
            with ThreadPoolExecutor(cores()) as threads:
                outputs = list(threads.map(run, *groups))
        else:
            outputs = jax.block_until_ready([self._program(*own, *shared) for own in zip(*groups, strict=True)])
        self.states, self.buffers = map(list, zip(*outputs, strict=True))

    def at_start(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The log-likelihood of every chain, and what ``collect`` returns for the first."""
        values = [value for state in self.states for value in self.place.to_host(state.log_likelihood)]
        collected = self.place.jit(self.collect)(self.step_keys[0], self.states[0].position)
        return np.array(values, np.float64), self.place.to_host(collected)[0]

    def to_host(self) -> dict[str, np.ndarray]:
        """The arrays of the states, numbered, stacked along a leading chain axis."""
        states = [jax.tree.leaves(state) for group in self.states for state in self.place.to_host(group)]
        return {str(i): np.stack(leaves) for i, leaves in enumerate(zip(*states, strict=True))}

    def from_host(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Put back what ``to_host`` returned."""
        places, structure = self.place.places(self.states[0]), jax.tree.structure(self.states[0])
        leaves = [arrays[str(i)] for i in range(structure.num_leaves)]  # type: ignore[attr-defined]
        states = [jax.tree.unflatten(structure, own) for own in zip(*leaves, strict=True)]
        self.states = [self.place.put([states[chain] for chain in group], places) for group in self.place.groups]

    def _keys(self, keys: list[jax.Array]) -> list[jax.Array]:
        return [self.place.put_keys([keys[chain] for chain in group]) for group in self.place.groups]

    def _init(self, position: Any) -> Any:
        """The first state, and whether it is finite."""
        state = self.algorithm.init(position)
        finite = _is_finite(state.position), _is_finite(getattr(state, "gradient", ()))
        return state, (*finite, state.log_likelihood)

    def _gather(self, state: Any, buffers: Any, chain_key: Any, t: Any, count: Any, thin: Any) -> Any:
        """The program: ``count`` draws of one chain, each after ``thin`` steps, in the first rows of the buffers."""

        def step(i: Any, carry: Any) -> Any:
            state, (rate, accepted, nonfinite, gradients) = carry
            step_key, _ = jax.random.split(jax.random.fold_in(chain_key, i))
            state, info = self.algorithm.step(step_key, state)
            totals = rate + info.acceptance_rate, accepted + info.is_accepted, nonfinite + ~info.is_finite
            return state, (*totals, gradients + info.gradients)

        def draw(i: Any, carry: Any) -> Any:
            state, buffers = carry
            first, zero = t + i * thin, jnp.zeros((), jnp.int64)
            totals = jnp.zeros((), jnp.float64), zero, zero, zero
            state, totals = jax.lax.fori_loop(first, first + thin, step, (state, totals))
            _, collect_key = jax.random.split(jax.random.fold_in(chain_key, first + thin - 1))
            statistics = dict(zip(TOTALS, totals, strict=True))
            for name in ("acceptance_rate", "accepted"):
                statistics[name] /= thin
            row = statistics | {"lp": state.log_likelihood}, self.collect(collect_key, state.position)
            return state, jax.tree.map(lambda b, r: b.at[i].set(r.astype(b.dtype)), buffers, row)

        return jax.lax.fori_loop(0, count, draw, (state, buffers))


def _compile(place: Placement, function: Any, *arguments: Any) -> Any:
    """Compile, and refuse what would not fit into memory."""
    compiled = function.lower(*arguments).compile()
    needed = len(place.groups) * compiled.memory_analysis().temp_size_in_bytes
    available = physical_memory()
    if available is not None and needed > available:
        raise WidebnnError(
            f"a step of {place.chains} chains takes {needed / 1e9:.1f} GB, more than the {available / 1e9:.1f} GB of "
            "this machine: use fewer training rows, a smaller width, fewer chains or dtype='float32'."
        )
    return compiled


def _split(initial: Any, position: Any, chains: int) -> list[Any]:
    """The caller's positions of all chains, chain by chain."""
    (leaves, found), (wanted, structure) = jax.tree.flatten(initial), jax.tree.flatten(position)
    shapes = [(chains, *leaf.shape) for leaf in wanted]
    if [found, *map(np.shape, leaves)] != [structure, *shapes]:
        expected = jax.tree.unflatten(structure, shapes)
        raise WidebnnError(f"initial must hold one position per chain, shapes {expected}.")

    def of(chain: Any) -> Any:
        return jax.tree.map(lambda given, leaf: np.asarray(given[chain], leaf.dtype), initial, position)

    return [of(chain) for chain in range(chains)]


def _is_finite(tree: Any) -> jax.Array:
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)], bool))


def _check_start(health: list[Any]) -> None:
    """Refuse a start from which every step would be rejected, or that would be kept for ever."""
    for chain, (position, gradient, value) in enumerate(health):
        if not (position and gradient and np.isfinite(value)):
            what = "position" if not position else "gradient" if np.isfinite(value) else f"log-likelihood ({value})"
            raise WidebnnError(
                f"the {what} is not finite at the start of chain {chain}: no step from there can be judged. "
                "Check the target for overflow, try dtype='float64', or pass other initial positions."
            )
