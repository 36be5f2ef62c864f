"""Damaged part files are found before a server loads them."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from preflight_support import ELSEWHERE, EMPTY, HERE, failed, flip_last_bit, only_failure

from tutorial_lib.job import dgl
from tutorial_lib.job.dgl import DglJob
from tutorial_lib.launcher.findings import Finding

pytest_plugins = ["preflight_support"]
pytestmark = pytest.mark.usefixtures("nothing_left")
GRAPHBOLT_FILE = "fused_csc_sampling_graph.pt"
ASKS = ["python3", "train.py", "--use_graphbolt"]


def parts(plan: DglJob, index: int = 0) -> list[Finding]:
    ((_name, arguments),) = plan.to_spec().checks
    return list(dgl.check_part(index, **arguments))


def change_entry(plan: DglJob, change: dict[str, str | None]) -> None:
    """Change keys of part 0 in DGL's description. None removes a key."""
    config = Path(plan.part_config)
    description = json.loads(config.read_text())
    entry = {**description["part-0"], **change}
    description["part-0"] = {key: value for key, value in entry.items() if value is not None}
    config.write_text(json.dumps(description))


@pytest.mark.parametrize("text", [None, "{", "[]", '{"num_parts": 2, "part-0": []}'])
def test_invalid_part_config_is_refused(tmp_path, text):
    config = tmp_path / "p.json"
    if text is not None:
        config.write_text(text)
    finding = only_failure(parts(replace(EMPTY, machines=[HERE, ELSEWHERE], part_config=str(config))))
    assert str(config) in finding.detail


def test_part_files_of_dgl_tools_are_accepted(damaged):
    """Partitions of DGL's tools have no manifest, and can have absolute paths."""
    plan = damaged("manifest.json", Path.unlink)
    config = Path(plan.part_config)
    entry = json.loads(config.read_text())["part-0"]
    change_entry(plan, {key: str(config.parent / value) for key, value in entry.items()})
    moved = config.with_name("elsewhere")
    moved.mkdir()
    plan = replace(plan, part_config=str(config.rename(moved / config.name)))
    checksums, formats, _shm = parts(plan)
    assert (checksums.status, checksums.detail.split(", ")[-1]) == ("ok", "no manifest.json with checksums")
    assert formats.status == "ok"  # a user's own partition is allowed
    assert f"part0/{GRAPHBOLT_FILE}; if GraphBolt is used, DGL unpickles it, which can run any code" in formats.detail
    assert formats.remedy
    os.truncate(config.parent / entry["node_feats"], 0)
    assert "node_feat.dgl is empty" in only_failure(parts(plan)).detail


def test_checksums_of_large_files_are_skipped(damaged, monkeypatch):
    monkeypatch.setattr(dgl, "CHECKSUM_BYTES", 0)
    assert not failed(parts(damaged("part0/node_feat.dgl", flip_last_bit)))


def test_shared_memory_that_is_too_small(damaged, monkeypatch):
    plan = damaged()
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=10**6))
    finding, compact = (only_failure(parts(each)) for each in (plan, replace(plan, command=ASKS)))
    needed, smaller = (int(re.findall(r"about (\d+) MB", each.detail)[0]) for each in (finding, compact))
    assert finding.detail == f"1 MB free; the servers need about {needed} MB"
    assert "docker: --shm-size=1g" in finding.remedy
    assert 10 <= needed < 20
    assert smaller < needed - 2
