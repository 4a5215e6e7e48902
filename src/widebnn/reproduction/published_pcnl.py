"""The law that the published pCNL code samples: a fault, reproduced on purpose (docs/errata.md, section 5.1).

Its potential is the data misfit |Y - f|^2 / (2 s^2) of f = Psi theta(phi) alone. The right one also has the log
determinant and (|phi|^2 - |theta|^2) / 2, whose sum with the misfit is the log evidence. Given the features,
theta = mu + Sigma^{1/2} phi, so f = Psi mu + Psi Sigma^{1/2} phi: a mean and a Gaussian with covariance
Psi Sigma Psi' = s^2 (I - s^2 K^-1) = R R'. Here it enters as R eta with eta of n rows, which has the same law; the
part of the readout that the potential does not see is carried for predictions.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax.linalg import cholesky, triangular_solve

from widebnn.networks.dense import DenseNetwork
from widebnn.posteriors import posterior
from widebnn.posteriors.function_space import FunctionPosition, carry_inputs, function_space
from widebnn.posteriors.products import product
from widebnn.posteriors.target import NetworkTarget, Prediction
from widebnn.precision import double_precision, in_double_precision

JITTER = 1e-8
"""Added to eigenvalues that rounding could make negative."""


def published_pcnl_target(
    network: DenseNetwork, x: np.ndarray, y: np.ndarray, noise: float, carry: np.ndarray
) -> NetworkTarget:
    """Not the posterior: exp(-misfit) against N(0, I) over function values and the whitened readout."""
    right = posterior(network, x, y, noise=noise, carry=carry)
    space = function_space(network, right.x)
    carried = carry_inputs(network, space, carry, right.x.dtype)
    n, outputs = right.y.shape
    targets = jnp.asarray(y, jnp.float32)

    def fitted(u: FunctionPosition) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The function at the training inputs, the features there and their Gram matrix."""
        psi = space.psi(u.layers)
        # In float64: with fewer units than inputs it is singular, and so is the covariance below.
        gram = psi.astype(jnp.float64) @ psi.T.astype(jnp.float64)
        factor = cholesky(gram + noise**2 * jnp.eye(n), symmetrize_input=False)

        def solve(b):
            half = triangular_solve(factor, b, left_side=True, lower=True)
            return triangular_solve(factor, half, left_side=True, lower=True, transpose_a=True)

        # Psi mu = G K^-1 y, and s^2 (I - s^2 K^-1) = s^2 G K^-1.
        covariance = noise**2 * gram @ solve(jnp.eye(n))
        root = cholesky(0.5 * (covariance + covariance.T) + JITTER * noise**2 * jnp.eye(n))
        return gram @ solve(targets.astype(jnp.float64)) + root @ u.readout.astype(jnp.float64), psi, gram

    @in_double_precision
    def log_likelihood(u: FunctionPosition) -> jax.Array:
        return -0.5 * jnp.sum((targets - fitted(u)[0]) ** 2) / noise**2

    def sample_reference(key: jax.Array) -> FunctionPosition:
        with double_precision():
            rest_key, seen_key, unseen_key = jax.random.split(key, 3)
            u = right.sample_reference(rest_key)
            return u._replace(
                readout=jax.random.normal(seen_key, (n, outputs), right.x.dtype),
                tracked=jax.random.normal(unseen_key, (network.feature_dim, outputs), right.x.dtype),
            )

    def predict(key: jax.Array, u: FunctionPosition, x_new: Any = None) -> Prediction:
        """At the carried inputs, with the readout theta = z + Psi' G^-1 (f - Psi z), whose rest z the chain carries."""
        with double_precision():
            f, psi, gram = fitted(u)
            wide, z = psi.astype(jnp.float64), u.tracked.astype(jnp.float64)
            theta = z + wide.T @ jnp.linalg.solve(gram + JITTER * jnp.eye(n), f - wide @ z)
            features = space.at_new_inputs(u.layers, carried.extension, u.carried)
            values = product(features, theta.astype(features.dtype))
            return Prediction(values, values, jnp.zeros(values.shape[0], values.dtype))

    return dataclasses.replace(
        right, log_likelihood=log_likelihood, sample_reference=sample_reference, predict=predict, in_double=None
    )
