"""CSV files: headings, numbers, classes, and what cannot be trained on."""

import numpy as np
import pytest

import greedy_ensembles as ge


def write(path, text):
    path.write_text(text)
    return path


def test_numbers_and_classes_are_read_by_the_names_of_columns(tmp_path):
    file = write(tmp_path / "t.csv", "\ufeffid;height;kind;width\n7;1.5; owl ;-2\n8;1e3;cat;0\n\n9;0;owl;4\n")
    table = ge.data.read_table(file, "kind", leave_out=["id"])
    assert table.rows.tolist() == [[1.5, -2], [1000, 0], [0, 4]]
    assert (table.columns, table.classes, table.labels.tolist()) == (("height", "width"), ("cat", "owl"), [1, 0, 1])
    assert str(table) == "t: 3 rows of 2, 2 classes (cat 1, owl 2)"
    turned = ge.data.read_table(file, columns=["width", "height"])
    assert turned.labels is None
    assert turned.rows.tolist() == table.rows[:, ::-1].tolist()


def test_known_classes_keep_their_order_and_numbers_are_sorted_as_numbers(tmp_path):
    file = write(tmp_path / "t.csv", "x,y\n" + "".join(f"0,{label}\n" for label in (10, 2, 10, 2)))
    assert ge.data.read_table(file, "y").classes == ("2", "10")
    assert ge.data.read_table(file, "y", classes=("10", "3", "2")).labels.tolist() == [0, 2, 0, 2]


def test_a_cell_may_hold_what_ends_a_line_elsewhere(tmp_path):
    file = write(tmp_path / "t.csv", 'x,y\n1,"a\nb"\n2,c\u2028d\n3,"a\nb"\n4,c\u2028d\n')
    assert ge.data.read_table(file, "y").classes == ("a\nb", "c\u2028d")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x,y\n1,a\n,b\n", "row 3"),
        ("x,y\n1,a\nnan,b\n", "row 3"),
        ("x,y\n1,a\n\n\nnan,b\n", "row 5"),
        ("x,y\nred,a\n", "'red' in column 'x'"),
        ("x,y\n1,a\n2,\n", "row 3"),
        ("x,y\n1,a\n2\n", "row 3"),
        ("x,x,y\n1,2,a\n", "two columns"),
        ("x,z\n1,2\n", "did you mean"),
        ("y\na\n", "headings"),
        (",x,y\n0,1,a\n1,2,b\n", "column 1 .* has no heading"),
        ("x,y\n" + "".join(f"1,{value / 7}\n" for value in range(9)), "no classes"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_with_its_place(tmp_path, text, told):
    target = "y" if "z" not in text else "zz"
    with pytest.raises(ValueError, match=told):
        ge.data.read_table(write(tmp_path / "t.csv", text), target)


def test_a_class_that_was_never_seen_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'b'"):
        ge.data.read_table(write(tmp_path / "t.csv", "x,y\n1,a\n2,b\n"), "y", classes=("a",))


def test_a_table_splits_as_images_do():
    table = ge.data.TableSet(np.arange(20.0)[:, None], np.arange(20) % 2, "t", columns=("x",))
    kept, held = table.split(0.2)
    assert sorted([*kept.rows[:, 0], *held.rows[:, 0]]) == list(range(20))
    assert np.array_equal(held.labels, held.rows[:, 0] % 2)
