"""Products in blocks are the products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widebnn.linalg import lower_gram, lower_product


@pytest.mark.parametrize(("rows", "columns"), [(5, 5), (300, 300), (300, 200), (520, 7)])
def test_lower_product_and_its_gradient(rows, columns):
    """Also for a factor with fewer columns than rows, which dependent inputs give."""
    rng = np.random.default_rng(0)
    factor, a = jnp.asarray(np.tril(rng.normal(size=(rows, columns)))), jnp.asarray(rng.normal(size=(columns, 6)))
    np.testing.assert_allclose(lower_product(factor, a), factor @ a, atol=1e-12)

    def total(multiply, a):
        return jnp.sum(jnp.sin(multiply(factor, a)))

    ours, plain = (jax.grad(lambda a, m=m: total(m, a))(a) for m in (lower_product, jnp.matmul))
    np.testing.assert_allclose(ours, plain, atol=1e-12)


@pytest.mark.parametrize("rows", [5, 300, 600])
def test_lower_gram(rows):
    a = jnp.asarray(np.random.default_rng(1).normal(size=(rows, 9)))
    np.testing.assert_allclose(np.tril(lower_gram(a)), np.tril(a @ a.T), atol=1e-12)
