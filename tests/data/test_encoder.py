"""Tables become the numbers they should, the same way at fit and at predict, and odd ones are explained."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from widebnn.data import TableEncoder, read_table, with_target
from widebnn.errors import WidebnnError

TRAIN = """size,colour,weight,constant,id,y
1,red,5,7,a1,1.5
2,green,,7,a2,2.5
4,red,9,7,a3,3.5
8,,6,7,a4,4.5
"""
INPUTS = ["size", "weight", "weight is missing", "colour is missing", "colour = green", "colour = red"]


@pytest.fixture
def table(write):
    return lambda text: read_table(write(text))


@pytest.fixture
def learn(table, noted):
    def learn(content, target="y", **options):
        rows, first = noted(lambda: with_target(table(content), target))
        encoder, notes = noted(TableEncoder.fit, rows, target=target, **options)
        return encoder, rows, first + notes

    return learn


def test_numbers_text_missing_values_and_constants(learn):
    encoder, rows, notes = learn(TRAIN, drop=["id"])
    assert encoder.inputs == INPUTS
    expected = [[1, 5, 0, 0, 0, 1], [2, 6, 1, 0, 1, 0], [4, 9, 0, 0, 0, 1], [8, 6, 0, 1, 0, 0]]
    np.testing.assert_array_equal(encoder.transform(rows), expected)
    np.testing.assert_array_equal(encoder.targets(rows), [1.5, 2.5, 3.5, 4.5])
    assert encoder.left_out == ("id", "constant") and encoder.columns == ["size", "weight", "colour"]
    assert len(notes) == 2
    assert "column 'weight'" in notes[0] and "lacks a value in 1 of 4 rows: the median 6 is used" in notes[0]
    assert "column 'constant'" in notes[1] and "is '7' in all rows and left out" in notes[1]


def test_a_data_frame_is_a_table_as_a_file_is(learn, noted):
    encoder, rows, notes = learn(TRAIN, drop=["id"])
    frame = pd.DataFrame(
        {
            "size": pd.array([1, 2, 4, 8], "Int64"),
            "colour": pd.Categorical(["red", "green", "red", None]),
            "weight": [5.0, np.nan, 9.0, 6.0],
            "constant": ["7"] * 4,
            "id": ["a1", "a2", "a3", "a4"],
            "y": np.array([1.5, 2.5, 3.5, 4.5], np.float32),
        },
        index=pd.Index(["p", "q", "r", "s"], name="patient"),
    )
    other, own = noted(TableEncoder.fit, frame, target="y", drop=["id"])
    assert other == encoder and own == [note.replace(rows.attrs["source"], "the table") for note in notes]
    np.testing.assert_array_equal(other.transform(frame), encoder.transform(rows))
    np.testing.assert_array_equal(other.transform(frame.astype(object)), encoder.transform(rows))
    with pytest.raises(WidebnnError, match=r"column 'size' of the table has 'x' in patient q, which is not a number"):
        encoder.transform(frame.astype(object).assign(size=[1, "x", 2, 3]))
    with pytest.raises(WidebnnError, match="has 'x' in row 1, which is not a number"):
        encoder.transform(frame.reset_index(drop=True).assign(size=[1, "x", 2, 3]))
    with pytest.raises(WidebnnError, match="the table has several columns 'size'"):
        encoder.transform(pd.concat([frame, frame], axis=1))


def test_categories_of_pandas_are_never_numbers_and_names_may_be(learn):
    frame = pd.DataFrame({0: pd.Categorical([1, 2, 2]), 1: [True, False, True], 2: [1.0, 2.0, 4.0]})
    encoder = TableEncoder.fit(frame, target="2")
    assert encoder.inputs == ["0 = 1", "0 = 2", "1 = False", "1 = True"]
    np.testing.assert_array_equal(encoder.transform(frame), [[1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 0, 1]])


def test_order_of_columns_does_not_matter_and_unknown_ones_are_ignored(learn, table, noted):
    encoder, rows, _ = learn(TRAIN, drop=["id"])
    moved = table("y,new,weight,colour,size\n1.5,9,5,red,1\n,9,,green,2\n3.5,9,9,red,4\nx,9,6,NA ,8\n")
    found, notes = noted(encoder.transform, moved)
    np.testing.assert_array_equal(found, encoder.transform(rows))
    assert len(notes) == 1 and "does not know them: new" in notes[0]


def test_values_that_training_did_not_have(learn, table, noted):
    encoder, _, _ = learn("colour,a,b,y\nred,1,1,2\ngreen,2,5,3\nred,9,7,4\n")
    found, notes = noted(encoder.transform, table("colour,a,b\nblue,,1\nred,nan,2\nblue,3,?\n?,1,1\n"))
    np.testing.assert_array_equal(found, [[2, 1, 0, 0], [2, 2, 0, 1], [3, 5, 0, 0], [1, 1, 0, 0]])
    assert "lacks a value in 2 of 4 rows" in notes[0] and "the training median 5 is used" in notes[1]
    assert re.search(r"column 'colour' .* missing values, 'blue' in 3 of 4 rows, which no", notes[2])
    assert len(notes) == 3


@pytest.mark.parametrize("value", ["3", "x"])
def test_a_column_of_which_only_missing_or_not_counts(learn, value):
    encoder, rows, _ = learn(f"a,b,y\n1,{value},2\n2,,3\n9,{value},4\n")
    assert encoder.inputs == ["a", "b is missing", f"b = {value}"]
    np.testing.assert_array_equal(encoder.transform(rows)[:, 1:], [[0, 1], [1, 0], [0, 1]])


def test_numbers_can_be_names(learn):
    encoder, rows, _ = learn("zip,y\n01,1\n2,2\n2.0,3\n", text=["zip"])
    assert encoder.inputs == ["zip = 1", "zip = 2"]
    np.testing.assert_array_equal(encoder.transform(rows), [[1, 0], [0, 1], [0, 1]])
    with pytest.raises(WidebnnError, match=r"'A' in line 2, which is not a number .* with --text"):
        learn("code,y\nA,1\n2,2\n")


def test_rows_without_target_are_left_out_with_a_note(learn):
    encoder, rows, notes = learn("a,y\n1,5\n2,\n300,n/a\n4,6\n")
    np.testing.assert_array_equal(encoder.targets(rows), [5, 6])
    assert rows.index.tolist() == [2, 5]
    assert "column 'y'" in notes[0] and "in 2 of 4 rows, which are left out" in notes[0]
    assert encoder.numbers == {"a": 2.5}, "the median of the rows that are used"


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        (["1", "+2", "1.0", "10"], [1, 2, 1, 10]),
        (["b", "a", "b", "1"], ["b", "a", "b", "1"]),
        (["0.5", "1.50", "0.5", "2"], ["0.5", "1.5", "0.5", "2"]),
        (["True", "False", "True", "True"], ["True", "False", "True", "True"]),
        (["9" * 30, "1", "1", "1"], ["9" * 30, "1", "1", "1"]),
        ([str(2**53), str(2**53 + 1), "1", "1"], [2**53, 2**53 + 1, 1, 1]),
    ],
)
def test_labels(learn, cells, labels):
    text = "a,y\n" + "".join(f"{i},{cell}\n" for i, cell in zip((3, 1, 4, 5), cells, strict=True))
    encoder, rows, _ = learn(text, classify=True)
    assert encoder.targets(rows).tolist() == labels


def test_notes_about_likely_mistakes(learn):
    _, _, notes = learn("id,a,y\n1,5,0\n2,4,1\n3,9,1\n")
    assert "column 'id'" in notes[0] and "counts the rows" in notes[0] and "--drop 'id'" in notes[0]
    assert "has two values only; if they are classes, add --classify" in notes[1]


MANY = range(150)
BAD = {
    "no such target": ("a,b\n1,2\n", {}, "target must be one of a, b; got 'y'"),
    "no such column": ("aa,y\n1,2\n3,4\n", {"drop": ["ab"]}, "drop must be one of aa; got 'ab'"),
    "dropped target": ("a,y\n1,2\n3,4\n", {"drop": ["y"]}, "drop must be one of a; got 'y'"),
    "no target at all": ("a,y\n1,\n3,NA\n", {}, "column 'y' of .* has no value in any row"),
    "text target": ("a,y\n1,x\n3,y\n", {}, "has 'x' in line 2, which is not a number: .* add --classify"),
    "mixed target": ("a,y\n1,2\n3,y\n", {}, "has 'y' in line 3, which is not a number: .* remove the row"),
    "constant target": ("a,y\n1,2\n3,2\n", {}, "column 'y' of .* is 2 in all rows; there is nothing to learn"),
    "one class": ("a,y\n1,x\n3,x\n", {"classify": True}, "has one class only"),
    "measurements as classes": (
        "a,y\n" + "".join(f"{i**2},{i % 25 / 8}\n" for i in MANY),
        {"classify": True},
        "has 25 distinct labels, too many for classes; leave --classify out",
    ),
    "names as classes": (
        "a,y\n" + "".join(f"{i**2},n{i}\n" for i in MANY),
        {"classify": True},
        "has 150 distinct labels, too many for classes; .* or group them",
    ),
    "very many classes": (
        "a,y\n" + "".join(f"{i**2},{i % 1001}\n" for i in range(2500)),
        {"classify": True},
        "has 1001 distinct labels, too many for classes; leave --classify out",
    ),
    "names": ("a,y\n" + "".join(f"n{i},{i}\n" for i in MANY), {}, "150 distinct texts in 150 rows, .* with --drop"),
    "few names": ("a,y\n" + "".join(f"n{i},{i}\n" for i in range(21)), {}, "has 21 distinct texts in 21 rows"),
    "nothing to learn from": ("a,b,y\n1,,2\n1,,3\n", {}, "has no column to predict 'y' from"),
    "huge": ("a,y\n1,2\n1e200,3\n", {}, "column 'a' of .* has numbers as large as 1e.200; express it"),
    "huge target": ("a,y\n1,2\n2,-1e200\n", {}, "column 'y' of .* has numbers as large as 1e.200"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_learned_from_is_explained(learn, case):
    text, options, message = BAD[case]
    with pytest.raises(WidebnnError, match=message):
        learn(text, **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("size,id\n1,2\n", "lacks weight, colour of the 3 columns that the model needs; add what is"),
        ("size,colour,weight\n1,red,2\nx,red,2\n", "column 'size' of .* has 'x' in line 3, which is not a number, whi"),
        ("size,colour,weight\nx,red,2\n", "column 'size' of .* has 'x' in line 2, which is not a number, while the"),
    ],
)
def test_tables_the_model_cannot_use(learn, table, text, message):
    encoder, _, _ = learn(TRAIN, drop=["id"])
    with pytest.raises(WidebnnError, match=message):
        encoder.transform(table(text))


def test_through_json_and_back_and_other_documents_are_refused(learn):
    encoder = learn(TRAIN, drop=["id"])[0]
    document = json.loads(json.dumps(encoder.to_json()))
    assert TableEncoder.from_json(document) == encoder
    changes = [{"numbers": "abc"}, {"texts": [1]}, {"classes": 1}, {"target": None}, {"left_out": 5}, {"more": 1}]
    changes += [{"numbers": {"size": "1"}}, {"texts": {"colour": [1, 2]}}, {"texts": {"colour": None}}]
    for one in (*(document | change for change in changes), None, [], {}, "text"):
        with pytest.raises(WidebnnError, match="not one that widebnn fit wrote"):
            TableEncoder.from_json(one)
