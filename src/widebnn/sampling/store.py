"""A run on disk: draws in chunks that are never changed, checkpoints of the chains, and what the run is.

    manifest         configuration, data checksum, fingerprint of what is collected, versions, device, seed
    draws-000000 ..  rows of all chains; each has the checksum of the one before, so that none is missing or swapped
    checkpoint-...   states of all chains after so many chunks, with the checksum of the last, and the manifest again

All are records (:mod:`widebnn.durable`). A checkpoint is written after the chunk it belongs to, so a run that was
killed at any moment goes on from its last checkpoint: what came after it is removed and made again, to the same bits.
Older checkpoints are kept at doubling distances: if a chunk is damaged later, the run goes back to the last checkpoint
before it and not to the beginning, and the disk holds the draws once and a few states.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from widebnn.durable import LOCK, DamageError, Record, locked, read_record, write_record
from widebnn.errors import DamageWarning, StoreError

VERSION = 2
MANIFEST = "manifest"
ROUNDING_ONLY = (CORES, SHARDS) = ("cores", "devices of a chain")
"""Of the device of a manifest: another number of these changes rounding and no more."""
START = "log-likelihood at the start"
ROUNDING = 1e-4
"""How much another number of devices may change that, relatively."""
COLLECTED = "collected"
COLLECTED_ROUNDING = 1e-2
"""How much it may change what is kept of a draw, relative to its root mean square: draws of nearly equal function
values amplify rounding to its square root."""
FINGERPRINTS, BLOCK = 4, 2**20
FIELDS: dict[str, dict[str, type]] = {
    "draws": {"first": int, "count": int, "previous": str},
    "checkpoint": {"burned": int, "done": int, "chunks": int, "chunk": str, "burn_totals": list, "seconds": float}
    | {"manifest": dict},
}
ADVICE = {
    "written": "make room or mend the disk",
    "read": "mend the disk, or remove that file to go back to the checkpoint before it",
}
NAME = re.compile(r"(draws|checkpoint)-(\d{6,})")


def fingerprint(array: np.ndarray) -> list[float]:
    """A few numbers by which an array is known again: its root mean square, and projections on fixed directions.

    With a of size m and fixed w_k ~ N(0, I), |a| / sqrt(m) and w_k' a / sqrt(m): rounding of a changes these by no more
    than rounding, and other numbers in one of r equal rows change them by about |a| / sqrt(m r).
    """
    rng, flat = np.random.default_rng(0), np.asarray(array).reshape(-1)
    sums = np.zeros(1 + FINGERPRINTS)
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, BLOCK):
            block = flat[start : start + BLOCK].astype(np.float64)
            directions = rng.standard_normal((FINGERPRINTS, block.size))
            sums += [np.sum(block**2), *np.sum(directions * block, axis=1)]
        size = max(flat.size, 1)
        return [float(np.sqrt(sums[0] / size)), *(sums[1:] / np.sqrt(size)).tolist()]


class Checkpoint(NamedTuple):
    """Where a run is."""

    burned: int
    """Steps of burn-in that are done, per chain."""
    done: int
    """Stored draws, per chain."""
    burn_totals: list[float]
    seconds: float
    arrays: dict[str, np.ndarray]
    """The states of all chains."""


class Store:
    """The folder of one run; use :func:`open_store`."""

    def __init__(self, folder: Path, manifest: dict[str, Any]):
        self.folder, self.manifest = folder, manifest
        self._chunks: list[tuple[str, int]] = []
        """Checksum of every chunk, and the draws up to its end."""
        self._saved = 0

    def restore(self) -> tuple[Checkpoint | None, Iterator[tuple[int, dict[str, np.ndarray]]]]:
        """The last good checkpoint, or None, and the draws up to there, (first row, arrays) chunk by chunk.

        Whatever is damaged, or newer, is removed; damage is warned of.
        """
        with _named(self.folder, "read"):
            return self._restore()

    def _restore(self) -> tuple[Checkpoint | None, Iterator[tuple[int, dict[str, np.ndarray]]]]:
        damage: list[str] = []
        chunks = self._good_chunks(damage)
        found = None
        for index, path in sorted(self._files("checkpoint").items(), reverse=True):
            record = self._read(path, "checkpoint", damage)
            if record is None:
                path.unlink()
            elif found is not None:
                continue
            elif _place(record.header) == (
                len(before := chunks[: record.header["chunks"]]),
                _last(before),
                _end(before),
            ):
                found, self._saved = record, index + 1
            elif not damage:
                damage.append(f"draws before {path.name} are missing")
        self._chunks = [] if found is None else chunks[: found.header["chunks"]]
        # The last first, so that being killed here leaves no gap.
        for kind, kept in (("checkpoint", self._saved), ("draws", len(self._chunks))):
            for index, path in sorted(self._files(kind).items(), reverse=True):
                if index >= kept:
                    path.unlink()
        if damage:
            where = "the beginning" if found is None else f"draw {found.header['done']}"
            if found is not None and found.header["done"] == 0:
                where = f"step {found.header['burned']} of the burn-in"
            warnings.warn(
                f"{self.folder} was damaged ({'; '.join(damage)}): going on from {where}, the rest is made again",
                DamageWarning,
                stacklevel=3,
            )
        if found is None:
            return None, iter(())
        fields = {name: found.header[name] for name in ("burned", "done", "burn_totals", "seconds")}
        return Checkpoint(**fields, arrays=found.arrays), self._rows()

    def append(self, first: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Store rows of all chains, chains x rows x ..., that begin at draw ``first``."""
        count = next(iter(arrays.values())).shape[1]
        header = {"kind": "draws", "first": first, "count": count, "previous": _last(self._chunks)}
        path = self.folder / f"draws-{len(self._chunks):06d}"
        self._chunks.append((self._write(path, header, arrays), first + count))

    def save(self, checkpoint: Checkpoint) -> None:
        """Store where the run is, and remove checkpoints that are near others."""
        header = checkpoint._asdict()
        arrays = header.pop("arrays")
        header |= {"kind": "checkpoint", "chunks": len(self._chunks), "chunk": _last(self._chunks)}
        header["manifest"] = self.manifest
        self._write(self.folder / f"checkpoint-{self._saved:06d}", header, arrays)
        with _named(self.folder, "written"):
            for index, path in self._files("checkpoint").items():
                # Multiples of 2^k stay for 2^(k+1) checkpoints; the first stays for ever.
                if index and self._saved - index >= 2 * (index & -index):
                    path.unlink()
        self._saved += 1

    def _write(self, path: Path, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
        with _named(path, "written"):
            return write_record(path, header, arrays)

    def _good_chunks(self, damage: list[str]) -> list[tuple[str, int]]:
        """The chunks from the first on, up to one that is damaged or missing."""
        chunks: list[tuple[str, int]] = []
        files = self._files("draws")
        for index in range(len(files)):
            record = self._read(files.get(index, self.folder / f"draws-{index:06d}"), "draws", damage)
            end = _end(chunks)
            if record is None or record.header["previous"] != _last(chunks) or record.header["first"] != end:
                break
            if not self._fits(record):
                damage.append(f"draws-{index:06d} has other arrays than the run")
                break
            chunks.append((record.checksum, end + record.header["count"]))
        return chunks

    def _fits(self, record: Record) -> bool:
        """Whether a chunk has the arrays that the run keeps."""
        settings = self.manifest["settings"]
        kept = {name: f"{array.dtype.name}{list(array.shape[2:])}" for name, array in record.arrays.items()}
        rows = {array.shape[:2] for array in record.arrays.values()}
        expected = {(settings.get("chains", 1), record.header["count"])}
        return rows == expected and kept == settings.get("kept", kept)

    def _rows(self) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        for index in range(len(self._chunks)):
            with _named(self.folder, "read"):
                record = read_record(self.folder / f"draws-{index:06d}", "draws")
            yield record.header["first"], record.arrays

    def _read(self, path: Path, kind: str, damage: list[str]) -> Record | None:
        try:
            record = read_record(path, kind)
            for name, expected in FIELDS[kind].items():
                value = record.header.get(name)
                if type(value) is not expected or (isinstance(value, (int, float)) and value < 0):
                    raise DamageError(f"{path.name} has no {name}")
            totals = record.header.get("burn_totals", [0.0] * 4)
            if len(totals) != 4 or any(type(total) is not float for total in totals):
                raise DamageError(f"{path.name} has no burn_totals")
            return record
        except DamageError as error:
            damage.append(str(error))
            return None

    def _files(self, kind: str) -> dict[int, Path]:
        found = ((NAME.fullmatch(path.name), path) for path in self.folder.iterdir())
        return {int(match[2]): path for match, path in found if match and match[1] == kind}


@contextlib.contextmanager
def _named(path: Path, done: str) -> Iterator[None]:
    """An error of the system as a sentence; what is on disk is left as it is."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{error.filename or path} cannot be {done} ({error.strerror or error}); the run is safe up to its last "
            f"checkpoint: {ADVICE[done]}, then run the same again to go on."
        ) from None


def _last(chunks: list[tuple[str, int]]) -> str:
    return chunks[-1][0] if chunks else ""


def _end(chunks: list[tuple[str, int]]) -> int:
    return chunks[-1][1] if chunks else 0


def _place(header: Mapping[str, Any]) -> tuple[int, str, int]:
    """The chunks, the last of them, and the draws before a checkpoint."""
    return header["chunks"], header["chunk"], header["done"]


@contextlib.contextmanager
def open_store(folder: Path, manifest: dict[str, Any]) -> Iterator[Store]:
    """A new folder for a run, or the one it was begun in, if ``manifest`` is the same; for one process at a time."""
    with locked(folder):
        with _named(folder, "written"):
            for path in folder.glob(".*.tmp"):
                path.unlink()
            others = [path.name for path in folder.iterdir() if path.name != LOCK]
        store = Store(folder, manifest)
        if not others:
            store._write(folder / MANIFEST, {"kind": "manifest", **manifest}, {})
        else:
            _compare(folder, read_manifest(folder), manifest)
            if not (folder / MANIFEST).exists():
                store._write(folder / MANIFEST, {"kind": "manifest", **manifest}, {})
        yield store


def read_manifest(folder: Path) -> dict[str, Any]:
    """What the run in a folder is; from a checkpoint if the manifest itself is damaged."""
    problems = []
    copies = sorted(folder.glob("checkpoint-*"), reverse=True) if folder.is_dir() else []
    for path in [folder / MANIFEST, *copies]:
        try:
            with _named(path, "read"):
                header = read_record(path, "manifest" if path.name == MANIFEST else "checkpoint").header
        except DamageError as error:
            problems.append(str(error))
            continue
        if path.name == MANIFEST:
            header.pop("kind")
            return header
        warnings.warn(
            f"{folder} was damaged ({'; '.join(problems)}): {path.name} says the same", DamageWarning, stacklevel=3
        )
        with contextlib.suppress(OSError):
            (folder / MANIFEST).unlink()
        if isinstance(header.get("manifest"), dict):
            return header["manifest"]
    raise StoreError(
        f"{folder} holds no run that can be read ({'; '.join(problems[:3])}); give the folder of a run, or a new one."
    )


def _compare(folder: Path, stored: dict[str, Any], manifest: dict[str, Any]) -> None:
    if stored.get("version") != manifest["version"]:
        raise StoreError(
            f"{folder} has version {stored.get('version')} of the format of runs, and this widebnn reads version "
            f"{manifest['version']}; use the widebnn that began it."
        )
    stored = _as_on_these_devices(stored, manifest)
    for what, advice in (
        ("settings", "a run goes on with the settings it was begun with: give them, or choose another folder"),
        ("data", "a run goes on with the data it was begun with: give them, or choose another folder"),
        (COLLECTED, "test inputs and collect are those it was begun with: give them, or choose another folder"),
        ("packages", "other versions round differently: install those, or choose another folder"),
        ("device", "other devices round differently: use that one, or choose another folder"),
    ):
        old, new = stored.get(what), manifest.get(what, {})
        old = old if isinstance(old, dict) else {}
        changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        if changed and what == COLLECTED:
            raise StoreError(f"{folder} was begun with other values of {', '.join(changed)} at the start; {advice}.")
        if changed:
            listed = ", ".join(f"{name} {old.get(name)} (now {new.get(name)})" for name in changed)
            raise StoreError(f"{folder} was begun with {listed}; {advice}.")


def _as_on_these_devices(stored: dict[str, Any], manifest: dict[str, Any]) -> dict[str, Any]:
    """What a stored manifest would be with the number of cores and of devices that a chain has now."""
    device, data = ({**part} if isinstance(part := stored.get(name), dict) else {} for name in ("device", "data"))
    numbers = {name: manifest["device"][name] for name in ROUNDING_ONLY if name in manifest["device"]}
    if {name: device.pop(name) for name in ROUNDING_ONLY if name in device} == numbers:
        return stored
    try:
        began, begins = ([float.fromhex(value) for value in m[START]] for m in (data, manifest["data"]))
        if np.allclose(began, begins, rtol=ROUNDING, atol=0):
            data[START] = manifest["data"][START]
    except (KeyError, TypeError, ValueError):
        pass  # not what this version writes: compared as it is
    kept = {**part} if isinstance(part := stored.get(COLLECTED), dict) else {}
    for name, new in manifest.get(COLLECTED, {}).items():
        if _same_but_rounding(kept.get(name), new):
            kept[name] = new
    return {**stored, "data": data, COLLECTED: kept, "device": device | numbers}


def _same_but_rounding(began: Any, begins: list[str]) -> bool:
    """Whether two fingerprints are those of arrays that differ by rounding."""
    try:
        old, new = (np.array([float.fromhex(value) for value in values]) for values in (began, begins))
        return np.allclose(old, new, rtol=0, atol=COLLECTED_ROUNDING * abs(new[0]), equal_nan=True)
    except (TypeError, ValueError, IndexError):
        return False  # not what this version writes
