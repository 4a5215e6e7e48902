"""Fitted estimators on disk: one record (``widebnn.runs.files.write_record``), which holds no code.

The header holds plain values by section: ``parameters``, ``fitted``, ``diagnostics``, ``hyperparameters``, ``network``
and ``run`` (attributes of ``posterior_``). Arrays are named by their place: ``fitted/x_mean_``, ``ensemble/mean``,
``layer0/w``, and ``posterior/f_train`` and so on for the run. Text arrays are stored as Unicode code points, and floats
that are not finite, which JSON does not have, as arrays without axes.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from widebnn.errors import WidebnnError, check_fields
from widebnn.estimators.base import WideBNN
from widebnn.estimators.classifier import WideBNNClassifier
from widebnn.estimators.ensemble import Ensemble
from widebnn.estimators.limit import Limit
from widebnn.estimators.regressor import WideBNNRegressor
from widebnn.limits import Hyperparameters
from widebnn.networks.dense import DenseNetwork, Layer, dense
from widebnn.runs.files import DamageError, make_folder, output, read_record, write_record
from widebnn.sampling.result import datatree

KIND, VERSION = "model", 1
ESTIMATORS: dict[str, type[WideBNN]] = {cls.__name__: cls for cls in (WideBNNRegressor, WideBNNClassifier)}
APART = ("hyperparameters_", "network_", "ensemble_", "diagnostics_", "posterior_")
"""Fitted attributes that have a section of their own."""
NEEDED = {
    "WideBNNRegressor": ("n_features_in_", "x_mean_", "x_scale_", "y_mean_", "y_scale_", "y_bend_", "single_output_"),
    "WideBNNClassifier": ("n_features_in_", "x_mean_", "x_scale_", "y_mean_", "y_scale_", "classes_"),
}
RUN_GROUPS = ("posterior", "sample_stats", "observed_data", "log_likelihood")


def save(model: WideBNN, path: str | os.PathLike[str]) -> Path:
    """Write a fitted estimator to a new file, atomically.

    Args:
        model: The estimator. A ``random_state`` that is a generator and not a seed is not kept.
        path: The file; missing folders are created.

    Returns:
        The path, absolute.

    Raises:
        WidebnnError: There is something at ``path``, it cannot be written, or a value is not plain data.

    Examples:
        >>> save(WideBNNRegressor().fit(x, y), "model")
    """
    path = check_free(path)
    name = type(model).__name__
    if name not in ESTIMATORS:
        raise WidebnnError(f"only {' and '.join(ESTIMATORS)} can be saved, got {name}; pass a fitted one.")
    check_is_fitted(model)
    parameters = model.get_params(deep=False) | {"store": None}  # a folder of this machine
    if isinstance(parameters["random_state"], (np.random.RandomState, np.random.Generator)):
        parameters["random_state"] = None
    fitted = {name: value for name, value in vars(model).items() if name.endswith("_") and name not in APART}
    run: Any = getattr(model, "posterior_", None)
    header: dict[str, Any] = {"kind": KIND, "version": VERSION, "estimator": name, "text": {}}
    arrays: dict[str, np.ndarray] = {}
    for section, values in {
        "parameters": parameters,
        "fitted": fitted,
        "diagnostics": model.diagnostics_,
        "hyperparameters": dataclasses.asdict(model.hyperparameters_),
        "network": dataclasses.asdict(model.network_),
        "run": {} if run is None else run.attrs,
    }.items():
        header[section] = _plain(section, values, header["text"], arrays)
    arrays |= _ensemble_arrays(model.ensemble_)
    for group in run.children if run is not None else ():
        arrays |= {f"{group}/{name}": array.values for name, array in run[group].data_vars.items()}
    make_folder(path.parent)
    with output(path):
        try:
            write_record(path, header, arrays)
        except (TypeError, ValueError) as error:
            raise WidebnnError(f"the model must be plain data to be saved, and is not ({error}).") from None
    return path


def load(path: str | os.PathLike[str], *, posterior: bool = True) -> Any:
    """Read an estimator that ``save`` wrote; its predictions are bit-identical to those of the saved one.

    Args:
        path: The file.
        posterior: Whether to restore ``posterior_``, which predictions do not need.

    Returns:
        The fitted estimator.

    Raises:
        WidebnnError: The file is missing, corrupted, of a newer version, or no model.

    Examples:
        >>> load("model").predict(x)
    """
    path = Path(path)
    if not path.is_file():
        raise WidebnnError(
            f"{path} must be the file of a saved model, and is no file; give the path that was saved to."
        )
    try:
        header, arrays, _ = read_record(path, KIND)
    except DamageError as error:
        raise WidebnnError(
            f"{path} is no model, or corrupted ({error}); copy it again, or fit and save again."
        ) from None
    version = header.get("version")
    if type(version) is int and version > VERSION:
        raise WidebnnError(
            f"{path} has version {version} of the format, this widebnn reads {VERSION}; upgrade widebnn."
        )
    try:
        return _restore(header, arrays, posterior)
    except Exception as error:  # the checksum is right: somebody wrote this on purpose, and anything may be wrong
        detail = f"{type(error).__name__}: {' '.join(str(error).split())[:200].rstrip('.')}"
        raise WidebnnError(f"{path} holds no model that widebnn wrote ({detail}); fit and save again.") from None


def check_free(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` as an absolute path; raise WidebnnError if there is something."""
    path = Path(os.path.abspath(path))
    if os.path.lexists(path):
        raise WidebnnError(f"{path} exists already; choose another path for the model, or remove it first.")
    return path


def _plain(
    section: str, values: Mapping[str, Any], text: dict[str, str], arrays: dict[str, np.ndarray]
) -> dict[str, Any]:
    """The values for the header; arrays, floats that are not finite and text arrays go to ``arrays``."""
    plain = {}
    for name, value in values.items():
        place, value = f"{section}/{name}", value.item() if isinstance(value, np.generic) else value
        if isinstance(value, np.ndarray) and value.dtype.kind in "UO":
            if not all(isinstance(one, str) for one in value):
                raise WidebnnError(f"{name} must hold numbers or text to be saved, and holds other objects.")
            text[place] = "str" if value.dtype.kind == "U" else "object"
            arrays[place] = np.asarray(value, "U").reshape(-1, 1).view(np.uint32)
        elif isinstance(value, np.ndarray) or (isinstance(value, float) and not math.isfinite(value)):
            arrays[place] = np.asarray(value)
        elif value is None or isinstance(value, (bool, int, float, str, tuple, list, dict)):
            plain[name] = value
        else:
            raise WidebnnError(
                f"{name} must be plain data to be saved, got {type(value).__name__}; set it to a number."
            )
    return plain


def _ensemble_arrays(ensemble: Ensemble | Limit) -> dict[str, np.ndarray]:
    """What predictions are made with, by place."""
    if isinstance(ensemble, Limit):
        return {f"limit/{field.name}": getattr(ensemble, field.name) for field in dataclasses.fields(ensemble)}
    arrays = {f"ensemble/{name}": getattr(ensemble, name) for name in Ensemble._fields if name != "hidden"}
    for i, layer in enumerate(ensemble.hidden):
        arrays |= {f"layer{i}/{name}": np.asarray(array) for name, array in layer._asdict().items()}
    return arrays


def _restore(header: dict[str, Any], arrays: dict[str, np.ndarray], posterior: bool) -> Any:
    """The estimator, every part of it compared with the others."""
    sections: dict[str, dict[str, Any]] = {}
    for place, array in arrays.items():
        section, _, name = place.partition("/")
        if place in header["text"]:
            texts = [row.tobytes().decode("utf-32-le").rstrip("\0") for row in array]  # unlike NumPy, this checks
            array = np.array(texts, object if header["text"][place] == "object" else None)
        sections.setdefault(section, {})[name] = array if array.shape else array.item()
    values = {name: header[name] | sections.get(name, {}) for name in ("parameters", "fitted", "diagnostics", "run")}
    model: Any = ESTIMATORS[header["estimator"]](**values["parameters"])
    is_attribute = all(name[0] != "_" and name[-1] == "_" and not hasattr(model, name) for name in values["fitted"])
    if not is_attribute or not set(NEEDED[header["estimator"]]) <= set(values["fitted"]):
        raise ValueError("there are other attributes than a fit sets")
    vars(model).update(values["fitted"])
    model.diagnostics_ = values["diagnostics"]
    for name, cls in {"hyperparameters": Hyperparameters, "network": DenseNetwork}.items():
        part = cls(**_tuples(header[name] | sections.get(name, {})))
        check_fields(part)
        setattr(model, f"{name}_", part)
    dense(**dataclasses.asdict(model.network_))  # which checks the ranges
    if model.width == math.inf:
        model.ensemble_ = Limit(**sections["limit"])
    else:
        layers = [Layer(**sections[f"layer{i}"]) for i in range(len(model.network_.widths))]
        model.ensemble_ = Ensemble(hidden=tuple(layers), **sections["ensemble"])
    _check_shapes(model)
    if posterior and header["run"]:
        groups = {name: sections[name] for name in RUN_GROUPS if name in sections or name != "log_likelihood"}
        model.posterior_ = datatree(groups, values["run"])
    return model


def _tuples(value: Any) -> Any:
    """Lists as tuples, which the dataclasses have, at any depth."""
    if isinstance(value, dict):
        return {name: _tuples(one) for name, one in value.items()}
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value


def _check_shapes(model: Any) -> None:
    """Refuse arrays that do not belong to one model."""
    ensemble, sizes = model.ensemble_, (model.network_.input_dim, *model.network_.widths)
    expected: dict[str, tuple[int, ...]]
    if isinstance(ensemble, Limit):
        rows, outputs = ensemble.y.shape
        expected, found = {"x": (rows, sizes[0]), "y": (rows, outputs), "noise": (1,)}, dict(vars(ensemble))
    else:
        draws, features, outputs = ensemble.mean.shape
        expected = {"mean": (draws, model.network_.feature_dim, outputs), "noise": (draws,)}
        expected["readout"] = (draws, features, outputs, ensemble.readout.shape[-1])
        expected["noise_readout"] = (draws, features if ensemble.noise_readout.size else 0)
        found = ensemble._asdict()
        for i, layer in enumerate(found.pop("hidden")):
            expected |= {f"w{i}": (draws, *sizes[i : i + 2]), f"b{i}": (draws, sizes[i + 1])}
            found |= {f"w{i}": layer.w, f"b{i}": layer.b}
    for name in ("x_mean_", "x_scale_", "y_mean_", "y_scale_", "y_bend_"):
        if getattr(model, name, None) is not None:
            expected[name], found[name] = sizes[:1] if name[0] == "x" else (outputs,), getattr(model, name)
    for name, array in found.items():
        is_empty = array.size == 0 and name != "noise_readout"
        if array.shape != expected[name] or is_empty or array.dtype.kind != "f" or not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite numbers of shape {expected[name]}")
        if name in ("x_scale_", "y_scale_", "y_bend_") and array.min() <= 0:
            raise ValueError(f"{name} must be positive")
    single = getattr(model, "single_output_", False)
    labels = getattr(model, "classes_", found["y_mean_"])
    if model.n_features_in_ != sizes[0] or labels.shape != (outputs,) or single not in (False, outputs == 1):
        raise ValueError("the numbers of inputs or outputs differ")
