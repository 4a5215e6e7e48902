"""Tables from CSV files: their cells as numbers or text, and how messages name them."""

from __future__ import annotations

import csv
import io
import os
import re
import warnings
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from widebnn.errors import Note, WidebnnError

NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
MISSING = ("", "?", "na", "n/a", "nan", "null", "none", "<na>")
EXACT = 2**53
"""Larger integers are not exact in double precision; columns that have them stay text until they are used."""
LARGEST = 1e100
"""Squares of larger numbers overflow."""


def read_table(path: str | PathLike[str]) -> pd.DataFrame:
    """Read a CSV file, whose first line names the columns.

    Cells are separated by commas, semicolons or tabs, whichever the first line has most of; with the other two,
    decimals may be written with a comma. The text is UTF-8, UTF-16 with a byte order mark, or else Latin-1. Rows
    without any value, and columns without a name (the index that pandas writes), are left out with a warning.

    Args:
        path: The file.

    Returns:
        The table: columns of numbers where all values are numbers and of text otherwise, NaN where a value is
        missing. The index is the line of the file in which each row ends.

    Raises:
        WidebnnError: The file does not exist or is not such a table; the message names the line.

    Examples:
        >>> read_table("train.csv").columns.tolist()
        ['size', 'colour', 'price']
    """
    path = Path(path)
    if not os.path.isfile(path):
        raise WidebnnError(f"there is no file {path}; give the path of a CSV file.")
    try:
        data, text = path.read_bytes(), ""
        encodings = ["utf-16"] if data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else ["utf-8-sig", "latin-1"]
        try:
            text = data.decode(encodings[0])
        except UnicodeDecodeError:
            text = data.decode(encodings[-1])
            note(f"{path} is not UTF-8 and was read as Latin-1; save it as UTF-8 if letters are wrong.")
        first = re.sub('"[^"]*"', "", next((line for line in text.splitlines() if line.strip()), ""))
        separator = max(",;\t", key=first.count)
        # Not pandas.read_csv, which fills up rows that are too short and does not know the lines of rows.
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True, skipinitialspace=True)
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except (OSError, UnicodeError, csv.Error) as error:
        raise WidebnnError(f"{path} cannot be read as CSV ({error}); check its quotes and permissions.") from None
    frame = _frame(path, [(line, cells) for line, cells in rows if len(cells) > 1 or any(cells)])
    has_decimal_commas = separator != "," and re.search(r"\d,\d", text) and not re.search(r"\d\.\d", text)
    frame = frame.apply(_typed, has_decimal_commas=has_decimal_commas)
    frame.attrs["source"] = str(path)
    return frame


def _frame(path: Path, rows: list[tuple[int, list[str]]]) -> pd.DataFrame:
    """The table from lines and their cells, all text or None; the first line has the names."""
    lines, (names, *cells) = [line for line, _ in rows[1:]], [row for _, row in rows] or [[]]
    for line, row in zip(lines, cells, strict=True):
        if len(row) != len(names):
            raise WidebnnError(
                f"line {line} of {path} has {len(row)} cells, expected {len(names)} as in the first line; add or "
                "remove separators, or quote cells that contain one."
            )
    known = [[None if cell.lower() in MISSING else cell for cell in row] for row in cells]
    frame = pd.DataFrame(known, columns=names, index=pd.Index(lines, name="line"), dtype=object)
    is_empty = frame.isna().all(axis=1)
    if is_empty.all():
        raise WidebnnError(f"{path} must have a line of column names and at least one row with values; it has none.")
    if is_empty.any():
        note(f"{is_empty.sum()} of {len(frame)} rows of {path} are left out: no cell has a value.")
    if "" in names:
        note(f"column {names.index('') + 1} of {path} has no name and is left out.")
    frame = frame.loc[~is_empty, frame.columns != ""]
    if pd.to_numeric(frame.columns, errors="coerce").notna().all():
        raise WidebnnError(f"the first line of {path} must name the columns and has only numbers; add such a line.")
    return frame


def _typed(column: pd.Series, has_decimal_commas: bool) -> pd.Series:
    """A column of text as numbers, if all its values are."""
    numbers = pd.to_numeric(column.str.replace(",", ".") if has_decimal_commas else column, errors="coerce")
    are_numbers = numbers.count() == column.count() and not numbers.abs().max() > EXACT
    return numbers if are_numbers else column


def as_text(column: pd.Series) -> pd.Series:
    """A column as text (dtype object), None where missing; +7, 07 and 7.0 are all 7, and TRUE is True."""

    def text_of(value: Any) -> str | None:
        text = str(value).strip()
        if NUMBER.fullmatch(text) and abs(number := float(text)) < EXACT:
            return repr(int(number) if number.is_integer() else number)
        return None if text.lower() in MISSING else text.title() if text.lower() in ("true", "false") else text

    return column.astype(object).map(text_of, na_action="ignore").astype(object)


def as_numbers(frame: pd.DataFrame, name: str, problem: str, or_text: bool = False) -> Any:
    """A column as finite float64, NaN where missing; ``problem`` is what is wrong with a text.

    With ``or_text`` None for a column of categories: it has values, and none of them is a number.
    """
    column = frame[name]
    cells = column if column.dtype.kind in "iuf" else as_text(column)
    values = pd.to_numeric(cells, errors="coerce").astype(np.float64)
    is_wrong, infinite = values.isna() & cells.notna(), "is not a finite number: correct it or rescale the column"
    if or_text and (isinstance(column.dtype, pd.CategoricalDtype) or (is_wrong.any() and values.isna().all())):
        return None
    for wrong, reason in ((is_wrong, problem), (np.isinf(values), infinite)):
        if wrong.any():
            refuse_cell(frame, name, int(wrong.argmax()), reason)
    if (largest := values.abs().max()) > LARGEST:
        raise WidebnnError(f"{what_is(frame, name)} has numbers as large as {largest:g}; express it in larger units.")
    return values


def with_names(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with text as names of columns, all different."""
    frame = frame.rename(columns=str)
    if not frame.columns.is_unique:
        name = frame.columns[frame.columns.duplicated()][0]
        raise WidebnnError(f"{what_is(frame)} has several columns {name!r}; rename or remove all but one.")
    return frame


def note(remark: str) -> None:
    """Tell the user something that is no problem yet."""
    warnings.warn(Note(remark), stacklevel=3)


def what_is(frame: pd.DataFrame, column: str | None = None) -> str:
    """How messages name a table or a column of it."""
    table = frame.attrs.get("source", "the table")
    return table if column is None else f"column {column!r} of {table}"


def place(frame: pd.DataFrame, row: int) -> str:
    """How messages name a row by its position, such as line 3."""
    return f"{frame.index.name or 'row'} {frame.index[row]}"


def refuse_cell(frame: pd.DataFrame, name: str, row: int, problem: str) -> NoReturn:
    """Say what is wrong with one cell, and where it is."""
    cell = str(frame[name].iloc[row])[:40]
    raise WidebnnError(f"{what_is(frame, name)} has {cell!r} in {place(frame, row)}, which {problem}.")


def listed(names: Sequence[str], most: int = 5) -> str:
    """Some names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
