"""Tests of ``own_ids.py``. The tables have quoted IDs, an empty cell, and small blocks of about 40 bytes."""

import numpy as np
import pyarrow as pa
import pytest

from own_ids import collect_ids, number_ids, read_batches, read_node_ids, write_chunks

EDGES = 'weight,src,dst\n1,"007",7\n2,NA,007\n3,12,12\n4,7,"a, b"\n5,7,"a, b"\n6,ü9,NA\n'
NAMES = ["007", "12", "7", "NA", "a, b", "ü9"]
PAIRS = [[0, 2], [3, 0], [1, 1], [2, 4], [2, 4], [5, 3]]


@pytest.fixture
def edges(tmp_path):
    (tmp_path / "edges.csv").write_text(EDGES)
    return tmp_path / "edges.csv"


def write_nodes(folder, rows):
    (folder / "nodes.csv").write_text("price,id\n" + "".join(f"1,{row}\n" for row in rows))
    return folder / "nodes.csv"


def test_read_batches(edges):
    """Read the columns as strings and in the given order. 007 and NA keep their form. The first row is in line 2."""
    found = list(read_batches(edges, ["dst", "src"], 40))
    got = [row for _, batch in found for row in zip(*(batch[name].to_pylist() for name in ("dst", "src")))]
    expected = [(NAMES[dst], NAMES[src]) for src, dst in PAIRS]
    assert got == expected
    got, expected = [batch.schema.names for _, batch in found], [["dst", "src"]] * len(found)
    assert got == expected


def test_read_batches_counts_lines(edges):
    """A block has about 40 bytes here. The line of a pair is 2 plus the number of rows in earlier blocks."""
    found = list(read_batches(edges, ["src"], 40))
    got, expected = len(found) > 1, True
    assert got == expected
    got, expected = [line for line, _ in found], [2 + sum(len(b) for _, b in found[:k]) for k in range(len(found))]
    assert got == expected


def test_empty_cell(tmp_path):
    """Only an empty cell is null. Set null_values and strings_can_be_null."""
    path = write_nodes(tmp_path, ["null", "", "nan", "N/A"])
    got = [name for _, batch in read_batches(path, ["price", "id"]) for name in batch["id"].to_pylist()]
    expected = ["null", None, "nan", "N/A"]
    assert got == expected


def test_read_batches_is_lazy(tmp_path):
    """Yield each block before you read the next one. The wrong row in a later block must not matter yet."""
    (tmp_path / "edges.csv").write_text("src,dst\n" + "1,2\n" * 4000 + "1,2,3\n")
    got, expected = next(iter(read_batches(tmp_path / "edges.csv", ["src"], 100)))[0], 2
    assert got == expected


@pytest.mark.parametrize(
    ("columns", "expected"), [(["src", "dst"], NAMES), (["dst"], ["007", "12", "7", "NA", "a, b"])]
)
def test_collect_ids(edges, columns, expected):
    """Each different value of all blocks and given columns occurs once. Sort the values as strings."""
    got = collect_ids(edges, columns, 40).to_pylist()
    assert got == expected


def test_collect_ids_without_null(tmp_path):
    """An empty cell is not a value."""
    got, expected = collect_ids(write_nodes(tmp_path, ["b", "", "a"]), ["id"]), pa.array(["a", "b"])
    assert got == expected


def test_read_node_ids(tmp_path):
    """The IDs are sorted as strings."""
    got, expected = read_node_ids(write_nodes(tmp_path, ["7", "12", "NA", "007"])), pa.array(["007", "12", "7", "NA"])
    assert got == expected


ROWS = ["x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([*ROWS, "x2", "x1"], "line 10: 'x2' is listed more than once"),
        (["a", "b", "b", "b"], "line 4: 'b' is listed more than once"),
        ([*ROWS, ""], "line 10: the id is missing"),
    ],
)
def test_wrong_node_ids(tmp_path, rows, message):
    """Name the path and the line of the first row whose ID has occurred before, also in an earlier block."""
    path = write_nodes(tmp_path, rows)
    with pytest.raises(ValueError, match=", line ") as raised:
        read_node_ids(path, 20)
    got, expected = str(raised.value), f"{path}, {message}"
    assert got == expected


def test_number_ids():
    """The number of a value is its position in the sorted IDs."""
    found = number_ids(pa.array(["007", "12", "7", "NA"]), pa.array(["7", "7", "NA", "007"]), "edges.csv", 2)
    got, expected = (found.tolist(), found.dtype), ([2, 2, 3, 0], np.dtype("int64"))
    assert got == expected


@pytest.mark.parametrize(("values", "message"), [(["a", "b", "0", "x"], "line 12: no node has the ID '0'"),
                                                 (["b", None], "line 11: no node has the ID None")])  # fmt: skip
def test_unknown_id(values, message):
    """The batch begins in the given line. Name the line and the value of the first row that is wrong."""
    with pytest.raises(ValueError, match=", line ") as raised:
        number_ids(pa.array(["a", "b"]), pa.array(values, pa.string()), "edges.csv", 10)
    got, expected = str(raised.value), f"edges.csv, {message}"
    assert got == expected


def test_write_chunks(edges, tmp_path):
    """Write one file for each block. Together, the files have all edges in their order, as numbers."""
    files = write_chunks(edges, pa.array(NAMES), tmp_path, 40)
    arrays = [np.load(file) for file in files]
    got = len(files), {str(array.dtype) for array in arrays}, np.concatenate(arrays).tolist()
    expected = len(list(read_batches(edges, ["src"], 40))), {"int64"}, PAIRS
    assert got == expected
    got, expected = files, [tmp_path / f"{number}.npy" for number in range(len(files))]
    assert got == expected


def test_write_chunks_names_the_line(edges, tmp_path):
    """Pass the path and the line of the block to number_ids."""
    with pytest.raises(ValueError, match=", line ") as raised:
        write_chunks(edges, pa.array(NAMES[:-1]), tmp_path, 40)
    got, expected = str(raised.value), f"{edges}, line 7: no node has the ID 'ü9'"
    assert got == expected
