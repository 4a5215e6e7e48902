"""The yardstick of the step benchmark is a correct sampler: slow, but of the right posterior."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import published_recipe
import widebnn
from problems import NOISE, small_data, small_target


def problem(widths):
    x, y = small_data()
    setting = published_recipe.Setting(jnp.asarray(x), jnp.asarray(y), noise=NOISE)
    target = small_target("reparametrised", widths=widths)
    positions = [target.sample_reference(key) for key in jax.random.split(jax.random.key(1), 8)]
    return setting, target, positions


@pytest.mark.some(1)
@pytest.mark.parametrize("widths", [(4,), (12,), (6, 5)], ids=str)
def test_log_density_is_that_of_the_reparametrised_target(widths):
    setting, target, positions = problem(widths)
    recipe = published_recipe.pcn_recipe(setting, 0.3)
    assert published_recipe.disagreement(recipe.log_density, target.log_likelihood, positions) < 1e-10
    assert published_recipe.disagreement(recipe.log_density, lambda phi: 0.0, positions) > 1


def test_the_check_catches_a_missing_determinant():
    setting, target, positions = problem((4,))
    recipe = published_recipe.pcn_recipe(setting, 0.3)

    def faulty(phi):
        psi = published_recipe.features(setting, phi.hidden)
        precision = jnp.eye(psi.shape[1]) + psi.T @ psi / setting.noise**2
        return recipe.log_density(phi) + setting.y.shape[1] / 2 * jnp.linalg.slogdet(precision)[1]

    assert published_recipe.disagreement(faulty, target.log_likelihood, positions) > 0.1


def test_chain_decides_like_widebnn_pcn():
    setting, target, positions = problem((4,))
    steps, step_size = 500, 0.5
    recipe = published_recipe.pcn_recipe(setting, step_size)
    keys = jax.random.split(jax.random.key(2), steps)
    _, accepted = jax.lax.scan(
        lambda state, key: ((new := recipe.step(key, state)), new.accepted - state.accepted),
        recipe.init(positions[0]),
        keys,
    )
    algorithm = widebnn.samplers.pcn(target.log_likelihood, step_size)
    _, info = jax.lax.scan(lambda state, key: algorithm.step(key, state), algorithm.init(positions[0]), keys)
    # Same noise (one key split in the same way) and the same l: the two chains decide alike at every step.
    np.testing.assert_array_equal(accepted, info.is_accepted.astype(int))
    assert 0.05 < accepted.mean() < 0.95
