"""Small CIFAR-10 files in each layout, and what every data set has in common."""

import numpy as np
import pytest

from widebnn.data import cifar10, downloads

RECORD = 3073
SMALL = 3  # images in each official file here, instead of 10 000


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

    def make(rows, seed):
        rng = np.random.default_rng(seed)
        return np.column_stack([rng.integers(0, 10, rows), rng.integers(0, 256, (rows, RECORD - 1))]).astype(np.uint8)

    return make


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
    """A batch of the Python version, instruction by instruction as Python 2 wrote them (protocol 2)."""

    def text(content):
        return b"T" + len(content).to_bytes(4, "little") + content

    def items(values):
        return b"](" + b"".join(values) + b"e"

    def make(records, *, labels=None, array=None, dtype=b"U\x02u1", order=b"\x89", shape=None, content=None, extra=b""):
        rows, pixels = len(records), records[:, 1:]
        if labels is None:
            labels = items(b"K" + bytes([label]) for label in records[:, 0])
        if shape is None:
            shape = b"M" + rows.to_bytes(2, "little") + b"M\x00\x0c\x86"
        if content is None:
            content = text(pixels.tobytes("F" if order == b"\x88" else "C"))
        if array is None:
            array = (
                b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09(K\x01"
                + shape
                + b"cnumpy\ndtype\nq\x0a"
                + dtype
                + b"K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
                + order
                + content
                + b"tb"
            )
        names = items(b"U\x05a.pngr\x00\x01\x00\x00" for _ in range(rows))
        return (
            b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03"
            + (b"U\x06labelsq\x04" + labels + b"U\x04dataq\x06" + array)
            + (b"U\x09filenamesq\x0c" + names + extra + b"u.")
        )

    return make
