"""A scale that is not known, as one more coordinate of the chain.

The noise of the observations (Gaussian likelihood) or the scale of the logits (softmax) is

    s = median exp(log_sd z),   z ~ N(0, 1) a priori,

so that z joins the other coordinates, all N(0, I), and every sampler moves it with them. Nothing else changes: given z
the target is that of a known scale, whose log-likelihood is differentiable in it. In coordinates that whiten or
integrate the readout the conditional of the readout depends on s, and is taken at the chain's own.

With ``per_row`` every observation has a noise of its own, and a coordinate of its own that says which. The errors then
have heavy tails (a log-normal mixture of normals): an outlier is a row whose noise the chain finds to be large, and
does not bend the function. The readout is integrated out all the same.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from widebnn.errors import check_real
from widebnn.networks.dense import DenseNetwork
from widebnn.networks.network import FeatureMap, Network
from widebnn.noise import standard_normal
from widebnn.posteriors.target import NetworkTarget
from widebnn.precision import double_precision, in_double_precision


@dataclasses.dataclass(frozen=True)
class LogNormal:
    """The prior of a positive number: its logarithm is N(log(median), log_sd^2).

    As the prior of noise it may be ``per_row``: every row of the data then has a noise of its own.
    """

    median: float
    log_sd: float = 1.0
    per_row: bool = False

    def __post_init__(self) -> None:
        for name in ("median", "log_sd"):
            object.__setattr__(self, name, check_real(name, getattr(self, name), above=0))

    def at(self, z: jax.Array) -> jax.Array:
        """The number at the coordinate z, which is N(0, 1) a priori; in float64."""
        return self.median * jnp.exp(self.log_sd * z.astype(jnp.float64))

    @property
    def root_mean_square(self) -> float:
        """Of the number: the standard deviation of an observation whose noise it is."""
        return self.median * math.exp(self.log_sd**2)


class ExtendedPosition(NamedTuple):
    """Coordinates of a target with an unknown scale, all N(0, I) a priori."""

    network: Any
    """Those of the target whose scale is known."""
    z: jax.Array
    """The scale is median exp(log_sd z); one number, or one for every row."""


def unknown_noise_target(build: Callable[..., NetworkTarget], prior: LogNormal, **arguments: Any) -> NetworkTarget:
    """The target ``build(noise=..., **arguments)`` with the noise as a coordinate."""

    def known(noise):
        return build(noise=noise, **arguments)

    return _extended(known, prior)


def unknown_logit_scale_target(
    build: Callable[..., NetworkTarget], prior: LogNormal, network: Network, **arguments: Any
) -> NetworkTarget:
    """The target ``build(network=..., **arguments)`` with logits s f; weights are those of a network with s = 1."""

    def known(scale):
        scale = jnp.asarray(scale, arguments["x"].dtype)
        target = build(network=_scaled(network, scale), **arguments)

        def to_weights(key, u):
            weights = target.to_weights(key, u)
            return weights._replace(readout=scale * weights.readout)

        def from_weights(weights):
            return target.from_weights(weights._replace(readout=weights.readout / scale))

        return dataclasses.replace(target, network=network, to_weights=to_weights, from_weights=from_weights)

    return _extended(known, prior)


def _extended(known: Callable[[Any], NetworkTarget], prior: LogNormal) -> NetworkTarget:
    with double_precision():
        middle = known(prior.median)
    unit_axes = middle.unit_axes
    shape = (len(middle.y),) if prior.per_row else ()

    def at(z):
        with double_precision():
            return known(prior.at(z))

    @in_double_precision
    def log_likelihood(u):
        # The log-likelihood of a known scale is not to be differentiated in it, what it wraps is.
        return inspect.unwrap(at(u.z).log_likelihood)(u.network)

    def sample_reference(key):
        with double_precision():
            network_key, z_key = jax.random.split(key)
            return ExtendedPosition(middle.sample_reference(network_key), standard_normal(z_key, shape, middle.x.dtype))

    def unknown_at(u):
        with double_precision():
            return prior.at(u.z)

    def from_weights(weights, z=0.0):
        """Weights say nothing of the scale: it is given by its coordinate, 0 for the median."""
        with double_precision():
            z = jnp.broadcast_to(jnp.asarray(z, middle.x.dtype), shape)
            return ExtendedPosition(at(z).from_weights(weights), z)

    return dataclasses.replace(
        middle,
        log_likelihood=log_likelihood,
        sample_reference=sample_reference,
        to_weights=lambda key, u: at(u.z).to_weights(key, u.network),
        from_weights=from_weights,
        predict=lambda key, u, *x: at(u.z).predict(key, u.network, *x),
        unknown_at=unknown_at,
        row_noise=prior if prior.per_row else None,
        unit_axes=None if unit_axes is None else lambda u: ExtendedPosition(unit_axes(u.network), -1),  # type: ignore
    )


def _scaled(network: Network, scale: Any) -> Network:
    if isinstance(network, DenseNetwork):
        stds = {name: scale * getattr(network, name) for name in ("readout_weight_std", "readout_bias_std")}
        return dataclasses.replace(network, **stds)
    return FeatureMap(network.sample_hidden, lambda hidden, x: scale * network.features(hidden, x))
