"""Graphs of one's own that are more than two tables: several types, DGL's chunked format and files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import dgl
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from commands import tutorial
from pyarrow import parquet
from shared_data import tiny_dataset

from tutorial_lib.data import load_dataset
from tutorial_lib.data.base import MASKS
from tutorial_lib.errors import InputError
from tutorial_lib.partition import dataset_description
from tutorial_lib.tasks.hetero import TASK

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
    write(tmp_path, TYPED)
    np.save(tmp_path / "papers" / "feat.npy", np.arange(6.0).reshape(3, 2))
    return tmp_path


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def ends(graph: dgl.DGLGraph, relation: tuple[str, str, str] | None = None) -> list[list[int]]:
    return [end.tolist() for end in graph.edges(order="eid", etype=relation)]


def same(one: dgl.DGLGraph, other: dgl.DGLGraph) -> bool:
    """Types, edges in their order, and what nodes and edges have."""
    if (one.ntypes, one.canonical_etypes) != (other.ntypes, other.canonical_etypes):
        return False
    frames = [(one.nodes[kind].data, other.nodes[kind].data) for kind in one.ntypes]
    frames += [(one.edges[relation].data, other.edges[relation].data) for relation in one.canonical_etypes]
    alike = all({*mine} == {*theirs} and all(torch.equal(mine[k], theirs[k]) for k in mine) for mine, theirs in frames)
    return alike and all(ends(one, relation) == ends(other, relation) for relation in one.canonical_etypes)


def test_several_types_by_graph_yaml(typed):
    """A folder, a table, a number, and a type whose nodes are those of its edges."""
    dataset = load_dataset(typed)
    graph, papers = dataset.graph, dataset.target_data
    assert {kind: graph.num_nodes(kind) for kind in graph.ntypes} == {"author": 2, "field": 3, "paper": 3, "venue": 2}
    assert ends(graph, ("author", "writes", "paper")) == [[0, 0, 1, 1], [0, 1, 2, 2]]
    assert ends(graph, ("paper", "at", "venue")) == [[0, 2], [1, 0]]  # ICML, KDD
    assert (dataset.target, dataset.num_features, papers["feat"].tolist()[2]) == ("paper", 2, [4.0, 5.0])
    assert [papers[name].nonzero().flatten().tolist() for name in MASKS] == [[0], [1], [2]]
    assert graph.nodes["author"].data["feat"].tolist() == [[31.0], [45.0]]
    assert dataset.ids.to_pylist() == ["p1", "p2", "p3"]
    assert dataset.info["duplicate_edges"]["author:writes:paper"] == 1
    assert dataset.info["isolated_nodes"] == {"paper": 0, "author": 0, "field": 1, "venue": 0}
    TASK.check(dataset_description(dataset))


def test_reverses_of_several_types_are_relations_of_their_own(typed):
    graph = load_dataset(typed, both_ways=True).graph
    assert len(graph.canonical_etypes) == 8
    assert ends(graph, ("paper", "rev-writes", "author")) == [[0, 1, 2, 2], [0, 0, 1, 1]]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"graph.yaml": "nodes: {a: 1\nedges: 2"}, "graph.yaml: .*line 2"),
        ({"graph.yaml": YAML + "kind: 3\n"}, "graph.yaml: kind: Extra inputs"),
        ({"graph.yaml": YAML + "target: author\n"}, "authors.csv: there are no labels"),
        ({"graph.yaml": YAML + "target: book\n"}, "target is 'book', and the types of nodes are paper, author"),
        ({"graph.yaml": YAML.replace("cites.csv", "refs.csv")}, "graph.yaml: refs.csv: no such file"),
        (
            {"graph.yaml": YAML.replace("paper:cites:paper", "cites")},
            "edges.cites.*: String should match",
        ),
        ({"graph.yaml": YAML.replace("venue:", "items:")}, "a type cannot be called 'items'"),
        ({"authors.csv": "id,label\nann,1\nbob,2\n"}, "nodes of several types have labels: paper, author"),
        ({"writes.csv": "author,paper\nann,p1\nann,p9\n"}, "writes.csv, line 3: paper p9 is not among the nodes"),
        ({"topics.csv": "src,dst\np1,3\n"}, "topics.csv, line 2: dst 3 is not among the nodes, 0 to 2"),
    ],
)
def test_mistakes_of_several_types(typed, files, message):
    write(typed, files)
    with pytest.raises(InputError, match=message):
        load_dataset(typed, features=False)


def chunked(graph: dgl.DGLGraph, folder: Path, form: str, per: str = "chunk") -> dict:
    """What DGL's tools/chunk_graph.py makes of a graph: two chunks of everything."""
    folder.mkdir(exist_ok=True)

    def chunks(array: np.ndarray, name: str) -> dict:
        files = []
        for number, chunk in enumerate(np.array_split(array, 2)):
            files.append(f"{name}-{number}.{'npy' if form == 'numpy' else form}".replace(":", "."))
            if form == "numpy":
                np.save(folder / files[-1], chunk)
                continue
            table = pa.Table.from_pandas(pd.DataFrame(chunk.astype(np.uint8) if chunk.dtype == bool else chunk))
            if form == "csv":
                options = pa.csv.WriteOptions(include_header=False, delimiter=" ")
                pa.csv.write_csv(table, folder / files[-1], options)
            else:
                parquet.write_table(table.replace_schema_metadata({"shape": str(chunk.shape)}), folder / files[-1])
        return {"format": {"name": form, **({"delimiter": " "} if form == "csv" else {})}, "data": files}

    relations = {":".join(relation): relation for relation in graph.canonical_etypes}
    found = {"graph_name": "mine", "node_type": graph.ntypes, "edge_type": [*relations]}
    sizes = {"nodes": map(graph.num_nodes, graph.ntypes), "edges": map(graph.num_edges, relations.values())}
    for of, counts in sizes.items():
        split = [[count - count // 2, count // 2] if per == "chunk" else count for count in counts]
        found[f"num_{of}_per_{per}"] = split
    found["edges"] = {
        key: chunks(torch.stack(graph.edges(order="eid", etype=relation), 1).numpy(), key)
        for key, relation in relations.items()
    }
    found["node_data"] = {
        kind: {name: chunks(value.numpy(), f"{kind}-{name}") for name, value in graph.nodes[kind].data.items()}
        for kind in graph.ntypes
    }
    found["edge_data"] = {
        key: {name: chunks(value.numpy(), f"{key}-{name}") for name, value in graph.edges[relation].data.items()}
        for key, relation in relations.items()
    }
    (folder / "metadata.json").write_text(json.dumps(found))
    return found


@pytest.fixture
def whole() -> dgl.DGLGraph:
    graph = tiny_dataset().graph
    graph.edata["length"] = torch.arange(graph.num_edges())
    graph.ndata["year"] = torch.arange(2000, 2000 + graph.num_nodes())
    return graph


@pytest.mark.parametrize(("form", "per"), [("csv", "chunk"), ("parquet", "type"), ("numpy", "chunk")])
def test_dgl_s_chunked_format(whole, tmp_path, form, per):
    """Also what is neither feature, label nor mask comes along, for scripts that read the partition."""
    chunked(whole, tmp_path, form, per)
    found = load_dataset(tmp_path).graph
    assert same(found, whole)


def test_the_chunked_format_with_several_types(typed, tmp_path):
    graph = load_dataset(typed).graph
    chunked(graph, tmp_path / "chunks", "numpy")
    found = load_dataset(tmp_path / "chunks")
    assert same(found.graph, graph)
    assert (found.target, found.ids) == ("paper", None)


def test_a_key_target_says_which_type_is_classified(typed, tmp_path):
    graph = load_dataset(typed).graph
    graph.nodes["author"].data["label"] = torch.tensor([0, 1])
    metadata = chunked(graph, tmp_path / "chunks", "numpy")
    with pytest.raises(InputError, match="nodes of several types have labels: author, paper"):
        load_dataset(tmp_path / "chunks")
    (tmp_path / "chunks" / "metadata.json").write_text(json.dumps(metadata | {"target": "paper"}))
    found = load_dataset(tmp_path / "chunks")
    assert found.target == "paper"
    assert "label" not in found.graph.nodes["author"].data


def test_reverses_leave_out_what_edges_have(whole, tmp_path):
    chunked(whole, tmp_path, "numpy")
    graph = load_dataset(tmp_path, both_ways=True).graph
    assert list(graph.edata) == []
    assert list(graph.ndata) != []
    assert graph.has_edges_between(*reversed(whole.edges())).all()


def test_labels_with_gaps_and_one_feature_each(whole, tmp_path):
    metadata = chunked(whole, tmp_path, "numpy")
    metadata["node_data"]["_N"].pop("train_mask"), metadata["node_data"]["_N"].pop("val_mask")
    metadata["node_data"]["_N"].pop("test_mask")
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    np.save(tmp_path / "_N-label-0.npy", np.array([0, np.nan, 1, 0]))
    np.save(tmp_path / "_N-feat-0.npy", np.arange(4.0))
    np.save(tmp_path / "_N-feat-1.npy", np.arange(4.0))
    dataset = load_dataset(tmp_path)
    assert dataset.info["unlabelled_nodes"] == 1
    assert dataset.info["split"] == [0.6, 0.2, 0.2]
    assert dataset.graph.ndata["feat"].shape == (8, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("edges"), "metadata.json: edges: Field required"),
        (lambda m: m["num_nodes_per_chunk"].append([3]), "num_nodes_per_chunk is for 2 types, node_type names 1"),
        (
            lambda m: m.update(num_nodes_per_chunk=[[4]], node_data={}),
            r"_N-0.npy, row \d: src 4 is not among",
        ),
        (lambda m: m["num_edges_per_chunk"][0].append(5), "_N:_E:_N has 23 edges, and its files 18"),
        (lambda m: m["edges"]["_N:_E:_N"]["format"].update(name="hdf"), "format 'hdf' is not known"),
        (lambda m: m["edges"]["_N:_E:_N"]["data"].append("more.npy"), "more.npy: no such file"),
        (lambda m: m["node_data"]["_N"]["feat"]["data"].pop(), r"expected 8 rows alike, found _N-feat-0.npy \(4, 2\)"),
        (lambda m: m["node_data"]["_N"].pop("val_mask"), "metadata.json has no val_mask"),
        (lambda m: m["node_data"].update(book={}), "node_data has book, and node_type is _N"),
    ],
)
def test_mistakes_in_the_chunked_format(whole, tmp_path, change, message):
    metadata = chunked(whole, tmp_path, "numpy")
    change(metadata)
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(InputError, match=message):
        load_dataset(tmp_path)


def test_a_description_that_is_no_json(tmp_path):
    write(tmp_path, {"metadata.json": '{"node_type": ["a"]\n "edge_type": 3}'})
    with pytest.raises(InputError, match=r"metadata.json: Expecting ',' delimiter: line 2"):
        load_dataset(tmp_path)


def test_a_file_of_save_graphs(whole, typed, tmp_path):
    several = load_dataset(typed).graph
    for number, graph in enumerate((whole, several, whole.int())):
        dgl.save_graphs(str(tmp_path / f"{number}.bin"), [graph])
    one, many, short = (load_dataset(tmp_path / f"{number}.bin") for number in range(3))
    assert same(one.graph, whole)
    assert same(many.graph, several)
    assert same(short.graph, whole)
    assert one.info["duplicate_edges"] == 0


def test_other_files_are_refused_with_a_remedy(whole, tmp_path):
    dgl.save_graphs(str(tmp_path / "two.bin"), [whole, whole])
    with pytest.raises(InputError, match=r"two.bin holds 2 graphs") as caught:
        load_dataset(tmp_path / "two.bin")
    assert "save_graphs('two.bin', [graphs[0]])" in caught.value.remedy
    (tmp_path / "cut.bin").write_bytes((tmp_path / "two.bin").read_bytes()[:100])
    with pytest.raises(InputError, match=r"cut.bin: damaged"):
        load_dataset(tmp_path / "cut.bin")
    write(tmp_path, {"mine.csv": "src,dst\n0,1\n"})
    with pytest.raises(InputError, match=r"mine.csv is not a file of dgl.save_graphs") as caught:
        load_dataset(tmp_path / "mine.csv")
    assert "as edges.csv" in caught.value.remedy


@pytest.mark.whole_run
def test_an_own_graph_of_several_types_is_trained_by_the_command_line(tmp_path):
    """The label of a paper is its author's; predictions bear the papers' names."""
    rng = np.random.default_rng(0)
    folder, author = tmp_path / "mine", rng.integers(0, 40, 400)
    write(tmp_path, {"mine/graph.yaml": "nodes: {paper: papers}\nedges: {'author:writes:paper': writes.csv}\n"})
    rows = [f"p{k:03d},{'even' if who % 2 == 0 else 'odd'}\n" for k, who in enumerate(author)]
    write(folder, {"papers/nodes.csv": "id,label\n" + "".join(rows)})
    write(folder, {"writes.csv": "author,paper\n" + "".join(f"a{who},p{k:03d}\n" for k, who in enumerate(author))})
    np.save(folder / "papers" / "feat.npy", rng.random((400, 50)) < 0.05)
    shown = json.loads(tutorial("data", str(folder), "--json").stdout)
    assert (shown["target"], shown["nodes_of"]) == ("paper", {"author": 40, "paper": 400})
    words = ["--task", "hetero", "--fanouts", "5,5", "--hidden-size", "16", "--epochs", "30", "--batch-size", "100"]
    words += ["--both-ways", "--learning-rate", "0.02", "--out", str(tmp_path / "run")]
    tutorial("train", "--single-process", "--dataset", str(folder), *words)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["test_accuracy"] > 0.8
    with (tmp_path / "run" / "predictions.csv").open() as file:
        found = list(csv.DictReader(file))
    assert [row["id"] for row in found] == [row.split(",")[0] for row in rows]
    assert {row["prediction"] for row in found} == {"even", "odd"}
