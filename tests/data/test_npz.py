"""NumPy archives and scikit-learn's digits."""

import io
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from widebnn.data import load_dataset
from widebnn.errors import WidebnnError


@pytest.fixture
def save(tmp_path):
    def write(name="table.npz", **arrays):
        np.savez(tmp_path / name, **arrays)
        return tmp_path / name

    return write


def table(rows=20, columns=3):
    rng = np.random.default_rng(0)
    return 5.0 + 3.0 * rng.standard_normal((rows, columns)), rng.standard_normal(rows) * 7.0 - 2.0


# digits


def test_digits_are_globally_standardised_with_centred_one_hot_targets(check_shapes):
    data = load_dataset("digits", 256, 100)
    check_shapes(data, 256, 100, 64, 10)
    np.testing.assert_allclose([data.x_train.mean(), data.x_train.std()], [0, 1], atol=1e-12)
    # Global, not per pixel: the always empty corner is a constant but not zero.
    assert np.ptp(data.x_train[:, 0]) == 0 and data.x_train[0, 0] < -0.5
    np.testing.assert_array_equal(data.y_train.argmax(1), data.labels_train)
    np.testing.assert_allclose(data.y_test, (np.arange(10) == data.labels_test[:, None]) - 0.1, atol=1e-15)
    assert len(data.class_names) == 10 and data.class_names[3] == "3"
    np.testing.assert_array_equal(data.to_original_units(data.y_test), data.y_test)


def test_digits_use_every_image_once_and_only_training_statistics():
    data = load_dataset("digits", 1000, 797)
    pixels, labels = load_digits(return_X_y=True)
    every = np.concatenate([data.x_train, data.x_test])
    restored = np.searchsorted(np.unique(every), every)  # 17 grey levels survive an affine map
    seen = np.column_stack([restored, np.concatenate([data.labels_train, data.labels_test])])
    original = np.column_stack([pixels, labels]).astype(int)
    np.testing.assert_array_equal(seen[np.lexsort(seen.T)], original[np.lexsort(original.T)])
    train = restored[:1000]
    np.testing.assert_allclose(data.x_test, (restored[1000:] - train.mean()) / train.std(), atol=1e-12)


def test_digits_shuffle_is_fixed_by_the_seed():
    first, again, other = (load_dataset("digits", 50, 5, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.x_train, again.x_train)
    assert not np.array_equal(first.labels_train, other.labels_train)
    # Test rows follow the training rows in the same order, and the order does not depend on the counts.
    longer = load_dataset("digits", 55, 5)
    np.testing.assert_array_equal(longer.labels_train, np.concatenate([first.labels_train, first.labels_test]))
    # Pinned: published numbers depend on it.
    np.testing.assert_array_equal(first.labels_train[:8], [0, 6, 3, 8, 1, 8, 4, 1])


@pytest.mark.parametrize(
    ("n_train", "n_test", "expected"),
    [
        (None, None, (1438, 359)),
        (1000, None, (1000, 797)),
        (None, 97, (1700, 97)),
        (1797, None, (1797, 0)),
        (5, 0, (5, 0)),
        (1700, 98, None),
        (1798, None, None),
        (None, 1797, None),
    ],
)
def test_missing_counts_mean_the_rows_that_are_left_and_too_many_are_refused(n_train, n_test, expected):
    if expected:
        data = load_dataset("digits", n_train, n_test)
        assert (len(data.x_train), len(data.x_test)) == expected
    else:
        with pytest.raises(WidebnnError, match=r"has 1797 rows, too few for n_train=\d+ .*; ask for 1797 at most"):
            load_dataset("digits", n_train, n_test)


# arguments


LISTED = r"one of digits, cifar10, mnist, PATH\.npz, PATH\.csv; got"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table.txt"], LISTED),
        ([""], LISTED),
        ([None], LISTED),
        (["cifar-10"], f"{LISTED}.* Did you mean 'cifar10'"),
        (["digits", 0], "n_train must be at least 1"),
        (["digits", 5, -1], "n_test must be at least 0"),
        (["digits", 2.5], "n_train must be a whole number"),
        (["digits", 5, True], "n_test must be a whole number"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(WidebnnError, match=message):
        load_dataset(*arguments)
    with pytest.raises(WidebnnError, match="seed must be at least 0"):
        load_dataset("digits", seed=-1)


# NPZ


def test_regression_is_standardised_by_training_rows(save, check_shapes):
    x, y = table()
    data = load_dataset(save(x=x, y=np.column_stack([y, 100 * y])), 12, 5)
    check_shapes(data, 12, 5, 3, 2)
    np.testing.assert_allclose(data.x_train.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(data.x_train.std(0), 1, atol=1e-12)
    np.testing.assert_allclose(data.x_test, (x[12:17] - x[:12].mean(0)) / x[:12].std(0), atol=1e-12)
    np.testing.assert_allclose([data.y_train.mean(), data.y_train.std()], [0, 1], atol=1e-12)
    draws = np.stack([data.y_test, data.y_test])
    np.testing.assert_allclose(data.to_original_units(draws)[1, :, 1], 100 * y[12:17], atol=1e-10)
    assert (
        data.labels_train is None and data.labels_test is None and len(data.class_names) == 0 and data.name == "table"
    )


def test_an_archive_with_its_own_split(save, check_shapes):
    x, y = table()
    arrays = {"x_train": x[:12], "y_train": y[:12], "x_test": x[12:], "y_test": y[12:]}
    whole, same = load_dataset(save("split.npz", **arrays)), load_dataset(save(x=x, y=y), 12)
    for field in ("x_train", "y_train", "x_test", "y_test", "y_mean", "y_scale"):
        np.testing.assert_array_equal(getattr(whole, field), getattr(same, field))
    check_shapes(load_dataset(save("split.npz", **arrays), 10, 3), 10, 3, 3, 1)
    check_shapes(load_dataset(save("both.npz", **arrays, x=x, y=y)), 12, 8, 3, 1)


def test_constant_columns_are_zero(save):
    x, y = table()
    x[:, 1] = 0.1  # its mean is not exactly 0.1
    x[15, 1] = 1e6
    data = load_dataset(save(x=x, y=np.column_stack([y, np.full(20, 0.1)])), 12, 5)
    assert not data.x_train[:, 1].any() and not data.x_test[:, 1].any()
    assert not data.y_train[:, 1].any() and data.y_scale[1] == 1 and data.y_mean[1] == 0.1
    np.testing.assert_allclose(data.x_train[:, [0, 2]].std(0), 1)
    data = load_dataset(save(x=x, y=y), 1, 2)
    assert not data.x_train.any() and not data.y_train.any()
    np.testing.assert_allclose(data.to_original_units(data.y_test)[:, 0], y[1:3])


def test_images_are_flattened_and_small_types_converted(save):
    x = np.random.default_rng(0).integers(0, 256, (9, 2, 2, 3), dtype=np.uint8)
    data = load_dataset(save(x=x, y=np.arange(9, dtype=np.float32)), 8, 1)
    reference = x.reshape(9, -1).astype(float)
    np.testing.assert_allclose(data.x_test, (reference[8:] - reference[:8].mean(0)) / reference[:8].std(0))


@pytest.mark.parametrize(
    ("y", "names"),
    [
        (np.array([7, -3, 7, 40, -3, 40]), ("-3", "7", "40")),
        (np.array([1, 2, 1, 2, 2, 1], np.uint8), ("1", "2")),
        (np.array([True, False, True, True, False, False]), ("False", "True")),
    ],
)
def test_labels_become_indices(save, y, names):
    data = load_dataset(save(x=table(rows=6)[0], y=y), 4, 2)
    assert data.class_names == names and len(data.class_names) == len(names)
    assert [names[i] for i in (*data.labels_train, *data.labels_test)] == [str(v) for v in y]
    np.testing.assert_allclose(data.y_train, np.eye(len(names))[data.labels_train] - 1 / len(names))
    np.testing.assert_array_equal([data.y_scale, data.y_mean], [np.ones(len(names)), np.zeros(len(names))])
    np.testing.assert_allclose(data.x_train.std(0), 1)


def test_class_indices_do_not_depend_on_the_rows_in_use(save):
    x, y = table(rows=6)[0], np.array([5, 9, 5, 9, 2, 5])
    assert load_dataset(save(x=x, y=y), 3, 1).class_names == ("2", "5", "9")
    data = load_dataset(save(x_train=x[:4], y_train=y[:4].astype("i2"), x_test=x[4:], y_test=y[4:].astype("u8")))
    assert data.class_names == ("2", "5", "9")
    np.testing.assert_array_equal(data.labels_test, [0, 1])


def x_y(**changes):
    x, y = table()
    return {"x": x, "y": y} | changes


def with_bad(value, where):
    arrays = x_y()
    arrays[where][3] = value
    return arrays


def split(**changes):
    x, y = table()
    return {"x_train": x, "y_train": y, "x_test": x, "y_test": y} | changes


BAD_ARRAYS = {
    "no y": ({"x": np.ones((3, 2))}, r"must hold x, y or x_train, .*; it holds x: name them"),
    "nothing": ({}, r"it holds nothing"),
    "half split": ({"x_train": np.ones((3, 2)), "y_train": np.ones(3)}, r"it holds x_train, y_train"),
    "object y": (x_y(y=np.array(["a", 1] * 10, dtype=object)), r"Object arrays cannot be loaded .*; write it again"),
    "text y": (
        x_y(y=np.array(["cat", "dog"] * 10)),
        r"y in .* must hold rows of real numbers; got <U3 of shape .*: encode",
    ),
    "complex x": (x_y(x=np.ones((20, 2), complex)), r"x in .* must hold rows of real numbers; got complex128"),
    "nan x": (with_bad(np.nan, "x"), r"x in .* has 3 NaN or infinite entries; remove or impute"),
    "inf y": (with_bad(np.inf, "y"), r"y in .* has 1 NaN or infinite entries"),
    "rows": (x_y(y=np.ones(19)), r"x and y in .* same number of rows; got 20 and 19"),
    "test rows": (split(y_test=np.ones(3)), r"x and y_test in .* same number of rows; got 20 and 3"),
    "empty x": (
        x_y(x=np.ones((0, 3)), y=np.ones(0)),
        r"x in .* must have at least one row and one column; got shape \(0, 3\)",
    ),
    "no targets": (x_y(y=np.ones((20, 0))), r"y in .* must have at least one row"),
    "flat x": (x_y(x=np.ones(20)), r"x in .* must be a 2-D array, .*; got shape \(20,\). Try reshape\(-1, 1\)"),
    "scalar y": (x_y(y=np.array(3.0)), r"y in .* must hold rows of real numbers; got float64 of shape \(\)"),
    "2-D labels": (
        x_y(y=np.ones((20, 2), int)),
        r"one class label for each of 20 rows, or floats for regression; got shape \(20, 2\)",
    ),
    "one class": (x_y(y=np.ones(20, int)), r"one class only; it needs at least two, or numbers"),
    "counts": (x_y(x=np.ones((1001, 1)), y=np.arange(1001)), r"1001 distinct labels, .*save it as y\.astype\(float\)"),
    "columns": (
        split(x_test=np.ones((20, 2))),
        r"training and test rows in .* same columns and kind; got .* x_test float64 \(20, 2\)",
    ),
    "kinds": (
        split(y_test=np.arange(20)),
        r"same columns and kind; got .* y_train float64 \(20,\), .* y_test int64 \(20,\)",
    ),
    "too large": (x_y(x=np.linspace(-1, 1, 40).reshape(20, 2) * 1e308), r"inputs are too large to standardise"),
    "too large y": (x_y(y=np.linspace(-1, 1, 20) * 1e308), r"targets are too large to standardise"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays_are_refused_with_a_fix(save, case):
    arrays, message = BAD_ARRAYS[case]
    with pytest.raises(WidebnnError, match=message):
        load_dataset(save(**arrays))


def test_too_few_rows(save):
    path = save(**split())
    for counts in ((21, 6), (20, 21)):
        with pytest.raises(WidebnnError, match=r"has 20 training and 20 test rows, too few for n_train=2"):
            load_dataset(path, *counts)


def test_what_is_not_an_archive_is_refused(tmp_path):
    (tmp_path / "folder.npz").mkdir()
    for name in ("absent", "folder"):
        with pytest.raises(WidebnnError, match=r"there is no file .*\.npz; write one with numpy\.savez"):
            load_dataset(tmp_path / f"{name}.npz")
    path, bare, named = tmp_path / "bad.npz", io.BytesIO(), io.BytesIO()
    np.save(bare, np.ones(3))
    with zipfile.ZipFile(named, "w") as archive:
        archive.writestr("x.npy", "not an array")
        archive.writestr("y.npy", "not an array")
    pickle = b"\x80\x04K\x01."
    for content in (bare.getvalue(), named.getvalue(), b"", b"x,y\n1,2\n", b"PK\x03\x04", pickle):
        path.write_bytes(content)
        with pytest.raises(WidebnnError, match=r"bad\.npz (is corrupted or not an \.npz archive of|must hold rows)"):
            load_dataset(path)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=3), cut=st.booleans()
)
def test_any_bytes_are_a_data_set_or_refused_in_one_sentence(save, changes, cut):
    """An archive with some bytes changed, of which half may be missing."""
    path = save(x=np.arange(8.0).reshape(4, 2), y=np.arange(4.0))
    content = bytearray(path.read_bytes())
    for place, value in changes:
        content[place % len(content)] = value
    path.write_bytes(content[: len(content) // (1 + cut)])
    try:
        data = load_dataset(path)
    except WidebnnError as error:
        assert str(error).endswith(".") and str(error).isprintable()
    else:
        assert np.isfinite(data.x_train).all() and np.isfinite(data.y_train).all()
