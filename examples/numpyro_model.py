"""A NumPyro model, sampled by widebnn.

    python examples/numpyro_model.py

``numpyro.infer.util.log_density`` evaluates the log-density of a model, prior included, at a dictionary of latent
values; the means and scales of the prior are read off the model's own trace. Every latent site must be Normal (write
positive ones as exp of a Normal site). NumPyro's NUTS runs beside it, for comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import log_density

import widebnn


def model(x: Any, y: Any) -> None:
    """Logistic regression."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.0))
    slopes = numpyro.sample("slopes", dist.Normal(jnp.zeros(x.shape[1]), 0.5).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=intercept + x @ slopes), obs=y)


def target_of(model: Callable[..., None], *arguments: Any) -> Any:
    """A widebnn target of a NumPyro model whose latent sites are Normal with constant mean and scale."""
    trace = handlers.trace(handlers.seed(model, 0)).get_trace(*arguments)
    mean, scale = {}, {}
    for name, site in trace.items():
        if site["type"] == "sample" and not site["is_observed"]:
            normal = getattr(site["fn"], "base_dist", site["fn"])
            if not isinstance(normal, dist.Normal):
                raise TypeError(f"site {name} is {type(normal).__name__}; write it as a function of a Normal site")
            mean[name] = np.broadcast_to(np.asarray(normal.loc, np.float64), site["value"].shape)
            scale[name] = np.asarray(normal.scale)
    return widebnn.gaussian_target(lambda z: log_density(model, arguments, {}, z)[0], mean, scale, includes_prior=True)


def main(steps: int = 1000, warmup: int = 300) -> dict[str, dict[str, np.ndarray]]:
    """Posterior means by widebnn and by NumPyro."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(100, 20))
    y = rng.uniform(size=100) < 1 / (1 + np.exp(-0.5 - 2 * x[:, 0]))
    target = target_of(model, x, y)
    # Many cheap steps that need neither gradient nor step size, instead of a few long trajectories.
    result = widebnn.sample(target, "elliptical_slice", steps=20 * steps, burn_in=warmup, collect=target.collect)
    mcmc = MCMC(NUTS(model), num_warmup=warmup, num_samples=steps, progress_bar=False)
    mcmc.run(jax.random.key(0), x, y)
    means = {
        "widebnn": {name: draws.mean(axis=(0, 1)) for name, draws in result.draws.items()},
        "NumPyro": {name: np.asarray(draws.mean(axis=0)) for name, draws in mcmc.get_samples().items()},
    }
    for sampler, mean in means.items():
        print(f"{sampler}: intercept {mean['intercept']:.2f}, first slopes {np.round(mean['slopes'][:3], 2)}")
    return means


if __name__ == "__main__":
    main()
