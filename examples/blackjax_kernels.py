"""BlackJAX's kernels on a widebnn posterior: NUTS with window adaptation, and elliptical slice sampling.

    python examples/blackjax_kernels.py

A widebnn target is a density against N(0, I), so the log-density that BlackJAX asks for is

    log_density(u) = target.log_likelihood(u) + log N(u; 0, I).

The position u is a pytree, which most of BlackJAX's kernels take as it is. Its draws become functions with
``target.predict``. All three samplers here must find the same posterior mean of the function.
"""

from __future__ import annotations

from typing import Any

import blackjax
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

import widebnn


def problem(width: int) -> tuple[widebnn.Target, np.ndarray]:
    """A network on 20 points of a sine, and the inputs at which its function is looked at."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(20, 1))
    y = np.sin(2 * x) + 0.2 * rng.normal(size=x.shape)
    network = widebnn.dense(1, [width], "erf", weight_std=2.0, bias_std=1.0)
    return widebnn.posterior(network, x, y, noise=0.2), np.linspace(-2, 2, 9)[:, None]


def run(algorithm: Any, state: Any, key: jax.Array, steps: int) -> Any:
    """The positions after each step of a BlackJAX kernel."""

    def one_step(state, key):
        state, _ = algorithm.step(key, state)
        return state, state.position

    return jax.jit(lambda state, key: jax.lax.scan(one_step, state, jax.random.split(key, steps))[1])(state, key)


def mean_function(target: Any, positions: Any, x: np.ndarray) -> np.ndarray:
    """The posterior mean of f(x): the mean given each position, averaged."""
    key = jax.random.key(0)  # what the positions leave open has a mean in closed form, so no draw matters
    means = jax.lax.map(lambda u: target.predict(key, u, jnp.asarray(x, jnp.float32)).mean, positions)
    return np.asarray(means.mean(axis=0)[:, 0])


def nuts(target: Any, key: jax.Array, steps: int, warmup: int) -> Any:
    """Step size and mass matrix are found in the warm-up."""

    def log_density(u):
        return target.log_likelihood(u) - 0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(u))

    start_key, warmup_key, run_key = jax.random.split(key, 3)
    adaptation = blackjax.window_adaptation(blackjax.nuts, log_density)
    (state, parameters), _ = adaptation.run(warmup_key, target.sample_reference(start_key), warmup)
    return run(blackjax.nuts(log_density, **parameters), state, run_key, steps)


def elliptical_slice(target: Any, key: jax.Array, steps: int, warmup: int) -> Any:
    """It wants a flat position, the log-likelihood alone, and the prior's mean and covariance."""
    start_key, run_key = jax.random.split(key)
    flat, unflatten = jax.flatten_util.ravel_pytree(target.sample_reference(start_key))
    kernel = blackjax.elliptical_slice(
        lambda v: target.log_likelihood(unflatten(v)), mean=jnp.zeros_like(flat), cov=jnp.ones_like(flat)
    )
    return jax.vmap(unflatten)(run(kernel, kernel.init(flat), run_key, warmup + steps)[warmup:])


def main(width: int = 32, steps: int = 400, warmup: int = 300) -> dict[str, np.ndarray]:
    """The posterior mean of the function by three samplers."""
    target, x = problem(width)
    ours = widebnn.sample(target, steps=steps, burn_in=warmup, collect=widebnn.track(target, x))
    means = {
        "widebnn, auto": ours.draws["mean_test"].mean(axis=(0, 1))[:, 0],
        "BlackJAX NUTS": mean_function(target, nuts(target, jax.random.key(1), steps, warmup), x),
        "BlackJAX elliptical slice": mean_function(
            target, elliptical_slice(target, jax.random.key(2), 10 * steps, warmup), x
        ),
    }
    print(f"{'x':27}", *(f"{value:6.2f}" for value in x[:, 0]))
    for name, mean in means.items():
        print(f"{name:27}", *(f"{value:6.2f}" for value in mean))
    return means


if __name__ == "__main__":
    main()
