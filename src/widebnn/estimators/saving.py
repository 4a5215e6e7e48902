"""Fitted estimators as folders of open files: JSON, NumPy arrays and NetCDF. Nothing is ever unpickled.

``model.json`` says what the model is and holds everything small; ``ensemble.npz`` holds the networks and the run,
uncompressed; ``posterior.nc`` is the run for other programs, which is never read here: the HDF5 library may hang on a
file that somebody made for it. ``model.json`` has the SHA-256 of the other two, and its own: that of itself with the 64
digits of the checksum replaced by zeros. Files are checked against it, and then against what they must contain, before
anything of them is used; other files in the folder are ignored.

Numbers have all their digits. What JSON cannot say is an object with one key: ``$array``, ``$tuple`` or ``$float`` (nan
and infinities). The version of the format grows when older programs would misread it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from widebnn.errors import WidebnnError
from widebnn.estimators.base import WideBNN
from widebnn.estimators.classifier import WideBNNClassifier
from widebnn.estimators.ensemble import Ensemble
from widebnn.estimators.regressor import WideBNNRegressor
from widebnn.limits import Hyperparameters
from widebnn.networks.dense import DenseNetwork, Layer, dense
from widebnn.sampling.result import datatree

FORMAT, VERSION = "widebnn-model", 2
DOCUMENT, ARRAYS, POSTERIOR = "model.json", "ensemble.npz", "posterior.nc"
KINDS: dict[str, type[WideBNN]] = {"regressor": WideBNNRegressor, "classifier": WideBNNClassifier}
NEEDED = {
    "regressor": ("n_features_in_", "x_mean_", "x_scale_", "y_mean_", "y_scale_", "y_bend_", "single_output_"),
    "classifier": ("n_features_in_", "x_mean_", "x_scale_", "y_mean_", "y_scale_", "classes_"),
}
APART = ("hyperparameters_", "network_", "ensemble_", "diagnostics_", "posterior_")
"""Attributes that have a place of their own."""
LARGEST_DOCUMENT = 2**26
DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
          "float16", "float32", "float64", "str", "object")  # fmt: skip
UNSET = "0" * 64
GROUPS = ("posterior", "sample_stats", "observed_data")
"""Of a run."""
HINTS = typing.get_type_hints(Hyperparameters)


def save(model: WideBNN, folder: str | os.PathLike[str], extra: Mapping[str, Any] | None = None) -> Path:
    """Write a fitted estimator to a new folder, complete or not at all; ``extra`` is any JSON to keep with it.

    A ``random_state`` that is a generator and not a seed is not kept.
    """
    folder = check_free(folder)
    kinds = [kind for kind, cls in KINDS.items() if type(model) is cls]
    if not kinds:
        raise WidebnnError(f"only {_names(KINDS)} can be saved, got {type(model).__name__}; pass a fitted one.")
    check_is_fitted(model)
    arrays = _flat(model.ensemble_) | _run_arrays(getattr(model, "posterior_", None))
    document = _describe(model, kinds[0], arrays, dict(extra or {}))
    scratch = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch.mkdir()
        with (scratch / ARRAYS).open("xb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        names = [ARRAYS]
        if getattr(model, "posterior_", None) is not None:
            model.posterior_.to_netcdf(scratch / POSTERIOR, engine="h5netcdf")
            names.append(POSTERIOR)
        for name in names:
            with (scratch / name).open("rb") as file:
                document["files"][name] = _fingerprint(file)
        (scratch / DOCUMENT).write_bytes(_signed(document))
        for name in (*names, DOCUMENT):
            _to_disk(scratch / name)
        if folder.is_dir():
            folder.rmdir()  # an empty one; fails where it is not empty any more
        os.rename(scratch, folder)
        _to_disk(folder.parent)
    except OSError as error:
        raise WidebnnError(
            f"{folder} cannot be written ({error.strerror or error}); choose another folder or make room."
        ) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def load(folder: str | os.PathLike[str], *, posterior: bool = True) -> Any:
    """The estimator that :func:`save` wrote to ``folder``, which predicts bit for bit what the saved one did.

    ``posterior=False`` leaves out ``posterior_``, which predictions do not need.
    """
    return load_with_extra(folder, posterior=posterior)[0]


def load_with_extra(folder: str | os.PathLike[str], *, posterior: bool = True) -> tuple[Any, dict[str, Any]]:
    """The estimator, and the ``extra`` it was saved with."""
    folder = Path(folder)
    document = _read_document(folder)
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(_open(folder, name, entry)) for name, entry in _files(folder, document)}
        try:
            arrays = _read_arrays(files[ARRAYS], document["arrays"], posterior)
            run = {name: arrays.pop(name) for name in list(arrays) if "/" in name}
            model = _restore(document, arrays)
            if run:
                model.posterior_ = _run(run, _decode_all(document["run"]))
            return model, dict(document["extra"])
        # The checksums are right, somebody wrote these files on purpose: no list of what may be wrong is complete.
        except Exception as error:
            raise _no_model(folder, f"{type(error).__name__}: {error}") from None


def check_free(folder: str | os.PathLike[str]) -> Path:
    """The folder as an absolute path, if there is nothing in it."""
    folder = Path(os.path.abspath(folder))
    if (folder / DOCUMENT).exists():
        raise WidebnnError(f"{folder} already holds a model; choose another folder or remove it first.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WidebnnError(f"{folder} must be a new or an empty folder, and has something in it; choose another.")
    return folder


# --- model.json


def _describe(model: Any, kind: str, arrays: Mapping[str, np.ndarray], extra: dict[str, Any]) -> dict[str, Any]:
    from widebnn import __version__

    parameters = model.get_params(deep=False)
    parameters["store"] = None  # a place on this machine
    if isinstance(parameters.get("random_state"), (np.random.RandomState, np.random.Generator)):
        parameters["random_state"] = None
    fitted = {n: v for n, v in vars(model).items() if _is_fitted_name(n) and n not in APART}
    return {
        "format": FORMAT,
        "version": VERSION,
        "sha256": UNSET,
        "widebnn": __version__,
        "kind": kind,
        "parameters": _encode_all("parameter", parameters),
        "hyperparameters": _encode_all("hyperparameter", dataclasses.asdict(model.hyperparameters_)),
        "network": _encode_all("network", dataclasses.asdict(model.network_)),
        "fitted": _encode_all("attribute", fitted),
        "diagnostics": _encode_all("diagnostic", model.diagnostics_),
        "run": _encode_all("attribute of the run", getattr(getattr(model, "posterior_", None), "attrs", {})),
        "arrays": {name: {"dtype": array.dtype.name, "shape": list(array.shape)} for name, array in arrays.items()},
        "files": {},
        "extra": extra,
    }


def _signed(document: dict[str, Any]) -> bytes:
    """The text of a document with its checksum."""
    try:
        text = _laid_out(document)
    except (TypeError, ValueError) as error:
        raise WidebnnError(f"extra must be plain JSON and is not ({error}); leave out what is not.") from None
    data = (text + "\n").encode()
    return data.replace(UNSET.encode(), hashlib.sha256(data).hexdigest().encode(), 1)


def _laid_out(value: Any, depth: int = 2) -> str:
    """JSON for people: two levels of objects have a line for each entry."""
    if depth == 0 or not isinstance(value, dict) or not value:
        return json.dumps(value, allow_nan=False)
    space = " " * (3 - depth)
    entries = ",\n".join(f"{space}{json.dumps(key)}: {_laid_out(one, depth - 1)}" for key, one in value.items())
    return f"{{\n{entries}\n{space[1:]}}}"


def _read_document(folder: Path) -> dict[str, Any]:
    path = folder / DOCUMENT
    if not path.is_file():
        raise WidebnnError(f"{folder} is no saved model, for it has no {DOCUMENT}; give the folder that was written.")
    damaged = f"{path} is damaged (%s); copy the model again, or fit and save it again."
    if path.stat().st_size > LARGEST_DOCUMENT:
        raise WidebnnError(damaged % f"more than {LARGEST_DOCUMENT} bytes")
    data = path.read_bytes()
    try:
        document = json.loads(data.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise WidebnnError(damaged % "not JSON") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise WidebnnError(f"{path} does not describe a {FORMAT}; give the folder of a saved model.")
    version = document.get("version")
    if type(version) is not int or version < 1:
        raise WidebnnError(damaged % "no version of the format")
    if version > VERSION:
        raise WidebnnError(
            f"{path} has version {version} of the format, written by a newer widebnn, and this one reads version "
            f"{VERSION} at most; upgrade widebnn."
        )
    checksum = document.get("sha256")
    if (
        not isinstance(checksum, str)
        or not re.fullmatch("[0-9a-f]{64}", checksum)
        or hashlib.sha256(data.replace(checksum.encode(), UNSET.encode(), 1)).hexdigest() != checksum
    ):
        raise WidebnnError(damaged % "its checksum is wrong")
    return document


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _restore(document: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    """The estimator, every part of it compared with the others."""
    kind = document["kind"]
    _require(kind in KINDS, f"kind must be {' or '.join(KINDS)}")
    parameters = _decode_all(document["parameters"])
    _require(set(parameters) <= set(KINDS[kind]().get_params(deep=False)), "there are unknown parameters")
    model = KINDS[kind](**parameters)
    fitted = _decode_all(document["fitted"])
    _require(set(NEEDED[kind]) <= set(fitted), "attributes are missing")
    for name, value in fitted.items():
        _require(
            _is_fitted_name(name) and name not in APART and not hasattr(model, name), f"{name} is no attribute of it"
        )
        setattr(model, name, value)
    model.hyperparameters_ = _hyperparameters(_decode_all(document["hyperparameters"]))
    network = _decode_all(document["network"])
    model.network_ = dense(**network | {"widths": list(network["widths"])})
    model.ensemble_ = _ensemble(model.network_, arrays)
    model.diagnostics_ = _decode_all(document["diagnostics"])
    inputs, outputs = model.n_features_in_, model.ensemble_.mean.shape[2]
    _require(type(inputs) is int and inputs == model.network_.input_dim, "the network has other inputs")
    sizes = {"x_mean_": inputs, "x_scale_": inputs, "y_mean_": outputs, "y_scale_": outputs}
    if kind == "regressor" and model.y_bend_ is not None:
        sizes["y_bend_"] = outputs
    for name, size in sizes.items():
        vector = getattr(model, name)
        good = isinstance(vector, np.ndarray) and vector.shape == (size,) and vector.dtype.kind == "f"
        _require(good and bool(np.isfinite(vector).all()), f"{name} must be {size} numbers")
        _require("mean" in name or bool(np.all(vector > 0)), f"{name} must be positive")
    if kind == "regressor":
        _require(
            type(model.single_output_) is bool and (not model.single_output_ or outputs == 1), "the outputs differ"
        )
    else:
        _require(isinstance(model.classes_, np.ndarray) and model.classes_.shape == (outputs,), "the classes differ")
    return model


def _hyperparameters(values: dict[str, Any]) -> Hyperparameters:
    _require(set(values) <= set(HINTS), "there are unknown hyperparameters")
    for name, value in values.items():
        _require(_fits(value, HINTS[name]), f"hyperparameter {name} has the wrong type")
    row_noise = values.get("row_noise")
    _require(
        row_noise is None or (len(row_noise) == 2 and all(type(one) is float and 0 < one < 100 for one in row_noise)),
        "hyperparameter row_noise must be two positive numbers",
    )
    return Hyperparameters(**values)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type an annotation names, not looking into tuples."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in typing.get_args(hint))
    return type(value) is (origin or hint) or (hint is float and type(value) is int)


def _require(good: bool, what: str) -> None:
    if not good:
        raise ValueError(what)


def _is_fitted_name(name: str) -> bool:
    return re.fullmatch("[a-z][a-z0-9_]*[a-z0-9]_", name) is not None


def _names(kinds: Mapping[str, type]) -> str:
    return " and ".join(cls.__name__ for cls in kinds.values())


# --- values that JSON has no word for


def _encode_all(what: str, values: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {name: _encode(value) for name, value in values.items()}
    except TypeError as error:
        raise WidebnnError(f"a {what} cannot be saved: {error}; set it to plain numbers, text or arrays.") from None


def _encode(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, np.generic):
        return _encode(value.item())
    if isinstance(value, tuple):
        return {"$tuple": [_encode(one) for one in value]}
    if isinstance(value, list):
        return [_encode(one) for one in value]
    if isinstance(value, dict) and all(isinstance(key, str) and key[:1] != "$" for key in value):
        return {key: _encode(one) for key, one in value.items()}
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        dtype = "str" if array.dtype.kind == "U" else array.dtype.name
        if dtype in DTYPES:
            values = [_encode(one) for one in array.reshape(-1).tolist()]
            if dtype == "str" and not _of_one_length(values):
                raise TypeError("an array of short texts with a very long one")
            return {"$array": {"dtype": dtype, "shape": list(array.shape), "values": values}}
    raise TypeError(f"{type(value).__name__} is not plain data")


def _decode_all(values: Any) -> dict[str, Any]:
    _require(isinstance(values, dict), "an object was expected")
    return {name: _decode(value) for name, value in values.items()}


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(tag, content)] = value.items()
        if tag == "$float":
            _require(content in ("nan", "inf", "-inf"), "a number is none")
            return float(content)
        if tag == "$tuple":
            return tuple(_decode(one) for one in content)
        if tag == "$array":
            _require(content["dtype"] in DTYPES, "an array has a strange type")
            values = [_decode(one) for one in content["values"]]
            _require(content["dtype"] != "str" or _of_one_length(values), "an array has texts that are too long")
            return np.array(values, content["dtype"]).reshape(content["shape"])
    return _decode_all(value)


def _of_one_length(texts: list[Any]) -> bool:
    """Whether an array of texts, which has the room of the longest for each, is not much larger than all of them."""
    _require(all(isinstance(text, str) for text in texts), "a text is none")
    lengths = [len(text) for text in texts]
    return len(texts) * max(lengths, default=0) <= 2**14 + 16 * (sum(lengths) + len(texts))


# --- the arrays


def _flat(ensemble: Ensemble) -> dict[str, np.ndarray]:
    """The arrays of an ensemble by name: ``hidden.0.w``, ..., and the fields that are arrays."""
    arrays: dict[str, np.ndarray] = {}
    for field, value in ensemble._asdict().items():
        if field == "hidden":
            for i, layer in enumerate(value):
                arrays |= {f"hidden.{i}.{name}": np.asarray(array) for name, array in layer._asdict().items()}
        elif value is not None:
            arrays[field] = np.asarray(value)
    return arrays


def _ensemble(network: DenseNetwork, arrays: dict[str, np.ndarray]) -> Ensemble:
    """The ensemble, if the arrays have the shapes that the network needs."""
    draws, outputs = arrays["mean"].shape[0], arrays["mean"].shape[2]
    features, sizes = network.feature_dim, (network.input_dim, *network.widths)
    shapes: dict[str, tuple[int, ...]] = {"mean": (draws, features, outputs), "noise": (draws,)}
    for i, (before, width) in enumerate(zip(sizes, network.widths, strict=False)):
        shapes |= {f"hidden.{i}.w": (draws, before, width), f"hidden.{i}.b": (draws, width)}
    shapes["readout"] = (draws, features, outputs, arrays["readout"].shape[-1])
    for name, shape in shapes.items():
        _require(arrays[name].shape == shape and 0 not in shape, f"{name} has the wrong shape")
    hidden = tuple(
        Layer(**{name: arrays.pop(f"hidden.{i}.{name}") for name in Layer._fields})  # type: ignore[arg-type]
        for i in range(len(network.widths))
    )
    _require(all(len(array) == draws for array in arrays.values()), "the numbers of draws differ")
    return Ensemble(hidden=hidden, **arrays)


def _read_arrays(file: IO[bytes], declared: dict[str, Any], posterior: bool) -> dict[str, np.ndarray]:
    """The arrays that ``declared`` names, and no others, of the declared types and sizes.

    Members are stored uncompressed, so that none is larger than the file.
    """
    arrays = {}
    size = os.fstat(file.fileno()).st_size
    with np.load(file, allow_pickle=False) as archive:
        members = archive.zip.infolist()
        names = sorted(member.filename for member in members)
        _require(names == sorted(f"{name}.npy" for name in declared), "there are other arrays than declared")
        stored = all(member.compress_type == 0 and member.file_size <= size for member in members)
        _require(stored, "arrays must not be compressed")
        for name, entry in declared.items():
            of_run = "/" in name
            if of_run and not posterior:
                continue
            found = archive[name]
            _require(found.dtype.kind in ("fiub" if of_run else "f"), f"{name} must be numbers")
            claimed = tuple(entry["shape"]), entry["dtype"]
            _require((found.shape, found.dtype.name) == claimed, f"{name} has another shape or type than declared")
            _require(of_run or bool(np.isfinite(found).all()), f"{name} must be finite")
            arrays[name] = np.ascontiguousarray(found)
    return arrays


def _run_arrays(tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a run by name: ``posterior/f_train``, ..."""
    if tree is None:
        return {}
    groups = {group: tree[group].dataset for group in GROUPS if group in tree.children}
    return {f"{group}/{name}": array.values for group, data in groups.items() for name, array in data.items()}


def _run(arrays: dict[str, np.ndarray], attributes: dict[str, Any]) -> Any:
    """The DataTree of a run."""
    groups: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        group, _, variable = name.partition("/")
        _require(group in GROUPS and re.fullmatch("[a-z0-9_]+", variable) is not None, f"{name} is no part of a run")
        groups.setdefault(group, {})[variable] = array
    return datatree(groups, attributes)


# --- files


def _fingerprint(file: IO[bytes]) -> dict[str, Any]:
    found = {"bytes": os.fstat(file.fileno()).st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}  # type: ignore[arg-type]
    file.seek(0)
    return found


def _files(folder: Path, document: dict[str, Any]) -> list[tuple[str, Any]]:
    files = document.get("files")
    if not isinstance(files, dict) or set(files) not in ({ARRAYS}, {ARRAYS, POSTERIOR}):
        raise _no_model(folder, "other files than a model has")
    return list(files.items())


def _open(folder: Path, name: str, entry: Any) -> IO[bytes]:
    """A file of the model, if it is the one that was written."""
    path = folder / name
    if not path.is_file():
        raise WidebnnError(f"{folder} has no {name}, which belongs to the model; copy the whole folder again.")
    file = path.open("rb")
    if _fingerprint(file) != entry:
        file.close()
        raise WidebnnError(
            f"{path} is damaged (its size or checksum is not that of {DOCUMENT}); copy the model again, or fit and "
            "save it again."
        )
    return file


def _no_model(folder: Path, detail: str) -> WidebnnError:
    detail = " ".join(detail.split())[:200].rstrip(".")
    return WidebnnError(f"{folder} holds no model that widebnn wrote ({detail}); fit and save it again.")


def _to_disk(path: Path) -> None:
    """Wait until a file or folder is on the disk; Windows has no such thing for folders."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
