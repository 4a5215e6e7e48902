"""One exception for everything a caller can fix, and the checks that raise it.

Every message says what was expected, what came and what to do.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import types
import typing
from collections.abc import Iterable
from typing import Any

import numpy as np

LONGEST = 1000
"""Characters of a message; files may hold names and numbers of any length."""
Bound = float | None


def readable(text: str) -> str:
    """Return one line that a terminal can show, whatever a file has put into it."""
    text = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 305]} ... {text[-300:]}"


class WidebnnError(ValueError):
    """Bad input. The message says what was expected, what came and how to fix it."""

    def __init__(self, message: str = ""):
        super().__init__(readable(message))


class StoreError(WidebnnError):
    """The folder of a run cannot be used."""


class Note(UserWarning):
    """A remark on the data."""


class DamageWarning(UserWarning):
    """Files of a run were corrupted and are recomputed."""


class PrecisionWarning(UserWarning):
    """float32 features are not precise enough for a target."""


class PrecisionError(WidebnnError):
    """float32 features are so imprecise that rounding decides what a chain accepts."""


def check_choice(name: str, value: str, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``choices``; otherwise suggest the nearest one."""
    choices = list(choices)
    if value in choices:
        return value
    near = difflib.get_close_matches(str(value), choices, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise WidebnnError(f"{name} must be one of {', '.join(choices)}; got {value!r}.{hint}")


def check_integer(name: str, value: int, minimum: int, maximum: int = 2**63 - 1) -> int:
    """Return ``value`` as int if it is a whole number from ``minimum`` to ``maximum``."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise WidebnnError(f"{name} must be a whole number, got {value!r}.")
    if not minimum <= int(value) <= maximum:
        limit = f"at least {minimum}" if int(value) < minimum else f"at most {maximum}"
        raise WidebnnError(f"{name} must be {limit}, got {value}.")
    return int(value)


def check_real(
    name: str,
    value: float | str,
    *,
    above: Bound = None,
    at_least: Bound = None,
    at_most: Bound = None,
    advice: str = "",
) -> float:
    """Return ``value`` as float if it is finite (or ``at_most`` is inf) and inside the stated range."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise WidebnnError(f"{name} must be a number, got {value!r}.") from None
    is_inside = (math.isfinite(number) or number == at_most) and (above is None or number > above)
    if not (is_inside and (at_least is None or number >= at_least) and (at_most is None or number <= at_most)):
        bounds = {"greater than": above, "at least": at_least, "at most": at_most}
        wanted = [f"{words} {bound:g}" for words, bound in bounds.items() if bound not in (None, math.inf)]
        raise WidebnnError(f"{name} must be {' and '.join(wanted) or 'finite'}, got {value}. {advice}".rstrip())
    return number


def check_fields(record: Any) -> None:
    """Check the values of a dataclass against the types of its fields: plain types, Literal, lists, tuples, None.

    Raises:
        WidebnnError: A value has another type; the message names the field.
    """
    hints = typing.get_type_hints(type(record))
    for name in (field.name for field in dataclasses.fields(record)):
        hint, value = hints[name], getattr(record, name)
        if typing.get_origin(hint) is typing.Literal:
            check_choice(name, value, typing.get_args(hint))
        elif not _has_type(value, hint):
            raise WidebnnError(f"{name} must be {getattr(hint, '__name__', hint)}, got {value!r}.")


def _has_type(value: Any, hint: Any) -> bool:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_has_type(value, part) for part in parts)
    if origin is typing.Literal:
        return value in parts
    if origin is os.PathLike:
        return isinstance(value, os.PathLike)
    if origin not in (list, tuple, dict):
        return type(value) is hint or (hint is float and type(value) is int)
    if not isinstance(value, origin):
        return False
    if origin is dict:
        return all(_has_type(key, parts[0]) and _has_type(one, parts[1]) for key, one in value.items())
    if origin is list or parts[-1] is Ellipsis:
        parts = parts[:1] * len(value)
    return len(value) == len(parts) and all(map(_has_type, value, parts))


def check_numbers(name: str, value: Any) -> np.ndarray:
    """Return ``value`` as a float64 array if it is numeric and finite."""
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise WidebnnError(f"{name} must be a numeric array; encode text or missing entries first.") from None
    bad = np.count_nonzero(~np.isfinite(array))
    if bad:
        raise WidebnnError(f"{name} has {bad} NaN or infinite entries; remove or impute them first.")
    return array


def check_inputs(name: str, value: Any, columns: int | None = None) -> np.ndarray:
    """Return ``value`` as a float64 matrix if it is finite, not empty and has ``columns`` columns (None: any)."""
    array = check_numbers(name, value)
    if array.ndim != 2:
        raise WidebnnError(f"{name} must be a 2-D array, rows are inputs; got shape {array.shape}. Try reshape(-1, 1).")
    if array.size == 0:
        raise WidebnnError(f"{name} must have at least one row and one column; got shape {array.shape}.")
    if columns is not None and array.shape[1] != columns:
        raise WidebnnError(f"{name} must have {columns} columns, one per input feature; got shape {array.shape}.")
    return array


def check_targets(y: Any, rows: int, name: str = "y") -> np.ndarray:
    """Return ``y``, rows x outputs or a vector, as a float64 matrix if it is finite and not empty."""
    y = check_numbers(name, y)
    if y.ndim not in (1, 2):
        raise WidebnnError(f"{name} must have shape (n,) or (n, outputs); got {y.shape}.")
    if len(y) != rows:
        raise WidebnnError(f"x and {name} must have the same number of rows; got {rows} and {len(y)}.")
    return check_inputs(name, y[:, None] if y.ndim == 1 else y)
