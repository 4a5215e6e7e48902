"""CIFAR-10 and MNIST from files like the official ones, only smaller."""

import gzip
import hashlib
import tracemalloc

import numpy as np
import pytest

from widebnn.data import images, load_dataset
from widebnn.data.images import CIFAR10_FOLDER, FIRST, MNIST_FILES, OFFICIAL, RECORD, load_cifar10, tfds_order
from widebnn.errors import WidebnnError

SMALL = 3  # images in each official file here, instead of 10 000
NAMES = OFFICIAL


def make_records(rows, seed):
    """CIFAR-10 records: a label and 3072 pixels in each row."""
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.integers(0, 10, rows), rng.integers(0, 256, (rows, RECORD - 1))]).astype(np.uint8)


@pytest.fixture
def official(tmp_path, monkeypatch):
    """Six official files, and the training and test records in file order."""
    monkeypatch.setattr(images, "PER_FILE", SMALL)
    train, test = make_records(5 * SMALL, seed=1), make_records(SMALL, seed=2)
    for name, records in zip(NAMES, [*np.split(train, 5), test], strict=True):
        records.tofile(tmp_path / name)
    return tmp_path, train, test


@pytest.fixture
def first(tmp_path):
    """The two files that are in TensorFlow Datasets' order."""
    train, test = make_records(7, seed=3), make_records(4, seed=4)
    train.tofile(tmp_path / FIRST[0])
    test.tofile(tmp_path / FIRST[1])
    return tmp_path, train, test


def check_cifar(data, train, test):
    pixels = train[:, 1:].astype(np.float64)
    np.testing.assert_array_equal(data.labels_train, train[:, 0])
    np.testing.assert_array_equal(data.labels_test, test[:, 0])
    np.testing.assert_allclose(data.x_train, (pixels - pixels.mean()) / pixels.std(), atol=1e-12)
    np.testing.assert_allclose(data.x_test, (test[:, 1:] - pixels.mean()) / pixels.std(), atol=1e-12)
    np.testing.assert_allclose(data.y_train, np.eye(10)[train[:, 0]] - 0.1, atol=1e-15)
    assert data.class_names[0] == "airplane" and len(data.class_names) == 10


# TensorFlow Datasets' order


def test_order_of_the_whole_splits_is_pinned():
    # TensorFlow Datasets names its first training example train_16399.
    np.testing.assert_array_equal(tfds_order("train", 50_000)[:4], [16399, 1680, 47917, 17307])
    np.testing.assert_array_equal(tfds_order("test", 10_000)[:4], [9933, 5669, 163, 6686])
    assert sorted(tfds_order("test", 10_000)) == list(range(10_000))


@pytest.mark.parametrize(
    ("split", "count", "name", "known"),
    [
        ("train", 50_000, FIRST[0], "699411278347729993264366263540"),
        ("test", 10_000, FIRST[1], "388066163109579857867049524096"),
    ],
)
def test_order_agrees_with_the_first_labels_of_the_official_files(shared_data, split, count, name, known):
    labels = np.fromfile(shared_data / "cifar10" / name, np.uint8)[::RECORD]
    seen = [(label, int(known[i])) for i, label in zip(tfds_order(split, count), labels, strict=False) if i < 30]
    assert seen and all(label == expected for label, expected in seen)


@pytest.mark.parametrize(("n_train", "n_test"), [(2, 1), (10, 2), (15, 0), (None, None)])
def test_official_files_come_in_the_order_of_the_paper(official, check_shapes, n_train, n_test):
    folder, train, test = official
    data = load_dataset("cifar10", n_train, n_test, data_dir=folder)
    check_shapes(data, 15 if n_train is None else n_train, 3 if n_test is None else n_test, 3072, 10)
    check_cifar(data, train[tfds_order("train", 15)][:n_train], test[tfds_order("test", 3)][:n_test])


@pytest.mark.parametrize(("n_train", "n_test"), [(5, 3), (None, None)])
def test_the_first_files_come_as_they_are(first, n_train, n_test):
    folder, train, test = first
    check_cifar(load_dataset("cifar10", n_train, n_test, data_dir=str(folder)), train[:n_train], test[:n_test])


def test_official_files_win_also_in_the_folder_of_the_archive(official, first):
    folder, train, test = official
    for _ in range(2):
        check_cifar(load_cifar10(folder, None, None), train[tfds_order("train", 15)], test[tfds_order("test", 3)])
        (folder / CIFAR10_FOLDER).mkdir(exist_ok=True)
        for path in folder.glob("*_batch*.bin"):
            path.rename(folder / CIFAR10_FOLDER / path.name)


def test_pixels_are_channel_by_channel_and_real(shared_data, check_shapes):
    folder = shared_data / "cifar10"
    manifest = dict(line.split()[::-1] for line in (shared_data / "MANIFEST.sha256").read_text().splitlines())
    for path in folder.glob("tfds_*.bin"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == manifest[f"cifar10/{path.name}"], path
    data = load_dataset("cifar10", 256, 128, data_dir=folder)
    check_shapes(data, 256, 128, 3072, 10)
    np.testing.assert_allclose([data.x_train.mean(), data.x_train.std()], [0, 1], atol=1e-12)
    assert 0.8 < data.x_test.std() < 1.2 and set(data.labels_train) == set(range(10))
    assert data.class_names[data.labels_train[0]] == "horse"  # train_16399
    # Neighbouring pixels of natural images are alike, which they are not under a wrong layout.
    assert np.abs(np.diff(data.x_train.reshape(256, 3, 32, 32), axis=3)).mean() < 0.3
    with pytest.raises(WidebnnError, match="has 4096 training and 1024 test rows, too few for n_train=4097"):
        load_dataset("cifar10", 4097, 1, data_dir=folder)


# refusals


@pytest.mark.parametrize(
    ("name", "wanted"), [("cifar10", r"data_batch_1\.bin.*tfds_train_first4096\.bin"), ("mnist", "train-images-idx3")]
)
def test_a_folder_is_needed(tmp_path, name, wanted):
    with pytest.raises(WidebnnError, match=rf"{name} needs data_dir, a folder with .*{wanted}"):
        load_dataset(name, 2, 2)
    with pytest.raises(WidebnnError, match=rf"there is no folder .*nowhere; set data_dir to a folder with .*{wanted}"):
        load_dataset(name, 2, 2, data_dir=tmp_path / "nowhere")
    with pytest.raises(WidebnnError, match=rf"(has no CIFAR|lacks train).*; .*set data_dir.*download {name}"):
        load_dataset(name, 2, 2, data_dir=tmp_path)


@pytest.mark.parametrize("name", [NAMES[0], NAMES[3], NAMES[-1]])
def test_the_missing_official_file_is_named(official, name):
    (official[0] / name).unlink()
    with pytest.raises(WidebnnError, match=rf"lacks {name}; copy it there"):
        load_dataset("cifar10", 2, 2, data_dir=official[0])


@pytest.mark.parametrize("size", [0, 1, RECORD, 2 * RECORD - 1])
def test_a_truncated_or_corrupted_file_is_refused(official, size):
    """With an image less, all that follow would have another place in the order."""
    path = official[0] / "data_batch_2.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    with pytest.raises(WidebnnError, match=rf"{path.name} has {size} bytes, expected 3 records of 3073: .*fetch it"):
        load_dataset("cifar10", 2, 0, data_dir=official[0])
    path.write_bytes(whole[:RECORD] + b"\x4d" + whole[RECORD + 1 :])
    with pytest.raises(WidebnnError, match=rf"{path.name} has label 77, expected 0 to 9: it is corrupted"):
        load_dataset("cifar10", 2, 0, data_dir=official[0])


# MNIST


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture(params=["plain", "gz"])
def mnist(request, tmp_path):
    """The four files, small, and their arrays; ``put`` writes one of them."""
    rng = np.random.default_rng(0)
    rows = {name: 20 if name.startswith("train") else 7 for name in MNIST_FILES}
    arrays = {
        name: rng.integers(0, 256, (n, 28, 28)) if "images" in name else rng.integers(0, 10, n)
        for name, n in rows.items()
    }

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
    x_train, y_train, x_test, y_test = arrays.values()
    data = load_dataset("mnist", n_train, n_test, data_dir=folder)
    check_shapes(data, 20 if n_train is None else n_train, 7 if n_test is None else n_test, 784, 10)
    pixels = x_train[:n_train].reshape(-1, 784).astype(float)
    np.testing.assert_allclose(data.x_train, (pixels - pixels.mean()) / pixels.std(), atol=1e-12)
    test = x_test[:n_test].reshape(-1, 784)
    np.testing.assert_allclose(data.x_test, (test - pixels.mean()) / pixels.std(), atol=1e-12)
    np.testing.assert_array_equal(data.labels_train, y_train[:n_train])
    np.testing.assert_array_equal(data.labels_test, y_test[:n_test])
    assert data.class_names == tuple("0123456789") and data.name == "mnist"


def test_plain_and_gzipped_files_may_be_mixed_and_a_missing_one_is_named(mnist):
    folder, arrays, _ = mnist
    (folder / f"{MNIST_FILES[2]}.gz").unlink(missing_ok=True)
    (folder / MNIST_FILES[2]).write_bytes(idx(arrays[MNIST_FILES[2]]))
    assert len(load_dataset("mnist", data_dir=str(folder)).x_test) == 7
    (folder / MNIST_FILES[2]).unlink()
    with pytest.raises(WidebnnError, match=r"lacks t10k-images-idx3-ubyte or t10k-images-idx3-ubyte\.gz; copy it"):
        load_dataset("mnist", 1, 1, data_dir=folder)


IMAGES = idx(np.zeros((20, 28, 28)))
BAD_IMAGES = {
    "empty": b"",
    "short header": IMAGES[:9],
    "labels": idx(np.zeros(20)),
    "other shape": idx(np.zeros((20, 28, 27))),
    "other type": bytes([0, 0, 9]) + IMAGES[3:],
    "no images": idx(np.zeros((0, 28, 28))),
    "huge count": IMAGES[:4] + b"\xff" * 4 + IMAGES[8:],
    "large count": IMAGES[:4] + (60_000).to_bytes(4, "big") + IMAGES[8:],
    "longer": IMAGES + b"x",
    "much longer": IMAGES,  # than the memory, see the test
}


@pytest.mark.parametrize("case", BAD_IMAGES)
def test_bad_images_are_refused_without_taking_memory(mnist, case):
    folder, _, put = mnist
    put(MNIST_FILES[0], BAD_IMAGES[case] + bytes(300_000_000 if case == "much longer" else 0))
    tracemalloc.start()
    try:
        with pytest.raises(WidebnnError, match=r"train-images-idx3-ubyte\S* must be an IDX file of items of shape"):
            load_dataset("mnist", 1, 1, data_dir=folder)
        assert tracemalloc.get_traced_memory()[1] < 250_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("labels", "message"),
    [(np.arange(6), r"\[20, 7\] images and \[20, 6\] labels"), ([3, 10] + 5 * [0], "labels up to 10")],
)
def test_images_and_labels_must_agree(mnist, labels, message):
    folder, _, put = mnist
    put(MNIST_FILES[3], idx(np.array(labels)))
    with pytest.raises(WidebnnError, match=rf"as many images as labels from 0 to 9, got .*{message}.*: fetch them"):
        load_dataset("mnist", 1, 1, data_dir=folder)


@pytest.mark.parametrize("damage", [lambda whole: whole[:-20], lambda whole: whole[:30] + b"xx" + whole[32:]])
def test_damaged_archives_are_refused(mnist, damage):
    folder, arrays, _ = mnist
    path = folder / f"{MNIST_FILES[0]}.gz"
    path.write_bytes(damage(gzip.compress(idx(arrays[MNIST_FILES[0]]))))
    (folder / MNIST_FILES[0]).unlink(missing_ok=True)
    with pytest.raises(WidebnnError, match=r"train-images-idx3-ubyte.gz cannot be read \(.*\); check its permissions"):
        load_dataset("mnist", 1, 1, data_dir=folder)
