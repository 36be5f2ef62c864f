"""Partition folders: counted reports, ID maps, formats, reuse, damage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import dgl
import numpy as np
import pytest
import torch
from shared_data import tiny_dataset

from tutorial_lib.errors import InputError
from tutorial_lib.files import graph_name_of
from tutorial_lib.partition import load_partition_folder, partition_dataset
from tutorial_lib.partition.folder import checksums_of
from tutorial_lib.partition.report import count_partition


def test_report_counts_the_known_cut():
    report = count_partition({"_N": torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])}, tiny_dataset(), 2, "by hand")
    assert report.edge_cut == 2
    assert report.edge_cut_share == 2 / 18
    assert report.nodes == [4, 4]
    assert report.edges == [9, 9]
    assert report.halo_nodes == [1, 1]
    assert report.train_nodes == [2, 1]


def test_report_agrees_with_what_dgl_wrote(partition_of, small_dataset):
    partition = partition_of(2)
    report = partition.report
    assert sum(report.nodes) == small_dataset.graph.num_nodes()
    assert sum(report.edges) == small_dataset.graph.num_edges()
    assert sum(report.train_nodes) == int(small_dataset.graph.ndata["train_mask"].sum())
    for part in range(2):
        graph, feats, *_ = dgl.distributed.load_partition(str(partition.config), part)
        inner = graph.ndata["inner_node"].bool()
        assert report.nodes[part] == int(inner.sum())
        assert report.halo_nodes[part] == int((~inner).sum())
        # A part also stores edges that it does not own: those from an inner to a halo node.
        assert report.edges[part] == int(graph.edata["inner_edge"].sum())
        assert report.train_nodes[part] == int(feats["_N/train_mask"].bool().sum())
    cut = sum(
        int((~g.ndata["inner_node"].bool()[g.edges()[0]]).sum())
        for g in (dgl.distributed.load_partition(str(partition.config), part)[0] for part in range(2))
    )
    assert cut == report.edge_cut


def test_kaminpar_cuts_far_less_than_random(partition_of, small_dataset, tmp_path):
    random = partition_dataset(small_dataset, 2, tmp_path / "random", method="random").report
    assert 0.45 < random.edge_cut_share < 0.55
    assert partition_of(2).report.edge_cut_share < random.edge_cut_share / 3


def test_maps_lead_back_to_the_original(partition_of, small_dataset):
    partition = partition_of(2)
    graph = small_dataset.graph
    n = graph.num_nodes()
    assert sorted(partition.node_map) == list(range(n))
    assert (partition.node_map_inverse[partition.node_map] == np.arange(n)).all()
    src, dst = graph.edges(order="eid")
    first = 0
    for part in range(2):
        local, feats, *_ = dgl.distributed.load_partition(str(partition.config), part)
        count = partition.report.nodes[part]
        original = torch.from_numpy(partition.node_map[first : first + count])
        assert torch.equal(feats["_N/feat"], graph.ndata["feat"][original])
        assert torch.equal(feats["_N/label"], graph.ndata["label"][original])
        # Every edge of the part is the original edge that the edge map says, between the mapped nodes.
        edges = torch.from_numpy(partition.edge_map[local.edata[dgl.EID].numpy()])
        ends = [torch.from_numpy(partition.node_map[local.ndata[dgl.NID][end].numpy()]) for end in local.edges()]
        assert torch.equal(src[edges], ends[0])
        assert torch.equal(dst[edges], ends[1])
        first += count
    assert (np.sort(partition.edge_map) == np.arange(graph.num_edges())).all()


def test_both_formats_hold_the_same_edges(partition_of):
    partition = partition_of(2)
    for part in range(2):
        plain = dgl.distributed.load_partition(str(partition.config), part)[0]
        bolt = dgl.distributed.load_partition(str(partition.config), part, use_graphbolt=True)[0]
        indptr, indices, _ = plain.adj_tensors("csc")
        assert torch.equal(bolt.csc_indptr.long(), indptr)
        assert torch.equal(bolt.indices.long(), indices)


def test_second_call_reuses_the_folder(small_dataset, partition_of):
    first = partition_of(2)
    stamps = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}
    second = partition_dataset(small_dataset, 2, first.folder)
    assert second.reused
    assert {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")} == stamps


def test_the_seed_decides_a_random_partition(small_dataset, tmp_path):
    maps = [
        partition_dataset(small_dataset, 2, tmp_path / str(k), method="random", seed=seed).node_map
        for k, seed in enumerate((0, 0, 1))
    ]
    assert (maps[0] == maps[1]).all()
    assert (maps[0] != maps[2]).any()


@pytest.mark.parametrize(
    "options",
    [{"parts": 4}, {"parts": 2, "method": "random"}, {"parts": 2, "dataset": "other"}],
)
def test_folder_of_another_partition_is_refused_and_kept(small_dataset, partition_of, options):
    options = dict(options)
    dataset = tiny_dataset() if options.pop("dataset", None) else small_dataset
    folder = partition_of(2).folder
    with pytest.raises(InputError, match="holds a partition of other data or with other options"):
        partition_dataset(dataset, options.pop("parts"), folder, **options)
    load_partition_folder(folder)


def test_a_folder_with_something_else_is_refused(small_dataset, tmp_path):
    (tmp_path / "thesis.txt").write_text("do not lose this")
    with pytest.raises(InputError, match="is not a partition folder"):
        partition_dataset(small_dataset, 2, tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "do not lose this"


def damage_missing(path):
    path.unlink()


def damage_truncated(path):
    path.write_bytes(path.read_bytes()[:-1])


def damage_flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["part1/graph.dgl", "part0/node_feat.dgl", "synthetic-products.json", "node_map.npy"])
@pytest.mark.parametrize(
    ("damage", "words"),
    [(damage_missing, "is missing"), (damage_truncated, "bytes, expected"), (damage_flipped, "checksum")],
)
def test_a_damaged_file_is_named(partition_of, small_dataset, tmp_path, name, damage, words):
    folder = shutil.copytree(partition_of(2).folder, tmp_path / "p")
    damage(folder / name)
    with pytest.raises(InputError, match=words) as caught:
        partition_dataset(small_dataset, 2, folder)
    assert str(folder / name) in caught.value.message


def test_part_1_is_not_part_10(tmp_path):
    """D18. A machine that has only its own part checks this part. The parts of other machines may be missing."""
    for k in range(11):
        (tmp_path / f"part{k}").mkdir()
        (tmp_path / f"part{k}" / "graph.dgl").write_text("x")
    manifest = {"report": {"parts": 11}, "files": checksums_of(tmp_path)}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "part10" / "graph.dgl").write_text("y")
    for part in (0, 1):
        load_partition_folder(tmp_path, part=part)
    with pytest.raises(InputError, match=r"part10/graph\.dgl has other content"):
        load_partition_folder(tmp_path, part=10)
    (tmp_path / "part1" / "graph.dgl").unlink()
    with pytest.raises(InputError, match=r"part1/graph\.dgl is missing"):
        load_partition_folder(tmp_path, part=1)
    load_partition_folder(tmp_path, part=2)


def test_a_damaged_manifest_is_named(partition_of, tmp_path):
    folder = shutil.copytree(partition_of(2).folder, tmp_path / "p")
    (folder / "manifest.json").write_text('{"files": ')
    with pytest.raises(InputError, match=r"manifest\.json is damaged"):
        load_partition_folder(folder)


def test_nothing_is_left_when_partitioning_fails(small_dataset, tmp_path, monkeypatch):
    def broken(*_args, **_kwargs):
        raise MemoryError

    monkeypatch.setattr("tutorial_lib.partition.build.Writer", broken)
    with pytest.raises(MemoryError):
        partition_dataset(small_dataset, 2, tmp_path / "p", method="random")
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_followed(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    done = partition_dataset(tiny_dataset(), 2, tmp_path / "link", method="random")
    assert done.folder == tmp_path / "disk"
    assert (tmp_path / "link").is_symlink()
    assert partition_dataset(tiny_dataset(), 2, tmp_path / "link", method="random").reused


def test_a_mount_point_is_refused_before_the_work(tmp_path, monkeypatch):
    """D18."""
    monkeypatch.setattr("os.path.ismount", lambda path: path == tmp_path)
    said: list[str] = []
    with pytest.raises(InputError, match="mount point"):
        partition_dataset(tiny_dataset(), 2, tmp_path, log=said.append)
    assert said == []


def test_another_process_may_finish_first(tmp_path, monkeypatch):
    """D18. The folder of the process that finished first is reused."""
    rename = Path.rename

    def lose(self, target):
        shutil.copytree(self, target)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", lose)
    assert partition_dataset(tiny_dataset(), 2, tmp_path / "p", method="random").reused
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_parts_without_graphbolt_are_refused_where_it_is_needed(tmp_path, monkeypatch):
    problem = "tutorial_lib.partition.{}.graphbolt_problem"
    with monkeypatch.context() as patch:
        for module in ("build", "writer"):
            patch.setattr(problem.format(module), lambda: "not here")
        first = partition_dataset(tiny_dataset(), 2, tmp_path / "p", method="random")
        assert not first.has_graphbolt
        assert partition_dataset(tiny_dataset(), 2, tmp_path / "p", method="random").reused
    monkeypatch.setattr(problem.format("build"), lambda: None)
    with pytest.raises(InputError, match="made without GraphBolt's files"):
        partition_dataset(tiny_dataset(), 2, tmp_path / "p", method="random")


@pytest.mark.parametrize(("parts", "method"), [(0, "random"), (10**9, "random"), (2, "hope")])
def test_wrong_arguments(parts, method, small_dataset, tmp_path):
    with pytest.raises(InputError):
        partition_dataset(small_dataset, parts, tmp_path / "p", method=method)


def test_manifest_is_complete(partition_of):
    folder = partition_of(2).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    on_disk = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {"manifest.json"}
    assert set(manifest["files"]) == on_disk


@pytest.mark.parametrize(
    ("name", "expected"), [("synthetic-products", "synthetic-products"), ("../a b/amazon_co.npz", "amazon_co")]
)
def test_graph_name(name, expected):
    assert graph_name_of(name) == expected
