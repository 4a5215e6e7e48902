"""From the columns of a table to the numbers a network sees, learnt from a training table and applied to any other.

A column of numbers is itself. Where training rows lack a value, it is the median of the others, beside a 0/1 column
that says which rows lack it. A column of text becomes a 0/1 column for each of its texts, a missing one among them.
Columns that say nothing are left out. Rows without a target cannot train or test and are left out.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from widebnn.data.counts import check_classes, check_memory
from widebnn.data.table import INTEGER, NUMBER, Table, as_numbers, is_missing, refuse_cell
from widebnn.errors import WidebnnError, check_choice

MAX_TEXTS = 100
"""More distinct texts than this in a column are surely names or dates."""
LARGEST = 1e100
"""Squares of numbers beyond this overflow."""
FEW = 20
"""Up to this many distinct values can be categories whatever the number of rows."""


@dataclasses.dataclass(frozen=True)
class NumberColumn:
    """A column of numbers."""

    name: str
    fill: float
    """What a missing value becomes: the median of the training rows."""
    varies: bool = True
    """Whether there is more than one number; otherwise only whether it is missing counts."""
    missing: bool = False
    """Whether training rows lack it, which makes a 0/1 column."""

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs it becomes."""
        return [self.name] * self.varies + [f"{self.name} is missing"] * self.missing

    def encode(self, table: Table, notes: list[str]) -> np.ndarray:
        """rows x inputs."""
        what, cells = table.what(self.name), table.columns[self.name]
        lacks, numbers, lines = _present(table, self.name)
        wrong = "is no number, while the model was fitted to numbers in this column: correct it"
        values = as_numbers(what, numbers, lines, wrong) if numbers else np.empty(0)
        if values is None:
            refuse_cell(what, numbers, lines, 0, wrong)
        if lacks.any() and not self.missing:
            notes.append(
                f"{what} lacks a value in {_rows(lacks.sum())}, which no training row did; the training median "
                f"{self.fill:g} is used."
            )
        _check_range(what, values)
        filled = np.full(len(cells), self.fill)
        filled[~lacks] = values
        return np.stack([filled] * self.varies + [lacks.astype(np.float64)] * self.missing, axis=1)


@dataclasses.dataclass(frozen=True)
class TextColumn:
    """A column of text."""

    name: str
    categories: tuple[str, ...]
    missing: bool = False
    """Whether training rows lack it, which is one more category."""

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs it becomes."""
        return [f"{self.name} = {text}" for text in self.categories] + [f"{self.name} is missing"] * self.missing

    def encode(self, table: Table, notes: list[str]) -> np.ndarray:
        """rows x inputs; a text that no training row has is a row of zeros."""
        index = {text: i for i, text in enumerate(self.categories)}
        keys = ["" if is_missing(cell) else one_spelling(cell) for cell in table.columns[self.name]]
        if self.missing:
            index[""] = len(self.categories)
        unknown = sorted(set(keys) - set(index))
        if unknown:
            count = sum(key not in index for key in keys)
            warnings.warn(
                f"{table.what(self.name)} has {_listed([_shown(key) for key in unknown])} in {_rows(count)}, which no "
                "training row has; predictions there know nothing of this column.",
                stacklevel=2,
            )
        one_hot = np.zeros((len(keys), len(index)))
        known = [(row, index[key]) for row, key in enumerate(keys) if key in index]
        if known:
            one_hot[tuple(np.array(known).T)] = 1.0
        return one_hot


class TableEncoding(NamedTuple):
    """What :func:`learn_encoding` found."""

    columns: tuple[NumberColumn | TextColumn, ...]
    target: str
    classes: bool
    """Whether the target is a class."""
    left_out: tuple[str, ...]
    """Columns of the training table that are no inputs."""

    @property
    def inputs(self) -> list[str]:
        """Names of all inputs."""
        return [name for column in self.columns for name in column.inputs]

    def encode(self, table: Table, notes: list[str]) -> np.ndarray:
        """The inputs of all rows; the order of columns does not matter, columns the model does not know are ignored.

        What a user should know of is appended to ``notes``.
        """
        names = [column.name for column in self.columns]
        lacking = [name for name in names if name not in table.columns]
        if lacking:
            raise WidebnnError(
                f"{table.path} lacks {_listed(lacking)} of the {len(names)} columns that the model needs; add "
                f"{'it' if len(lacking) == 1 else 'them'}, empty cells will do where a value is not known."
            )
        known = {*names, *self.left_out, self.target}
        ignored = [name for name in table.columns if name not in known]
        if ignored:
            notes.append(f"ignored in {table.path}, for the model does not know them: {_listed(ignored)}.")
        check_memory(str(table.path), len(table.lines) * len(self.inputs))
        return np.concatenate([column.encode(table, notes) for column in self.columns], axis=1)

    def targets(self, table: Table) -> np.ndarray:
        """The target of all rows, which must have one: floats, or labels as in :func:`learn_encoding`."""
        cells, what = table.columns[self.target], table.what(self.target)
        if self.classes:
            labels = [one_spelling(cell) for cell in cells]
            whole = all(INTEGER.fullmatch(label) and len(label) < 19 for label in labels)
            return np.array([int(label) for label in labels] if whole else labels)
        mixed = "is no number while other rows have one: correct it or remove the row"
        numbers = as_numbers(what, cells, table.lines, mixed)
        if numbers is None:
            problem = "is text, while a regression needs numbers: to predict classes, fit with --classify"
            refuse_cell(what, cells, table.lines, 0, problem)
        _check_range(what, numbers)
        return numbers

    def to_json(self) -> dict[str, Any]:
        """As a JSON document holds it."""
        columns = [
            {"kind": "text" if isinstance(column, TextColumn) else "number"} | dataclasses.asdict(column)
            for column in self.columns
        ]
        return {
            "target": self.target,
            "classes": self.classes,
            "left_out": list(self.left_out),
            "columns": [c | {"categories": list(c["categories"])} if "categories" in c else c for c in columns],
        }

    @classmethod
    def from_json(cls, document: Any) -> TableEncoding:
        """From what :meth:`to_json` made; anything else is refused."""
        try:
            columns = tuple(_column(dict(column)) for column in document["columns"])
            target, classes, left_out = document["target"], document["classes"], tuple(document["left_out"])
            names = [target, *(column.name for column in columns), *left_out]
            good = all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
        except (TypeError, KeyError, ValueError):
            good = False
        if not good or not columns or not isinstance(classes, bool):
            raise WidebnnError("the description of the table's columns is not one that widebnn fit wrote; fit again.")
        return cls(columns, target, classes, left_out)


def learn_encoding(
    table: Table,
    target: str,
    *,
    classify: bool = False,
    drop: Collection[str] = (),
    text: Collection[str] = (),
    notes: list[str],
) -> TableEncoding:
    """How to encode tables like this one. All its rows must have a target, see :func:`with_target`.

    ``drop`` are columns to leave out, ``text`` columns whose numbers are names of categories. Labels of classes are
    whole numbers where all are, otherwise text. What a user should know of is appended to ``notes``.
    """
    for option, names in (("drop", drop), ("text", text)):
        for name in names:
            check_choice(option, name, [column for column in table.columns if column != target])
    encoding = TableEncoding((), target, classify, ())
    _check_target(table, encoding, notes)
    columns, left_out = [], list(drop)
    for name in table.columns:
        if name == target or name in drop:
            continue
        column = _learn_column(table, name, name in text, notes)
        if column.inputs:
            columns.append(column)
        else:
            left_out.append(name)
    if not columns:
        raise WidebnnError(f"{table.path} has no column to predict {target!r} from; add one that is not constant.")
    return encoding._replace(columns=tuple(columns), left_out=tuple(left_out))


def with_target(table: Table, target: str, notes: list[str]) -> Table:
    """The rows that have a target; says how many have none."""
    check_choice("target", target, table.columns)
    keep = [i for i, cell in enumerate(table.columns[target]) if not is_missing(cell)]
    lacking = len(table.lines) - len(keep)
    if not keep:
        raise WidebnnError(f"{table.what(target)} has no value in any row; choose another target or fill it in.")
    if lacking:
        notes.append(f"{table.what(target)} lacks a value in {_rows(lacking)}, which are left out.")
    columns = {name: tuple(cells[i] for i in keep) for name, cells in table.columns.items()}
    return Table(table.path, columns, tuple(table.lines[i] for i in keep))


def one_spelling(cell: str) -> str:
    """The same text for all spellings of a number, as +7, 07 and 7.0 are 7; other text as it is."""
    if INTEGER.fullmatch(cell):
        return str(int(cell))
    if NUMBER.fullmatch(cell) and np.isfinite(float(cell)):
        value = float(cell)
        return str(int(value)) if value.is_integer() else repr(value)
    return cell


# --- learning


def _learn_column(table: Table, name: str, as_text: bool, notes: list[str]) -> NumberColumn | TextColumn:
    what = table.what(name)
    lacks, cells, lines = _present(table, name)
    missing = bool(lacks.any())
    if not cells:
        notes.append(f"{what} is empty and left out.")
        return TextColumn(name, ())
    mixed = "is no number while other rows have one: correct it, or take them all as text with --text"
    numbers = None if as_text else as_numbers(what, cells, lines, mixed)
    if numbers is None:
        categories = sorted(set(map(one_spelling, cells)))
        _check_texts(what, len(categories), len(table.lines))
        varies = len(categories) > 1 or missing
        column: NumberColumn | TextColumn = TextColumn(name, tuple(categories) if varies else (), missing)
    else:
        _check_range(what, numbers)
        varies = bool(np.any(numbers != numbers[0]))
        column = NumberColumn(name, float(np.median(numbers)), varies, missing)
        if missing:
            notes.append(
                f"{what} lacks a value in {_rows(lacks.sum())}: the median {column.fill:g} is used, "
                "and an input says where."
            )
        if len(numbers) > 2 and np.all(np.diff(numbers) == 1):
            notes.append(f"{what} counts the rows; if it is only a number for each, leave it out: --drop {name!r}.")
    if not column.inputs:
        notes.append(f"{what} is {_shown(cells[0])} in all rows and left out.")
    return column


def _check_range(what: str, numbers: np.ndarray) -> None:
    largest = np.max(np.abs(numbers), initial=0.0)
    if largest > LARGEST:
        raise WidebnnError(f"{what} has numbers as large as {largest:g}; express it in larger units.")


def _check_texts(what: str, distinct: int, rows: int) -> None:
    if distinct > MAX_TEXTS or (distinct > FEW and distinct > rows / 2):
        raise WidebnnError(
            f"{what} has {distinct} distinct texts in {rows} rows, probably names or dates; leave it out with --drop, "
            f"or group them to {MAX_TEXTS} at most, or turn dates into numbers."
        )


def _check_target(table: Table, encoding: TableEncoding, notes: list[str]) -> None:
    what = table.what(encoding.target)
    values = encoding.targets(table)
    distinct = len(set(values.tolist()))
    if not encoding.classes:
        if distinct < 2:
            raise WidebnnError(f"{what} is {values[0]:g} in all rows; there is nothing to learn.")
        if distinct == 2:
            notes.append(f"{what} has two values only; if they are classes, add --classify.")
        return
    cells = table.columns[encoding.target]
    measured = values.dtype.kind == "U" and all(NUMBER.fullmatch(cell) for cell in cells)
    if distinct > FEW and (measured or distinct > len(values) / 2):
        kind = "numbers with decimals" if measured else "labels"
        advice = (
            "group them" if values.dtype.kind == "U" and not measured else "leave --classify out to predict numbers"
        )
        raise WidebnnError(
            f"{what} has {distinct} distinct {kind} in {len(values)} rows, too many for classes; {advice}."
        )
    check_classes(what, distinct, "leave --classify out")


# --- small things


def _present(table: Table, name: str) -> tuple[np.ndarray, list[str], list[int]]:
    """Which rows lack a value, and the cells and lines of the others."""
    lacks = np.array([is_missing(cell) for cell in table.columns[name]])
    there = np.flatnonzero(~lacks)
    return lacks, [table.columns[name][i] for i in there], [table.lines[i] for i in there]


def _column(document: dict[str, Any]) -> NumberColumn | TextColumn:
    kind = document.pop("kind")
    column: NumberColumn | TextColumn
    if kind == "text":
        column = TextColumn(**document | {"categories": tuple(document["categories"])})
        good = all(isinstance(text, str) for text in column.categories)
    else:
        column = NumberColumn(**document)
        good = kind == "number" and isinstance(column.fill, float) and bool(np.isfinite(column.fill))
        good = good and isinstance(column.varies, bool)
    if not good or not isinstance(column.missing, bool) or not column.inputs:
        raise ValueError("not a column")
    return column


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _shown(cell: str) -> str:
    return repr(cell[:40]) if cell else "missing values"


def _listed(names: Sequence[str], most: int = 5) -> str:
    """Some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
