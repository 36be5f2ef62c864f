"""Partition folders: counted reports, formats, reuse, damage."""

import shutil
from pathlib import Path

import pytest
from checkpoint_support import flip_bit
from shared_data import tiny_dataset

from tutorial_lib.errors import InputError
from tutorial_lib.partition import load_partition_folder, partition_dataset


def test_second_call_reuses_the_folder(small_dataset, partition_of):
    first = partition_of(2)
    stamps = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}
    assert partition_dataset(small_dataset, 2, first.folder).reused
    assert {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")} == stamps


@pytest.mark.parametrize("options", [{"parts": 4}, {"method": "random"}, {"seed": 1}, {"dataset": tiny_dataset()}])
def test_folder_of_another_partition_is_refused_and_kept(small_dataset, partition_of, options):
    folder = partition_of(2).folder
    with pytest.raises(InputError, match="holds a partition of other data or options"):
        partition_dataset(**({"dataset": small_dataset, "parts": 2, "out": folder} | options))
    load_partition_folder(folder)


@pytest.mark.parametrize("name", ["thesis.txt", "manifest.json"])
def test_folder_with_other_content_is_refused(small_dataset, tmp_path, name):
    (tmp_path / name).write_text('{"files": ')
    for out in (tmp_path, tmp_path / name):
        with pytest.raises(InputError, match="is not a partition folder"):
            partition_dataset(small_dataset, 2, out)
    assert (tmp_path / name).read_text() == '{"files": '


@pytest.mark.parametrize("words", ["is missing", "bytes, expected", "checksum"])
def test_a_damaged_file_is_named(partition_of, small_dataset, tmp_path, words):
    folder = shutil.copytree(partition_of(2).folder, tmp_path / "p")
    for name in ("part1/graph.dgl", "synthetic-products.json", "node_map.npy"):
        content = (folder / name).read_bytes()
        if words == "checksum":
            flip_bit(folder / name, len(content) // 2)
        else:
            (folder / name).unlink() if words == "is missing" else (folder / name).write_bytes(content[:-1])
        with pytest.raises(InputError, match=f"{folder}/{name}.*{words}"):
            partition_dataset(small_dataset, 2, folder)
        (folder / name).write_bytes(content)


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


def test_symlink_is_followed(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    assert partition_dataset(tiny_dataset(), 2, tmp_path / "link", method="random").folder == tmp_path / "disk"
    assert (tmp_path / "link").is_symlink()


def test_mount_point_is_refused_early(tmp_path, monkeypatch):
    """D18."""
    monkeypatch.setattr("os.path.ismount", lambda path: path == tmp_path)
    printed: list[str] = []
    with pytest.raises(InputError, match="mount point"):
        partition_dataset(tiny_dataset(), 2, tmp_path, log=printed.append)
    assert printed == []


def test_another_process_may_finish_first(tmp_path, monkeypatch):
    """D18. The folder of the process that finished first is reused."""
    rename = Path.rename

    def lose(self, target):
        shutil.copytree(self, target)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", lose)
    assert partition_dataset(tiny_dataset(), 2, tmp_path / "p", method="random").reused
    assert [path.name for path in tmp_path.iterdir()] == ["p"]
