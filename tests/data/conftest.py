"""Small CIFAR-10 files in each layout, and what every data set has in common."""

import numpy as np
import pytest

import hostile_archives
from widebnn.data import cifar10, downloads

SMALL = hostile_archives.ROWS  # images in each official file here, instead of 10 000


@pytest.fixture
def check_shapes():
    def check(data, n_train, n_test, inputs, outputs):
        assert data.x_train.shape == (n_train, inputs) and data.x_test.shape == (n_test, inputs)
        assert data.y_train.shape == (n_train, outputs) and data.y_test.shape == (n_test, outputs)
        assert data.y_mean.shape == data.y_scale.shape == (outputs,)
        assert {a.dtype for a in (data.x_train, data.x_test, data.y_train, data.y_test)} == {np.dtype(np.float64)}

    return check


@pytest.fixture
def make_records():
    """CIFAR-10 records: a label and 3072 pixels in each row."""
    return hostile_archives.records


@pytest.fixture
def small(monkeypatch):
    for module in (cifar10, downloads):
        monkeypatch.setattr(module, "PER_FILE", SMALL)


@pytest.fixture
def official(tmp_path, make_records, small):
    """Six official binary files, and the training and test records in file order."""
    train, test = make_records(5 * SMALL, seed=1), make_records(SMALL, seed=2)
    for i, name in enumerate(cifar10.BINARY.train):
        train[SMALL * i : SMALL * (i + 1)].tofile(tmp_path / name)
    test.tofile(tmp_path / "test_batch.bin")
    return tmp_path, train, test


@pytest.fixture
def make_batch():
    """A batch of the Python version."""
    return hostile_archives.batch
