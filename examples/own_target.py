"""Your own posterior with a Gaussian prior, sampled by kernels that do not mind its dimension.

    python examples/own_target.py

``widebnn.gaussian_target`` takes a log-likelihood and the prior's mean and scale or covariance. It whitens the prior,
x = mean + L u, so that pCN, Hilbert-space HMC and the other samplers see a density against N(0, I), which is all they
know about. Two problems: counts with an unknown rate, whose logarithm is a Gaussian process; and a classifier whose
latent variables are a dictionary and whose density is a potential function, as NumPyro hands it to its samplers.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import widebnn


def counts_target(size: int) -> tuple[Any, np.ndarray]:
    """Counts on a grid: y_i ~ Poisson(exp(f_i)), f a Gaussian process. Returns the target and the true f."""
    rng = np.random.default_rng(0)
    t = np.linspace(0, 1, size)
    covariance = np.exp(-0.5 * ((t[:, None] - t) / 0.1) ** 2) + 1e-6 * np.eye(size)
    truth = 1 + rng.multivariate_normal(np.zeros(size), covariance)
    counts = rng.poisson(np.exp(truth))

    def log_likelihood(f):
        return jnp.sum(counts * f - jnp.exp(f))

    return widebnn.gaussian_target(log_likelihood, mean=np.ones(size), covariance=covariance), truth


def classification_target(features: int) -> Any:
    """Logistic regression: latent variables in a dictionary, and a potential, minus log(prior x likelihood)."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(100, features))
    y = rng.uniform(size=100) < 1 / (1 + np.exp(-0.5 - 2 * x[:, 0]))
    mean = {"intercept": np.zeros(()), "slopes": np.zeros(features)}
    scale = {"intercept": 1.0, "slopes": 0.5}

    def potential(z):
        prior = sum(jnp.sum(((z[name] - mean[name]) / scale[name]) ** 2) / 2 for name in z)
        logits = z["intercept"] + x @ z["slopes"]
        return prior + jnp.sum(jnp.logaddexp(0, logits) - y * logits)

    # The potential has the prior in it, so widebnn is told to take it out again.
    return widebnn.gaussian_target(lambda z: -potential(z), mean, scale, includes_prior=True)


def main(size: int = 100, steps: int = 20_000) -> dict[str, np.ndarray]:
    """Posterior means: of the rate's logarithm by two samplers, and of the classifier's latent variables."""
    target, truth = counts_target(size)
    found = {"truth": truth}
    for sampler, count in {"pcn": steps, "hilbert_hmc": steps // 20}.items():
        # target.collect keeps x instead of u.
        result = widebnn.sample(target, sampler, steps=count, burn_in=count // 5, collect=target.collect)
        found[sampler] = result.draws["x"].mean(axis=(0, 1))
        print(f"{sampler}: acceptance {result.acceptance_rate:.2f}")
    print(f"largest difference of the two means: {np.abs(found['pcn'] - found['hilbert_hmc']).max():.2f}")
    print(f"root mean square error of the mean: {np.sqrt(np.mean((found['pcn'] - truth) ** 2)):.2f}")
    target = classification_target(features=20)
    result = widebnn.sample(target, "elliptical_slice", steps=steps, burn_in=steps // 10, collect=target.collect)
    for name, draws in result.draws.items():
        found[name] = draws.mean(axis=(0, 1))
    print(f"intercept {found['intercept']:.2f}, first slopes {np.round(found['slopes'][:3], 2)}")
    return found


if __name__ == "__main__":
    main()
