"""Tables from CSV files."""

from __future__ import annotations

import csv
import os
import re
from os import PathLike
from pathlib import Path

import pandas as pd

from widebnn.data.columns import MISSING, counted, note
from widebnn.errors import WidebnnError

EXACT = 2**53
"""Larger integers are not exact in double precision; columns that have them stay text until they are used."""


def read_table(path: str | PathLike[str], notes: list[str] | None = None) -> pd.DataFrame:
    """Read a CSV file, whose first line names the columns.

    Cells are separated by commas, semicolons or tabs, whichever the first line has most of; with the other two,
    decimals may be written with a comma. The text is UTF-8, UTF-16 with a byte order mark, or else Latin-1. Rows
    without any value, and a first column without a name (the index that pandas writes), are left out.

    Args:
        path: The file.
        notes: Remarks for the user are appended to this list; without it they are warnings.

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
        with path.open("rb") as file:
            is_utf16 = file.read(2) in (b"\xff\xfe", b"\xfe\xff")
        try:
            return _parse(path, "utf-16" if is_utf16 else "utf-8-sig", notes)
        except UnicodeDecodeError:
            if is_utf16:
                raise
        frame = _parse(path, "latin-1", notes)
    except (OSError, UnicodeError, csv.Error) as error:
        raise WidebnnError(f"{path} cannot be read as CSV ({error}); check its quotes and permissions.") from None
    note(notes, f"{path} is not UTF-8 and was read as Latin-1; save it as UTF-8 if letters are wrong.")
    return frame


def _parse(path: Path, encoding: str, notes: list[str] | None) -> pd.DataFrame:
    # Not pandas.read_csv, which fills up rows that are too short and does not know the lines of rows.
    names: list[str] = []
    rows, lines, empty = [], [], 0
    with path.open(newline="", encoding=encoding) as file:
        separator, has_decimal_commas = _dialect(path, file.read(2**16))
        file.seek(0)
        reader = csv.reader(file, delimiter=separator, strict=True, skipinitialspace=True)
        for row in reader:
            cells = [cell.strip() for cell in row]
            if len(cells) < 2 and not any(cells):
                continue  # a blank line
            if not names:
                names = cells
            elif len(cells) != len(names):
                raise WidebnnError(
                    f"line {reader.line_num} of {path} has {len(cells)} cells, expected {len(names)} as in the first "
                    "line; add or remove separators, or quote cells that contain one."
                )
            elif all(cell.lower() in MISSING for cell in cells):
                empty += 1
            else:
                rows.append([None if cell.lower() in MISSING else cell for cell in cells])
                lines.append(reader.line_num)
    if not rows:
        raise WidebnnError(f"{path} must have a line of column names and at least one row with values; it has none.")
    frame = pd.DataFrame(rows, columns=names, index=pd.Index(lines, name="line"), dtype=object)
    if names[0] == "" and len(names) > 1:
        frame = frame.iloc[:, 1:]
        note(notes, f"the first column of {path} has no name and is left out.")
    _check_header(path, frame.columns.tolist())
    if empty:
        note(notes, f"{counted(empty)} of {path} left out: no cell has a value.")
    frame = frame.apply(_typed, has_decimal_commas=has_decimal_commas)
    frame.attrs["source"] = str(path)
    return frame


def _dialect(path: Path, start: str) -> tuple[str, bool]:
    """The separator of cells, and whether decimals are written with a comma."""
    if "\0" in start:
        raise WidebnnError(f"{path} has NUL characters; save it as plain text in UTF-8.")
    first = re.sub('"[^"]*"', "", next((line for line in start.splitlines() if line.strip()), ""))
    separator = max(",;\t", key=first.count)
    return separator, separator != "," and bool(re.search(r"\d,\d", start)) and not re.search(r"\d\.\d", start)


def _typed(column: pd.Series, has_decimal_commas: bool) -> pd.Series:
    """A column of text as numbers, if all its values are."""
    numbers = pd.to_numeric(column.str.replace(",", ".") if has_decimal_commas else column, errors="coerce")
    are_numbers = numbers.count() == column.count() and not numbers.abs().max() > EXACT
    return numbers if are_numbers else column


def _check_header(path: Path, names: list[str]) -> None:
    if pd.to_numeric(pd.Series(names), errors="coerce").notna().all():
        raise WidebnnError(f"the first line of {path} must name the columns and has only numbers; add such a line.")
    if "" in names:
        raise WidebnnError(f"column {names.index('') + 1} of {path} has no name; write one into the first line.")
