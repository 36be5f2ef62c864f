"""An empty job and damaged partitions for tests of the preflight checks."""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_support import flip_bit

from tutorial_lib.job.dgl import DglJob
from tutorial_lib.launcher.findings import Finding
from tutorial_lib.launcher.jobspec import Machine
from tutorial_lib.partition import Partition

HERE = Machine("machine-0", "127.0.0.1")
ELSEWHERE = Machine("machine-1", "192.0.2.7")
EMPTY = DglJob([HERE], [], "", "", "", "", 0)


def failed(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.status == "fail"]


def only_failure(findings: Iterable[Finding]) -> Finding:
    (finding,) = failed(findings)
    assert finding.remedy
    return finding


@pytest.fixture
def damaged(partition_of: Callable[[int], Partition], tmp_path: Path) -> Callable[..., DglJob]:
    """``damaged(name, change)`` returns a plan with a copy of a partition after ``change(path)`` of one file."""

    def make(name: str = "", change: Callable[[Path], object] = lambda _path: None) -> DglJob:
        folder = tmp_path / "p"
        shutil.copytree(partition_of(2).folder, folder)
        change(folder / name)
        config = folder / f"{partition_of(2).graph_name}.json"
        return replace(EMPTY, machines=[HERE, ELSEWHERE], part_config=str(config))

    return make


def flip_last_bit(path: Path) -> None:
    flip_bit(path, -1)
