"""synthetic-academic: sizes, structure, a relation name for two relations, and partitions."""

import dgl
import numpy as np
import pytest
import torch

from tutorial_lib.data import Dataset, check_dataset, load_dataset
from tutorial_lib.data.synthetic import RELATIONS, load_academic
from tutorial_lib.errors import InputError
from tutorial_lib.partition import load_partition_folder, partition_dataset

TINY = 0.002


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Dataset:
    return load_academic(scale=TINY, root=tmp_path_factory.mktemp("tiny"))


def test_generated_data_are_unchanged(tiny, tmp_path):
    """A deliberate change increases ``VERSION`` and changes this test."""
    assert tiny.fingerprint() == "c282e7eaa15674cbe6c4b302da3a9bd404b57da1241ab793a948633567a3b609"
    for seed, same in ((0, True), (0, True), (1, False)):
        found = load_dataset("synthetic-academic", scale=TINY, seed=seed, root=tmp_path)
        assert (found.fingerprint() == tiny.fingerprint()) == same
    names = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert names == [f"synthetic-academic-0.002-seed{seed}-v1" for seed in (0, 1)]


def test_types_relations_and_their_reverses(tiny):
    graph = tiny.graph
    assert graph.ntypes == ["author", "field", "paper"]
    assert graph.num_nodes("paper") == round(736_389 * TINY)
    assert len(graph.canonical_etypes) == 8
    for (start, name, end), (back, _, _) in RELATIONS.items():
        src, dst = graph.edges(etype=(start, name, end), order="eid")
        assert len(src) == pytest.approx(graph.num_edges((end, back, start)))
        assert torch.equal(torch.stack([dst, src]), torch.stack(graph.edges(etype=(end, back, start), order="eid")))
        assert len(torch.unique(src * graph.num_nodes(end) + dst)) == len(src)  # no edge twice
    src, dst = graph.edges(etype="cites")
    assert not (src == dst).any()
    assert (tiny.target, tiny.num_features, tiny.num_classes) == ("paper", 64, 16)
    assert dict(graph.nodes["author"].data) == dict(graph.nodes["field"].data) == {}
    assert sum(tiny.split_counts().values()) == graph.num_nodes("paper")


def test_relation_without_edges_is_an_error():
    graph = dgl.heterograph({("a", "r", "b"): ([0], [0]), ("b", "s", "a"): ([], [])})
    graph.nodes["a"].data["label"] = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(InputError, match=r"no node or edge of type \('b', 's', 'a'\)"):
        check_dataset(Dataset("broken", graph, 1))


@pytest.fixture(scope="module")
def cut(tiny, tmp_path_factory):
    return partition_dataset(tiny, 2, tmp_path_factory.mktemp("academic") / "p")


def test_parts_are_balanced_by_node_type(cut, tiny):
    report = cut.report
    assert report.edge_cut_share < 0.5  # two random parts cut half of the edges
    assert max(report.nodes) < 1.07 * min(report.nodes)
    assert max(report.train_nodes) <= np.ceil(1.03 * sum(report.train_nodes) / 2)
    assert (sum(report.nodes), sum(report.edges)) == (tiny.graph.num_nodes(), tiny.graph.num_edges())
    assert load_partition_folder(cut.folder).report == report
    assert partition_dataset(tiny, 2, cut.folder).reused


def test_typed_id_maps_restore_original_graph(cut, tiny):
    """D19. Inner edges go by relation and then by destination. Types are int16 for nodes and int32 for edges."""
    graph = tiny.graph
    seen = dict.fromkeys(graph.ntypes, 0)
    for part in range(2):
        local, feats, _, book, *_ = dgl.distributed.load_partition(str(cut.config), part)
        kinds, typed = book.map_to_per_ntype(local.ndata[dgl.NID])
        inner = local.ndata["inner_node"].bool()
        for number, name in enumerate(graph.ntypes):
            mine = typed[inner & (kinds == number)]
            assert torch.equal(mine, torch.arange(len(mine)) + seen[name])  # stretches, part by part
            seen[name] += len(mine)
            if name == "paper":
                original = torch.from_numpy(cut.node_map[name][mine.numpy()])
                for key in ("feat", "label"):
                    assert torch.equal(feats[f"paper/{key}"], graph.nodes["paper"].data[key][original])
        inner_edge, stored = local.edata["inner_edge"].bool(), local.edata[dgl.ETYPE]
        assert (stored.dtype, local.ndata[dgl.NTYPE].dtype) == (torch.int32, torch.int16)
        key = stored.long() * local.num_nodes() + local.edges(order="eid")[1]
        assert (key[inner_edge].diff() >= 0).all()
        relations, edges = book.map_to_per_etype(local.edata[dgl.EID])
        ends = [typed[end] for end in local.edges(order="eid")]
        for number, relation in enumerate(graph.canonical_etypes):
            chosen = relations == number
            original = torch.from_numpy(cut.edge_map[":".join(relation)][edges[chosen].numpy()])
            expected = [end[original] for end in graph.edges(etype=relation, order="eid")]
            for kind, end, wanted in zip((relation[0], relation[2]), ends, expected, strict=True):
                assert torch.equal(torch.from_numpy(cut.node_map[kind][end[chosen].numpy()]), wanted)
        if cut.has_graphbolt:
            bolt = dgl.distributed.load_partition(str(cut.config), part, use_graphbolt=True)[0]
            indptr, indices, ids = local.adj_tensors("csc")
            found = bolt.csc_indptr.long(), bolt.indices.long(), bolt.type_per_edge.long()
            assert all(map(torch.equal, found, (indptr, indices, relations[ids])))
        sources = local.edges()[0][inner_edge]
        assert cut.report.halo_nodes[part] == len(sources[~inner[sources]].unique())
    for name, ids in cut.node_map.items():
        assert sorted(ids) == list(range(graph.num_nodes(name)))


def test_part_without_nodes_of_some_type(tiny, tmp_path):
    """D23. DGL's writer fails here. The parts can still be loaded, and the maps cover every node and edge."""
    sizes = [tiny.graph.num_nodes(kind) for kind in tiny.graph.ntypes]
    part_of = np.arange(sum(sizes)) % 2
    first = sum(sizes[: tiny.graph.ntypes.index("field")])
    part_of[first : first + tiny.graph.num_nodes("field")] = 0
    np.save(tmp_path / "parts.npy", part_of)
    done = partition_dataset(tiny, 2, tmp_path / "p", method=str(tmp_path / "parts.npy"))
    for part in range(2):
        local, feats, _, book, *_ = dgl.distributed.load_partition(str(done.config), part)
        assert len(book.partid2nids(part, "field")) == (0 if part else tiny.graph.num_nodes("field"))
        assert len(feats["paper/feat"]) == len(book.partid2nids(part, "paper"))
        assert int(local.edata["inner_edge"].sum()) == done.report.edges[part]
    assert sorted(done.node_map["field"]) == list(range(tiny.graph.num_nodes("field")))
