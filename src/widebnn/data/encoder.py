"""From the columns of a table to the numbers that a network sees."""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from widebnn.data.columns import (
    INTEGER,
    LARGEST,
    NUMBER,
    Notes,
    as_numbers,
    as_text,
    counted,
    is_text,
    listed,
    note,
    source,
    what_is,
    with_names,
)
from widebnn.data.dataset import check_classes, check_memory
from widebnn.errors import WidebnnError, check_choice

MAX_TEXTS = 100
"""A column with more distinct texts holds names or dates."""
FEW = 20
"""Up to this many distinct values can be categories whatever the number of rows."""
MIXED = "is not a number while other rows have one: correct it, or take them all as text with --text"
NOT_AS_TRAINED = "is not a number, while the model was fitted to numbers in this column: correct it"
NOT_A_TARGET = "is not a number: correct it or remove the row, or add --classify if the target is a class"


@dataclass(frozen=True)
class TableEncoder:
    """How the columns of a table become numbers, learned from training rows and applied to any others.

    A column of numbers stays as it is; where training rows lack a value it gets the median of the others, beside a
    0/1 input that marks the rows that lack it. A column of text becomes a 0/1 input for each of its values, a missing
    one among them; so does a column with a single number that some rows lack. Constant and empty columns are left out.
    Tables are DataFrames, from ``widebnn.data.read_table`` or any other source. The encoder is plain data, see
    ``to_json``.

    Examples:
        >>> rows = with_target(frame, "price")
        >>> encoder = TableEncoder.fit(rows, target="price", drop=["id"])
        >>> x, y = encoder.transform(rows), encoder.targets(rows)
    """

    target: str
    classes: bool
    """Whether the target is a class."""
    numbers: dict[str, float]
    """Columns of numbers with their medians."""
    missing: tuple[str, ...]
    """Those of them that training rows lack."""
    texts: dict[str, tuple[str, ...]]
    """Columns of text with their values, sorted; "" is a missing one."""
    left_out: tuple[str, ...]
    """Columns of the training table that are not inputs."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are used."""
        return [*self.numbers, *self.texts]

    @property
    def inputs(self) -> list[str]:
        """Names of all inputs."""
        sources = self._sources()
        return [
            name if value is None else f"{name} = {value}" if value else f"{name} is missing" for name, value in sources
        ]

    @property
    def groups(self) -> dict[str, list[int]]:
        """For every column that is used the indices of its inputs."""
        sources = [name for name, _ in self._sources()]
        return {column: [i for i, name in enumerate(sources) if name == column] for column in self.columns}

    def _sources(self) -> list[tuple[str, str | None]]:
        """For every input its column and the value that it marks: a text, "" for missing, None for a number."""
        texts = [(name, text) for name, values in self.texts.items() for text in values]
        return [*((name, None) for name in self.numbers), *((name, "") for name in self.missing), *texts]

    @classmethod
    def fit(
        cls,
        frame: pd.DataFrame,
        *,
        target: str,
        drop: Collection[str] = (),
        text: Collection[str] = (),
        classify: bool = False,
        notes: Notes = None,
    ) -> TableEncoder:
        """Learn from the rows of a table that have a target.

        Args:
            frame: The training table.
            target: The column to predict.
            drop: Columns to leave out.
            text: Columns whose numbers are names of categories, as those of a pandas Categorical always are.
            classify: The target is a class.
            notes: Remarks for the user are appended to this list; without it they are warnings.

        Returns:
            The encoder.

        Raises:
            WidebnnError: There is nothing to learn from, or a column mixes numbers and text; the message names the
                column and the line.
        """
        frame = with_target(frame, target, notes)
        for option, names in (("drop", drop), ("text", text)):
            for name in names:
                check_choice(option, name, frame.columns.drop(target))
        _check_target(frame, target, classify, notes)
        numbers: dict[str, float] = {}
        texts: dict[str, tuple[str, ...]] = {}
        missing, left_out = [], list(drop)
        for name in frame.columns.drop([target, *drop]):
            values = None if name in text or is_text(frame[name]) else as_numbers(frame, name, MIXED)
            if values is not None and values.nunique() > 1:
                numbers[name] = float(values.median())
                missing += [name] if values.hasnans else []
                _note_numbers(frame, name, values, notes)
                continue
            found = _categories(frame, name, notes)
            if len(found) > 1:
                texts[name] = found
            else:
                left_out.append(name)
        if not numbers and not texts:
            raise WidebnnError(f"{source(frame)} has no column to predict {target!r} from; add one that varies.")
        return cls(target, classify, numbers, tuple(missing), texts, tuple(left_out))

    def transform(self, frame: pd.DataFrame, notes: Notes = None) -> np.ndarray:
        """Encode the rows of a table. The order of its columns does not matter, and unknown ones are ignored.

        A text that no training row has is 0 in all inputs of its column, with a warning.

        Args:
            frame: The table.
            notes: Remarks for the user are appended to this list; without it they are warnings.

        Returns:
            The inputs of all rows, rows x inputs.

        Raises:
            WidebnnError: A column is missing, or has text where training rows have numbers.
        """
        frame = with_names(frame)
        lacking = [name for name in self.columns if name not in frame.columns]
        if lacking:
            raise WidebnnError(
                f"{source(frame)} lacks {listed(lacking)} of the {len(self.columns)} columns that the model needs; "
                f"add {'it' if len(lacking) == 1 else 'them'}, empty cells will do where a value is not known."
            )
        ignored = frame.columns.difference([*self.columns, *self.left_out, self.target], sort=False).tolist()
        if ignored:
            note(notes, f"ignored in {source(frame)}, for the model does not know them: {listed(ignored)}.")
        check_memory(source(frame), len(frame) * len(self.inputs))
        columns = {name: as_numbers(frame, name, NOT_AS_TRAINED) for name in self.numbers}
        columns |= {name: as_text(frame[name]) for name in self.texts}
        self._report_unknown(frame, columns, notes)
        x = np.empty((len(frame), len(self.inputs)))
        for i, (name, value) in enumerate(self._sources()):
            column = columns[name]
            if value is None:
                x[:, i] = column.fillna(self.numbers[name])
            else:
                x[:, i] = column == value if value else column.isna()
        return x

    def _report_unknown(self, frame: pd.DataFrame, columns: dict[str, pd.Series], notes: Notes) -> None:
        """Say which values the training rows do not have."""
        for name, median in self.numbers.items():
            lacks = int(columns[name].isna().sum())
            if lacks and name not in self.missing:
                lack = f"{what_is(frame, name)} lacks a value in {counted(lacks)}, which no training row did"
                note(notes, f"{lack}; the training median {median:g} is used.")
        for name, known in self.texts.items():
            texts = columns[name].fillna("")
            unknown = sorted(set(texts) - set(known))
            if unknown:
                found = listed([repr(one[:40]) if one else "missing values" for one in unknown])
                count = counted(int(texts.isin(unknown).sum()))
                warnings.warn(
                    f"{what_is(frame, name)} has {found} in {count}, which no training row has; predictions there know "
                    "nothing of this column.",
                    stacklevel=3,
                )

    def targets(self, frame: pd.DataFrame) -> np.ndarray:
        """The target of all rows, which must have one: floats, or labels, integers where all are, else text."""
        return _targets(with_names(frame), self.target, self.classes)

    def to_json(self) -> dict[str, Any]:
        """The encoder as a JSON document."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_json(cls, document: Any) -> TableEncoder:
        """The encoder from what ``to_json`` returned; anything else is refused."""
        try:
            texts = {name: tuple(values) for name, values in document["texts"].items()}
            tuples = {name: tuple(document[name]) for name in ("missing", "left_out")}
            found = cls(**document | tuples | {"texts": texts})
            names = [found.target, *found.columns, *found.left_out]
            good = (
                found.to_json() == document
                and bool(found.columns)
                and isinstance(found.classes, bool)
                and len(set(names)) == len(names)
                and set(found.missing) <= set(found.numbers)
                and all(type(median) is float and abs(median) <= LARGEST for median in found.numbers.values())
                and all(isinstance(one, str) for values in (names, *texts.values()) for one in values)
            )
        except (TypeError, KeyError, ValueError, AttributeError):
            good = False
        if not good:
            raise WidebnnError("the description of the table's columns is not one that widebnn fit wrote; fit again.")
        return found


def with_target(frame: pd.DataFrame, target: str, notes: Notes = None) -> pd.DataFrame:
    """The rows of a table that have a target.

    Args:
        frame: The table.
        target: The column to predict.
        notes: A remark on the rows that are left out is appended to this list; without it it is a warning.

    Returns:
        The rows with a target.

    Raises:
        WidebnnError: There is no such column, or no row has a value in it.
    """
    frame = with_names(frame)
    check_choice("target", target, frame.columns)
    known = as_text(frame[target]).notna()
    if not known.any():
        raise WidebnnError(f"{what_is(frame, target)} has no value in any row; choose another target or fill it in.")
    if not known.all():
        note(notes, f"{what_is(frame, target)} lacks a value in {counted(int((~known).sum()))}, which are left out.")
    return frame[known]


def _note_numbers(frame: pd.DataFrame, name: str, values: pd.Series, notes: Notes) -> None:
    what, lacks = what_is(frame, name), int(values.isna().sum())
    if lacks:
        median = f"the median {values.median():g} is used, and an input says where"
        note(notes, f"{what} lacks a value in {counted(lacks)}: {median}.")
    if len(values) > 2 and (values.diff()[1:] == 1).all():
        note(notes, f"{what} counts the rows; if it is only a number for each, leave it out: --drop {name!r}.")


def _categories(frame: pd.DataFrame, name: str, notes: Notes) -> tuple[str, ...]:
    """The values of a column of text; a single one if it says nothing."""
    what, texts = what_is(frame, name), as_text(frame[name])
    distinct, found = texts.nunique(), sorted(set(texts.fillna("")))
    if distinct > MAX_TEXTS or (distinct > FEW and distinct > len(texts) / 2):
        raise WidebnnError(
            f"{what} has {distinct} distinct texts in {len(texts)} rows, probably names or dates; leave it out with "
            f"--drop, or group them to {MAX_TEXTS} at most, or turn dates into numbers."
        )
    if len(found) == 1:
        note(notes, f"{what} is {f'{found[0][:40]!r} in all rows' if found[0] else 'empty'} and left out.")
    return tuple(found)


def _targets(frame: pd.DataFrame, target: str, classes: bool) -> np.ndarray:
    if not classes:
        return as_numbers(frame, target, NOT_A_TARGET).to_numpy()
    labels = as_text(frame[target]).tolist()
    are_integers = all(INTEGER.fullmatch(label) and len(label) < 19 for label in labels)
    return np.array([int(label) for label in labels] if are_integers else labels)


def _check_target(frame: pd.DataFrame, target: str, classes: bool, notes: Notes) -> None:
    what, values = what_is(frame, target), _targets(frame, target, classes)
    distinct = len(np.unique(values))
    if classes:
        check_classes(what, distinct, "leave --classify out")
        has_decimals = values.dtype.kind == "U" and all(NUMBER.fullmatch(label) for label in values.tolist())
        if distinct > FEW and (has_decimals or distinct > len(values) / 2):
            raise WidebnnError(
                f"{what} has {distinct} distinct labels in {len(values)} rows, too many for classes; leave --classify "
                "out to predict numbers, or group them."
            )
    elif distinct < 2:
        raise WidebnnError(f"{what} is {values[0]:g} in all rows; there is nothing to learn.")
    elif distinct == 2:
        note(notes, f"{what} has two values only; if they are classes, add --classify.")
