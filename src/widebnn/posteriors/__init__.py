"""Posteriors of networks, as :class:`Target` objects in several coordinate systems."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widebnn.errors import WidebnnError, check_choice, check_numbers, check_real
from widebnn.networks.dense import DenseNetwork
from widebnn.networks.network import Network
from widebnn.posteriors.function_space import function_target
from widebnn.posteriors.marginal import marginal_target
from widebnn.posteriors.mixed import mixed_target
from widebnn.posteriors.reparametrised import reparametrised_target
from widebnn.posteriors.softmax import one_hot_labels, softmax_function_target, softmax_weights_target
from widebnn.posteriors.target import NetworkTarget, Target
from widebnn.posteriors.unknown import LogNormal, unknown_logit_scale_target, unknown_noise_target
from widebnn.posteriors.weights import weights_target
from widebnn.precision import double_precision

__all__ = ["COORDINATES", "LIKELIHOODS", "LogNormal", "NetworkTarget", "Target", "posterior"]

COORDINATES: dict[str, Callable[..., NetworkTarget]] = {
    "weights": weights_target,
    "reparametrised": reparametrised_target,
    "marginal": marginal_target,
    "function": function_target,
}
LIKELIHOODS: dict[str, dict[str, Callable[..., NetworkTarget]]] = {
    "gaussian": COORDINATES,
    "softmax": {"weights": softmax_weights_target, "function": softmax_function_target},
}
"""The coordinate systems of each likelihood."""


def posterior(
    network: Network,
    x: Any,
    y: Any,
    *,
    likelihood: str = "gaussian",
    noise: float | LogNormal | None = None,
    logit_scale: LogNormal | None = None,
    classes: int | None = None,
    coordinates: str | None = None,
    space: str = "reduced",
    carry: Any = None,
    dtype: Any = "float32",
) -> NetworkTarget:
    """The posterior of ``network`` given inputs ``x`` (n x m) and targets ``y`` (n x outputs, or n).

    The likelihood is y ~ N(f(x), noise^2 I), with noise 0.1 unless given; noise that is not known is sampled with the
    chain, and ``noise=LogNormal(0.1, log_sd=1)`` is then its prior. With ``likelihood="softmax"`` y are class labels
    0..C-1 (n, or one-hot n x C; C is ``classes`` or the largest label + 1) and f(x) are C logits; there are the
    coordinates ``function`` and ``weights``, no noise, and ``logit_scale``, a LogNormal prior of a factor of all
    logits, if that is to be sampled too. All coordinate systems describe the same posterior over functions:
    ``function`` (function values at the inputs; dense networks, their default), ``weights`` (all weights),
    ``reparametrised`` (readout whitened by its conditional posterior), ``marginal`` (readout integrated out; the
    default for other networks, where softmax has ``weights``). ``space="full"`` (one hidden layer, function
    coordinates, Gaussian likelihood) runs the paper's chain on all weights, exactly in law, at the reduced cost; by
    default only the coordinates that matter are moved, better for samplers that suffer from dimension. ``carry`` are
    inputs whose function values the chain carries, so that ``predict(key, u)`` moves smoothly with it; predictions at
    any other inputs are exact conditional draws. ``dtype`` is the precision of weights and features, ``float32``,
    ``float64``, or ``mixed``: float64, for data rounded to float32, with gradients of float32 features; as exact as
    float64, with gradients at the cost of float32 (mixed.py). Log-likelihoods are computed in float64 from the n x n
    stage (softmax: the logits) on, always.
    """
    if not isinstance(network, Network):
        raise WidebnnError(
            f"network needs the methods sample_hidden and features, got {type(network).__name__}: "
            "use widebnn.dense(...) or widebnn.feature_map(shapes, features)."
        )
    softmax = check_choice("likelihood", likelihood, LIKELIHOODS) == "softmax"
    if coordinates is None and softmax:
        coordinates = "function" if isinstance(network, DenseNetwork) and network.widths else "weights"
    elif coordinates is None:
        coordinates = "function" if isinstance(network, DenseNetwork) else "marginal"
    if softmax:
        build = _softmax_builder(coordinates, noise, logit_scale)
        y = one_hot_labels(y, classes)
    else:
        build = _gaussian_builder(coordinates, noise)
        for name, value in {"classes": classes, "logit_scale": logit_scale}.items():
            if value is not None:
                raise WidebnnError(f"{name}={value} belongs to likelihood='softmax', not to 'gaussian'; leave it out.")
    dtype = check_choice("dtype", dtype if dtype == "mixed" else np.dtype(dtype).name, ("float32", "float64", "mixed"))
    x, y = _check_arrays(x, y)
    # Inputs are constants even where the call is traced (y need not be): their row space is found now.
    with double_precision(), jax.ensure_compile_time_eval():
        # Mixed: the numbers that float32 has, for both precisions must agree on the row space.
        x, y = (jnp.asarray(array, "float32" if dtype == "mixed" else dtype) for array in (x, y))
    _check_network(network, x, coordinates, likelihood)
    full = check_choice("space", space, ("reduced", "full")) == "full"
    if full and isinstance(noise, LogNormal):
        raise WidebnnError("space='full' needs known noise, got a LogNormal prior; use space='reduced'.")
    if coordinates == "function":
        # In the numbers that x has: inputs that are equal, or depend on one another, must stay so.
        carry = None if carry is None else check_numbers("carry", carry).astype(x.dtype)
        if carry is not None and carry.shape[1:] != x.shape[1:]:
            raise WidebnnError(f"carry must have {x.shape[1]} columns like x; got shape {carry.shape}.")
        build = functools.partial(build, carry=carry, full=full)
    elif full or carry is not None:
        raise WidebnnError(f"space='full' and carry belong to coordinates='function', not to {coordinates!r}.")

    def in_dtype(name: str) -> NetworkTarget:
        with double_precision():
            with jax.ensure_compile_time_eval():
                arrays = {"x": x.astype(name), "y": y.astype(name)}
            return dataclasses.replace(build(network=network, **arrays), dtype=name)

    if dtype == "mixed":
        return mixed_target(in_dtype("float64"), in_dtype("float32"))
    return dataclasses.replace(in_dtype(dtype), in_double=lambda: in_dtype("float64"))


def _gaussian_builder(coordinates: str, noise: float | LogNormal | None) -> Callable[..., NetworkTarget]:
    build = COORDINATES[check_choice("coordinates", coordinates, COORDINATES)]
    if isinstance(noise, LogNormal):
        return functools.partial(unknown_noise_target, build, noise)
    noise = 0.1 if noise is None else noise
    noise = check_real("noise", noise, above=0, advice="It is the standard deviation of the observations.")
    return functools.partial(build, noise=noise)


def _softmax_builder(coordinates: str, noise: Any, logit_scale: LogNormal | None) -> Callable[..., NetworkTarget]:
    """The coordinate systems of the softmax likelihood, and why the others are not among them."""
    if noise is not None:
        raise WidebnnError(f"likelihood='softmax' has no noise; got noise={noise}. Leave it out.")
    check_choice("coordinates", coordinates, COORDINATES)
    if coordinates not in LIKELIHOODS["softmax"]:
        raise WidebnnError(
            f"coordinates={coordinates!r} integrate the readout out, which has no closed form for likelihood='softmax'."
            " Use coordinates='weights' or 'function'."
        )
    build = LIKELIHOODS["softmax"][coordinates]
    if logit_scale is None:
        return build
    if not isinstance(logit_scale, LogNormal):
        raise WidebnnError(
            f"logit_scale must be the prior of an unknown scale, LogNormal(median, log_sd); got {logit_scale!r}. "
            "A known scale is the network's readout_weight_std."
        )
    return functools.partial(unknown_logit_scale_target, build, logit_scale)


def _check_arrays(x: Any, y: Any) -> tuple[Any, Any]:
    """Shapes, and values where they are known (they are not while JAX traces the call)."""
    x = x if isinstance(x, jax.core.Tracer) else check_numbers("x", x)
    y = y if isinstance(y, jax.core.Tracer) else check_numbers("y", y)
    if x.ndim < 2:
        raise WidebnnError(f"x must be a 2-D array, rows are inputs; got shape {x.shape}. Try x.reshape(-1, 1).")
    if y.ndim == 1:
        y = y[:, None]
    if y.ndim != 2:
        raise WidebnnError(f"y must have shape (n,) or (n, outputs); got {y.shape}.")
    if x.shape[0] == 0:
        raise WidebnnError("x is empty: at least one training row is needed.")
    if x.shape[0] != y.shape[0]:
        raise WidebnnError(f"x and y must have the same number of rows; got {x.shape[0]} and {y.shape[0]}.")
    return x, y


def _check_network(network: Network, x: jax.Array, coordinates: str, likelihood: str) -> None:
    """The network accepts inputs of this shape and returns one row of features per input."""
    with double_precision():
        hidden = jax.eval_shape(lambda key: network.sample_hidden(key, x.dtype), jax.random.key(0))
        try:
            features = jax.eval_shape(network.features, hidden, x)
        except TypeError as error:
            expected = getattr(network, "input_dim", None)
            detail = f"it expects {expected} input columns" if expected else str(error)
            raise WidebnnError(f"the network does not accept x of shape {x.shape}: {detail}.") from None
    if features.ndim != 2 or features.shape[0] != x.shape[0]:
        raise WidebnnError(f"features must return shape ({x.shape[0]}, features); got {features.shape}.")
    if coordinates == "function" and not isinstance(network, DenseNetwork):
        other = "weights" if likelihood == "softmax" else "marginal"
        raise WidebnnError(f"coordinates='function' needs a dense network; use coordinates={other!r} for this one.")
    if coordinates != "weights" and not jax.tree.leaves(hidden):
        what = "no hidden layers" if likelihood == "softmax" else "an exact Gaussian posterior"
        raise WidebnnError(
            f"a network without hidden parameters has {what}, nothing to sample in "
            f"{coordinates!r} coordinates; use coordinates='weights' or add hidden layers."
        )
