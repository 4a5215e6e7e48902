"""How many rows to use and how many classes there are: what was asked for or found against what is possible."""

from __future__ import annotations

import os

from widebnn.errors import WidebnnError, check_integer

MAX_CLASSES = 1000
"""More distinct labels than this are surely counts, measurements or names."""


def check_counts(n_train: int | None, n_test: int | None) -> tuple[int | None, int | None]:
    """The counts as a caller gives them: at least one training row, None for a count left out."""
    return (
        None if n_train is None else check_integer("n_train", n_train, 1),
        None if n_test is None else check_integer("n_test", n_test, 0),
    )


def check_classes(what: str, count: int, as_floats: str) -> None:
    """Refuse labels that cannot be classes; ``as_floats`` says how to make them a regression target."""
    if count < 2:
        raise WidebnnError(f"{what} has one class only; it needs at least two, or floats for regression.")
    if count > MAX_CLASSES:
        raise WidebnnError(
            f"{what} has {count} distinct labels, more than {MAX_CLASSES} classes; "
            f"if it is a regression target, {as_floats}."
        )


def rows_of_one_table(source: str, rows: int, n_train: int | None, n_test: int | None) -> tuple[int, int]:
    """Counts when train and test rows come from one table: a missing count is what the other leaves.

    Without any, a fifth of the rows (rounded down) is for the test.
    """
    if n_test is None:
        n_test = rows // 5 if n_train is None else max(rows - n_train, 0)
    if n_train is None:
        n_train = max(rows - n_test, 1)
    if n_train + n_test > rows:
        raise WidebnnError(
            f"{source} has {rows} rows, too few for n_train={n_train} and n_test={n_test}; "
            f"ask for {rows} at most in total."
        )
    return n_train, n_test


def rows_of_own_table(source: str, rows: int, name: str, asked: int | None) -> int:
    """The count when the rows come from a table of their own: all of them unless fewer are asked for."""
    if asked is None:
        return rows
    if asked > rows:
        raise WidebnnError(f"{source} has {rows} rows, too few for {name}={asked}; ask for {rows} at most.")
    return asked


def check_memory(what: str, numbers: int) -> None:
    """Refuse so many numbers in double precision if this machine has no room for them twice."""
    try:
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not every system says
        return
    if 16 * numbers > available:
        raise WidebnnError(
            f"{what} holds {numbers} numbers, {8e-9 * numbers:.1f} GB, too many for the {available / 1e9:.1f} GB of "
            "this machine; use fewer rows or columns."
        )
