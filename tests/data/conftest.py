"""What every data set has in common."""

import warnings

import numpy as np
import pytest


@pytest.fixture
def check_shapes():
    def check(data, n_train, n_test, inputs, outputs):
        assert data.x_train.shape == (n_train, inputs) and data.x_test.shape == (n_test, inputs)
        assert data.y_train.shape == (n_train, outputs) and data.y_test.shape == (n_test, outputs)
        assert data.y_mean.shape == data.y_scale.shape == (outputs,)
        assert {a.dtype for a in (data.x_train, data.x_test, data.y_train, data.y_test)} == {np.dtype(np.float64)}

    return check


@pytest.fixture
def write(tmp_path):
    def write(content, name="table.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture
def noted():
    """Calls a function and returns its result and the texts of its warnings."""

    def call(function, *arguments, **options):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = function(*arguments, **options)
        return result, [str(one.message) for one in caught]

    return call
