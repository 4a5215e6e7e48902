"""The 'python version' of CIFAR-10, whose files are pickles, read without unpickling.

A pickle is a program for a stack machine that may import and call anything. Here its instructions are only
parsed, and the few that a CIFAR-10 batch needs are followed on plain values: what the program would call stays
a name with arguments. Nothing is imported or called, whatever the file says.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from widebnn.errors import WidebnnError

PIXELS = 3 * 32 * 32
MAX_BYTES = 40_000_000
"""The official files have 31 MB."""
MAX_INSTRUCTIONS = 100_000
"""The official files need about three for each image, a third of this."""
NAMES = ("numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype")
MARK = object()


@dataclass(eq=False)
class _Call:
    """What unpickling would make by calling something; inert."""

    name: Any
    arguments: Any
    state: Any = None


def read_batch(path: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels (``count``) and pixels (``count`` x 3072), both bytes, of one batch file."""
    size = path.stat().st_size
    if not count * PIXELS < size <= MAX_BYTES:
        raise WidebnnError(f"{path} has {size} bytes, too few or too many for {count} CIFAR-10 images; fetch it again.")
    try:
        batch = _follow(path.read_bytes())
        return _labels(batch["labels"], count), _pixels(batch["data"], count)
    # A damaged or hostile program fails in whichever instruction meets the damage, with any exception.
    except Exception as error:
        problem = str(error) if isinstance(error, WidebnnError) else f"is damaged ({type(error).__name__})"
        raise WidebnnError(
            f"{path} {problem}, so it is not a batch of the CIFAR-10 python version; fetch it again."
        ) from None


def _follow(program: bytes) -> Any:
    """The value that the program leaves, of plain values and calls not made.

    ``genops`` reads from memory, so a declared length beyond the end of the file allocates nothing.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for count, (instruction, argument, _) in enumerate(pickletools.genops(program)):
        if count >= MAX_INSTRUCTIONS:
            raise WidebnnError(f"has more than {MAX_INSTRUCTIONS} pickle instructions")
        match instruction.name:
            case "PROTO":
                pass
            case "BINSTRING" | "SHORT_BINSTRING" | "BININT" | "BININT1" | "BININT2":
                stack.append(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[instruction.name])
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "MARK":
                stack.append(MARK)
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "TUPLE":
                stack.append(tuple(_pop_to_mark(stack)))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                length = int(instruction.name[-1])
                stack[-length:] = [tuple(stack[-length:])]
            case "APPENDS":
                items = _pop_to_mark(stack)
                stack[-1].extend(items)
            case "SETITEMS":
                items = _pop_to_mark(stack)
                # Hashing nested tuples could take for ever or exhaust the C stack.
                if not all(isinstance(key, str) for key in items[::2]):
                    raise WidebnnError("has a key that is not text")
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "GLOBAL":
                if argument not in NAMES:
                    raise WidebnnError(f"asks for {argument[:80]!r}, which is never imported")
                stack.append(argument)
            case "REDUCE":
                arguments = stack.pop()
                stack[-1] = _Call(stack[-1], arguments)
            case "BUILD":
                state = stack.pop()
                stack[-1].state = state
            case "STOP":
                return stack.pop()
            case other:
                raise WidebnnError(f"has the pickle instruction {other}, which is never followed")
    raise WidebnnError("ends without a value")


def _pop_to_mark(stack: list[Any]) -> list[Any]:
    items = []
    while (item := stack.pop()) is not MARK:
        items.append(item)
    return items[::-1]


def _labels(labels: Any, count: int) -> np.ndarray:
    # NumPy would unfold nested lists, of which a short program can make astronomically large ones.
    if not (isinstance(labels, list) and len(labels) == count and all(type(label) is int for label in labels)):
        raise WidebnnError(f"has no list of {count} labels")
    return np.array(labels, np.uint8)


def _pixels(array: Any, count: int) -> np.ndarray:
    """The array that NumPy's own reconstruction would give: state is (version, shape, dtype, Fortran order, bytes)."""
    shape, dtype, fortran, content = array.state[1:]
    if array.name != NAMES[0] or dtype.name != NAMES[2] or dtype.arguments[0] not in ("u1", "|u1"):
        raise WidebnnError("has no array of bytes")
    if shape != (count, PIXELS) or len(content) != count * PIXELS:
        raise WidebnnError(f"has no array of {count} x {PIXELS} bytes")
    return np.frombuffer(content.encode("latin-1"), np.uint8).reshape(shape, order="F" if fortran else "C")
