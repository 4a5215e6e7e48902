"""A posterior is Network x Likelihood x Coordinates: the glue between them, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widebnn.coordinates import COORDINATES, Coordinates
from widebnn.errors import WidebnnError, check_choice, check_numbers
from widebnn.likelihoods import Likelihood, LogNormal, Prediction, Sizes, as_likelihood
from widebnn.likelihoods.readout import Readout
from widebnn.networks.dense import DenseNetwork
from widebnn.networks.network import Network, Weights
from widebnn.precision import double_precision, in_double_precision, with_gradient_of
from widebnn.samplers.target import Target
from widebnn.samplers.tree import dimension

DTYPES = ("float32", "float64", "mixed")


class Position(NamedTuple):
    """Coordinates of a posterior whose likelihood has a latent, all N(0, I) a priori."""

    network: Any
    """Those of the coordinate system."""
    z: Any
    """Those of the likelihood, such as unknown noise."""


@dataclass(frozen=True, eq=False)
class Posterior(Target):
    """The posterior of a network in some coordinate system; built by ``widebnn.posterior``.

    A position u is what the coordinate system says, or, where the likelihood has a latent, ``Position(network, z)``.
    """

    log_likelihood: Callable[[Any], jax.Array] = field(init=False)
    sample_reference: Callable[[jax.Array], Any] = field(init=False)
    network: Network
    likelihood: Likelihood
    coordinates: Coordinates
    x: jax.Array
    """Inputs, n x m."""
    y: jax.Array
    """Targets, n x outputs; softmax: one-hot, n x classes."""
    dtype: str
    """``float32``, ``float64`` or ``mixed``."""

    def __post_init__(self) -> None:
        system = self.coordinates
        with double_precision():
            rows, targets = self.likelihood.prepare(self.x, self.y)
            c = jax.eval_shape(system.sample, jax.random.key(0))
            features = jax.eval_shape(system.features, c).shape[1]
            sizes = Sizes(
                len(rows), features, self.y.shape[1], self.x.dtype, system.holds_readout, system.carries_inputs
            )
            latent = jax.eval_shape(lambda key: self.likelihood.sample_latent(key, sizes), jax.random.key(0))
        log_likelihood = in_double_precision(self._log_density)
        if self.dtype == "mixed":
            log_likelihood = with_gradient_of(log_likelihood, self.in_dtype("float32").log_likelihood, "float32")
        derived = {"_targets": targets, "_sizes": sizes, "_latent": latent}
        derived |= {"log_likelihood": log_likelihood, "sample_reference": self._sample}
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        """One line: what was given, and the size of a position."""
        network = f"{type(self.network).__name__}{getattr(self.network, 'widths', '')}"
        data = f"{self.x.shape[0]} x {self.x.shape[1]} inputs, {self.y.shape[1]} outputs"
        return (
            f"Posterior({network}, {self.likelihood}, coordinates={self.coordinates.name!r}, {data}, "
            f"dtype={self.dtype!r}, dimension={self.dimension})"
        )

    def parts(self, u: Any) -> tuple[Any, Any]:
        """The coordinates c of the network and the latent z of the likelihood, empty where it has none."""
        return (u.network, u.z) if isinstance(u, Position) else (u, self._latent)  # type: ignore[attr-defined]

    def to_weights(self, key: jax.Array, u: Any) -> Weights:
        """All network weights at a position.

        Args:
            key: For whatever u leaves open, which is drawn from its exact conditional.
            u: A position.

        Returns:
            Hidden weights and readout, such that the network's outputs are the function of the position.
        """
        with double_precision():
            hidden_key, readout_key = jax.random.split(key)
            hidden = self.coordinates.hidden(hidden_key, self.parts(u)[0])
            # Conditioned on the features of these weights, which are those of the position but for rounding.
            psi = self.network.features(hidden, self.coordinates.x)
            return Weights(hidden, self.readout_at(u, psi).draw(readout_key).astype(self.x.dtype))

    def from_weights(self, weights: Weights, z: Any = 0.0) -> Any:
        """The position of given network weights, the inverse of ``to_weights``.

        Args:
            weights: All network weights.
            z: Coordinate of an unknown scale (noise, or scale of the logits), about which weights say nothing; 0 is the
                median of its prior.

        Returns:
            A position.

        Raises:
            WidebnnError: If the position holds more than weights determine (``carry``, coordinates ``full``).
        """
        if self.coordinates.carries_inputs:
            raise WidebnnError("weights do not determine what is carried; leave carry out.")
        with double_precision():
            y, sizes = self._targets, self._sizes  # type: ignore[attr-defined]
            psi = self.network.features(weights.hidden, self.coordinates.x)
            latent = self.likelihood.latent_from(z, psi, weights.readout, sizes)
            c = self.coordinates.from_weights(self.likelihood, y, weights, latent)
            return Position(c, latent) if jax.tree.leaves(latent) else c

    def predict(self, key: jax.Array, u: Any, x: Any = None) -> Prediction:
        """The function at new inputs given a position.

        Args:
            key: For whatever u leaves open, which is drawn from its exact conditional.
            u: A position.
            x: New inputs, k x m; by default those that the chain carries.

        Returns:
            A joint draw of f(x), its mean and its variance over what is integrated out.

        Raises:
            WidebnnError: If there are neither inputs nor carried ones.
        """
        if x is None and not self.coordinates.carries_inputs:
            raise WidebnnError("predict needs inputs: pass x, or carry them with posterior(..., carry=x_test).")
        with double_precision():
            hidden_key, readout_key = jax.random.split(key)
            c, _ = self.parts(u)
            psi_new = self.coordinates.at_new_inputs(hidden_key, c, x)
            return self.readout_at(u).predict(readout_key, psi_new)

    def noise_at(self, u: Any) -> Any:
        """Standard deviation of the observations at a position, one number or one for every row."""
        with double_precision():
            c, z = self.parts(u)
            return self.likelihood.noise_at(z, self.coordinates.features(c))

    def readout_at(self, u: Any, psi: jax.Array | None = None) -> Readout:
        """The distribution of the readout weights given a position, and its features if they are known already."""
        c, z = self.parts(u)
        psi = self.coordinates.features(c) if psi is None else psi
        return self.coordinates.readout(self.likelihood, psi, self._targets, c, z)  # type: ignore[attr-defined]

    def in_dtype(self, dtype: str) -> Posterior:
        """The same posterior, with the same numbers as data, in another precision."""
        with double_precision(), jax.ensure_compile_time_eval():
            x, y, rows = (array.astype(dtype) for array in (self.x, self.y, self.coordinates.x))
        coordinates = dataclasses.replace(self.coordinates, x=rows)  # type: ignore[type-var]
        return dataclasses.replace(self, x=x, y=y, coordinates=coordinates, dtype=dtype)

    @property
    def dimension(self) -> int:
        """Number of coordinates of a position."""
        return dimension(jax.eval_shape(self.sample_reference, jax.random.key(0)))

    def _sample(self, key: jax.Array) -> Any:
        with double_precision():
            if not jax.tree.leaves(self._latent):  # type: ignore[attr-defined]
                return self.coordinates.sample(key)
            network_key, z_key = jax.random.split(key)
            z = self.likelihood.sample_latent(z_key, self._sizes)  # type: ignore[attr-defined]
            return Position(self.coordinates.sample(network_key), z)

    def _log_density(self, u: Any) -> jax.Array:
        return self.coordinates.log_density(self.likelihood, self._targets, *self.parts(u))  # type: ignore[attr-defined]


def posterior(
    network: Network,
    x: Any,
    y: Any,
    *,
    likelihood: str | Likelihood = "gaussian",
    noise: Any = None,
    coordinates: str | None = None,
    carry: Any = None,
    dtype: Any = "float32",
) -> Posterior:
    """The posterior of a network given data.

    All coordinate systems describe the same posterior over functions: ``function`` (function values at the inputs;
    dense networks, their default), ``weights`` (all weights), ``reparametrised`` (readout whitened by its conditional
    posterior), ``marginal`` (readout integrated out, or reduced for softmax; the default for other networks),
    ``full`` (one hidden layer: the paper's chain on all weights, exactly in distribution, at the cost of ``function``).

    Args:
        network: From ``widebnn.dense``, ``widebnn.feature_map``, or anything with their two methods.
        x: Inputs, n x m.
        y: Targets, n or n x outputs; class labels 0..C-1 (n, or one-hot n x C) for softmax.
        likelihood: ``gaussian``, ``heavy_tails``, ``input_noise``, ``softmax``, or an object such as
            ``HeavyTails(0.1, log_sd=0.8)``.
        noise: Shorthand for ``likelihood=Gaussian(noise)``: a number (0.1 by default) or a ``LogNormal`` prior.
        coordinates: What the chain moves in.
        carry: Inputs whose function values the chain carries (``function`` and ``full``), so that ``predict(key, u)``
            moves smoothly with it; predictions at any other inputs are exact conditional draws.
        dtype: Precision of weights and features: ``float32``, ``float64``, or ``mixed``, which is float64 with
            gradients of float32 features, as exact as float64. The n x n stage is always float64.

    Returns:
        A ``Target`` that can also turn positions into weights and predictions.

    Raises:
        WidebnnError: If shapes, names or numbers do not fit together.

    Examples:
        >>> import numpy as np
        >>> x = np.linspace(-1, 1, 20)[:, None]
        >>> target = posterior(dense(1, [256]), x, np.sin(3 * x), noise=0.1)  # doctest: +SKIP
    """
    likelihood = as_likelihood(likelihood, noise)
    name = _check_names(network, likelihood, coordinates)
    dtype = check_choice("dtype", dtype if dtype == "mixed" else np.dtype(dtype).name, DTYPES)
    x, y = _check_arrays(x, likelihood.targets(y))
    # Inputs are constants even where the call is traced (y need not be): their row space is found now.
    with double_precision(), jax.ensure_compile_time_eval():
        if dtype == "mixed":  # the numbers that float32 has: both precisions must agree on the row space
            x, y = (jnp.asarray(array, "float32") for array in (x, y))
        x, y = (jnp.asarray(array, "float64" if dtype == "mixed" else dtype) for array in (x, y))
    _check_network(network, x, name)
    _check_combination(likelihood, name, carry, x)
    with double_precision():
        rows, _ = likelihood.prepare(x, y)
    # In the numbers that x has: inputs that are equal, or depend on one another, must stay so.
    options = {} if carry is None else {"carry": np.asarray(carry).astype(x.dtype)}
    system = COORDINATES[name](network, rows, y.shape[1], **options)
    return Posterior(network=network, likelihood=likelihood, coordinates=system, x=x, y=y, dtype=dtype)


def _check_names(network: Any, likelihood: Likelihood, coordinates: str | None) -> str:
    """The name of the coordinate system, by default the best one for the network."""
    if not isinstance(network, Network):
        raise WidebnnError(
            f"network needs the methods sample_hidden and features, got {type(network).__name__}: "
            "use widebnn.dense(...) or widebnn.feature_map(shapes, features)."
        )
    is_dense = isinstance(network, DenseNetwork) and bool(network.widths)
    default = "function" if is_dense else "weights" if likelihood.name == "softmax" else "marginal"
    return check_choice("coordinates", default if coordinates is None else coordinates, COORDINATES)


def _check_arrays(x: Any, y: Any) -> tuple[Any, Any]:
    """Shapes, and values where they are known (they are not while JAX traces the call)."""
    x = x if isinstance(x, jax.core.Tracer) else check_numbers("x", x)
    if x.ndim < 2:
        raise WidebnnError(f"x must be a 2-D array, rows are inputs; got shape {x.shape}. Try x.reshape(-1, 1).")
    if x.shape[0] == 0:
        raise WidebnnError("x is empty: at least one training row is needed.")
    if x.shape[0] != y.shape[0]:
        raise WidebnnError(f"x and y must have the same number of rows; got {x.shape[0]} and {y.shape[0]}.")
    return x, y


def _check_combination(likelihood: Likelihood, coordinates: str, carry: Any, x: Any) -> None:
    """What a coordinate system can be combined with."""
    if coordinates in ("reparametrised", "full") and likelihood.name == "softmax":
        raise WidebnnError(
            f"coordinates={coordinates!r} whiten the readout by its Gaussian conditional, which likelihood='softmax' "
            "does not have. Use coordinates='function', 'marginal' or 'weights'."
        )
    is_unknown = likelihood.name == "input_noise" or isinstance(getattr(likelihood, "noise", None), LogNormal)
    if coordinates == "full" and is_unknown:
        raise WidebnnError(f"coordinates='full' need known noise, got {likelihood}; use coordinates='function'.")
    if carry is None:
        return
    if coordinates not in ("function", "full"):
        raise WidebnnError(f"carry belongs to coordinates='function' or 'full', not to {coordinates!r}.")
    if check_numbers("carry", carry).shape[1:] != x.shape[1:]:
        raise WidebnnError(f"carry must have {x.shape[1]} columns like x; got shape {np.shape(carry)}.")


def _check_network(network: Network, x: jax.Array, coordinates: str) -> None:
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
    if coordinates in ("function", "full") and not isinstance(network, DenseNetwork):
        raise WidebnnError(
            f"coordinates={coordinates!r} need a dense network; use coordinates='marginal' or 'weights' for this one."
        )
    if coordinates != "weights" and not jax.tree.leaves(hidden):
        raise WidebnnError(
            "a network without hidden parameters has an exact posterior, nothing to sample in "
            f"{coordinates!r} coordinates; use coordinates='weights' or add hidden layers."
        )
