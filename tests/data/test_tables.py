"""CSV files: what is read, what is refused and in which words."""

import re
import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from widebnn.data import TableEncoder, load_dataset, read_table, with_target
from widebnn.errors import WidebnnError

UCI = {"concrete": (1030, 8), "energy": (768, 8), "power-plant": (9568, 4), "yacht": (308, 6)}
TABLE = "a,b,y\n1.5,red,0.5\n-2,blue,1.5\n3e0,red,2.5\n"


def test_regression(write, check_shapes):
    values = np.round(5 + 3 * np.random.default_rng(0).standard_normal((20, 4)), 6)
    lines = "\n".join(",".join(map(str, row)) for row in values)
    data = load_dataset(write(f"a,b,c,y\n{lines}\n"), 12, 5)
    check_shapes(data, 12, 5, 3, 1)
    x, y = values[:, :3], values[:, 3]
    np.testing.assert_allclose(data.x_train, (x[:12] - x[:12].mean(0)) / x[:12].std(0), atol=1e-12)
    np.testing.assert_allclose(data.x_test, (x[12:17] - x[:12].mean(0)) / x[:12].std(0), atol=1e-12)
    np.testing.assert_allclose(data.to_original_units(data.y_test)[:, 0], y[12:17], atol=1e-12)
    assert len(data.class_names) == 0 and data.labels_train is None and data.name == "table"


def test_a_data_set_is_what_fit_would_make_of_the_training_rows(write, noted):
    """One behaviour for sample --data and fit: missing values, text, columns and rows that are left out."""
    text = "id,size,colour,unit,kind\n"
    cells = zip("1248635790", ["red", "", "blue", "red", "red", "blue", "mauve", "red", "blue", "red"], strict=True)
    text += "".join(
        f"n{i},{size if i != 2 else ''},{colour},cm,{'ab?'[i % 3]}\n" for i, (size, colour) in enumerate(cells)
    )
    path = write(text)
    data, notes = noted(load_dataset, path, 4, 3, target="kind", classify=True, drop=["id"])
    rows, _ = noted(lambda: with_target(read_table(path), "kind"))
    encoder, _ = noted(TableEncoder.fit, rows[:4], target="kind", drop=["id"], classify=True)
    x, _ = noted(encoder.transform, rows[:7])
    scale = x[:4].std(0)
    np.testing.assert_allclose(data.x_train * scale + x[:4].mean(0), x[:4], atol=1e-12)
    varying = scale > 0
    np.testing.assert_allclose((data.x_test * scale + x[:4].mean(0))[:, varying], x[4:, varying], atol=1e-12)
    assert data.class_names == ("a", "b")
    np.testing.assert_array_equal(data.labels_train, [0, 1, 0, 1])
    for words in (
        "'mauve' in 1 of 7 rows",
        "'kind' of .* lacks a value in 3 of 10 rows",
        "is 'cm' in all rows and left",
    ):
        assert any(re.search(words, one) for one in notes)


def test_any_column_can_be_the_target(write):
    path = write("a,b,c\n1,0.5,9\n2,1.5,8\n4,2.0,6\n")
    data = load_dataset(path, 3, 0, target="b")
    np.testing.assert_allclose(data.to_original_units(data.y_train)[:, 0], [0.5, 1.5, 2.0])
    assert load_dataset(path, 3, 0, classify=True).class_names == ("6", "8", "9")
    with pytest.raises(WidebnnError, match=r"target must be one of a, b, c; got 'd'"):
        load_dataset(path, target="d")


def test_files_as_spreadsheets_write_them(write):
    # A byte order mark, Windows line ends, quotes, commas and line ends in them, blank lines, exponents, spaces.
    frame = read_table(
        write('\ufeff\r\na, "b, c",y\r\n 1 ,"x, y",.5\r\n\r\n-2e3,"z\n",+1.\r\n"+3.25","x, y",1E-2\r\n\r\n')
    )
    assert frame.columns.tolist() == ["a", "b, c", "y"] and frame.index.tolist() == [3, 6, 7]
    np.testing.assert_array_equal(frame[["a", "y"]], [[1, 0.5], [-2000, 1], [3.25, 0.01]])
    encoder = TableEncoder.fit(frame, target="y")
    assert encoder.inputs == ["a", "b, c = x, y", "b, c = z"]


VARIANTS = {
    "semicolons": (TABLE.replace(",", ";").encode(), ""),
    "tabs": (TABLE.replace(",", "\t").encode(), ""),
    "decimal commas": (TABLE.replace(",", ";").replace(".", ",").encode(), ""),
    "old line ends": (TABLE.replace("\n", "\r").encode(), ""),
    "UTF-16": (TABLE.encode("utf-16"), ""),
    "index": (
        "".join(f"{i - 1 if i else ''},{line}\n" for i, line in enumerate(TABLE.split())).encode(),
        "column 1 of .* has no name and is left out",
    ),
    "empty rows": ((TABLE + ",,\n \n,NA,\n").encode(), "2 of 5 rows of .* are left out: no cell has a value"),
    "Latin-1": (TABLE.encode() + "4,é,1\n".encode("latin-1"), "read as Latin-1"),
}


@pytest.mark.parametrize("case", VARIANTS)
def test_other_ways_to_write_the_same_table(write, noted, case):
    content, message = VARIANTS[case]
    frame, notes = noted(read_table, write(content))
    pd.testing.assert_frame_equal(frame[:3], read_table(write(TABLE)))
    assert len(notes) == bool(message) and all(re.search(message, note) for note in notes)
    if case == "Latin-1":
        assert frame["b"].iloc[3] == "é"


def test_values_of_a_column_decide_what_it_is(write, noted):
    frame = read_table(write("a,b,c,y\n,1,1,1\n,,2.5,2\n,,,3\nx,2,TRUE,4\n,3,False,5\n"))
    assert frame.index.tolist() == [2, 3, 4, 5, 6]
    encoder, _ = noted(TableEncoder.fit, frame, target="y", text=["c"])
    assert encoder.numbers == {"b": 2.0} and encoder.texts == {"a": ("", "x"), "c": ("", "1", "2.5", "False", "True")}


BAD = {
    "empty": ("", r"must have a line of column names and at least one row with values; it has none"),
    "blank": ("\n\n\n", r"it has none"),
    "header only": ("a,b\n", r"it has none"),
    "no values": ("a,b\n,\n,NA\n", r"it has none"),
    "no header": ("1,2\n3,4\n", r"the first line of .* must name the columns and has only numbers; add"),
    "one column": ("a\n1\n2\n", r"has no column to predict 'a' from; add one"),
    "double names": ("a,b,a\n1,2,3\n", r"has several columns 'a'; rename or remove"),
    "short row": ("a,b\n1,2\n3\n", r"line 3 of .* has 1 cells, expected 2 as in the first line"),
    "long row": ("a,b\n1,2\n\n3,4,5\n", r"line 4 of .* has 3 cells, expected 2"),
    "long first row": ("a,b\n1,2,3\n", r"line 2 of .* has 3 cells, expected 2"),
    "NUL": (b"a,b\n1,2\n3,\x004\n", r"has '\\x004' in line 3, which is not a number"),
    "UTF-16": ("a,b\n1,2\n".encode("utf-16")[:-1], r"cannot be read as CSV \(.*\); check"),
    "open quote": ('a,b\n1,"2\n', r"cannot be read as CSV \(.*\); check its quotes"),
    "text after quote": ('a,b\n1,"2"3\n', r"cannot be read as CSV"),
    "huge cell": ("a,b\n1," + "2" * 200_000, r"cannot be read as CSV \(field larger"),
    "mixed": ("a,b\n1,2\n1O,3\n", r"column 'a' of .* has '1O' in line 3, which is not a number while other rows have"),
    "line after a quoted line end": ('a,b\n"1\n",2\nx,3\n', r"has 'x' in line 4, which is not a number"),
    "infinite": ("a,b\n1,2\ninf,3\n", r"has 'inf' in line 3, which is not a finite number: correct it"),
    "underscores": ("a,b\n1,2\n1_0,3\n", r"has '1_0' in line 3, which is not a number"),
    "overflow": ("a,b\n1,2\n1e999,3\n", r"has '1e999' in line 3, which is not a finite number"),
    "long number": ("a,b\n1,2\n3," + "9" * 5000 + "\n", r"column 'b' of .* has '9+' in line 3, which is not a"),
    "long cell": ("a,b\n1,2\n" + "1" * 100_000 + "x,3\n", r"in line 3, which is not a number"),
}


@pytest.mark.filterwarnings("ignore::widebnn.errors.Note")
@pytest.mark.parametrize("case", BAD)
def test_bad_tables_are_refused_with_a_fix(write, case):
    content, message = BAD[case]
    began = time.process_time()
    with pytest.raises(WidebnnError, match=message):
        load_dataset(write(content), n_test=0)
    assert time.process_time() - began < 5


def test_missing_files(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    for name in ("absent", "folder", "x" * 5000, "\0", "\ud800"):
        with pytest.raises(WidebnnError, match=r"there is no file .*\.csv; give the path of a CSV file"):
            read_table(tmp_path / f"{name}.csv")


@pytest.mark.parametrize("name", UCI)
def test_real_regression_tables(shared_data, check_shapes, name):
    rows, inputs = UCI[name]
    path = shared_data / "uci" / f"{name}.csv"
    data = load_dataset(path, rows - 50, 50)
    check_shapes(data, rows - 50, 50, inputs, 1)
    values = np.loadtxt(path, delimiter=",", skiprows=1)
    np.testing.assert_allclose(data.to_original_units(data.y_train)[:, 0], values[: rows - 50, -1])
    np.testing.assert_allclose(data.x_test * values[:-50, :-1].std(0) + values[:-50, :-1].mean(0), values[-50:, :-1])


def test_real_classes(shared_data):
    path = shared_data / "uci" / "wine-quality-red.csv"
    assert load_dataset(path, classify=True).class_names == ("3", "4", "5", "6", "7", "8")
    assert load_dataset(path, target="alcohol").class_names == ()


def test_very_many_columns_are_read_at_once(write):
    names = [f"c{i}" for i in range(5000)]
    began = time.process_time()
    assert read_table(write(",".join(names) + "\n" + ",".join(["1"] * 5000) + "\n")).shape == (1, 5000)
    assert time.process_time() - began < 10, "it took minutes to look for columns of one name"


CELL = st.one_of(
    st.sampled_from(["1", "2.5", "-3", "7", "1e3", "red", "", "?", "NA"]),
    st.sampled_from(
        ["inf", "1e999", "1e200", "9" * 500, "9" * 5000, "0x10", "١٢", "1_000", "+5", "07", "True", "x" * 3000, "\0",
         '"', '""', '"a,b"', '"a\nb"', "a;b", "\t", "é", "😀", "\ufeff", "\x85", "\u2028", "\x1b[2J", "\r", " "]
    ),
    st.floats().map(repr), st.text(max_size=5),
)  # fmt: skip


@st.composite
def tables_of_anything(draw):
    """Columns of numbers or of anything, most rows as long as the first, in some encoding; sometimes spoiled."""
    names = [*draw(st.lists(st.sampled_from(["a", "b", "c"]) | CELL, min_size=1, max_size=3)), "y"]
    kinds = [draw(st.sampled_from((st.sampled_from(["1", "2.5", "4"]), CELL))) for _ in names]
    rows = [[draw(kind) for kind in kinds] for _ in range(draw(st.integers(0, 5)))]
    separator, end = draw(st.sampled_from(",,;\t")), draw(st.sampled_from(("\n", "\r\n", "\r")))
    text = end.join(separator.join(row) for row in [names, *rows]) + end
    content = text.encode(draw(st.sampled_from(("utf-8", "utf-8", "utf-16", "latin-1"))), "replace")
    at = draw(st.integers(0, len(content)))
    return content[:at] + draw(st.binary(max_size=3)) + content[at + draw(st.sampled_from((0, 0, 1, 1000))) :]


@pytest.mark.filterwarnings("ignore::UserWarning")
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=tables_of_anything(), classify=st.booleans())
def test_any_bytes_are_a_table_or_refused_in_one_sentence(write, content, classify):
    path = write(content)
    try:
        frame = read_table(path)
        rows = with_target(frame, "y")
        encoder = TableEncoder.fit(rows, target="y", classify=classify)
        x, y = encoder.transform(rows), encoder.targets(rows)
    except WidebnnError as error:
        assert str(error).endswith((".", "?")) and str(error).isprintable()
        return
    assert x.shape == (len(rows), len(encoder.inputs)) and np.isfinite(x).all() and len(y) == len(rows)
    assert TableEncoder.from_json(encoder.to_json()) == encoder
    last = content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin-1", "replace")
    assert frame.index.is_monotonic_increasing and frame.index[-1] <= len(last.splitlines())
