"""Graphs of users with several node types, and files of ``dgl.save_graphs``."""

import csv
import json
from pathlib import Path

import dgl
import numpy as np
import pytest
import torch
from commands import tutorial
from shared_data import tiny_dataset, write_files

from tutorial_lib.data import load_dataset
from tutorial_lib.data.base import MASKS
from tutorial_lib.errors import InputError
from tutorial_lib.partition import dataset_description
from tutorial_lib.tasks import check_data

YAML = """nodes:
  paper: papers
  author: authors.csv
  field: 3
edges:
  author:writes:paper: writes.csv
  paper:cites:paper: cites.csv
  paper:has-topic:field: topics.csv
  paper:at:venue: venues.csv
"""
TYPED = {
    "graph.yaml": YAML,
    "papers/nodes.csv": "id,label,split\np1,ai,train\np2,db,valid\np3,ai,test\n",
    "authors.csv": "id,age\nann,31\nbob,45\n",
    "writes.csv": "author,paper\nann,p1\nann,p2\nbob,p3\nbob,p3\n",
    "cites.csv": "src,dst\np2,p1\np3,p1\n",
    "topics.csv": "src,dst\np1,0\np2,2\n",
    "venues.csv": "src,dst\np1,KDD\np3,ICML\n",
}


@pytest.fixture
def typed(tmp_path: Path) -> Path:
    write_files(tmp_path, {**TYPED, "papers/feat.npy": np.arange(6.0).reshape(3, 2)})
    return tmp_path


def ends(graph: dgl.DGLGraph, relation: tuple[str, str, str] | None = None) -> list[list[int]]:
    return [end.tolist() for end in graph.edges(order="eid", etype=relation)]


def contents(graph: dgl.DGLGraph) -> list:
    """Types, edges in their order, node data and edge data, for comparisons."""
    relations = graph.canonical_etypes
    frames = [*(graph.nodes[kind].data for kind in graph.ntypes), *(graph.edges[name].data for name in relations)]
    tensors = [{name: value.tolist() for name, value in frame.items()} for frame in frames]
    return [graph.ntypes, {relation: ends(graph, relation) for relation in relations}, tensors]


def test_graph_yaml_with_several_types(typed):
    """A node type is a folder, a table, a number of nodes, or the set of nodes in the edges."""
    dataset = load_dataset(typed)
    graph, papers = dataset.graph, dataset.target_data
    assert {kind: graph.num_nodes(kind) for kind in graph.ntypes} == {"author": 2, "field": 3, "paper": 3, "venue": 2}
    assert ends(graph, ("author", "writes", "paper")) == [[0, 0, 1, 1], [0, 1, 2, 2]]
    assert ends(graph, ("paper", "at", "venue")) == [[0, 2], [1, 0]]  # ICML, KDD
    assert (dataset.target, dataset.num_features, papers["feat"].tolist()[2]) == ("paper", 2, [4.0, 5.0])
    assert [papers[name].nonzero().flatten().tolist() for name in MASKS] == [[0], [1], [2]]
    assert graph.nodes["author"].data["feat"].tolist() == [[31.0], [45.0]]
    assert dataset.ids.to_pylist() == ["p1", "p2", "p3"]
    check_data("hetero", dataset_description(dataset))


def test_graph_yaml_reverse_edges_and_target(typed):
    graph = load_dataset(typed, add_reverse_edges=True).graph
    assert len(graph.canonical_etypes) == 8
    assert ends(graph, ("paper", "rev-writes", "author")) == [[0, 1, 2, 2], [0, 0, 1, 1]]
    write_files(typed, {"authors.csv": "id,label\nann,1\nbob,2\n", "graph.yaml": YAML + "target: paper\n"})
    dataset = load_dataset(typed)
    assert (dataset.target, "label" in dataset.graph.nodes["author"].data) == ("paper", False)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"graph.yaml": "nodes: {a: 1\nedges: 2"}, "graph.yaml: .*line 2"),
        ({"graph.yaml": YAML + "target: author\n"}, "target is author, expected one type of nodes with labels: paper"),
        ({"graph.yaml": YAML.replace("cites.csv", "refs.csv")}, "graph.yaml: refs.csv: no such file"),
        ({"authors.csv": "id,label\nann,1\nbob,2\n"}, "target is None, expected one type .*: paper, author"),
        ({"graph.yaml": YAML.replace("nodes:", "nodes:\n  book: .")}, "no file names the nodes of type book"),
        ({"writes.csv": "author,paper\nann,p1\nann,p9\n"}, "writes.csv, line 3: paper p9 is not among the nodes"),
    ],
)
def test_graph_yaml_mistakes_are_named(typed, files, message):
    write_files(typed, files)
    with pytest.raises(InputError, match=message):
        load_dataset(typed, features=False)


def test_load_file_of_save_graphs(typed, tmp_path):
    """The graph keeps its types, the order of its edges, and all node and edge data."""
    whole = tiny_dataset().graph
    whole.edata["length"] = torch.arange(whole.num_edges())
    several = load_dataset(typed).graph
    for number, (saved, kept) in enumerate([(whole, whole), (whole.int(), whole), (several, several)]):
        dgl.save_graphs(str(tmp_path / f"{number}.bin"), [saved])
        assert contents(load_dataset(tmp_path / f"{number}.bin").graph) == contents(kept)
    reversed_too = load_dataset(tmp_path / "0.bin", add_reverse_edges=True).graph
    assert (list(reversed_too.edata), {*reversed_too.ndata}) == ([], {*whole.ndata})
    assert reversed_too.has_edges_between(*reversed(whole.edges())).all()


def test_other_files_are_refused_with_a_remedy(tmp_path):
    dgl.save_graphs(str(tmp_path / "two.bin"), [tiny_dataset().graph] * 2)
    (tmp_path / "cut.bin").write_bytes((tmp_path / "two.bin").read_bytes()[:100])
    write_files(tmp_path, {"mine.csv": "src,dst\n0,1\n", "chunks/metadata.json": "{}"})
    for name in ("two.bin", "cut.bin", "mine.csv"):
        with pytest.raises(InputError, match=f"{name} is damaged, or is not a file with one DGL graph") as caught:
            load_dataset(tmp_path / name)
        assert "as edges.csv and nodes.csv" in caught.value.remedy
    with pytest.raises(InputError, match=r"has none of edges.csv, .*, edges.npy and graph.yaml") as caught:
        load_dataset(tmp_path / "chunks")
    assert "(metadata.json) with dgl.save_graphs" in caught.value.remedy


@pytest.mark.whole_run
def test_train_user_graph_with_several_types(tmp_path):
    """The label of a paper depends on its author. Predictions have the IDs of the papers."""
    rng = np.random.default_rng(0)
    folder, author = tmp_path / "mine", rng.integers(0, 40, 400)
    graph = "nodes: {paper: papers}\nedges: {'author:writes:paper': writes.csv}\n"
    rows = [f"p{k:03d},{'even' if who % 2 == 0 else 'odd'}\n" for k, who in enumerate(author)]
    writes = "author,paper\n" + "".join(f"a{who},p{k:03d}\n" for k, who in enumerate(author))
    papers = {"papers/nodes.csv": "id,label\n" + "".join(rows), "papers/feat.npy": rng.random((400, 50)) < 0.05}
    write_files(folder, {"graph.yaml": graph, "writes.csv": writes, **papers})
    shown = json.loads(tutorial("data", str(folder), "--json").stdout)
    assert (shown["target"], shown["nodes_of"]) == ("paper", {"author": 40, "paper": 400})
    words = ["--task", "hetero", "--fanouts", "5,5", "--hidden-size", "16", "--epochs", "30", "--batch-size", "100"]
    words += ["--both-ways", "--learning-rate", "0.02", "--out", str(tmp_path / "run")]
    tutorial("train", "--single-process", "--dataset", str(folder), *words)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["test_accuracy"] > 0.8
    with (tmp_path / "run" / "predictions.csv").open() as file:
        found = list(csv.DictReader(file))
    assert [row["id"] for row in found] == [row.split(",")[0] for row in rows]
    right = [row["prediction"] == ("even" if who % 2 == 0 else "odd") for row, who in zip(found, author, strict=True)]
    assert np.mean(right) > 0.8
