"""The distribution that the published pCNL code samples: a fault, reproduced on purpose (docs/errata.md, section 5.1).

Its potential is the data misfit |Y - f|^2 / (2 s^2) of f = Psi theta(phi) alone. The right one also has the log
determinant and (|phi|^2 - |theta|^2) / 2, whose sum with the misfit is the log evidence. Given the features,
theta = mu + Sigma^{1/2} phi, so f = Psi mu + Psi Sigma^{1/2} phi: a mean and a Gaussian with covariance
Psi Sigma Psi' = s^2 (I - s^2 K^-1) = R R'. Here it enters as R eta with eta of n rows, which has the same
distribution; the part of the readout that the potential does not see is carried for predictions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widebnn.coordinates.function import FunctionCoordinates
from widebnn.likelihoods import Gaussian
from widebnn.likelihoods.likelihood import Likelihood
from widebnn.likelihoods.readout import KnownReadout
from widebnn.linalg import lower_factor, solve_lower
from widebnn.networks.dense import DenseNetwork
from widebnn.posteriors import Posterior

JITTER = 1e-8
"""Added to eigenvalues that rounding could make negative."""


class PublishedPosition(NamedTuple):
    """Function coordinates and the readout in the two parts that the potential sees and does not see."""

    layers: tuple[jax.Array, ...]
    carried: tuple[jax.Array, ...]
    seen: jax.Array
    """eta, inputs x outputs."""
    unseen: jax.Array
    """z, features x outputs."""


class PublishedCoordinates(FunctionCoordinates):
    """Function coordinates and the whitened readout, with the misfit alone as log-density."""

    name = "published"
    holds_readout = True

    def sample(self, key: jax.Array) -> PublishedPosition:  # type: ignore[override]
        """All coordinates from N(0, I)."""
        function_key, readout_key = jax.random.split(key)
        shapes = [(len(self.x), self.outputs), (self.network.feature_dim, self.outputs)]
        return PublishedPosition(*super().sample(function_key), *self.space.normals(readout_key, shapes))

    def _fitted(self, noise: float, psi: jax.Array, y: jax.Array, c: Any) -> tuple[jax.Array, jax.Array]:
        """The function at the training inputs, and the Gram matrix of the features there."""
        # In float64: with fewer units than inputs it is singular, and so is the covariance below.
        gram = psi.astype(jnp.float64) @ psi.T.astype(jnp.float64)
        identity = jnp.eye(len(gram))
        factor = lower_factor(gram + noise**2 * identity)
        # Psi mu = G K^-1 y, and s^2 (I - s^2 K^-1) = s^2 G K^-1.
        smoother = gram @ solve_lower(factor, solve_lower(factor, identity), transpose=True)
        covariance = noise**2 * 0.5 * (smoother + smoother.T)
        root = lower_factor(covariance + JITTER * noise**2 * identity)
        return smoother @ y.astype(jnp.float64) + root @ c.seen.astype(jnp.float64), gram

    def log_density(self, likelihood: Likelihood, y: jax.Array, c: Any, z: Any) -> jax.Array:
        """-|Y - f|^2 / (2 s^2)."""
        noise = likelihood.noise_at(z)
        f, _ = self._fitted(noise, self.features(c), y, c)
        return -0.5 * jnp.sum((y - f) ** 2) / noise**2

    def readout(self, likelihood: Likelihood, psi: Any, y: Any, c: Any, z: Any) -> Any:
        """theta = z + Psi' G^-1 (f - Psi z), whose rest z the chain carries."""
        f, gram = self._fitted(likelihood.noise_at(z), psi, y, c)
        wide, rest = psi.astype(jnp.float64), c.unseen.astype(jnp.float64)
        theta = rest + wide.T @ jnp.linalg.solve(gram + JITTER * jnp.eye(len(gram)), f - wide @ rest)
        return KnownReadout(theta.astype(self.x.dtype))


def published_pcnl_target(network: DenseNetwork, x: Any, y: Any, noise: float, carry: Any) -> Posterior:
    """Not the posterior: exp(-misfit) against N(0, I) over function values and the whitened readout."""
    inputs, targets = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
    system = PublishedCoordinates(network, inputs, y.shape[1], np.asarray(carry, np.float32))
    options: dict[str, Any] = {"likelihood": Gaussian(noise), "coordinates": system, "dtype": "float32"}
    return Posterior(network=network, x=inputs, y=targets, **options)
