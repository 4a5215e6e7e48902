"""Tables become the numbers they should, the same way at fit and at predict, and odd ones are explained."""

import json

import numpy as np
import pytest

from widebnn.data.encoding import TableEncoding, learn_encoding, with_target
from widebnn.data.table import read_table
from widebnn.errors import WidebnnError

TRAIN = """size,colour,weight,constant,id,y
1,red,5,7,a1,1.5
2,green,,7,a2,2.5
4,red,9,7,a3,3.5
8,,6,7,a4,4.5
"""
INPUTS = ["size", "colour = green", "colour = red", "colour is missing", "weight", "weight is missing"]


@pytest.fixture
def table(tmp_path):
    def table(text, columns=1):
        path = tmp_path / "table.csv"
        path.write_text(text, encoding="utf-8")
        return read_table(path, columns)

    return table


@pytest.fixture
def learn(table):
    def learn(content, target="y", **options):
        notes = []
        rows = with_target(table(content), target, notes)
        return learn_encoding(rows, target, notes=notes, **options), rows, notes

    return learn


def test_numbers_text_missing_values_and_constants(learn):
    encoding, rows, notes = learn(TRAIN, drop=["id"])
    assert encoding.inputs == INPUTS
    expected = [[1, 0, 1, 0, 5, 0], [2, 1, 0, 0, 6, 1], [4, 0, 1, 0, 9, 0], [8, 0, 0, 1, 6, 0]]
    np.testing.assert_array_equal(encoding.encode(rows, notes), expected)
    np.testing.assert_array_equal(encoding.targets(rows), [1.5, 2.5, 3.5, 4.5])
    assert encoding.left_out == ("id", "constant")
    assert len(notes) == 2
    assert "column 'weight'" in notes[0] and "lacks a value in 1 row: the median 6 is used" in notes[0]
    assert "column 'constant'" in notes[1] and "is '7' in all rows and left out" in notes[1]


def test_through_json_and_back(learn):
    encoding, _, _ = learn(TRAIN, drop=["id"])
    assert TableEncoding.from_json(json.loads(json.dumps(encoding.to_json()))) == encoding


def test_order_of_columns_does_not_matter_and_unknown_ones_are_ignored(learn, table):
    encoding, rows, _ = learn(TRAIN, drop=["id"])
    notes = []
    moved = table("y,new,weight,colour,size\n1.5,9,5,red,1\n,9,,green,2\n3.5,9,9,red,4\nx,9,6,NA,8\n")
    np.testing.assert_array_equal(encoding.encode(moved, notes), encoding.encode(rows, []))
    assert len(notes) == 1 and "does not know them: new" in notes[0]


def test_an_unknown_text_is_all_zeros_with_one_warning(learn, table):
    encoding, _, _ = learn("colour,size,y\nred,1,2\ngreen,2,3\nred,4,4\n")
    with pytest.warns(UserWarning, match=r"column 'colour' .* missing values, 'blue' in 3 rows, which no") as caught:
        found = encoding.encode(table("colour,size\nblue,1\nred,1\nblue,1\n?,1\n"), [])
    np.testing.assert_array_equal(found[:, :2], [[0, 0], [0, 1], [0, 0], [0, 0]])
    assert len(caught) == 1


def test_missing_numbers_that_training_did_not_have(learn, table):
    encoding, _, _ = learn("a,b,y\n1,1,2\n2,5,3\n9,7,4\n")
    notes = []
    np.testing.assert_array_equal(encoding.encode(table("a,b\n,1\nnan,2\n3,?\n"), notes), [[2, 1], [2, 2], [3, 5]])
    assert ["lacks a value in 2 rows" in notes[0], "the training median 5 is used" in notes[1]] == [True, True]


def test_a_column_of_which_only_missing_or_not_counts(learn, table):
    encoding, rows, _ = learn("a,b,y\n1,3,2\n2,,3\n9,3,4\n")
    assert encoding.inputs == ["a", "b is missing"]
    np.testing.assert_array_equal(encoding.encode(rows, [])[:, 1], [0, 1, 0])
    encoding, _, _ = learn("a,b,y\n1,x,2\n2,,3\n9,x,4\n")
    assert encoding.inputs == ["a", "b = x", "b is missing"]


def test_numbers_can_be_names(learn, table):
    encoding, rows, _ = learn("zip,y\n01,1\n2,2\n2.0,3\n", text=["zip"])
    assert encoding.inputs == ["zip = 1", "zip = 2"]
    np.testing.assert_array_equal(encoding.encode(rows, []), [[1, 0], [0, 1], [0, 1]])
    with pytest.raises(WidebnnError, match=r"'A' in line 2, which is no number .* with --text"):
        learn("code,y\nA,1\n2,2\n")


def test_rows_without_target_are_left_out_with_a_note(learn):
    encoding, rows, notes = learn("a,y\n1,5\n2,\n300,n/a\n4,6\n")
    np.testing.assert_array_equal(encoding.targets(rows), [5, 6])
    assert rows.lines == (2, 5) and "column 'y'" in notes[0] and "in 2 rows, which are left out" in notes[0]
    assert encoding.columns[0].fill == 2.5, "the median of the rows that are used"


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        (["1", "+2", "1.0", "10"], [1, 2, 1, 10]),
        (["b", "a", "b", "1"], ["b", "a", "b", "1"]),
        (["0.5", "1.50", "0.5", "2"], ["0.5", "1.5", "0.5", "2"]),
        (["True", "False", "True", "True"], ["True", "False", "True", "True"]),
        (["9" * 30, "1", "1", "1"], ["9" * 30, "1", "1", "1"]),
    ],
)
def test_labels(learn, cells, labels):
    text = "a,y\n" + "".join(f"{i},{cell}\n" for i, cell in zip((3, 1, 4, 5), cells, strict=True))
    encoding, rows, _ = learn(text, classify=True)
    assert encoding.targets(rows).tolist() == labels


def test_notes_about_likely_mistakes(learn):
    _, _, notes = learn("id,a,y\n1,5,0\n2,4,1\n3,9,1\n")
    assert "column 'id'" in notes[1] and "counts the rows" in notes[1] and "--drop 'id'" in notes[1]
    assert "has two values only; if they are classes, add --classify" in notes[0]


MANY = range(150)
BAD = {
    "no such target": ("a,b\n1,2\n", {}, "target must be one of a, b; got 'y'"),
    "no such column": ("aa,y\n1,2\n3,4\n", {"drop": ["ab"]}, "drop must be one of aa; got 'ab'"),
    "dropped target": ("a,y\n1,2\n3,4\n", {"drop": ["y"]}, "drop must be one of a; got 'y'"),
    "no target at all": ("a,y\n1,\n3,NA\n", {}, "column 'y' of .* has no value in any row"),
    "text target": ("a,y\n1,x\n3,y\n", {}, "has 'x' in line 2, which is text, .* fit with --classify"),
    "mixed target": ("a,y\n1,2\n3,y\n", {}, "has 'y' in line 3, which is no number .* remove the row"),
    "constant target": ("a,y\n1,2\n3,2\n", {}, "column 'y' of .* is 2 in all rows; there is nothing to learn"),
    "one class": ("a,y\n1,x\n3,x\n", {"classify": True}, "has one class only"),
    "measurements as classes": (
        "a,y\n" + "".join(f"{i**2},{i / 8}\n" for i in MANY),
        {"classify": True},
        "has 150 distinct numbers with decimals in 150 rows, too many for classes; leave --classify out",
    ),
    "counts as classes": (
        "a,y\n" + "".join(f"{i**2},{i}\n" for i in MANY),
        {"classify": True},
        "has 150 distinct labels in 150 rows, too many for classes; leave --classify out",
    ),
    "names as classes": (
        "a,y\n" + "".join(f"{i**2},n{i}\n" for i in MANY),
        {"classify": True},
        "has 150 distinct labels in 150 rows, too many for classes; group them",
    ),
    "names": ("a,y\n" + "".join(f"n{i},{i}\n" for i in MANY), {}, "150 distinct texts in 150 rows, .* with --drop"),
    "few names": ("a,y\n" + "".join(f"n{i},{i}\n" for i in range(21)), {}, "has 21 distinct texts in 21 rows"),
    "nothing to learn from": ("a,b,y\n1,,2\n1,,3\n", {}, "has no column to predict 'y' from"),
    "huge": ("a,y\n1,2\n1e200,3\n", {}, "column 'a' of .* has numbers as large as 1e.200; express it"),
    "huge target": ("a,y\n1,2\n2,-1e200\n", {}, "column 'y' of .* has numbers as large as 1e.200"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_learnt_from_is_explained(learn, case):
    text, options, message = BAD[case]
    with pytest.raises(WidebnnError, match=message):
        learn(text, **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("size,id\n1,2\n", "lacks colour, weight of the 3 columns that the model needs; add them"),
        ("size,colour,weight\n1,red,2\nx,red,2\n", "column 'size' of .* has 'x' in line 3, which is no number, while"),
        ("size,colour,weight\nx,red,2\n", "column 'size' of .* has 'x' in line 2, which is no number, while the model"),
        ("size;colour;weight\n1;red;2\n", "must be separated by commas"),
    ],
)
def test_tables_the_model_cannot_use(learn, table, text, message):
    encoding, _, _ = learn(TRAIN, drop=["id"])
    with pytest.raises(WidebnnError, match=message):
        encoding.encode(table(text), [])


def test_one_column_is_enough_and_its_blank_lines_are_ambiguous(learn, table):
    encoding, _, _ = learn("a,y\n1,2\n4,3\n")
    np.testing.assert_array_equal(encoding.encode(table('a\n1\n""\n3\n\n'), []), [[1], [2.5], [3]])
    with pytest.raises(WidebnnError, match=r"line 3 of .* is blank; remove it"):
        table("a\n1\n\n3\n")


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("columns"),
        lambda d: d.update(columns=[]),
        lambda d: d.update(columns="abc"),
        lambda d: d.update(classes=1),
        lambda d: d.update(target=None),
        lambda d: d.update(target="size"),
        lambda d: d.update(left_out=5),
        lambda d: d["columns"].append(d["columns"][0]),
        lambda d: d["columns"][0].update(kind="pickle"),
        lambda d: d["columns"][0].update(fill="1"),
        lambda d: d["columns"][0].update(fill=float("nan")),
        lambda d: d["columns"][0].update(missing=10**12),
        lambda d: d["columns"][0].update(varies=False),
        lambda d: d["columns"][0].update(more=1),
        lambda d: d["columns"][1].update(categories=[1, 2]),
        lambda d: d["columns"][1].update(categories=None),
    ],
)
def test_other_documents_are_refused(learn, change):
    document = learn(TRAIN, drop=["id"])[0].to_json()
    change(document)
    with pytest.raises(WidebnnError, match="not one that widebnn fit wrote"):
        TableEncoding.from_json(document)
    for nothing in (None, [], {}, "text"):
        with pytest.raises(WidebnnError, match="not one that widebnn fit wrote"):
            TableEncoding.from_json(nothing)
