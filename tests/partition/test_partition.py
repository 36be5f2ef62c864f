"""Partition folders: counted reports, formats, reuse, damage."""

import shutil
from pathlib import Path

import dgl
import numpy as np
import pytest
from shared_data import tiny_dataset

from tutorial_lib.data import Dataset
from tutorial_lib.errors import InputError
from tutorial_lib.files import graph_name_of
from tutorial_lib.partition import load_partition_folder, partition_dataset


def test_report_counts_the_known_cut(tmp_path):
    np.save(tmp_path / "parts.npy", np.arange(8) // 4)
    report = partition_dataset(tiny_dataset(), 2, tmp_path / "p", method=str(tmp_path / "parts.npy")).report
    assert (report.edge_cut, report.edge_cut_share) == (2, 2 / 18)
    assert (report.nodes, report.edges, report.halo_nodes, report.train_nodes) == ([4, 4], [9, 9], [1, 1], [2, 1])


def test_halo_nodes_of_a_directed_graph_are_sources(tmp_path):
    """The file of part 0 also holds node 2, to which its edge leads."""
    np.save(tmp_path / "parts.npy", [0, 0, 1])
    dataset = Dataset("g", dgl.graph(([0, 0, 1], [1, 2, 0])), 0)
    done = partition_dataset(dataset, 2, tmp_path / "p", method=str(tmp_path / "parts.npy"))
    assert (done.report.halo_nodes, done.report.edge_cut) == ([0, 1], 1)
    assert dgl.distributed.load_partition(str(done.config), 0)[0].num_nodes() == 3


def test_second_call_reuses_the_folder(small_dataset, partition_of):
    first = partition_of(2)
    stamps = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}
    second = partition_dataset(small_dataset, 2, first.folder)
    assert second.reused
    assert set(second.manifest["files"]) == {
        str(path.relative_to(first.folder)) for path in stamps if path.is_file()
    } - {"manifest.json"}
    assert {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")} == stamps


@pytest.mark.parametrize("options", [{"parts": 4}, {"method": "random"}, {"seed": 1}, {"dataset": tiny_dataset()}])
def test_folder_of_another_partition_is_refused_and_kept(small_dataset, partition_of, options):
    folder = partition_of(2).folder
    with pytest.raises(InputError, match="holds a partition of other data or options"):
        partition_dataset(**({"dataset": small_dataset, "parts": 2, "out": folder} | options))
    load_partition_folder(folder)


@pytest.mark.parametrize("name", ["thesis.txt", "manifest.json"])
def test_a_folder_with_something_else_and_a_file_are_refused(small_dataset, tmp_path, name):
    (tmp_path / name).write_text('{"files": ')
    for out in (tmp_path, tmp_path / name):
        with pytest.raises(InputError, match="is not a partition folder"):
            partition_dataset(small_dataset, 2, out)
    assert (tmp_path / name).read_text() == '{"files": '


@pytest.mark.parametrize("name", ["part1/graph.dgl", "synthetic-products.json", "node_map.npy"])
@pytest.mark.parametrize("words", ["is missing", "bytes, expected", "checksum"])
def test_a_damaged_file_is_named(partition_of, small_dataset, tmp_path, name, words):
    folder = shutil.copytree(partition_of(2).folder, tmp_path / "p")
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content if words == "checksum" else content[:-1])
    if words == "is missing":
        (folder / name).unlink()
    with pytest.raises(InputError, match=words) as caught:
        partition_dataset(small_dataset, 2, folder)
    assert str(folder / name) in caught.value.message


def test_part_1_is_not_part_10(small_dataset, tmp_path):
    """D18. A machine that has only its own part checks this part. The parts of other machines may be missing."""
    folder = partition_dataset(small_dataset, 11, tmp_path / "p", method="random").folder
    (folder / "part10" / "graph.dgl").write_text("y")
    for part in (0, 1):
        load_partition_folder(folder, part=part)
    with pytest.raises(InputError, match=r"part10/graph\.dgl has"):
        load_partition_folder(folder, part=10)
    (folder / "part1" / "graph.dgl").unlink()
    with pytest.raises(InputError, match=r"part1/graph\.dgl is missing"):
        load_partition_folder(folder, part=1)
    load_partition_folder(folder, part=2)


def test_nothing_is_left_when_partitioning_fails(small_dataset, tmp_path, monkeypatch):
    def broken(*_args, **_kwargs):
        raise MemoryError

    monkeypatch.setattr("tutorial_lib.partition.writer.Writer", broken)
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


@pytest.mark.parametrize("parts", [0, 10**9])
def test_a_wrong_number_of_parts(parts, small_dataset, tmp_path):
    with pytest.raises(InputError, match=f"nodes into {parts} parts"):
        partition_dataset(small_dataset, parts, tmp_path / "p")


@pytest.mark.parametrize(
    ("name", "expected"), [("synthetic-products", "synthetic-products"), ("../a b/amazon_co.npz", "amazon_co")]
)
def test_graph_name(name, expected):
    assert graph_name_of(name) == expected
