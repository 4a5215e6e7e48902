"""From the columns of a table to the numbers that a network sees."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from widebnn.data.dataset import MAX_CLASSES, check_classes
from widebnn.data.tables import NUMBER, as_numbers, as_text, listed, note, what_is, with_names
from widebnn.errors import WidebnnError, check_choice, check_fields

MAX_TEXTS = 100
"""A column with more distinct texts holds names or dates."""
FEW = 20
"""Up to this many distinct values can be categories whatever the number of rows."""


@dataclass(frozen=True)
class TableEncoder:
    """How the columns of a table become numbers, learned from training rows and applied to any others.

    A column of numbers stays as it is; where training rows lack a value it gets the median of the others, beside a
    0/1 input that marks the rows that lack it. A column of text becomes a 0/1 input for each of its values, a missing
    one among them; so does a column with a single number that some rows lack. Constant and empty columns are left out.
    Tables are DataFrames, from ``widebnn.data.read_table`` or any other source. Remarks for the user are warnings.

    Attributes:
        target: The column to predict.
        classes: Whether the target is a class.
        numbers: Columns of numbers with their medians.
        missing: Those of them that training rows lack.
        texts: Columns of text with their values, sorted; "" is a missing one.
        left_out: Columns of the training table that are not inputs.

    Examples:
        >>> rows = with_target(frame, "price")
        >>> encoder = TableEncoder.fit(rows, target="price", drop=["id"])
        >>> x, y = encoder.transform(rows), encoder.targets(rows)
    """

    target: str
    classes: bool
    numbers: dict[str, float]
    missing: tuple[str, ...]
    texts: dict[str, tuple[str, ...]]
    left_out: tuple[str, ...]

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are used."""
        return [*self.numbers, *self.texts]

    @property
    def inputs(self) -> list[str]:
        """Names of all inputs."""
        marks = {None: "", "": " is missing"}
        return [name + marks.get(value, f" = {value}") for name, value in self._sources()]

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
    ) -> TableEncoder:
        """Learn from the rows of a table that have a target.

        Args:
            frame: The training table.
            target: The column to predict.
            drop: Columns to leave out.
            text: Columns whose numbers are names of categories, as those of a pandas Categorical always are.
            classify: The target is a class.

        Returns:
            The encoder.

        Raises:
            WidebnnError: There is nothing to learn from, or a column mixes numbers and text.
        """
        frame = with_target(frame, target)
        for option, names in (("drop", drop), ("text", text)):
            for name in names:
                check_choice(option, name, frame.columns.drop(target))
        numbers: dict[str, float] = {}
        texts: dict[str, tuple[str, ...]] = {}
        missing, left_out = [], list(drop)
        mixed = "is not a number while other rows have one: correct it, or take them all as text with --text"
        for name in frame.columns.drop([target, *drop]):
            values = None if name in text else as_numbers(frame, name, mixed, or_text=True)
            if values is not None and values.nunique() > 1:
                numbers[name] = float(values.median())
                if len(values) > 2 and (values.diff()[1:] == 1).all():
                    note(f"{what_is(frame, name)} counts the rows; if that is all, leave it out: --drop {name!r}.")
                if values.hasnans:
                    missing.append(name)
                    rows = f"{values.isna().sum()} of {len(values)} rows"
                    median = f"the median {numbers[name]:g} is used, and an input says where"
                    note(f"{what_is(frame, name)} lacks a value in {rows}: {median}.")
                continue
            categories = _categories(what_is(frame, name), as_text(frame[name]))
            texts |= {name: categories} if len(categories) > 1 else {}
            left_out += [name] if len(categories) == 1 else []
        if not numbers and not texts:
            raise WidebnnError(f"{what_is(frame)} has no column to predict {target!r} from; add one that varies.")
        found = cls(target, classify, numbers, tuple(missing), texts, tuple(left_out))
        _check_target(what_is(frame, target), found.targets(frame))
        return found

    def transform(self, frame: pd.DataFrame) -> np.ndarray:
        """Encode the rows of a table. The order of its columns does not matter, and unknown ones are ignored.

        A text that no training row has is 0 in all inputs of its column, with a warning.

        Args:
            frame: The table.

        Returns:
            The inputs of all rows, rows x inputs.

        Raises:
            WidebnnError: A column is missing, or has text where training rows have numbers.
        """
        frame = with_names(frame)
        if lacking := [name for name in self.columns if name not in frame.columns]:
            raise WidebnnError(
                f"{what_is(frame)} lacks {listed(lacking)} of the {len(self.columns)} columns that the model needs; "
                "add what is lacking, with empty cells where a value is not known."
            )
        ignored = frame.columns.difference([*self.columns, *self.left_out, self.target], sort=False).tolist()
        if ignored:
            note(f"ignored in {what_is(frame)}, as the model does not know them: {listed(ignored)}.")
        wrong = "is not a number, while the model was fitted to numbers in this column: correct it"
        columns: dict[tuple[str, str | None], pd.Series] = {}
        for name, median in self.numbers.items():
            values = as_numbers(frame, name, wrong)
            columns |= {(name, None): values.fillna(median), (name, ""): values.isna()}
            if values.hasnans and name not in self.missing:
                rows = f"{values.isna().sum()} of {len(frame)} rows, which no training row did"
                note(f"{what_is(frame, name)} lacks a value in {rows}; the training median {median:g} is used.")
        for name, known in self.texts.items():
            values = as_text(frame[name]).fillna("")
            columns |= {(name, text): values == text for text in known}
            if len(unknown := values[~values.isin(known)]):
                found = listed([repr(one[:40]) if one else "missing values" for one in sorted(set(unknown))])
                rows = f"{len(unknown)} of {len(frame)} rows, which no training row has"
                lost = "predictions there know nothing of this column"
                warnings.warn(f"{what_is(frame, name)} has {found} in {rows}; {lost}.", stacklevel=2)
        return np.column_stack([columns[source] for source in self._sources()]).astype(np.float64)

    def targets(self, frame: pd.DataFrame) -> np.ndarray:
        """The target of all rows, which must have one: floats, or labels, integers where all are, else text."""
        frame = with_names(frame)
        if not self.classes:
            wrong = "is not a number: correct it or remove the row, or add --classify if the target is a class"
            return as_numbers(frame, self.target, wrong).to_numpy()
        labels = as_text(frame[self.target]).tolist()
        are_integers = all(re.fullmatch(r"[+-]?[0-9]{1,18}", label) for label in labels)
        return np.array([int(label) for label in labels] if are_integers else labels)

    def to_json(self) -> dict[str, Any]:
        """The encoder as a JSON document."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Any) -> TableEncoder:
        """The encoder from what ``to_json`` returned; anything else is refused."""
        try:
            texts = {name: tuple(values) for name, values in document["texts"].items()}
            tuples = {name: tuple(document[name]) for name in ("missing", "left_out")}
            check_fields(found := cls(**document | tuples | {"texts": texts}))
        except (TypeError, KeyError, ValueError, AttributeError):
            problem = "the description of the table's columns is not one that widebnn fit wrote; fit again."
            raise WidebnnError(problem) from None
        return found


def with_target(frame: pd.DataFrame, target: str) -> pd.DataFrame:
    """The rows of a table that have a target; a warning says how many do not.

    Args:
        frame: The table.
        target: The column to predict.

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
    if lacks := (~known).sum():
        note(f"{what_is(frame, target)} lacks a value in {lacks} of {len(frame)} rows, which are left out.")
    return frame[known]


def _categories(what: str, texts: pd.Series) -> tuple[str, ...]:
    """The values of a column of text; a single one if it says nothing."""
    distinct, found = texts.nunique(), sorted(set(texts.fillna("")))
    if distinct > MAX_TEXTS or (distinct > FEW and distinct > len(texts) / 2):
        raise WidebnnError(
            f"{what} has {distinct} distinct texts in {len(texts)} rows, probably names or dates; leave it out with "
            f"--drop, or group them to {MAX_TEXTS} at most, or turn dates into numbers."
        )
    if len(found) == 1:
        note(f"{what} is {f'{found[0][:40]!r} in all rows' if found[0] else 'empty'} and left out.")
    return tuple(found)


def _check_target(what: str, values: np.ndarray) -> None:
    distinct = len(np.unique(values))
    if values.dtype.kind != "f":
        are_measurements = values.dtype.kind == "U" and all(map(NUMBER.fullmatch, values.tolist()))
        most = FEW if are_measurements else min(max(FEW, len(values) // 2), MAX_CLASSES)
        check_classes(what, distinct, "leave --classify out to predict numbers, or group them", most)
    elif distinct < 2:
        raise WidebnnError(f"{what} is {values[0]:g} in all rows; there is nothing to learn.")
    elif distinct == 2:
        note(f"{what} has two values only; if they are classes, add --classify.")
