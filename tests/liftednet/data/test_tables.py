"""Tables of the user's, and what is said of those that cannot be read."""

from __future__ import annotations

import numpy as np
import pytest

from liftednet.data import tables
from liftednet.data.tables import read_table
from liftednet.errors import DataError, LiftedError

ROWS = "size,weight,count,kind\n1.5,2,3,oak\n-4,5e1,6,elm\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "trees.csv").write_text(ROWS)
    (tmp_path / "trees.tsv").write_text("\ufeff" + ROWS.replace(",", "\t"))
    (tmp_path / "semicolons.csv").write_text("\ufeff" + ROWS.replace(",", ";"))
    (tmp_path / "tabs.csv").write_text(ROWS.replace(",", "\t"))
    np.savez(
        tmp_path / "trees.npz",
        X=np.array([[1.5, 2, 3], [-4, 50, 6]]),
        y=np.array([b"oak", b"elm"]),
        z=np.array([1j, 2]),
    )
    return tmp_path


@pytest.mark.parametrize("name", ["trees.csv", "trees.tsv", "semicolons.csv", "tabs.csv"])
def test_columns_have_the_types_of_their_values(folder, name):
    table = read_table(folder / name)
    kinds = {name: values.dtype.kind for name, values in table.columns.items()}
    assert kinds == {"size": "f", "weight": "f", "count": "i", "kind": "U"}
    x, names = table.inputs(without=["kind"])
    assert names == ["size", "weight", "count"]
    assert x.dtype == np.float64
    assert x.tolist() == [[1.5, 2, 3], [-4, 50, 6]]
    assert table.inputs(["count", "size"])[0].tolist() == [[3, 1.5], [6, -4]]
    assert table.targets(["kind"]).tolist() == ["oak", "elm"]
    assert table.targets(["size", "count"]).tolist() == [[1.5, 3], [-4, 6]]


def test_arrays_of_npz_files_are_taken_as_they_are(folder):
    table = read_table(folder / "trees.npz")
    assert table.inputs()[0].shape == (2, 3) and table.inputs()[1] == []
    assert table.targets(["y"]).tolist() == ["oak", "elm"]


def test_parquet_is_what_csv_is(folder):
    frames = pytest.importorskip("polars")
    frames.read_csv(folder / "trees.csv").write_parquet(folder / "trees.parquet")
    table, other = read_table(folder / "trees.parquet"), read_table(folder / "trees.csv")
    assert table.columns.keys() == other.columns.keys()
    for name, values in table.columns.items():
        assert values.tolist() == other.columns[name].tolist()


def test_parquet_needs_a_reader(folder, monkeypatch):
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    with pytest.raises(LiftedError, match=r"pip install 'liftednet\[tables\]'"):
        read_table(folder / "trees.parquet")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "it has 0"),
        ("a.csv", b"a,b\n", "it has 1"),
        ("a.csv", b"a,a\n1,2\n", "twice"),
        ("a.csv", b"a,b\n1,2\n1\n", "line 3 of .* has 1 values"),
        ("a.csv", b"a,b\n1,\xff\n", "cannot be read"),
        ("a.csv", b'a,b\n1,"2\n', "cannot be read"),
        ("a.csv", None, "cannot be read"),
        ("a.npz", b"PK", "not a readable npz file"),
        ("a.parquet", b"PAR1", "cannot be read|needs polars"),
        ("a.xlsx", b"", "a csv file|.csv file"),
    ],
)
def test_files_that_cannot_be_read_are_refused_in_one_line(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(LiftedError, match=message) as caught:
        read_table(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda table: table.inputs(), "'kind' .* must hold real numbers, .* row 1 has 'oak'"),
        (
            lambda table: table.inputs(["height"]),
            "no column 'height' \\(--target, --columns\\); it has size, weight",
        ),
        (lambda table: table.inputs(without=table.columns), "no columns beside"),
        (lambda table: table.targets(["size", "kind"]), "must hold real numbers"),
    ],
)
def test_columns_that_cannot_be_used_are_named(folder, ask, message):
    with pytest.raises(DataError, match=message):
        ask(read_table(folder / "trees.csv"))


def test_the_first_value_that_is_no_number_is_told(tmp_path):
    (tmp_path / "gaps.csv").write_text("a,y\n1,0\n,1\n")
    with pytest.raises(DataError, match="real numbers, and row 2 has none: fill it in"):
        read_table(tmp_path / "gaps.csv").inputs(["a"])


def test_a_column_without_a_name_is_no_input_unless_it_is_chosen(tmp_path):
    (tmp_path / "rows.csv").write_text(",a,y\n0,5,oak\n1,6,elm\n")
    table = read_table(tmp_path / "rows.csv")
    with pytest.raises(DataError, match="without a name, as pandas writes"):
        table.inputs(without=["y"])
    assert table.inputs(["", "a"])[0].tolist() == [[0, 5], [1, 6]]


def test_pickled_labels_are_told(tmp_path):
    np.savez(tmp_path / "labels.npz", X=np.ones((2, 1)), y=np.array(["oak", "elm"], dtype=object))
    with pytest.raises(DataError, match=r"Python objects, .* as in y.astype\('U'\)"):
        read_table(tmp_path / "labels.npz")


def test_a_label_that_is_missing_is_told(tmp_path):
    (tmp_path / "gaps.csv").write_text("a,y\n1,oak\n2,\n")
    with pytest.raises(DataError, match=r"'y' of .* has no value in row 2"):
        read_table(tmp_path / "gaps.csv").targets(["y"])


def test_complex_numbers_are_no_targets(folder):
    with pytest.raises(DataError, match="labels or real numbers"):
        read_table(folder / "trees.npz").targets(["z"])
