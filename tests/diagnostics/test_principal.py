"""Principal components from random projections, against those of the iterates themselves."""

import numpy as np
import pytest

from widebnn.diagnostics.principal import principal_traces


def test_traces_are_those_of_the_iterates():
    """Two strong directions in 5000 dimensions, seen through 100 random projections."""
    rng = np.random.default_rng(0)
    time = np.linspace(0, 1, 300)
    slow = np.stack([40 * np.cos(3 * time), 20 * np.sin(9 * time)], axis=1)
    basis = np.linalg.qr(rng.normal(size=(5000, 2)))[0].T
    iterates = slow @ basis + 0.02 * rng.normal(size=(300, 5000))
    centred = iterates - iterates.mean(axis=0)
    left, singular, _ = np.linalg.svd(centred, full_matrices=False)
    exact = left[:, :2] * singular[:2]
    found = principal_traces(iterates @ rng.normal(size=(5000, 100)))
    for component in range(2):
        correlation = np.corrcoef(found.traces[:, component], exact[:, component])[0, 1]
        assert abs(correlation) > 0.99
        np.testing.assert_allclose(found.traces[:, component].std(), exact[:, component].std(), rtol=0.3)
    np.testing.assert_allclose(found.shares, singular[:2] ** 2 / np.sum(singular**2), atol=0.1)
    assert (found.traces[0] >= 0).all()


@pytest.mark.parametrize(
    "projections", [np.ones((10, 4)), np.full((10, 4), np.nan), np.zeros((1, 4)), np.zeros((0, 4))]
)
def test_what_has_no_components_is_nan(projections):
    with pytest.warns(UserWarning, match="at least two finite draws"):
        found = principal_traces(projections, 3)
    assert found.traces.shape == (len(projections), 3)
    assert np.isnan(found.traces).all()
