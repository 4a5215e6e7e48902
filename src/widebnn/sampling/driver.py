"""sample(): compiled chunks of steps, several chains, bounded memory, progress, partial results.

Step t of chain i uses the key fold_in(key of chain i, t), so that a chain is the same whatever the chunk
size, the number of chains or the progress display. All chains run the same compiled single-chain program.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import math
import os
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from rich.progress import Progress as RichProgress

from widebnn.errors import StoreError, WidebnnError, check_integer, check_real
from widebnn.precision import double_precision, one_blas_thread
from widebnn.samplers import SamplingAlgorithm, build_sampler
from widebnn.samplers.target import Target
from widebnn.sampling.collect import Collect, everything
from widebnn.sampling.placement import Placement
from widebnn.sampling.progress import Progress
from widebnn.sampling.result import Result
from widebnn.sampling.rounding import PrecisionCheck
from widebnn.sampling.stop import Stop
from widebnn.sampling.store import COLLECTED, CORES, SHARDS, START, VERSION, Checkpoint, Store, fingerprint, open_store

CHUNK_SECONDS = 0.5
"""How long a compiled chunk should take: the latency of Ctrl-C and of the progress display."""
BUFFER_BYTES = 2**26
"""How much a chunk may hold on the device before it is moved to the host."""
CHECKPOINT_SHARE = 0.01
"""Where writing is slow it is done less often: at most this part of the time."""
LEAST_DRAWS = 10
"""Draws per chain that a limit of time leaves: with fewer of them nothing could be said about the chains."""
MOST_CHAINS = 10_000
STORE_BYTES = 2**33
"""How much the stored draws may take before sample() refuses and asks for a smaller collect."""


class Totals(NamedTuple):
    """Running sums over steps."""

    acceptance_rate: jax.Array
    accepted: jax.Array
    nonfinite: jax.Array
    gradients: jax.Array

    def add(self, info) -> Totals:
        """Include one step."""
        return Totals(
            self.acceptance_rate + info.acceptance_rate,
            self.accepted + info.is_accepted,
            self.nonfinite + ~info.is_finite,
            self.gradients + info.gradients,
        )

    @classmethod
    def zero(cls) -> Totals:
        """No steps yet."""
        count = jnp.zeros((), jnp.int64)
        return cls(jnp.zeros((), jnp.float64), count, count, count)


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
    mesh: Mesh | None = None,
    **options: Any,
) -> Result:
    """Run ``chains`` Markov chains on ``target`` and keep every ``thin``-th of ``steps`` steps.

    ``sampler`` is a name (``auto``, ``pcn``, ``pcnl``, ``mala``, ``underdamped``, ``rwmh``, ``hmc``, ``hilbert_hmc``,
    ``elliptical_slice``), with its options as keywords, or a :class:`SamplingAlgorithm`. A step size that is not
    given (``step_size=0.1``) is tuned during ``burn_in`` and fixed afterwards. ``collect(key, position)`` says what to
    keep of a draw, a dictionary of arrays; the default keeps the whole position. Chains start at draws from
    N(0, I) unless ``initial``, positions stacked along a leading chain axis, is given. ``progress=None``
    shows a progress bar on terminals and a line every half minute elsewhere; a :class:`rich.progress.Progress` from
    :func:`widebnn.sampling.progress.display` gets the bar among its others. Ctrl-C returns the draws so far; a second
    one does not wait for the step that is running.

    With ``store``, a folder, draws and the states of the chains are written every ``checkpoint_seconds``, on Ctrl-C and
    on SIGTERM. The same call goes on where it stopped, however it was stopped, and ends with the same bits (up to
    rounding if it goes on with another number of cores or devices); with more ``steps`` it goes on beyond its end.

    With ``max_seconds`` no more draws are begun once the call has taken so long, and those made are returned: at least
    ten per chain, after the whole burn-in. How many is then a matter of the machine's speed; each is the same as ever.

    Where float32 features change accept decisions noticeably, at the start or where the chains are after warm-up and at
    the end, a PrecisionWarning says so; where rounding decides them, PrecisionError is raised.

    ``mesh`` (:func:`widebnn.device_mesh`) divides chains, and the hidden units of each, over devices, also those of
    several processes that all make this call; the draws are the same up to the rounding of sums over units.
    """
    began = time.perf_counter()
    burn_in = check_integer("burn_in", burn_in, 0)
    thin = check_integer("thin", thin, 1)
    steps = check_integer("steps", steps, 1)
    chains = check_integer("chains", chains, 1, MOST_CHAINS)
    seed = check_integer("seed", seed, 0)
    deadline = (
        math.inf
        if max_seconds is None
        else began + check_real("max_seconds", max_seconds, at_least=0, at_most=math.inf)
    )
    draws = steps // thin
    if draws == 0:
        raise WidebnnError(f"thin={thin} keeps nothing of {steps} steps; use thin of at most {steps}.")
    _refuse_tracers(target, initial)
    with double_precision(), one_blas_thread():
        if isinstance(sampler, SamplingAlgorithm):
            if options:
                raise WidebnnError(f"options {sorted(options)} need the sampler's name, not a built sampler.")
            algorithm = sampler
        else:
            algorithm = build_sampler(sampler, target.log_likelihood, burn_in, **options)
        place = Placement(mesh, chains, position_shapes(target))
        run = _Run(target, algorithm, draws, thin, burn_in, chains, seed, collect or everything, place)
        with contextlib.ExitStack() as stack:
            stack.enter_context(place.together())
            run.start(initial)
            if store is not None:
                interval = check_real("checkpoint_seconds", checkpoint_seconds, at_least=0)
                manifest = run.manifest(sampler if isinstance(sampler, str) else "custom", options)
                files = place.on_lead(lambda: stack.enter_context(open_store(Path(store), manifest)))
                run.keep_in(files, interval)
            return run.finish(progress if place.leads else False, deadline)


def _refuse_tracers(target: Target, initial: Any) -> None:
    """One sentence instead of JAX's own, from somewhere inside, where sample() is called under a transformation."""
    leaves = jax.tree.leaves((initial, getattr(target, "y", None), jnp.add(0, 0)))
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        raise WidebnnError(
            "sample() compiles and runs programs of its own and cannot be called inside jax.jit, jax.vmap or jax.grad: "
            "call it outside, or use the samplers in widebnn.samplers there, whose init and step can be traced."
        )


def _plain(value: Any) -> Any:
    """An option of a sampler as JSON has it."""
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)


def _is_finite(tree: Any) -> jax.Array:
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)], bool))


def position_shapes(target: Target) -> Any:
    """A position with shapes and dtypes instead of numbers."""
    return jax.eval_shape(target.sample_reference, jax.random.key(0))


def cores() -> int:
    """Cores that this process may use: XLA divides products among them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def physical_memory() -> int | None:
    """Bytes of memory of the device, or of this machine where it is the device; None where the system does not say."""
    statistics = jax.local_devices()[0].memory_stats()
    if statistics and "bytes_limit" in statistics:
        return statistics["bytes_limit"]
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


class _Run:
    """One call of sample(): the compiled programs, the states of all chains, the arrays being filled."""

    def __init__(self, target, algorithm, draws, thin, burn_in, chains, seed, collect, place: Placement):
        self.target, self.algorithm, self.collect, self.place = target, algorithm, collect, place
        self.draws, self.thin, self.burn_in, self.chains, self.seed = draws, thin, burn_in, chains, seed

    def start(self, initial: Any) -> None:
        """Compile, allocate the result, and put every chain at its first position."""
        began = time.perf_counter()
        place = self.place
        keys = [jax.random.split(jax.random.fold_in(jax.random.key(self.seed), chain)) for chain in range(self.chains)]
        self.step_keys = [place.put_keys([keys[chain][1] for chain in group]) for group in place.groups]
        init_keys = [place.put_keys([keys[chain][0] for chain in group]) for group in place.groups]
        self.position = position_shapes(self.target)
        self.state_shapes = jax.eval_shape(self.algorithm.init, self.position)
        self.reference = place.jit(self.target.sample_reference, "position")
        positions = self._initial_positions(initial, init_keys)
        init = self._compile(place.jit(self._init, (None, "whole")), (positions[0],))
        started = [init(position) for position in positions]
        self.states = [state for state, _ in started]
        self._check_start([health for _, healths in started for health in place.to_host(healths)])
        noise_keys = [
            place.put_keys([jax.random.fold_in(keys[chain][0], 1) for chain in group]) for group in place.groups
        ]
        self.precision = PrecisionCheck(self.target, place, self.reference, noise_keys)
        self.precision.at_start(positions)
        self._allocate()
        self.store: Store | None = None
        self.interval: float | None = None
        self.done = self.burned = self.stored = 0
        self.burn_totals = np.zeros(4)
        self.seconds = 0.0
        zero = np.int64(0)
        state, key = self.states[0], self.step_keys[0]
        out = place.places(state), "whole"
        if self.burn_in:
            advance = place.jit(self._advance, out, shared=2, donate_argnums=0)
            self.advance = self._compile(advance, (state, key, zero, zero))
        gather = place.jit(self._gather, out, shared=2, donate_argnums=(0, 1))
        self.gather = self._compile(gather, (state, self.buffers[0], key, zero, zero))
        self.compile_seconds = time.perf_counter() - began

    def _initial_positions(self, initial: Any, keys: list[jax.Array]) -> list[Any]:
        """One per group."""
        if initial is None:
            return [self.reference(key) for key in keys]
        expected = self.position
        same_structure = str(jax.tree.structure(initial)) == str(jax.tree.structure(expected))
        fits = same_structure and all(
            np.shape(given) == (self.chains, *leaf.shape)
            for given, leaf in zip(jax.tree.leaves(initial), jax.tree.leaves(expected), strict=True)
        )
        if not fits:
            shapes = jax.tree.map(lambda leaf: (self.chains, *leaf.shape), expected)
            raise WidebnnError(f"initial must hold one position per chain, shapes {shapes}.")

        def of(chain):
            return jax.tree.map(lambda given, leaf: np.asarray(given[chain], leaf.dtype), initial, expected)

        return [self.place.put([of(chain) for chain in group], "position") for group in self.place.groups]

    def _init(self, position):
        """The first state, and whether it is any good."""
        state = self.algorithm.init(position)
        finite = _is_finite(state.position), _is_finite(getattr(state, "gradient", ()))
        return state, (*finite, state.log_likelihood)

    def _check_start(self, health: list[Any]) -> None:
        """Refuse a start from which every step would be rejected, or that would be kept as it is for ever."""
        for chain, (position, gradient, value) in enumerate(health):
            if not position:
                problem = "the position is not finite"
            elif not np.isfinite(value):
                problem = f"the log-likelihood is {value}"
            elif not gradient:
                problem = "the gradient of the log-likelihood is not finite"
            else:
                continue
            raise WidebnnError(
                f"{problem} at the start of chain {chain}: no step from there can be judged. "
                "Check the target for overflow, try dtype='float64', or pass other initial positions."
            )

    def _compile(self, function, arguments):
        """Compile, and refuse what would not fit into memory."""
        compiled = function.lower(*arguments).compile()
        needed = len(self.place.groups) * compiled.memory_analysis().temp_size_in_bytes
        available = physical_memory()
        if available is not None and needed > available:
            raise WidebnnError(
                f"a step of {self.chains} chains takes {needed / 1e9:.1f} GB, more than the {available / 1e9:.1f} GB "
                "of this machine: use fewer training rows, a smaller width, fewer chains or dtype='float32'."
            )
        return compiled

    def _allocate(self) -> None:
        kept = jax.eval_shape(self.collect, jax.random.key(0), self.position)
        if not isinstance(kept, dict):
            raise WidebnnError(f"collect must return a dictionary of arrays, got {type(kept).__name__}.")
        statistics = {
            "lp": jnp.float64,
            "acceptance_rate": jnp.float64,
            "accepted": jnp.float64,
            "nonfinite": jnp.int64,
            "gradients": jnp.int64,
        }
        slots = {name: jax.ShapeDtypeStruct((), dtype) for name, dtype in statistics.items()}, kept
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(slots))
        total = size * self.draws * self.chains
        if total > STORE_BYTES:
            raise WidebnnError(
                f"keeping {self.draws} draws of {self.chains} chains takes {total / 1e9:.1f} GB: pass a collect "
                "function that keeps less (for networks widebnn.track(target, x_test)), or a larger thin."
            )
        rows = int(np.clip(BUFFER_BYTES // size, 1, min(self.draws, 1000)))
        self.rows = rows
        self.slots = jax.tree.map(lambda s: np.zeros((rows, *s.shape), s.dtype), slots)
        self.buffers = [self.place.put([self.slots] * len(group)) for group in self.place.groups]
        self.stats, self.kept = jax.tree.map(lambda s: np.zeros((self.chains, self.draws, *s.shape), s.dtype), slots)

    def _advance(self, state, chain_key, t, count):
        """``count`` steps from step t on."""

        def body(i, carry):
            state, totals = carry
            step_key, _ = jax.random.split(jax.random.fold_in(chain_key, t + i))
            state, info = self.algorithm.step(step_key, state)
            return state, totals.add(info)

        return jax.lax.fori_loop(0, count, body, (state, Totals.zero()))

    def _gather(self, state, buffers, chain_key, t, count):
        """``count`` draws, each after ``thin`` steps, written into the buffers."""

        def body(i, carry):
            state, buffers = carry
            first = t + i * self.thin
            state, totals = self._advance(state, chain_key, first, self.thin)
            _, collect_key = jax.random.split(jax.random.fold_in(chain_key, first + self.thin - 1))
            statistics = {
                "lp": state.log_likelihood,
                "acceptance_rate": totals.acceptance_rate / self.thin,
                "accepted": totals.accepted / self.thin,
                "nonfinite": totals.nonfinite,
                "gradients": totals.gradients,
            }
            row = statistics, self.collect(collect_key, state.position)
            buffers = jax.tree.map(lambda b, r: b.at[i].set(r.astype(b.dtype)), buffers, row)
            return state, buffers

        return jax.lax.fori_loop(0, count, body, (state, buffers))

    def manifest(self, sampler: str, options: dict[str, Any]) -> dict[str, Any]:
        """What must be the same for a stored run to go on."""
        data: dict[str, Any] = {
            START: [float(value).hex() for state in self.states for value in self.place.to_host(state.log_likelihood)]
        }
        for name in ("x", "y"):
            array = getattr(self.target, name, None)
            if array is not None:
                data[f"SHA-256 of {name}"] = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        kept = {name: f"{a.dtype.name}{list(a.shape[2:])}" for name, a in {**self.stats, **self.kept}.items()}
        settings: dict[str, Any] = {"sampler": sampler, **{name: _plain(value) for name, value in options.items()}}
        settings |= {"burn_in": self.burn_in, "thin": self.thin, "chains": self.chains, "seed": self.seed}
        return {
            "version": VERSION,
            "settings": settings | {"kept": kept},
            "data": data,
            COLLECTED: self._collected_at_start(),
            "packages": {name: importlib.metadata.version(name) for name in ("widebnn", "jax", "jaxlib", "numpy")},
            "device": {"device": jax.devices()[0].device_kind, CORES: cores()}
            | ({} if self.place.units == 1 else {SHARDS: self.place.units}),
        }

    def _collected_at_start(self) -> dict[str, list[str]]:
        """A fingerprint of everything that ``collect`` returns, test inputs and all, at the first positions."""
        collected = self.place.jit(self.collect)(self.step_keys[0], self.states[0].position)
        first = self.place.to_host(collected)[0]
        return {name: [value.hex() for value in fingerprint(first[name])] for name in self.kept}

    def keep_in(self, store: Store | None, interval: float) -> None:
        """Go on from where the store is, and write to it from now on. Only the lead has one."""
        self.store, self.interval = store, interval
        checkpoint = self.place.on_lead(self._restore)
        numbers = np.zeros(9)
        if checkpoint is not None:
            progress = (checkpoint.burned, checkpoint.done, checkpoint.seconds)
            numbers[:] = [1.0, 0.0, *progress, *checkpoint.burn_totals]
        there, _, burned, done, self.seconds, *totals = self.place.from_lead(numbers)
        if not there:
            return
        self.burned, self.done, self.burn_totals = int(burned), int(done), np.array(totals)
        self.stored = self.done
        for array in self._arrays().values():
            array[:, : self.done] = self.place.from_lead(array[:, : self.done])
        leaves, structure = jax.tree.flatten(self.state_shapes)

        def state_of(chain):
            arrays = [np.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
            if checkpoint is not None:
                arrays = [checkpoint.arrays[f"{chain}.{i}"] for i in range(len(leaves))]
            return jax.tree.unflatten(structure, [self.place.from_lead(array) for array in arrays])

        places = self.place.places(self.states[0])
        self.states = [self.place.put([state_of(chain) for chain in group], places) for group in self.place.groups]

    def _restore(self) -> Checkpoint | None:
        """The last checkpoint, and the draws before it."""
        assert self.store is not None
        checkpoint, rows = self.store.restore()
        if checkpoint is None:
            return None
        if checkpoint.done > self.draws:
            raise StoreError(
                f"{self.store.folder} has {checkpoint.done} draws per chain already, more than the {self.draws} asked "
                "for; ask for at least as many steps, or choose another folder."
            )
        for chain in range(self.chains):
            for i, leaf in enumerate(jax.tree.leaves(self.state_shapes)):
                found = checkpoint.arrays.get(f"{chain}.{i}")
                if found is None or found.shape != leaf.shape or found.dtype != leaf.dtype:
                    raise StoreError("the states in the store are those of another sampler; choose another folder.")
        for first, arrays in rows:
            for name, array in self._arrays().items():
                array[:, first : first + arrays[name].shape[1]] = arrays[name]
        return checkpoint

    def _arrays(self) -> dict[str, np.ndarray]:
        return {**self.stats, **self.kept}

    def checkpoint(self) -> None:
        """Write what is new."""
        if self.interval is None:
            return
        began = time.perf_counter()
        states = [state for states in self.states for state in self.place.to_host(states)]
        self.place.on_lead(lambda: self._write(states))
        self.stored = self.done
        self.saved_at = time.perf_counter()
        self.wait = max(self.interval, (self.saved_at - began) / CHECKPOINT_SHARE)

    def _write(self, states: list[Any]) -> None:
        assert self.store is not None
        if self.done > self.stored:
            rows = slice(self.stored, self.done)
            self.store.append(self.stored, {name: a[:, rows] for name, a in self._arrays().items()})
        leaves = [jax.tree.leaves(state) for state in states]
        arrays = {f"{chain}.{i}": np.asarray(leaf) for chain, own in enumerate(leaves) for i, leaf in enumerate(own)}
        self.store.save(Checkpoint(self.burned, self.done, self.burn_totals.tolist(), float(self.seconds), arrays))

    def finish(self, show: bool | RichProgress | None, deadline: float) -> Result:
        """Burn in, sample until all is done or the deadline has passed, and return; Ctrl-C returns what is there."""
        self.saved_at, self.wait = time.perf_counter(), self.interval or 0.0
        whole = self.burn_in + self.draws * self.thin
        with Progress(whole, self.chains, show) as bar, Stop(self.interval is not None) as stop:
            bar.skip(self.burned + self.done * self.thin)
            fresh = self.done == 0
            self._burn(bar, stop)
            if fresh and self.burned and not stop.asked:
                rate = self.burn_totals[0] / (self.burned * self.chains)
                self.precision.in_bulk(self._positions(), "after warm-up", self.burn_totals[3] > 0, rate, self.burned)
            self._sample(bar, stop, deadline)
            self.checkpoint()
        stop.pass_on()
        if not stop.asked:
            rate = self.stats["acceptance_rate"][:, : self.done].mean(axis=1).min()
            self.precision.in_bulk(
                self._positions(), "at the end", self.stats["gradients"].any(), rate, self.done * self.thin
            )
        if stop.asked:
            warnings.warn(f"interrupted: {self.done} of {self.draws} draws per chain were kept", stacklevel=3)
        done = self.done
        last = [position for state in self.states for position in self.place.to_host(state.position)]
        result = Result(
            draws={name: array[:, :done] for name, array in self.kept.items()},
            stats={name: array[:, :done] for name, array in self.stats.items()},
            target=self.target,
            steps=done * self.thin,
            burn_in=self.burned,
            thin=self.thin,
            chains=self.chains,
            seed=self.seed,
            seconds=self.seconds,
            compile_seconds=self.compile_seconds,
            burn_in_acceptance_rate=self.burn_totals[0] / max(self.burned * self.chains, 1),
            interrupted=stop.asked,
            last=jax.tree.map(lambda *leaves: np.stack(leaves), *last),
        )
        nonfinite = int(self.stats["nonfinite"].sum() + self.burn_totals[2])
        if nonfinite:
            proposals = self.chains * (self.burned + done * self.thin)
            stuck = nonfinite == proposals and self.stats["accepted"].sum() + self.burn_totals[1] == 0
            warnings.warn(
                f"{'all ' if stuck else ''}{nonfinite}{'' if stuck else f' of {proposals}'} proposals had a "
                "log-likelihood or a gradient that is not a finite number and were rejected"
                f"{': no chain has moved' if stuck else ''}; "
                "the target may overflow or its covariance may not be positive definite there",
                stacklevel=3,
            )
        return result

    def _positions(self) -> list[Any]:
        """One per group."""
        return [state.position for state in self.states]

    def _burn(self, bar: Progress, stop: Stop) -> None:
        for count, burned in self._chunks(self.burned, self.burn_in, self.burn_in, stop):
            outputs = [
                self.advance(state, key, np.int64(burned), np.int64(count))
                for state, key in zip(self.states, self.step_keys, strict=True)
            ]
            self.states = [state for state, _ in jax.block_until_ready(outputs)]
            chunk = np.array([totals for _, group in outputs for totals in self.place.to_host(group)], np.float64)
            self.burn_totals += chunk.sum(axis=0)
            self.burned = burned + count
            bar.update("burn-in", count, chunk[:, 0].mean() / count)

    def _sample(self, bar: Progress, stop: Stop, deadline: float) -> None:
        before, began = self.seconds, time.perf_counter()
        for count, start in self._chunks(self.done, self.draws, self.rows, stop, deadline):
            outputs = [
                self.gather(state, buffers, key, np.int64(self.burn_in + start * self.thin), np.int64(count))
                for state, buffers, key in zip(self.states, self.buffers, self.step_keys, strict=True)
            ]
            jax.block_until_ready(outputs)
            self.states = [state for state, _ in outputs]
            self.buffers = [buffers for _, buffers in outputs]
            self._keep(start, count)
            self.done = start + count
            self.seconds = before + time.perf_counter() - began
            bar.update("sampling", count * self.thin, self.stats["acceptance_rate"][:, start : self.done].mean())

    def _keep(self, start: int, count: int) -> None:
        """Copy what is in the buffers to the host."""
        drawn = [rows for buffers in self.buffers for rows in self.place.to_host(buffers)]
        for chain, rows in enumerate(drawn):
            for array, new in zip(jax.tree.leaves((self.stats, self.kept)), jax.tree.leaves(rows), strict=True):
                array[chain, start : start + count] = new[:count]

    def _chunks(self, start: int, total: int, most: int, stop: Stop, deadline: float = math.inf):
        """(count, start) pairs that cover what is left and take about CHUNK_SECONDS each, with checkpoints between."""
        count, due = 1, False
        while start < total:
            end = min(total, max(start, LEAST_DRAWS)) if time.perf_counter() > deadline else total
            count = min(max(count, 1), most, end - start)
            count, due, stop.asked = self.place.agree(count, due, stop.asked)
            if due:
                self.checkpoint()
            if stop.asked or count == 0:
                return
            began = time.perf_counter()
            yield count, start
            elapsed = max(time.perf_counter() - began, 1e-6)
            start += count
            due = self.interval is not None and time.perf_counter() - self.saved_at >= self.wait
            count = int(count * float(np.clip(CHUNK_SECONDS / elapsed, 0.2, 10)))
