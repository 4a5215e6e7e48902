"""The columns of a table as numbers or as text, and how messages name them."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from widebnn.errors import WidebnnError

INTEGER = re.compile(r"[+-]?[0-9]{1,400}")  # int() refuses thousands of digits, and a double has at most 309
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
MISSING = ("", "?", "na", "n/a", "nan", "null", "none", "<na>")
"""What stands for a missing value, in capitals or not."""
LARGEST = 1e100
"""Squares of larger numbers overflow."""
INFINITE = "is not a finite number: correct it or rescale the column"

log = logging.getLogger("widebnn")
FEW_NOTES, SHORT_NOTE = 2, 200
"""Remarks, and characters of one, that are logged unless debugging messages are enabled."""
Notes = list[str] | None
"""Remarks for the user are appended to such a list; without one they are warnings."""


def _text(value: Any) -> str | None:
    """A cell as text, the same for all spellings of a number, as +7, 07 and 7.0 are 7, or of true; None if missing."""
    text = str(value).strip()
    if text.lower() in MISSING:
        return None
    if text.lower() in ("true", "false"):
        return text.title()
    if INTEGER.fullmatch(text):
        return str(int(text))
    if NUMBER.fullmatch(text) and np.isfinite(float(text)):
        return str(int(float(text))) if float(text).is_integer() else repr(float(text))
    return text


def as_text(column: pd.Series) -> pd.Series:
    """A column as text (dtype object), None where missing."""
    return column.astype(object).map(_text, na_action="ignore").astype(object)


def _is_numeric(column: pd.Series) -> bool:
    return getattr(column.dtype, "kind", "O") in "iuf"


def is_text(column: pd.Series) -> bool:
    """Whether a column holds categories: it has values, and none of them is a number."""
    if isinstance(column.dtype, pd.CategoricalDtype) or _is_numeric(column):
        return not _is_numeric(column)
    texts = as_text(column)
    return bool(texts.notna().any()) and not pd.to_numeric(texts, errors="coerce").notna().any()


def as_numbers(frame: pd.DataFrame, name: str, problem: str) -> pd.Series:
    """A column as finite float64, NaN where missing; ``problem`` is what is wrong with a text."""
    cells = frame[name] if _is_numeric(frame[name]) else as_text(frame[name])
    values = pd.to_numeric(cells, errors="coerce").astype(np.float64)
    for wrong, reason in ((values.isna() & cells.notna(), problem), (np.isinf(values), INFINITE)):
        if wrong.any():
            refuse_cell(frame, name, int(wrong.argmax()), reason)
    largest = values.abs().max()
    if largest > LARGEST:
        raise WidebnnError(f"{what_is(frame, name)} has numbers as large as {largest:g}; express it in larger units.")
    return values


def place(frame: pd.DataFrame, row: int) -> str:
    """How messages name a row of a table by its position, such as line 3."""
    return f"{frame.index.name or 'row'} {frame.index[row]}"


def refuse_cell(frame: pd.DataFrame, name: str, row: int, problem: str) -> NoReturn:
    """Say what is wrong with one cell, and where it is."""
    cell = str(frame[name].iloc[row])[:40]
    raise WidebnnError(f"{what_is(frame, name)} has {cell!r} in {place(frame, row)}, which {problem}.")


def note(notes: Notes, line: str) -> None:
    """Append a remark, or warn."""
    if notes is None:
        warnings.warn(line, stacklevel=3)
    else:
        notes.append(line)


def log_notes(notes: list[str]) -> None:
    """Log remarks: all with debugging messages, otherwise the first few and how many there are."""
    everything = log.isEnabledFor(logging.DEBUG)
    for one in notes if everything else notes[:FEW_NOTES]:
        short = everything or len(one) <= SHORT_NOTE
        log.info(f"note: {one if short else f'{one[:SHORT_NOTE]} ... (--verbose shows the rest)'}")
    if not everything and (more := len(notes) - FEW_NOTES) > 0:
        log.info(f"{more} more note{'s' if more > 1 else ''} with --verbose")


def counted(rows: int) -> str:
    """1 row, 2 rows."""
    return "1 row" if rows == 1 else f"{rows} rows"


def with_names(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with text as names of columns, all different."""
    if not all(isinstance(name, str) for name in frame.columns):
        frame = frame.rename(columns=str)
    if not frame.columns.is_unique:
        name = frame.columns[frame.columns.duplicated()][0]
        raise WidebnnError(f"{source(frame)} has several columns {name!r}; rename or remove all but one.")
    return frame


def source(frame: pd.DataFrame) -> str:
    """The file that a table comes from."""
    return frame.attrs.get("source", "the table")


def what_is(frame: pd.DataFrame, name: str) -> str:
    """How messages name a column."""
    return f"column {name!r} of {source(frame)}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
