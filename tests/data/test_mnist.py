import gzip
import tracemalloc

import numpy as np
import pytest

from widebnn.data import load_dataset
from widebnn.data.mnist import FILES
from widebnn.errors import WidebnnError

TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = FILES


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture(params=["plain", "gz"])
def mnist(request, tmp_path):
    """The four files, small, and their arrays; ``put`` writes one of them."""
    rng = np.random.default_rng(0)
    arrays = {}
    for images, labels, rows in ((TRAIN_IMAGES, TRAIN_LABELS, 20), (TEST_IMAGES, TEST_LABELS, 7)):
        arrays[images] = rng.integers(0, 256, (rows, 28, 28), dtype=np.uint8)
        arrays[labels] = rng.integers(0, 10, rows, dtype=np.uint8)

    def put(name, content):
        if request.param == "gz":
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content, 1))
        else:
            (tmp_path / name).write_bytes(content)

    for name, array in arrays.items():
        put(name, idx(array))
    return tmp_path, arrays, put


@pytest.mark.parametrize(("n_train", "n_test"), [(5, 3), (20, 0), (None, None)])
def test_images_come_in_file_order(mnist, check_shapes, n_train, n_test):
    folder, arrays, _ = mnist
    data = load_dataset("mnist", n_train, n_test, data_dir=folder)
    check_shapes(data, 20 if n_train is None else n_train, 7 if n_test is None else n_test, 784, 10)
    pixels = arrays[TRAIN_IMAGES][:n_train].reshape(-1, 784).astype(float)
    np.testing.assert_allclose(data.x_train, (pixels - pixels.mean()) / pixels.std(), atol=1e-12)
    test = arrays[TEST_IMAGES][:n_test].reshape(-1, 784)
    np.testing.assert_allclose(data.x_test, (test - pixels.mean()) / pixels.std(), atol=1e-12)
    np.testing.assert_array_equal(data.labels_train, arrays[TRAIN_LABELS][:n_train])
    np.testing.assert_array_equal(data.labels_test, arrays[TEST_LABELS][:n_test])
    assert data.class_names == tuple("0123456789") and data.name == "mnist"


def test_plain_and_gzipped_files_may_be_mixed(mnist):
    folder, arrays, _ = mnist
    (folder / f"{TEST_IMAGES}.gz").unlink(missing_ok=True)
    (folder / TEST_IMAGES).write_bytes(idx(arrays[TEST_IMAGES]))
    assert len(load_dataset("mnist", data_dir=str(folder)).x_test) == 7


def test_a_folder_is_needed(tmp_path):
    with pytest.raises(WidebnnError, match=r"mnist needs data_dir, a folder with train-images.*download\('mnist'"):
        load_dataset("mnist")
    with pytest.raises(WidebnnError, match=r"there is no folder .*nowhere; set data_dir to a folder with train-images"):
        load_dataset("mnist", data_dir=tmp_path / "nowhere")


@pytest.mark.parametrize("name", FILES)
def test_the_missing_file_is_named(mnist, name):
    (folder, _, _) = mnist
    for path in folder.glob(f"{name}*"):
        path.unlink()
    with pytest.raises(WidebnnError, match=rf"lacks {name} or {name}\.gz; copy it there"):
        load_dataset("mnist", 1, 1, data_dir=folder)


def test_more_rows_than_there_are_are_refused(mnist):
    with pytest.raises(WidebnnError, match=r"train-images-idx3-ubyte\S* has 20 rows, too few for n_train=21"):
        load_dataset("mnist", 21, data_dir=mnist[0])
    with pytest.raises(WidebnnError, match=r"t10k-images-idx3-ubyte\S* has 7 rows, too few for n_test=8"):
        load_dataset("mnist", 1, 8, data_dir=mnist[0])


IMAGES = idx(np.zeros((20, 28, 28)))
HUGE = bytes([0, 0, 8, 3]) + b"\xff\xff\xff\xff" + IMAGES[8:16]
BAD_IMAGES = {
    "empty": (b"", r"must start as an IDX file of 1 to 60000 items of shape \(28, 28\); it starts with nothing: fetch"),
    "short header": (IMAGES[:9], "must start as an IDX file"),
    "labels": (idx(np.zeros(20)), "must start as an IDX file"),
    "other shape": (idx(np.zeros((20, 28, 27))), "must start as an IDX file"),
    "other type": (bytes([0, 0, 9]) + IMAGES[3:], r"must start as an IDX file .*; it starts with 00 00 09 03"),
    "no images": (idx(np.zeros((0, 28, 28))), "must start as an IDX file"),
    "huge count": (HUGE + bytes(10_000), "must start as an IDX file"),
    "truncated": (IMAGES[:-1], "declares 15680 bytes and has 15679: it is damaged; fetch it again"),
    "longer": (IMAGES + b"\0", "declares 15680 bytes and has more"),
    "counts": (idx(np.zeros((19, 28, 28))), "has 19 images but .* has 20 labels; fetch both"),
}


@pytest.mark.parametrize("case", BAD_IMAGES)
def test_bad_images_are_refused(mnist, case):
    folder, _, put = mnist
    content, message = BAD_IMAGES[case]
    put(TRAIN_IMAGES, content)
    with pytest.raises(WidebnnError, match=rf"train-images-idx3-ubyte\S* {message}"):
        load_dataset("mnist", 1, 1, data_dir=folder)


def test_bad_labels_are_refused(mnist):
    folder, arrays, put = mnist
    arrays[TEST_LABELS][4] = 10
    put(TEST_LABELS, idx(arrays[TEST_LABELS]))
    with pytest.raises(WidebnnError, match=r"t10k-labels-idx1-ubyte\S* has label 10 at position 4, expected 0 to 9"):
        load_dataset("mnist", 1, 1, data_dir=folder)


@pytest.mark.parametrize("mnist", ["gz"], indirect=True)
def test_a_bomb_is_not_unpacked(mnist, monkeypatch):
    folder, _, put = mnist
    put(TRAIN_IMAGES, IMAGES + bytes(50_000_000))
    unpacked = []
    read = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda file, size=-1: unpacked.append(size) or read(file, size))
    with pytest.raises(WidebnnError, match="has more: it is damaged"):
        load_dataset("mnist", 1, 1, data_dir=folder)
    assert sum(unpacked) == 16 + 15_681


@pytest.mark.parametrize("mnist", ["gz"], indirect=True)
def test_damaged_gzip_is_refused(mnist):
    folder, _, _ = mnist
    path = folder / f"{TRAIN_LABELS}.gz"
    good = path.read_bytes()
    damaged = bytearray(good)
    damaged[12] ^= 0xFF
    for content in (b"not gzip", good[:-9], good[:12], bytes(damaged)):
        path.write_bytes(content)
        with pytest.raises(WidebnnError, match=r"train-labels-idx1-ubyte\.gz (cannot be read|must start|declares)"):
            load_dataset("mnist", 1, 1, data_dir=folder)


def test_memory_for_images_that_are_not_there_is_not_taken(mnist):
    folder, _, put = mnist
    put(TRAIN_IMAGES, IMAGES[:4] + (60_000).to_bytes(4, "big") + IMAGES[8:])
    tracemalloc.start()
    try:
        with pytest.raises(WidebnnError, match="declares 47040000 bytes and has 15680"):
            load_dataset("mnist", 1, 1, data_dir=folder)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
