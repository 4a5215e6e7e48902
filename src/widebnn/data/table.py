"""Tables from CSV files."""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

import numpy as np

from widebnn.data.counts import MAX_CLASSES, check_classes, check_memory, rows_of_one_table
from widebnn.data.dataset import Dataset, table_classes, table_regression
from widebnn.errors import WidebnnError, check_choice

INTEGER = re.compile(r"[+-]?[0-9]{1,400}")  # int() refuses thousands of digits, and a double has at most 309
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
MISSING = ("", "?", "na", "n/a", "nan", "null")
"""What stands for a missing value, in capitals or not."""
LONGEST_LINE = 2**24
"""Characters of a line; in memory they may take four times the bytes of the file."""


class Table(NamedTuple):
    """A CSV file as text."""

    path: Path
    columns: dict[str, tuple[str, ...]]
    """The cells of each column by its name, in the order of the file, without space around them."""
    lines: tuple[int, ...]
    """The line in which each row ends."""

    def what(self, name: str) -> str:
        """How messages name a column."""
        return f"column {name!r} of {self.path}"


def load_csv(path: Path, n_train: int | None, n_test: int | None, target: str | None = None) -> Dataset:
    """A table from ``path``: UTF-8, separated by commas, the first line with the names of the columns.

    The column ``target``, by default the last, is y: classes if it holds text or whole numbers without a decimal
    point, otherwise a regression target. All other columns are inputs. Those of numbers are taken as they are; one
    of text becomes a 0/1 column for each of its values in the file, sorted. No column may mix numbers and text.

    The first ``n_train`` rows train and the next ``n_test`` test; rows are never shuffled.
    """
    table = read_table(path)
    target = list(table.columns)[-1] if target is None else check_choice("target", target, table.columns)
    inputs: list[np.ndarray] = []
    columns = 0
    class_names: tuple[str, ...] = ()
    for name, cells in table.columns.items():
        what = table.what(name)
        numbers = as_numbers(what, cells, table.lines)
        if name != target:
            columns += 1 if numbers is not None else len(set(cells))
            check_memory(str(path), columns * len(cells))
            inputs.append(_one_hot(what, cells) if numbers is None else numbers[:, None])
        elif numbers is None:
            y, class_names = _labels(what, cells)
        elif all(INTEGER.fullmatch(cell) for cell in cells):
            y, class_names = _labels(what, [int(cell) for cell in cells])
        else:
            y = numbers[:, None]
    x = np.concatenate(inputs, axis=1)

    n_train, n_test = rows_of_one_table(str(path), len(x), n_train, n_test)
    train, test = slice(n_train), slice(n_train, n_train + n_test)
    if class_names:
        return table_classes(path.stem, x[train], x[test], y[train], y[test], class_names)
    return table_regression(path.stem, x[train], x[test], y[train], y[test])


def read_table(path: Path, fewest_columns: int = 2) -> Table:
    """The cells of a CSV file; blank lines and space around cells do not count.

    In a file of one column a blank line before a row could be a missing value, and is refused.
    """
    if not os.path.isfile(path):
        raise WidebnnError(f"there is no file {path}; give the path of a CSV file.")
    rows: list[list[str]] = []
    lines: list[int] = []
    blank = 0
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(_lines(path, file), strict=True, skipinitialspace=True)
            for row in reader:
                if not row:
                    blank = reader.line_num if rows else 0
                    continue
                if blank and len(rows[0]) == 1:
                    raise WidebnnError(
                        f'line {blank} of {path} is blank; remove it, or write "" into it for a missing value.'
                    )
                if any("\0" in cell for cell in row):
                    raise WidebnnError(f"line {reader.line_num} of {path} has a NUL byte; save it as plain text.")
                rows.append([cell.strip() for cell in row])
                lines.append(reader.line_num)
                if len(row) != len(rows[0]):
                    raise WidebnnError(
                        f"line {reader.line_num} of {path} has {len(row)} cells, expected {len(rows[0])} as in the "
                        "first line; add or remove commas, or quote cells that contain one."
                    )
    except UnicodeDecodeError:
        raise WidebnnError(f"{path} must be text in UTF-8 and is not; save it again as CSV in UTF-8.") from None
    except (OSError, csv.Error) as error:
        raise WidebnnError(f"{path} cannot be read as CSV ({error}); check its quotes and permissions.") from None
    if len(rows) < 2:
        raise WidebnnError(f"{path} must have a line of column names and at least one row; it has {len(rows)} lines.")
    _check_header(path, rows[0], fewest_columns)
    return Table(path, dict(zip(rows[0], zip(*rows[1:], strict=True), strict=True)), tuple(lines[1:]))


def _lines(path: Path, file: IO[str]) -> Iterator[str]:
    while line := file.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise WidebnnError(
                f"{path} has a line of more than {LONGEST_LINE} characters; save it with a line per row."
            )
        yield line


def _check_header(path: Path, header: list[str], fewest: int) -> None:
    if len(header) < fewest:
        raise WidebnnError(f"{path} must have an input and a target column; it has one: separate cells by commas.")
    if len(header) == 1 and any(separator in header[0] for separator in ";\t"):
        raise WidebnnError(f"the cells of {path} must be separated by commas; save it again as CSV with commas.")
    if all(NUMBER.fullmatch(name) for name in header):
        raise WidebnnError(f"the first line of {path} must name the columns and has only numbers; add such a line.")
    if "" in header:
        raise WidebnnError(f"column {header.index('') + 1} of {path} has no name; write one into the first line.")
    [(name, count)] = Counter(header).most_common(1)
    if count > 1:
        raise WidebnnError(f"{path} has {count} columns {name!r}; rename or remove all but one.")


def is_missing(cell: str) -> bool:
    """Whether a cell stands for a missing value."""
    return cell.lower() in MISSING


def as_numbers(
    what: str,
    cells: Sequence[str],
    lines: Sequence[int],
    mixed: str = "is no number while other rows have one: correct it, or make all of them text",
) -> np.ndarray | None:
    """The cells as finite numbers, None if they are text; ``mixed`` is the problem with text among numbers."""
    missing = [is_missing(cell) for cell in cells]
    if any(missing):
        refuse_cell(what, cells, lines, missing.index(True), "is a missing value: fill it in or remove the row")
    is_number = [NUMBER.fullmatch(cell) is not None for cell in cells]
    if not any(is_number):
        return None
    if not all(is_number):
        refuse_cell(what, cells, lines, is_number.index(False), mixed)
    values = np.array([float(cell) for cell in cells])
    if not np.isfinite(values).all():
        at = np.isfinite(values).tolist().index(False)
        refuse_cell(what, cells, lines, at, "is too large for double precision: rescale the column")
    return values


def refuse_cell(what: str, cells: Sequence[str], lines: Sequence[int], at: int, problem: str) -> NoReturn:
    """Say what is wrong with one cell, and where it is."""
    raise WidebnnError(f"{what} has {cells[at][:40]!r} in line {lines[at]}, which {problem}.")


def _one_hot(what: str, cells: Sequence[str]) -> np.ndarray:
    categories = sorted(set(cells))
    if len(categories) > MAX_CLASSES:
        raise WidebnnError(
            f"{what} has {len(categories)} distinct texts, more than {MAX_CLASSES}; remove it or group its values."
        )
    return np.eye(len(categories))[_indices(cells, categories)]


def _labels(what: str, values: Sequence[Any]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Indices into the sorted distinct values of the whole file, whatever rows are used later."""
    classes = sorted(set(values))
    check_classes(what, len(classes), "write its values with a decimal point")
    return _indices(values, classes), tuple(map(str, classes))


def _indices(values: Sequence[Any], ordered: Sequence[Any]) -> np.ndarray:
    index = {value: i for i, value in enumerate(ordered)}
    return np.array([index[value] for value in values])
