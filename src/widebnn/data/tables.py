"""Tables from CSV files."""

from __future__ import annotations

import csv
import os
import re
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import IO

import numpy as np
import pandas as pd

from widebnn.data.dataset import Dataset, classification, regression, split_rows
from widebnn.data.encoder import MISSING, NUMBER, TableEncoder, counted, note, with_target
from widebnn.errors import WidebnnError

CHUNK = 2**16
"""Rows parsed at a time: rows without any value, of which a small file may have millions, take no memory."""


def load_table(
    path: Path,
    n_train: int | None,
    n_test: int | None,
    *,
    target: str | None,
    classify: bool,
    drop: Collection[str],
    text: Collection[str],
) -> Dataset:
    """The first rows of a CSV file as a data set; what is learned of its columns is learned from the training rows."""
    frame = read_table(path)
    target = frame.columns[-1] if target is None else target
    frame = with_target(frame, target)
    n_train, n_test = split_rows(str(path), len(frame), n_train, n_test)
    train, test = slice(n_train), slice(n_train, n_train + n_test)
    encoder = TableEncoder.fit(frame[train], target=target, drop=drop, text=text, classify=classify)
    x, y = (encoder.transform(frame[train]), encoder.transform(frame[test])), encoder.targets(frame)
    if classify:
        classes, labels = np.unique(y, return_inverse=True)
        return classification(path.stem, x, (labels[train], labels[test]), classes.tolist())
    return regression(path.stem, x, (y[train, None], y[test, None]))


def read_table(path: str | PathLike[str], notes: list[str] | None = None) -> pd.DataFrame:
    """A CSV file, whose first line names the columns, as a DataFrame; its index is the line in which each row ends.

    Cells are separated by commas, semicolons or tabs, whichever the first line has most of; with the other two,
    decimals may be written with a comma. The text is UTF-8, UTF-16 with a byte order mark, or else Latin-1. Rows
    without any value, and a first column without a name (the index that pandas writes), are left out. Rows are parsed
    some thousands at a time, so that memory grows with what the table holds and not with its empty rows.

    Args:
        path: The file.
        notes: Remarks for the user are appended to it; without it they are warnings.

    Raises:
        WidebnnError: There is no such file, or it is not such a table; the message has the line.

    Example:
        >>> read_table("train.csv").columns.tolist()
        ['size', 'colour', 'price']
    """
    path = Path(path)
    if not os.path.isfile(path):
        raise WidebnnError(f"there is no file {path}; give the path of a CSV file.")
    try:
        with path.open("rb") as file:
            encoding = "utf-16" if file.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        try:
            return _parse(path, encoding, notes)
        except UnicodeDecodeError:
            if encoding == "utf-16":
                raise
        frame = _parse(path, "latin-1", notes)
    except (OSError, UnicodeError, csv.Error, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise WidebnnError(f"{path} cannot be read as CSV ({error}); check its quotes and permissions.") from None
    note(notes, f"{path} is not UTF-8 and was read as Latin-1; save it as UTF-8 if letters are wrong.")
    return frame


def _parse(path: Path, encoding: str, notes: list[str] | None) -> pd.DataFrame:
    with path.open(newline="", encoding=encoding) as file:
        start = file.read(2**16)
        first = re.sub('"[^"]*"', "", next((line for line in start.splitlines() if line.strip()), ""))
        separator = max(",;\t", key=first.count)
        comma = separator != "," and re.search(r"\d,\d", start) is not None and re.search(r"\d\.\d", start) is None
        file.seek(0)
        names, before, lines, blank = _check_lines(path, file, separator)
    unnamed = names[0] == "" and len(names) > 1
    _check_header(path, names[1:] if unnamed else names)
    with path.open(newline="", encoding=encoding) as file:
        chunks = pd.read_csv(
            file,
            sep=separator,
            decimal="," if comma else ".",
            skiprows=before,
            header=0,
            names=names,
            index_col=False,
            skipinitialspace=True,
            skip_blank_lines=False,
            na_values=[spelling for word in MISSING for spelling in (word, word.upper(), word.title())],
            low_memory=False,
            chunksize=CHUNK,
        )
        read, parts = 0, []
        for chunk in chunks:
            read += len(chunk)
            chunk = chunk.astype(dict.fromkeys(chunk.select_dtypes("bool"), object))  # or they join numbers as 0 and 1
            parts.append(chunk.drop(columns="" if unnamed else []).dropna(how="all"))
    if read != len(lines):
        raise WidebnnError(f"{path} has {len(lines)} or {read} rows, depending on how quotes are read; correct them.")
    frame = pd.concat([part for part in parts if len(part)] or [pd.DataFrame()])
    if frame.empty:
        raise WidebnnError(f"{path} must have a line of column names and at least one row; it has no row.")
    if unnamed:
        note(notes, f"the first column of {path} has no name and is left out.")
    if len(lines) > len(frame) + blank:
        note(notes, f"{counted(len(lines) - len(frame) - blank)} of {path} left out: no cell has a value.")
    frame.index = pd.Index(np.frombuffer(lines, np.int64)[frame.index], name="line")
    frame.attrs["source"] = str(path)
    return frame


def _check_lines(path: Path, file: IO[str], separator: str) -> tuple[list[str], int, array, int]:
    """Names of the columns, blank lines before them, the line in which each row ends, and how many are blank.

    pandas knows no lines, and fills up rows that are too short.
    """
    names: list[str] = []
    lines, before, blank = array("q"), 0, 0
    reader = csv.reader(_plain_text(path, file), delimiter=separator, strict=True, skipinitialspace=True)
    for row in reader:
        is_blank = not row or (len(row) == 1 and not row[0].strip())
        if not names:
            names = [] if is_blank else [cell.strip() for cell in row]
            before += is_blank
            continue
        if not is_blank and len(row) != len(names):
            raise WidebnnError(
                f"line {reader.line_num} of {path} has {len(row)} cells, expected {len(names)} as in the first line; "
                "add or remove separators, or quote cells that contain one."
            )
        blank += is_blank
        lines.append(reader.line_num)
    if not names:
        raise WidebnnError(f"{path} must have a line of column names and at least one row; it is empty.")
    return names, before, lines, blank


def _plain_text(path: Path, file: IO[str]) -> Iterator[str]:
    for number, line in enumerate(file, start=1):
        if "\0" in line:
            raise WidebnnError(f"line {number} of {path} has a NUL byte; save it as plain text.")
        yield line


def _check_header(path: Path, header: Sequence[str]) -> None:
    if all(NUMBER.fullmatch(name) for name in header):
        raise WidebnnError(f"the first line of {path} must name the columns and has only numbers; add such a line.")
    if "" in header:
        raise WidebnnError(f"column {header.index('') + 1} of {path} has no name; write one into the first line.")
    [(name, count)] = Counter(header).most_common(1)
    if count > 1:
        raise WidebnnError(f"{path} has {count} columns {name!r}; rename or remove all but one.")
