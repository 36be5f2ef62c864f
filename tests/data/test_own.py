"""Graphs of users from tables and arrays, and errors that name file, line and remedy."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from shared_data import write_files

from tutorial_lib.data import Dataset, load_dataset
from tutorial_lib.data.base import MASKS
from tutorial_lib.data.tables import read_ids
from tutorial_lib.errors import InputError
from tutorial_lib.partition import partition_dataset

EDGES = "src,dst\nann,bob\nbob,cy\ncy,ann\nann,ann\n"
NODES = "id,label,age,split\nann,red,1.5,train\nbob,blue,2,valid\ncy,,3,test\ndee,red,4,test\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path, {"edges.csv": EDGES, "nodes.csv": NODES})
    return tmp_path


@pytest.mark.parametrize("how", ["csv", "parquet"])
def test_text_ids_and_labels(how, folder):
    """D20. Nodes are in the order of their table. A node without a label is in no split. Edges stay directed."""
    for path in folder.glob("*.csv") if how == "parquet" else ():
        options = pa.csv.ConvertOptions(strings_can_be_null=True, null_values=[""])
        parquet.write_table(pa.csv.read_csv(path, convert_options=options), path.with_suffix(".parquet"))
        path.unlink()
    dataset = load_dataset(folder)
    graph = dataset.graph
    assert [end.tolist() for end in graph.edges()] == [[0, 1, 2, 0], [1, 2, 0, 0]]
    assert graph.ndata["feat"].tolist() == [[1.5], [2.0], [3.0], [4.0]]
    assert graph.ndata["label"].tolist() == [1, 0, 0, 1]
    masks = {name: graph.ndata[name].nonzero().flatten().tolist() for name in MASKS}
    assert masks == {"train_mask": [0], "val_mask": [1], "test_mask": [3]}
    assert dataset.ids.to_pylist() == ["ann", "bob", "cy", "dee"]
    assert {"class_names": ["blue", "red"], "unlabeled_nodes": 1}.items() <= dataset.info.items()
    assert dataset.info["classes_without_a_training_node"] == ["blue"]
    assert json.loads(json.dumps(dataset.info)) == dataset.info


def test_text_ids_are_not_converted(tmp_path):
    """D20. Texts that look like a number, a missing value or a date, and the byte order mark of Excel."""
    names, splits = ["007", "7", "NA", "2020-01-01", "true"], ["train", "val", "test", "train", "test"]
    rows = [f"{name},{k % 2},1.5,{split}\n" for k, (name, split) in enumerate(zip(names, splits, strict=True))]
    nodes = "".join(["\ufeffid,label,age,split\n", *rows])
    write_files(tmp_path, {"nodes.csv": nodes, "edges.csv": "\ufeffsrc,dst\n007,7\nNA,2020-01-01\n"})
    found = load_dataset(tmp_path)
    assert [str(name) for name in found.ids] == names
    assert [end.tolist() for end in found.graph.edges()] == [[0, 2], [1, 3]]


@pytest.mark.parametrize("how", ["csv.gz", "npy"])
def test_all_file_formats_give_the_same_graph(small_dataset: Dataset, tmp_path, how):
    graph, edges = small_dataset.graph, torch.stack(small_dataset.graph.edges(order="eid"))
    write_files(tmp_path, {f"{name}.npy": value.numpy() for name, value in graph.ndata.items()})
    if how == "npy":
        np.save(tmp_path / "edges.npy", edges.T.numpy())
    else:
        with pa.output_stream(tmp_path / "edges.csv.gz") as stream:
            pa.csv.write_csv(pa.table(edges.numpy().tolist(), names=["u", "v"]), stream)
    found = load_dataset(tmp_path)
    assert torch.equal(torch.stack(found.graph.edges(order="eid")), edges)
    assert all(torch.equal(found.graph.ndata[name], value) for name, value in graph.ndata.items())
    assert found.ids is None


def test_integer_ids_without_node_table(tmp_path):
    write_files(tmp_path, {"edges.csv": "src,dst\n30,10\n10,20\n", "label.npy": np.array([0, 1, 0])})
    with pytest.raises(InputError, match=r"edges.csv, line 2: src 30 is not among the nodes, 0 to 2"):
        load_dataset(tmp_path, features=False)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"edges.csv": "src,dst\nann,bob\nbob,zed\n"}, "edges.csv, line 3: dst zed is not among the nodes"),
        ({"edges.csv": "src,dst\nann,bob\nbob,cy,3\n"}, "edges.csv: cannot be read: .*Row #3: Expected 2 columns"),
        ({"edges.csv": "1,2\n2,3\n"}, "edges.csv has no columns src and dst, but 1, 2"),
        ({"edges.csv": "src,dst\n"}, "edges.csv: cannot be read: the file has no rows"),
        ({"nodes.csv": NODES + "ann,red,1,train\n"}, "nodes.csv, line 6: ann is listed more than once"),
        ({"nodes.csv": NODES.replace("valid", "dev")}, "nodes.csv, line 3: unknown split dev"),
        ({"nodes.csv": NODES.replace("1.5", "old")}, "nodes.csv, column age: cannot be read: .*old"),
        ({"edges.parquet": ""}, "has both edges.csv and edges.parquet"),
        ({"feat.npy": np.zeros((3, 2))}, "feat has 3 rows, and there are 4 nodes"),
        ({"label.npy": np.array([0, 0.5, 1, 1])}, "label is float64 .*, expected integers .*, but node 1 has 0.5"),
        ({"train_mask.npy": np.ones(4, bool)}, "train_mask, val_mask, test_mask are not disjoint masks of 4 nodes"),
        ({f"{name}.npy": np.arange(4) == 1 for name in MASKS}, "are not disjoint masks of 4 nodes"),
    ],
)
def test_errors_name_file_and_line(folder, files, message):
    write_files(folder, files)
    with pytest.raises(InputError, match=message):
        load_dataset(folder)


def test_sparse_integer_ids_are_refused(tmp_path):
    """D20. Sparse IDs are an error, because they would give a graph of mostly isolated nodes."""
    write_files(tmp_path, {"edges.csv": "src,dst\n0,1000000000000\n"})
    with pytest.raises(InputError, match="IDs run from 0 to 1000000000000, and nearly all of these nodes"):
        load_dataset(tmp_path)


def test_mixed_integer_and_text_ids_are_refused(tmp_path):
    """D20."""
    write_files(tmp_path, {"edges.csv": "src,dst\n7,a\n8,b\n"})
    dataset = load_dataset(tmp_path, features=False)
    assert dataset.ids.to_pylist() == ["7", "8", "a", "b"]
    assert [end.tolist() for end in dataset.graph.edges()] == [[0, 1], [2, 3]]


def test_graphs_without_labels_can_be_partitioned(tmp_path):
    """The parts have no labels, masks or split, and the report counts no training nodes."""
    edges = np.stack([np.arange(12), np.roll(np.arange(12), 1)])
    write_files(tmp_path, {"edges.npy": edges, "feat.npy": np.ones((12, 3))})
    dataset = load_dataset(tmp_path)
    assert (dataset.num_classes, dataset.split_counts(), [*dataset.graph.ndata]) == (0, {}, ["feat"])
    partition = partition_dataset(dataset, 2, tmp_path / "parts")
    assert (sum(partition.report.nodes), partition.report.train_nodes) == (12, [0, 0])
    assert not partition.manifest["dataset"]["masks"]


def test_float_labels_with_missing_values(tmp_path):
    """A node without a label is in no part of the random split, which depends on the seed alone."""
    np.save(tmp_path / "edges.npy", np.stack([np.arange(20), np.roll(np.arange(20), 1)]))
    np.save(tmp_path / "label.npy", np.where(np.arange(20) == 3, np.nan, np.arange(20) % 2))
    dataset, again = (load_dataset(tmp_path, features=False, seed=1) for _ in range(2))
    assert (dataset.info["unlabeled_nodes"], dataset.info["split"]) == (1, [0.6, 0.2, 0.2])
    assert sum(dataset.split_counts().values()) == 19
    assert dataset.fingerprint() == again.fingerprint() != load_dataset(tmp_path, features=False).fingerprint()


def test_partition_stores_user_ids_and_depends_on_them(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("parts") / "two"
    partition = partition_dataset(load_dataset(folder), 2, out, method="random")
    assert read_ids(partition.folder).to_pylist() == ["ann", "bob", "cy", "dee"]
    write_files(folder, {"edges.csv": EDGES.replace("bob", "rob"), "nodes.csv": NODES.replace("bob", "rob")})
    with pytest.raises(InputError, match="holds a partition of other data"):
        partition_dataset(load_dataset(folder), 2, out, method="random")
