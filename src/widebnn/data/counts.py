"""How many rows to use: the counts that were asked for against the rows there are."""

from __future__ import annotations

from widebnn.errors import WidebnnError


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
