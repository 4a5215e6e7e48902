import hashlib

import numpy as np
import pytest

from widebnn.data import load_dataset
from widebnn.data.cifar10 import BINARY, PYTHON, load_cifar10, tfds_order
from widebnn.errors import WidebnnError

RECORD = 3073
OFFICIAL = [*BINARY.train, *BINARY.test]


@pytest.fixture
def first(tmp_path, make_records):
    """The two files that are in TensorFlow Datasets' order."""
    train, test = make_records(7, seed=3), make_records(4, seed=4)
    train.tofile(tmp_path / "tfds_train_first4096.bin")
    test.tofile(tmp_path / "tfds_test_first1024.bin")
    return tmp_path, train, test


def check_cifar(data, train, test):
    pixels = train[:, 1:].astype(np.float64)
    np.testing.assert_array_equal(data.labels_train, train[:, 0])
    np.testing.assert_array_equal(data.labels_test, test[:, 0])
    np.testing.assert_allclose(data.x_train, (pixels - pixels.mean()) / pixels.std(), atol=1e-12)
    np.testing.assert_allclose(data.x_test, (test[:, 1:] - pixels.mean()) / pixels.std(), atol=1e-12)
    np.testing.assert_allclose(data.y_train, np.eye(10)[train[:, 0]] - 0.1, atol=1e-15)
    assert data.class_names[0] == "airplane" and data.n_classes == 10


# TensorFlow Datasets' order


def hash_of(split, index):
    digest = hashlib.md5(split.encode())
    digest.update(str(index).encode())
    return int(digest.hexdigest(), 16)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("count", [1, 2, 15, 1000])
def test_order_sorts_by_the_hash_of_split_and_index(split, count):
    order = tfds_order(split, count)
    assert order.dtype == np.int64 and sorted(order) == list(range(count))
    hashes = [hash_of(split, i) for i in order]
    assert hashes == sorted(hashes)


def test_order_of_the_whole_splits_is_pinned():
    # TensorFlow Datasets names its first training example train_16399.
    np.testing.assert_array_equal(tfds_order("train", 50_000)[:4], [16399, 1680, 47917, 17307])
    np.testing.assert_array_equal(tfds_order("test", 10_000)[:4], [9933, 5669, 163, 6686])
    assert tfds_order("test", 0).shape == (0,)


@pytest.mark.parametrize(
    ("split", "count", "name", "known"),
    [
        ("train", 50_000, "tfds_train_first4096.bin", "699411278347729993264366263540"),
        ("test", 10_000, "tfds_test_first1024.bin", "388066163109579857867049524096"),
    ],
)
def test_order_agrees_with_the_first_labels_of_the_official_files(shared_data, split, count, name, known):
    path = shared_data / "cifar10" / name
    if not path.exists():
        pytest.skip(f"there is no {path}")
    labels = np.fromfile(path, np.uint8)[::RECORD]
    seen = [(label, int(known[i])) for i, label in zip(tfds_order(split, count), labels, strict=False) if i < 30]
    assert seen and all(label == expected for label, expected in seen)


@pytest.mark.parametrize(
    ("split", "count", "message"),
    [("validation", 3, "split must be one of train, test"), ("train", -1, "count must be at least 0")],
)
def test_order_refuses_other_arguments(split, count, message):
    with pytest.raises(WidebnnError, match=message):
        tfds_order(split, count)


def test_official_files_of_full_size_come_in_that_order(tmp_path, make_records):
    records = make_records(80, seed=5)
    places = {"train": tfds_order("train", 50_000)[:50], "test": tfds_order("test", 10_000)[:30]}
    for name in OFFICIAL:
        with (tmp_path / name).open("wb") as file:
            file.truncate(10_000 * RECORD)  # zeros that take no space
    for record, place in zip(records, [*places["train"], *places["test"] + 50_000], strict=True):
        with (tmp_path / OFFICIAL[place // 10_000]).open("r+b") as file:
            file.seek(place % 10_000 * RECORD)
            file.write(record.tobytes())
    check_cifar(load_dataset("cifar10", 50, 30, data_dir=tmp_path), records[:50], records[50:])


# layouts


COUNTS = [(2, 1), (3, 3), (10, 2), (15, 0), (None, None)]


@pytest.mark.parametrize(("n_train", "n_test"), COUNTS)
def test_official_files_come_in_either_order(official, check_shapes, n_train, n_test):
    folder, train, test = official
    data = load_dataset("cifar10", n_train, n_test, data_dir=folder)
    check_shapes(data, 15 if n_train is None else n_train, 3 if n_test is None else n_test, 3072, 10)
    check_cifar(data, train[tfds_order("train", 15)][:n_train], test[tfds_order("test", 3)][:n_test])
    data = load_cifar10(folder, n_train, n_test, order="file")
    check_cifar(data, train[:n_train], test[:n_test])


@pytest.mark.parametrize("order", ["tfds", "file"])
@pytest.mark.parametrize("fortran", [b"\x88", b"\x89"])
def test_the_python_version_is_the_binary_version(official, make_batch, fortran, order):
    folder, train, test = official
    expected = load_cifar10(folder, 11, 2, order=order)
    for i, name in enumerate(PYTHON.train):
        (folder / name).write_bytes(make_batch(train[3 * i : 3 * i + 3], order=fortran))
    (folder / "test_batch").write_bytes(make_batch(test, order=fortran))
    for name in OFFICIAL:
        (folder / name).unlink()
    data = load_cifar10(folder, 11, 2, order=order)
    for field in ("x_train", "x_test", "labels_train", "labels_test"):
        np.testing.assert_array_equal(getattr(data, field), getattr(expected, field))
    (folder / "data_batch_2").write_bytes(make_batch(np.full((3, RECORD), 10, np.uint8)))
    with pytest.raises(WidebnnError, match=r"data_batch_2 has label 10 in record \d, expected 0 to 9"):
        load_cifar10(folder)
    (folder / "data_batch_2").unlink()
    with pytest.raises(WidebnnError, match=r"lacks data_batch_2; copy it there"):
        load_cifar10(folder)


@pytest.mark.parametrize("layout", [BINARY, PYTHON])
def test_unpacked_archives_are_found_in_their_folder(official, make_batch, layout):
    folder, train, test = official
    place = folder / layout.folder
    place.mkdir()
    for i, name in enumerate(OFFICIAL):
        (folder / name).rename(place / name)
        if layout is PYTHON:
            (place / name).unlink()
            records = np.concatenate([train, test])[3 * i : 3 * i + 3]
            (place / name.removesuffix(".bin")).write_bytes(make_batch(records))
    check_cifar(load_cifar10(folder, 15, 3, order="file"), train, test)


@pytest.mark.parametrize("order", ["tfds", "file"])
@pytest.mark.parametrize(("n_train", "n_test"), [(5, 3), (None, None)])
def test_the_first_files_come_as_they_are(first, n_train, n_test, order):
    folder, train, test = first
    check_cifar(load_dataset("cifar10", n_train, n_test, data_dir=str(folder)), train[:n_train], test[:n_test])
    check_cifar(load_cifar10(folder, n_train, n_test, order=order), train[:n_train], test[:n_test])


def test_official_files_win(official, first):
    folder, train, test = official
    check_cifar(load_cifar10(folder, order="file"), train, test)


def test_labels_of_unused_records_do_not_matter(first):
    folder, train, test = first
    train[5, 0] = 77
    train.tofile(folder / "tfds_train_first4096.bin")
    check_cifar(load_dataset("cifar10", 5, 2, data_dir=folder), train[:5], test[:2])
    with pytest.raises(WidebnnError, match=r"tfds_train_first4096\.bin has label 77 in record 5, expected 0 to 9"):
        load_dataset("cifar10", 6, 2, data_dir=folder)


# refusals


def test_a_folder_is_needed(tmp_path):
    with pytest.raises(WidebnnError, match=r"cifar10 needs data_dir, .*data_batch_1\.bin.*tfds_train_first4096\.bin"):
        load_dataset("cifar10", 2, 2)
    with pytest.raises(WidebnnError, match=r"there is no folder .*nowhere; set data_dir to .*data_batch_1\.bin"):
        load_dataset("cifar10", 2, 2, data_dir=tmp_path / "nowhere")
    with pytest.raises(WidebnnError, match=r"has no CIFAR-10 file; set data_dir to .*download\('cifar10', data_dir\)"):
        load_dataset("cifar10", 2, 2, data_dir=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"order": "random"}, "order must be one of tfds, file; got 'random'"),
        ({"n_train": 0}, "n_train must be at least 1"),
        ({"n_test": -1}, "n_test must be at least 0"),
    ],
)
def test_bad_arguments_are_refused(official, arguments, message):
    with pytest.raises(WidebnnError, match=message):
        load_cifar10(official[0], **arguments)


@pytest.mark.parametrize("name", OFFICIAL)
def test_the_missing_official_file_is_named(official, name):
    (official[0] / name).unlink()
    with pytest.raises(WidebnnError, match=rf"lacks {name}; copy it there"):
        load_dataset("cifar10", 2, 2, data_dir=official[0])


@pytest.mark.parametrize("name", ["tfds_train_first4096.bin", "tfds_test_first1024.bin"])
def test_the_missing_first_file_is_named(first, name):
    (first[0] / name).unlink()
    with pytest.raises(WidebnnError, match=rf"lacks {name}; copy it there"):
        load_dataset("cifar10", 2, 2, data_dir=first[0])


@pytest.mark.parametrize("size", [0, 1, RECORD - 1, 3 * RECORD - 1])
def test_a_truncated_file_is_refused(first, size):
    path = first[0] / "tfds_test_first1024.bin"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(WidebnnError, match=rf"{path.name} has {size} bytes, not a positive multiple of 3073.*fetch it"):
        load_dataset("cifar10", 2, 0, data_dir=first[0])


@pytest.mark.parametrize("size", [0, 3 * RECORD - 1])
def test_a_truncated_official_file_is_refused(official, size):
    path = official[0] / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(WidebnnError, match=rf"data_batch_2\.bin has {size} bytes, not a positive multiple.*fetch it"):
        load_dataset("cifar10", 2, 0, data_dir=official[0])


def test_official_files_that_lack_images_come_in_file_order(official):
    """With an image less, all that follow would have another index and so another place in the order."""
    folder, train, _ = official
    path = folder / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:RECORD])
    with pytest.warns(UserWarning, match="hold 13 images, not all: taken in file order"):
        data = load_dataset("cifar10", 5, 0, data_dir=folder)
    np.testing.assert_array_equal(data.labels_train, train[[0, 1, 2, 3, 6], 0])


def test_more_rows_than_there_are_are_refused(official):
    with pytest.raises(WidebnnError, match=r"data_batch_1\.bin to data_batch_5\.bin in .* 15 rows, .*n_train=16"):
        load_dataset("cifar10", 16, 2, data_dir=official[0])
    with pytest.raises(WidebnnError, match=r"test_batch\.bin in .* has 3 rows, too few for n_test=4"):
        load_dataset("cifar10", 2, 4, data_dir=official[0])


def test_pixels_are_channel_by_channel_and_real(shared_data, check_shapes):
    folder = shared_data / "cifar10"
    files = sorted(folder.glob("tfds_*.bin"))
    if not files:
        pytest.skip(f"no tfds_*.bin files in {folder}")
    manifest = dict(line.split()[::-1] for line in (shared_data / "MANIFEST.sha256").read_text().splitlines())
    for path in files:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == manifest[f"cifar10/{path.name}"], path

    data = load_dataset("cifar10", 256, 128, data_dir=folder)
    check_shapes(data, 256, 128, 3072, 10)
    np.testing.assert_allclose([data.x_train.mean(), data.x_train.std()], [0, 1], atol=1e-12)
    assert 0.8 < data.x_test.std() < 1.2
    assert set(data.labels_train) == set(range(10))
    assert data.class_names[data.labels_train[0]] == "horse"  # train_16399
    # Neighbouring pixels of natural images are alike, which they are not under a wrong layout.
    planes = data.x_train.reshape(256, 3, 32, 32)
    assert np.abs(np.diff(planes, axis=3)).mean() < 0.3
    with pytest.raises(WidebnnError, match="4096 rows, too few for n_train=4097"):
        load_dataset("cifar10", 4097, 1, data_dir=folder)
