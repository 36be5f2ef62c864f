"""The files of the parts, compared with those of ``dgl.distributed.partition_graph`` and with the data set."""

import json
from pathlib import Path

import dgl
import numpy as np
import pytest
import torch
from shared_data import tiny_dataset

from tutorial_lib.data import Dataset
from tutorial_lib.partition.writer import Writer


def one_way_dataset() -> Dataset:
    """A directed graph with edge data, a self loop, a duplicate edge and a node without in-edges."""
    src = torch.tensor([0, 1, 1, 2, 3, 4, 0, 2, 2, 5, 6, 6, 3])
    dst = torch.tensor([1, 2, 3, 0, 4, 0, 5, 2, 3, 3, 0, 0, 5])
    graph = dgl.graph((src, dst), num_nodes=8)
    graph.ndata.update(tiny_dataset().graph.ndata)
    graph.edata["length"] = torch.arange(len(src), dtype=torch.float32)
    return Dataset("one-way", graph, 2)


class Part:
    """A part in original IDs, for comparisons of partitions with different new IDs."""

    def __init__(self, config: Path, part: int, node_map: np.ndarray, edge_map: np.ndarray) -> None:
        graph, feats, edge_feats, *_ = dgl.distributed.load_partition(str(config), part)
        node_map, edge_map = torch.from_numpy(node_map), torch.from_numpy(edge_map)
        inner, inner_edge = graph.ndata["inner_node"].bool(), graph.edata["inner_edge"].bool()
        nodes, edges = node_map[graph.ndata[dgl.NID]], edge_map[graph.edata[dgl.EID]]
        self.inner, self.halo = set(nodes[inner].tolist()), set(nodes[~inner].tolist())
        self.owner = dict(zip(nodes.tolist(), graph.ndata["part_id"].tolist(), strict=True))
        ends = [nodes[end].tolist() for end in graph.edges(order="eid")]
        self.edges = set(zip(edges.tolist(), *ends, inner_edge.tolist(), strict=True))
        self.count = graph.num_nodes(), graph.num_edges()
        self.dtypes = [{k: v.dtype for k, v in data.items()} for data in (graph.ndata, graph.edata)]
        self.formats = graph.formats()
        self.feats = {key: value[nodes[inner].argsort()] for key, value in feats.items()}
        self.edge_feats = {key: value[edges[inner_edge].argsort()] for key, value in edge_feats.items()}
        # Servers need the inner nodes and edges first, with consecutive new IDs.
        assert inner[: inner.sum()].all()
        assert inner_edge[: inner_edge.sum()].all()
        for ids, chosen in ((graph.ndata[dgl.NID], inner), (graph.edata[dgl.EID], inner_edge)):
            assert torch.equal(ids[chosen], torch.arange(int(chosen.sum())) + ids[0])


def by_dgl_and_by_us(dataset: Dataset, parts: int, folder: Path) -> list[list[Part]]:
    """All parts of the same assignment, written by DGL and by us."""
    (folder / "ours").mkdir()
    maps = dgl.distributed.partition_graph(
        dataset.graph, "g", parts, str(folder / "dgl"), part_method="random", return_mapping=True
    )
    part_of = np.empty(dataset.graph.num_nodes(), np.int64)
    (ranges,) = json.loads((folder / "dgl" / "g.json").read_text())["node_map"].values()
    for part, (first, end) in enumerate(ranges):
        part_of[maps[0].numpy()[first:end]] = part
    Writer(dataset, part_of, parts, folder / "ours").write("g", "random", lambda _text: None)
    ours = [np.load(folder / "ours" / f"{kind}_map.npy") for kind in ("node", "edge")]
    return [
        [Part(folder / who / "g.json", part, *found) for part in range(parts)]
        for who, found in (("dgl", [m.numpy() for m in maps]), ("ours", ours))
    ]


@pytest.mark.parametrize(("which", "parts"), [("small", 3), ("one way", 2), ("one way", 3)])
def test_parts_are_equivalent_to_dgl_parts(which, parts, small_dataset, tmp_path):
    """D19. Leaving edges are stored, and all fields have DGL's types."""
    dataset = small_dataset if which == "small" else one_way_dataset()
    dgl.seed(5)
    for theirs, ours in zip(*by_dgl_and_by_us(dataset, parts, tmp_path), strict=True):
        for key in ("inner", "halo", "owner", "edges", "count", "dtypes", "formats"):
            assert getattr(theirs, key) == getattr(ours, key), key
        for key in ("feats", "edge_feats"):
            one, other = getattr(theirs, key), getattr(ours, key)
            assert one.keys() == other.keys()
            assert all(torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one)
    description = [json.loads((tmp_path / who / "g.json").read_text()) for who in ("dgl", "ours")]
    for text in description:
        for part in range(parts):
            text[f"part-{part}"].pop("part_graph_graphbolt", None)  # only our writer adds this key
        for key in ("node_map_dtype", "edge_map_dtype"):
            text.pop(key, None)
    assert description[0] == description[1]


def test_the_report_agrees_with_the_files(partition_of, small_dataset):
    """D19. Edges go by destination. A part also stores edges that it does not own, from an inner to a halo node."""
    partition, cut = partition_of(3), 0
    report = partition.report
    for part in range(3):
        graph, feats, _, book, *_ = dgl.distributed.load_partition(str(partition.config), part)
        inner, owned = graph.ndata["inner_node"].bool(), graph.edata["inner_edge"].bool()
        assert (report.nodes[part], report.halo_nodes[part]) == (int(inner.sum()), int((~inner).sum()))
        assert report.nodes[part] == len(book.partid2nids(part))
        assert report.edges[part] == int(owned.sum()) == len(book.partid2eids(part))
        assert report.train_nodes[part] == int(feats["_N/train_mask"].sum())
        cut += int((~inner[graph.edges()[0]]).sum())
        if partition.has_graphbolt:
            bolt = dgl.distributed.load_partition(str(partition.config), part, use_graphbolt=True)[0]
            for one, other in zip((bolt.csc_indptr, bolt.indices), graph.adj_tensors("csc"), strict=False):
                assert torch.equal(one.long(), other)
    assert cut == report.edge_cut == round(report.edge_cut_share * small_dataset.graph.num_edges())
    assert (np.sort(partition.node_map) == np.arange(small_dataset.graph.num_nodes())).all()
    destination = small_dataset.graph.edges(order="eid")[1].numpy()[partition.edge_map]
    assert (np.diff(partition.node_map.argsort()[destination]) >= 0).all()
