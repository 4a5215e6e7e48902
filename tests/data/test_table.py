"""Tables from CSV files."""

import time

import numpy as np
import pytest

from widebnn.data import counts, load_dataset, table
from widebnn.data.table import load_csv, read_table
from widebnn.errors import WidebnnError

UCI = {"concrete": (1030, 8), "energy": (768, 8), "power-plant": (9568, 4), "yacht": (308, 6)}


@pytest.fixture
def write(tmp_path):
    def write(content, name="table.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_regression(write, check_shapes):
    rng = np.random.default_rng(0)
    values = np.round(5 + 3 * rng.standard_normal((20, 4)), 6)
    lines = "\n".join(",".join(map(str, row)) for row in values)
    data = load_dataset(write(f"a,b,c,y\n{lines}\n"), 12, 5)
    check_shapes(data, 12, 5, 3, 1)
    x, y = values[:, :3], values[:, 3]
    np.testing.assert_allclose(data.x_train, (x[:12] - x[:12].mean(0)) / x[:12].std(0), atol=1e-12)
    np.testing.assert_allclose(data.x_test, (x[12:17] - x[:12].mean(0)) / x[:12].std(0), atol=1e-12)
    np.testing.assert_allclose(data.to_original_units(data.y_test)[:, 0], y[12:17], atol=1e-12)
    assert data.n_classes == 0 and data.labels_train is None and data.name == "table"


def test_default_counts(write):
    data = load_dataset(str(write("a,y\n" + "1,2.5\n2,3.5\n" * 10)))
    assert (len(data.x_train), len(data.x_test)) == (16, 4)
    with pytest.raises(WidebnnError, match=r"table\.csv has 20 rows, too few for n_train=15 and n_test=6"):
        load_dataset(write("a,y\n" + "1,2.5\n2,3.5\n" * 10), 15, 6)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["7", "-3", "7", "+10", "-3", "10"], ("-3", "7", "10")),
        (["dog", "cat", "dog", "ant", "cat", "ant"], ("ant", "cat", "dog")),
        (["True", "False", "True", "True", "False", "False"], ("False", "True")),
    ],
)
def test_integers_and_text_are_classes(write, values, names):
    data = load_dataset(write("a,y\n" + "".join(f"{i},{value}\n" for i, value in enumerate(values))), 4, 2)
    assert data.class_names == names
    labels = [names[i] for i in np.concatenate([data.labels_train, data.labels_test])]
    assert labels == [value.lstrip("+") for value in values]
    np.testing.assert_allclose(data.y_train, np.eye(len(names))[data.labels_train] - 1 / len(names))


def test_any_column_can_be_the_target(write):
    path = write("a,b,c\n1,0.5,9\n2,1.5,8\n4,2.0,7\n")
    data = load_dataset(path, 3, 0, target="b")
    np.testing.assert_allclose(data.to_original_units(data.y_train)[:, 0], [0.5, 1.5, 2.0])
    np.testing.assert_allclose(data.x_train[:, 1], -np.array([-1, 0, 1]) * np.sqrt(1.5))
    assert load_dataset(path, 3, 0).class_names == ("7", "8", "9")
    with pytest.raises(WidebnnError, match=r"target must be one of a, b, c; got 'd'"):
        load_dataset(path, target="d")


def test_text_inputs_become_a_column_for_each_value(write):
    # "c" is in no training row: its column is constant there, so it is zero everywhere.
    data = load_dataset(write("colour,size,y\nb,1,0.1\na,2,0.2\nb,3,0.3\nc,4,0.4\n"), 3, 1)
    one_hot = np.array([[0, 1], [1, 0], [0, 1]], float)
    np.testing.assert_allclose(data.x_train[:, :2], (one_hot - one_hot.mean(0)) / one_hot.std(0))
    assert data.x_train.shape == (3, 4) and not data.x_train[:, 2].any() and not data.x_test[:, 2].any()


def test_numbers_and_quotes_are_read_as_spreadsheets_write_them(write):
    # A byte order mark, Windows line ends, quotes, commas in them, blank lines, exponents, spaces.
    content = '\ufeffa, "b, c",y\r\n 1 ,"x, y",.5\r\n\r\n-2e3,z,+1.\r\n"+3.25","x, y",1E-2\r\n\r\n'
    data = load_dataset(write(content), 3, 0)
    x = np.array([1, -2000, 3.25])
    np.testing.assert_allclose(data.x_train[:, 0], (x - x.mean()) / x.std())
    np.testing.assert_allclose(data.to_original_units(data.y_train)[:, 0], [0.5, 1.0, 0.01])
    assert data.x_train.shape == (3, 3)


BAD = {
    "empty": ("", r"must have a line of column names and at least one row; it has 0 lines"),
    "blank": ("\n\n\n", r"it has 0 lines"),
    "header only": ("a,b\n", r"it has 1 lines"),
    "no header": ("1,2\n3,4\n", r"the first line of .* must name the columns and has only numbers; add"),
    "one column": ("a;b\n1;2\n", r"must have an input and a target column; it has one: separate cells by commas"),
    "double names": ("a,b,a\n1,2,3\n", r"has 2 columns 'a'; rename or remove"),
    "no name": ("a,,c\n1,2,3\n", r"column 2 of .* has no name"),
    "short row": ("a,b\n1,2\n3\n", r"line 3 of .* has 1 cells, expected 2 as in the first line"),
    "long row": ("a,b\n1,2\n\n3,4,5\n", r"line 4 of .* has 3 cells, expected 2"),
    "NUL": (b"a,b\n1,2\n3,\x004\n", r"line 3 of .* has a NUL byte; save it as plain text"),
    "UTF-16": ("a,b\n1,2\n".encode("utf-16"), r"must be text in UTF-8 and is not"),
    "Latin-1": ("a,b\n1,é\n".encode("latin-1"), r"must be text in UTF-8 and is not"),
    "open quote": ('a,b\n1,"2\n', r"cannot be read as CSV \(.*\); check its quotes"),
    "text after quote": ('a,b\n1,"2"3\n', r"cannot be read as CSV"),
    "huge cell": ("a,b\n1," + "2" * 200_000, r"cannot be read as CSV \(field larger"),
    "missing": ("a,b\n1,2\n,4\n", r"column 'a' of .* has '' in line 3, which is a missing value: fill it in"),
    "missing target": ("a,b\n1,2\n3,\n", r"column 'b' of .* has '' in line 3"),
    "NA": ("a,b\n1,2\n3,4\nNA,4\n", r"column 'a' of .* has 'NA' in line 4, which is a missing value"),
    "nan": ("a,b\n1,2\n3,NaN\n", r"column 'b' of .* has 'NaN' in line 3, which is a missing value"),
    "question mark": ("a,b\nx,2\n?,3\n", r"column 'a' of .* has '\?' in line 3, which is a missing value"),
    "mixed": ("a,b\n1,2\n1O,3\n", r"column 'a' of .* has '1O' in line 3, which is no number while other rows have"),
    "infinite": ("a,b\n1,2\ninf,3\n", r"has 'inf' in line 3, which is no number"),
    "underscores": ("a,b\n1,2\n1_0,3\n", r"has '1_0' in line 3, which is no number"),
    "overflow": ("a,b\n1,2\n1e999,3\n", r"has '1e999' in line 3, which is too large for double precision"),
    "long label": ("a,b\n1,2\n1," + "9" * 5000 + "\n", r"column 'b' of .* has '9+' in line 3, which is too large"),
    "one class": ("a,b\n1,x\n2,x\n", r"column 'b' of .* has one class only"),
    "many classes": (
        "a,b\n" + "".join(f"1,{i}\n" for i in range(1001)),
        r"column 'b' of .* has 1001 distinct labels, .* target, write its values with a decimal point",
    ),
    "many texts": (
        "a,b\n" + "".join(f"n{i},0.5\n" for i in range(1001)),
        r"column 'a' of .* has 1001 distinct texts, more than 1000; remove it or group",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tables_are_refused_with_a_fix(write, case):
    content, message = BAD[case]
    with pytest.raises(WidebnnError, match=message):
        load_dataset(write(content))


def test_missing_file(tmp_path):
    with pytest.raises(WidebnnError, match=r"there is no file .*absent\.csv"):
        load_dataset(tmp_path / "absent.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(WidebnnError, match="there is no file"):
        load_dataset(tmp_path / "folder.csv")


def test_long_cells_take_no_time(write):
    start = time.perf_counter()
    with pytest.raises(WidebnnError, match="which is no number"):
        load_dataset(write("a,b\n1,2\n" + "1" * 100_000 + "x,3\n"))
    assert load_dataset(write("a,b\n1,2\n2," + "0" * 100_000 + "1\n"), 2, 0).n_classes == 0
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("name", UCI)
def test_real_regression_tables(shared_data, check_shapes, name):
    path = shared_data / "uci" / f"{name}.csv"
    if not path.exists():
        pytest.skip(f"there is no {path}")
    rows, inputs = UCI[name]
    data = load_dataset(path, rows - 50, 50)
    check_shapes(data, rows - 50, 50, inputs, 1)
    values = np.loadtxt(path, delimiter=",", skiprows=1)
    np.testing.assert_allclose(data.to_original_units(data.y_train)[:, 0], values[: rows - 50, -1])
    np.testing.assert_allclose(data.x_test * values[:-50, :-1].std(0) + values[:-50, :-1].mean(0), values[-50:, :-1])


def test_real_classes(shared_data):
    path = shared_data / "uci" / "wine-quality-red.csv"
    if not path.exists():
        pytest.skip(f"there is no {path}")
    assert load_dataset(path).class_names == ("3", "4", "5", "6", "7", "8")
    assert load_dataset(path, target="alcohol").n_classes == 0


def test_very_many_columns_are_read_at_once(tmp_path):
    names = [f"c{i}" for i in range(50_000)]
    (tmp_path / "wide.csv").write_text(",".join(names) + "\n" + ",".join(["1"] * 50_000) + "\n")
    began = time.process_time()
    assert len(read_table(tmp_path / "wide.csv").columns) == 50_000
    assert time.process_time() - began < 5, "it took minutes to look for columns of one name"
    names[-1] = "c7"
    (tmp_path / "wide.csv").write_text(",".join(names) + "\n" + ",".join(["1"] * 50_000) + "\n")
    with pytest.raises(WidebnnError, match="has 2 columns 'c7'"):
        read_table(tmp_path / "wide.csv")


def test_a_file_of_one_line_is_not_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "LONGEST_LINE", 100)
    (tmp_path / "long.csv").write_text("a,b\n" + "1," * 60)
    with pytest.raises(WidebnnError, match="has a line of more than 100 characters"):
        read_table(tmp_path / "long.csv")


def test_a_table_of_more_numbers_than_the_machine_has_room_for_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(counts.os, "sysconf", lambda name: 100)
    rows = "".join(f"text {i},{i / 2}\n" for i in range(30))
    (tmp_path / "texts.csv").write_text("a,b\n" + rows)
    with pytest.raises(WidebnnError, match=r"texts.csv holds 900 numbers, 0.0 GB, too many for the 0.0 GB"):
        load_csv(tmp_path / "texts.csv", 10, 10)


def test_names_of_any_length_are_refused_and_not_raised(tmp_path):
    for name in ("x" * 5000, "\0", "\ud800"):
        with pytest.raises(WidebnnError, match="there is no file"):
            read_table(tmp_path / f"{name}.csv")
