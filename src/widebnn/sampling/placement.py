"""Chains on one device, on several, or on those of several processes. Samplers and targets know nothing of it.

A mesh has the axes ``chains`` and ``units``. Chains run in groups, one of each row of the mesh at a time, and within a
row the hidden units of a chain are divided over the devices: positions are placed and XLA does the rest. What a step
computes per unit stays where the units are, and sums over units become all-reduces of n x n matrices. With several
processes the first, the lead, reads and writes files. Without a mesh a group is one chain and nothing is wrapped.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from widebnn.coordinates.full import FullPosition
from widebnn.coordinates.function import FunctionPosition
from widebnn.errors import StoreError, WidebnnError, check_integer
from widebnn.samplers.target import Target

AXES = ("chains", "units")
MESSAGE = 4096
LOST = re.compile(r"gloo|connection|peer|coordinat|heartbeat|unavailable|deadline|nccl|aborted", re.IGNORECASE)


def device_mesh(chains: int = 1, units: int | None = None) -> Mesh:
    """Devices for ``sample(mesh=...)``.

    Args:
        chains: Rows of the mesh, chains that run at a time; a divisor of the number of chains.
        units: Devices in a row, over which hidden units are divided; if not given, all devices of all processes are
            used.

    Returns:
        A mesh with the axes ``chains`` and ``units``.

    Raises:
        WidebnnError: There are not so many devices.

    Examples:
        >>> widebnn.sample(target, steps=1000, chains=4, mesh=widebnn.device_mesh(chains=2))  # doctest: +SKIP
    """
    devices = jax.devices()
    chains = check_integer("chains", chains, 1)
    units = max(1, len(devices) // chains) if units is None else check_integer("units", units, 1)
    if chains * units > len(devices):
        raise WidebnnError(f"a mesh of {chains} x {units} devices needs {chains * units}; there are {len(devices)}.")
    return Mesh(np.array(devices[: chains * units]).reshape(chains, units), AXES)


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


class Placement:
    """The devices of chains (of a mesh, or the default one), and what processes tell each other."""

    def __init__(self, mesh: Mesh | None, chains: int, position: Any):
        self.mesh, self.chains = mesh, chains
        self.units = self.processes = rows = 1
        if mesh is not None:
            if tuple(mesh.axis_names) != AXES:
                raise WidebnnError(f"a mesh has the axes {AXES}, got {mesh.axis_names}; use widebnn.device_mesh().")
            rows, self.units = mesh.devices.shape
            self.processes = len({device.process_index for device in mesh.devices.flat})
            if self.processes not in (1, jax.process_count()):
                raise WidebnnError(
                    f"the mesh has devices of {self.processes} of {jax.process_count()} processes: use all of them."
                )
            if chains % rows:
                raise WidebnnError(
                    f"{chains} chains cannot be divided equally over the {rows} rows of the mesh; use "
                    "device_mesh(chains=...) with a divisor of their number."
                )
            whole = NamedSharding(mesh, PartitionSpec("chains"))
            self._shardings = {"whole": whole, "position": position_shardings(position, mesh)}
            self._everywhere = jax.jit(lambda leaf: leaf, out_shardings=NamedSharding(mesh, PartitionSpec()))
        self.leads = self.processes == 1 or jax.process_index() == 0
        self.groups = [range(first, first + rows) for first in range(0, chains, rows)]
        """Chains that run at a time."""

    def jit(self, function: Callable[..., Any], out: Any = "whole", shared: int = 0, **options: Any) -> Any:
        """A function of one chain as a compiled function of a group; its last ``shared`` arguments are for all chains.

        ``out`` says where results go: ``whole`` to all devices of a row, ``position``, None as XLA thinks best, or
        shardings; a tuple for a function that returns one.
        """
        if self.mesh is None:
            return jax.jit(function, **options)

        def of_group(*arguments: Any) -> Any:
            split = len(arguments) - shared
            own = jax.tree.map(lambda leaf: leaf[0], arguments[:split])
            return jax.tree.map(lambda leaf: leaf[None], function(*own, *arguments[split:]))

        def wrapped(*arguments: Any) -> Any:
            chains = PartitionSpec("chains")
            specs = (chains,) * (len(arguments) - shared) + (PartitionSpec(),) * shared
            options: dict[str, Any] = {"axis_names": {"chains"}, "check_vma": False}
            return jax.shard_map(of_group, mesh=self.mesh, in_specs=specs, out_specs=chains, **options)(*arguments)

        places = tuple(map(self._sharding, out)) if type(out) is tuple else self._sharding(out)
        return jax.jit(wrapped, out_shardings=places, **options)

    def put(self, trees: Sequence[Any], where: Any = "whole") -> Any:
        """Host arrays of each chain of a group, on its devices; ``where`` as in ``jit``."""
        if self.mesh is None:
            return jax.tree.map(jnp.array, trees[0])
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *trees)
        places = self._sharding(where)
        if isinstance(places, NamedSharding):
            places = jax.tree.map(lambda _: places, stacked)

        def put(leaf: np.ndarray, sharding: Any) -> jax.Array:
            # A copy: the devices of a CPU may use the memory of the host, and give it away with the array.
            return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index].copy())

        return jax.tree.map(put, stacked, places)

    def put_keys(self, keys: Sequence[jax.Array]) -> jax.Array:
        """Keys of each chain of a group, on its devices."""
        if self.mesh is None:
            return keys[0]
        data = np.stack([np.asarray(jax.random.key_data(key)) for key in keys])
        return jax.jit(lambda: jax.random.wrap_key_data(jnp.asarray(data)), out_shardings=self._sharding("whole"))()

    def places(self, tree: Any) -> Any:
        """Where the arrays of a group are."""
        return None if self.mesh is None else jax.tree.map(lambda leaf: leaf.sharding, tree)

    def to_host(self, tree: Any) -> list[Any]:
        """The arrays of each chain of a group, on the host of every process."""
        if self.mesh is None:
            return [jax.tree.map(np.asarray, tree)]
        if self.processes > 1:
            tree = jax.tree.map(self._everywhere, tree)
        whole = jax.tree.map(np.asarray, tree)
        return [jax.tree.map(lambda leaf: leaf[row], whole) for row in range(len(self.groups[0]))]  # noqa: B023

    def from_lead(self, array: np.ndarray) -> np.ndarray:
        """The lead's array, on every process, bit for bit: the others add zeros to its bytes."""
        if self.processes == 1:
            return array
        own = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        total = multihost_utils.broadcast_one_to_all(own if self.leads else np.zeros_like(own), self.leads)
        return np.frombuffer(np.asarray(total).tobytes(), array.dtype).reshape(array.shape).copy()

    def on_lead(self, function: Callable[[], Any]) -> Any:
        """The result of ``function``, which only the lead calls (None elsewhere); its error is everybody's."""
        if self.processes == 1:
            return function()
        result, problem = None, None
        if self.leads:
            try:
                result = function()
            except WidebnnError as error:
                problem = error
        text = np.array(str(problem or "").encode(), f"S{MESSAGE}")
        shared = self.from_lead(text).item()
        if shared:
            raise problem or StoreError(shared.decode(errors="replace"))
        return result

    def agree(self, count: int, due: bool, stop: bool) -> tuple[int, bool, bool]:
        """The lead's count and whether a checkpoint is due; whether any process was asked to stop."""
        if self.processes == 1:
            return count, due, stop
        said = np.asarray(multihost_utils.process_allgather(np.array([count, due, stop], np.int32)))
        return int(said[0, 0]), bool(said[0, 1]), bool(said[:, 2].any())

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Report the loss of another process in one sentence."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            if self.processes == 1 or isinstance(error, WidebnnError) or not LOST.search(str(error)):
                raise
            raise WidebnnError(
                f"another process of this run was lost ({str(error).splitlines()[0][:200]}); with a store the run is "
                "safe up to its last checkpoint: start it again, with any number of processes, to resume."
            ) from error

    def _sharding(self, where: Any) -> Any:
        return self._shardings[where] if isinstance(where, str) else where


def position_shardings(position: Any, mesh: Mesh) -> Any:
    """How the arrays of a position, with a leading axis for the chains of a group, are divided over a mesh.

    Hidden units are the columns of ``layers`` and ``carried`` of function coordinates.
    """
    units = mesh.devices.shape[1]

    def is_function(node: Any) -> bool:
        return isinstance(node, (FunctionPosition, FullPosition))

    nodes = [node for node in jax.tree.leaves(position, is_leaf=is_function) if is_function(node)]
    if units > 1 and not nodes:
        raise WidebnnError(
            "only targets in function coordinates have units to divide: use coordinates='function', or a mesh with "
            f"units=1 (got {units}) to divide the chains alone."
        )
    divided = {id(leaf) for node in nodes for leaf in (*node.layers, *node.carried)}

    def sharding(leaf: Any) -> Any:
        if units == 1 or id(leaf) not in divided:
            return NamedSharding(mesh, PartitionSpec("chains"))
        if leaf.shape[1] % units:
            raise WidebnnError(f"{leaf.shape[1]} hidden units cannot be divided equally over {units} devices.")
        return NamedSharding(mesh, PartitionSpec("chains", None, "units"))

    return jax.tree.map(sharding, position)
