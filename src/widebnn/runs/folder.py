"""The folder of a run: draws in chunks that never change, and checkpoints.

    draws-000000 ..  rows of all chains; each has the checksum of the one before, so that none is missing or swapped
    checkpoint-...   states of all chains, the checksum of the last chunk before them, and what the run is

All are records (``widebnn.runs.files``). A checkpoint is written after its chunk, so a run that was killed at any
moment resumes from its last checkpoint; later files are removed and recomputed to the same bits. Older checkpoints are
kept at doubling distances: if a chunk is corrupted later, the run resumes from the last checkpoint before it and not
from the beginning.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from widebnn.errors import DamageWarning, StoreError
from widebnn.runs.files import LOCK, DamageError, Record, locked, output, read_record, write_record

NAME = re.compile(r"(draws|checkpoint)-(\d{6,})")
SAFE = "the run is safe up to its last checkpoint"
Arrays = Mapping[str, np.ndarray]


class _Chunk(NamedTuple):
    checksum: str
    end: int
    """Draws per chain up to its end."""


NO_CHUNK = _Chunk("", 0)


@contextlib.contextmanager
def open_run(folder: Path, manifest: dict[str, Any]) -> Iterator[RunFolder]:
    """Lock the folder of a run, new or begun before, whose ``manifest`` says what the run is, in JSON.

    Raises a StoreError if another process uses the folder, or it holds other files, or cannot be written.
    """
    with locked(folder):
        run = RunFolder(folder, manifest)
        with run._reading():
            left = list(folder.glob(".*.tmp"))
            others = {path.name for path in folder.iterdir()} - {LOCK, *(path.name for path in left)}
            if others and not any(map(NAME.fullmatch, others)):
                raise StoreError(f"{folder} is not the folder of a run; give the folder of a run, or a new one.")
            records = (run._read(path, "checkpoint", []) for _, path in run._files("checkpoint"))
            run.newest = next(filter(None, records), None)
        with run._writing(folder):
            for path in left:
                path.unlink()
        yield run


class RunFolder:
    """The folder of one run, from ``open_run``; ``newest`` is its last good checkpoint, if there is one."""

    def __init__(self, folder: Path, manifest: dict[str, Any]):
        self.folder, self.manifest = folder, manifest
        self.newest: Record | None = None
        self._chunks = [NO_CHUNK]
        self._saved = 0

    def restore(self, draws: Arrays, state: Arrays) -> tuple[int, Arrays] | None:
        """Read the last good checkpoint and the draws before it; remove corrupted and newer files, with a warning.

        Args:
            draws: Arrays of shape (chains, draws, ...), which are filled from the first draw on.
            state: Arrays with the names, shapes and dtypes of those in a checkpoint.

        Returns:
            Draws per chain before the checkpoint and its arrays, or None if the run starts from the beginning.

        Raises:
            StoreError: The files cannot be read, or they are those of another run.
        """
        damage: list[str] = []
        corrupted, found = [], None
        with self._reading():
            chunks = self._read_chunks(draws, damage)
            before = [chunk.checksum for chunk in chunks]
            for index, path in self._files("checkpoint"):
                record = self._read(path, "checkpoint", damage)
                if record is None:
                    corrupted.append(index)
                elif found is None and record.header.get("after") in before:
                    found, self._saved = record, index + 1
                    chunks = chunks[: before.index(record.header["after"]) + 1]
                elif found is None and not damage:
                    damage.append(f"draws before {path.name} are missing")
        self._chunks = chunks if found else [NO_CHUNK]
        done, most = self._chunks[-1].end, next(iter(draws.values())).shape[1]
        if done > most:
            raise StoreError(
                f"{self.folder} has {done} draws per chain already, more than the {most} asked for; ask for at least "
                "as many steps, or choose another folder."
            )
        if found and _shapes(found.arrays) != _shapes(state):
            raise StoreError(f"the states in {self.folder} are those of another sampler; choose another folder.")
        with self._writing(self.folder):  # the newest first: being killed here leaves no gap
            for index, path in self._files("checkpoint"):
                if index >= self._saved or index in corrupted:
                    path.unlink()
            for index, path in self._files("draws"):
                if index >= len(self._chunks) - 1:
                    path.unlink()
        if damage:
            where = "the beginning" if found is None else f"draw {done}" if done else "the burn-in"
            text = f"{self.folder} was corrupted ({'; '.join(damage)}): resuming from {where}, the rest is recomputed"
            warnings.warn(text, DamageWarning, stacklevel=3)
        return None if found is None else (done, found.arrays)

    def append(self, first: int, draws: Arrays) -> None:
        """Write a chunk of draws that begins at draw ``first``; arrays have shape (chains, draws, ...)."""
        header = {"kind": "draws", "first": first, "previous": self._chunks[-1].checksum}
        checksum = self._write(f"draws-{len(self._chunks) - 1:06d}", header, draws)
        self._chunks.append(_Chunk(checksum, first + next(iter(draws.values())).shape[1]))

    def save(self, state: Arrays) -> None:
        """Write a checkpoint, and remove earlier ones that are near others."""
        header = {"kind": "checkpoint", "after": self._chunks[-1].checksum, "manifest": self.manifest}
        self._write(f"checkpoint-{self._saved:06d}", header, state)
        with self._writing(self.folder):
            for index, path in self._files("checkpoint"):
                # Multiples of 2^k stay for 2^(k+1) checkpoints; the first stays for ever.
                if index and self._saved - index >= 2 * (index & -index):
                    path.unlink()
        self._saved += 1

    def _read_chunks(self, draws: Arrays, damage: list[str]) -> list[_Chunk]:
        """Copy chunks to ``draws``, from the first up to one that is corrupted or missing."""
        chunks = [NO_CHUNK]
        for index in range(len(self._files("draws"))):
            record = self._read(self.folder / f"draws-{index:06d}", "draws", damage)
            last = chunks[-1]
            if record is None or [record.header.get(name) for name in ("previous", "first")] != list(last):
                break
            counts = {array.shape[1:2] for array in record.arrays.values()}
            if _shapes(record.arrays, 1) != _shapes(draws, 1) or len(counts) != 1:
                damage.append(f"draws-{index:06d} has other arrays than the run")
                break
            start, end = last.end, last.end + counts.pop()[0]
            for name, array in draws.items():
                if end <= array.shape[1]:
                    array[:, start:end] = record.arrays[name]
            chunks.append(_Chunk(record.checksum, end))
        return chunks

    def _read(self, path: Path, kind: str, damage: list[str]) -> Record | None:
        try:
            return read_record(path, kind)
        except DamageError as error:
            damage.append(str(error))
            return None

    def _write(self, name: str, header: Mapping[str, Any], arrays: Arrays) -> str:
        with self._writing(self.folder / name):
            return write_record(self.folder / name, header, arrays)

    def _files(self, kind: str) -> list[tuple[int, Path]]:
        """(number, path), the newest first."""
        found = ((NAME.fullmatch(path.name), path) for path in self.folder.iterdir())
        return sorted([(int(match[2]), path) for match, path in found if match and match[1] == kind], reverse=True)

    def _reading(self) -> AbstractContextManager[None]:
        advice = f"{SAFE}: repair the disk, or remove that file to resume from the checkpoint before it"
        return output(self.folder, "read", f"{advice}, then repeat the call")

    def _writing(self, path: Path) -> AbstractContextManager[None]:
        return output(path, "written", f"{SAFE}: make room or repair the disk, then repeat the call to resume")


def _shapes(arrays: Arrays, free: int | None = None) -> dict[str, Any]:
    """Dtypes and shapes; the length of the axis ``free`` does not matter."""
    return {k: (a.dtype, [-1 if axis == free else n for axis, n in enumerate(a.shape)]) for k, a in arrays.items()}
