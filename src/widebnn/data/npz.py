"""Tables from NumPy archives. Nothing is ever unpickled."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from widebnn.data.dataset import (
    Dataset,
    check_classes,
    check_memory,
    classification,
    first_rows,
    regression,
    split_rows,
)
from widebnn.errors import WidebnnError, check_numbers

WHOLE = ("x", "y")
SPLIT = ("x_train", "y_train", "x_test", "y_test")


def load_npz(path: Path, n_train: int | None, n_test: int | None) -> Dataset:
    """A table from ``path``, with the arrays ``x, y`` or ``x_train, y_train, x_test, y_test``.

    With ``x, y`` the first ``n_train`` rows train and the next ``n_test`` test. With the four arrays, which win
    if the file has both, the first rows of each are used. Rows are never shuffled. An integer or Boolean y is
    a vector of class labels, any values; a float y is one or several regression targets.
    """
    arrays = _read(path)
    names = list(arrays)
    xs = [_inputs(f"{name} in {path}", arrays[name]) for name in names[::2]]
    ys = [_targets(f"{name} in {path}", arrays[name]) for name in names[1::2]]
    _check_shapes(path, names, xs, ys)
    class_names: tuple[str, ...] = ()
    if ys[0].ndim == 1:
        # Indices into the distinct values of the whole file, whatever rows are used.
        classes, labels = np.unique(np.concatenate(ys), return_inverse=True)
        check_classes(f"y in {path}", len(classes), "save it as y.astype(float)")
        ys, class_names = np.split(labels, [len(ys[0])])[: len(ys)], tuple(map(str, classes))
    if len(names) == len(SPLIT):
        n_train = first_rows(f"x_train in {path}", len(xs[0]), "n_train", n_train)
        n_test = first_rows(f"x_test in {path}", len(xs[1]), "n_test", n_test)
        x, y = ((train[:n_train], test[:n_test]) for train, test in (xs, ys))
    else:
        n_train, n_test = split_rows(str(path), len(xs[0]), n_train, n_test)
        x, y = ((whole[:n_train], whole[n_train : n_train + n_test]) for [whole] in (xs, ys))
    return classification(path.stem, x, y, class_names) if class_names else regression(path.stem, x, y)


def _read(path: Path) -> dict[str, np.ndarray]:
    """The arrays named in SPLIT or in WHOLE, in that order."""
    if not os.path.isfile(path):
        raise WidebnnError(f"there is no file {path}; write one with numpy.savez(path, x=..., y=...).")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            found = list(archive.files)
            # NumPy unpacks all that there is: a compressed megabyte may be a gigabyte of zeros.
            check_memory(str(path), sum(member.file_size for member in archive.zip.infolist()) // 8)
            names = next((names for names in (SPLIT, WHOLE) if set(names) <= set(found)), ())
            arrays = {name: archive[name] for name in names}
    except WidebnnError:
        raise
    except Exception as error:  # of zip, zlib, the header parser or the allocation, whichever meets the corruption
        if "Object arrays" in str(error):
            problem = "holds arrays of Python objects, which are never unpickled"
        else:
            problem = f"is corrupted or not an .npz archive ({type(error).__name__})"
        raise WidebnnError(f"{path} {problem}; write it again with numpy.savez and numeric arrays.") from None
    if not arrays:
        raise WidebnnError(
            f"{path} must hold {', '.join(WHOLE)} or {', '.join(SPLIT)}; it holds {', '.join(found) or 'nothing'}: "
            "name the arrays in numpy.savez(path, x=..., y=...)."
        )
    return arrays


def _inputs(what: str, x: np.ndarray) -> np.ndarray:
    """Finite float64 of shape rows x columns."""
    _check_real(what, x)
    if x.ndim < 2:
        raise WidebnnError(f"{what} must have rows and columns; got shape {x.shape}: try x.reshape(-1, 1).")
    return _as_float(what, x)


def _targets(what: str, y: np.ndarray) -> np.ndarray:
    """Labels, 1-D, or finite float64 of shape rows x targets."""
    _check_real(what, y)
    if y.dtype.kind == "f":
        if y.ndim not in (1, 2):
            raise WidebnnError(f"{what} must have shape (n,) or (n, outputs); got {y.shape}: reshape it.")
        return _as_float(what, y)
    if y.ndim != 1:
        raise WidebnnError(
            f"{what} holds integers, taken for class labels, and must be 1-D; got shape {y.shape}: "
            "save one label for each row, or floats for regression."
        )
    if y.dtype.kind == "u" and y.max() > np.iinfo(np.int64).max:
        raise WidebnnError(f"{what} has labels beyond 64-bit signed integers; use smaller label values.")
    return y if y.dtype.kind == "b" else y.astype(np.int64)


def _check_real(what: str, array: np.ndarray) -> None:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        kind = getattr(array, "dtype", "no array")
        raise WidebnnError(f"{what} must hold real numbers; got {kind}: encode it as numbers first.")
    if array.size == 0:
        raise WidebnnError(f"{what} is empty (shape {array.shape}); save at least one row and one column.")
    check_memory(what, array.size)


def _as_float(what: str, array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # a long double out of range becomes inf and is reported as such
        return check_numbers(what, array).reshape(len(array), -1)


def _check_shapes(path: Path, names: list[str], xs: list[np.ndarray], ys: list[np.ndarray]) -> None:
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if len(x) != len(y):
            raise WidebnnError(
                f"{names[2 * i]} and {names[2 * i + 1]} in {path} must have the same number of rows; got {len(x)} and "
                f"{len(y)}: save one y row for each x row."
            )
    for letter, first, last in (("x", xs[0], xs[-1]), ("y", ys[0], ys[-1])):
        if first.shape[1:] != last.shape[1:]:
            raise WidebnnError(
                f"{letter}_train and {letter}_test in {path} must have the same columns and kind; got "
                f"{first.shape} {first.dtype} and {last.shape} {last.dtype}."
            )
