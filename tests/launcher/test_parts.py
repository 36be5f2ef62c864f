"""Damaged part files are found before a server loads them."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from preflight_support import ELSEWHERE, EMPTY, HERE, failed, flip_last_bit, the_fail

from tutorial_lib.job.dgl import JobPlan
from tutorial_lib.job.parts import check_part
from tutorial_lib.launcher.findings import Finding

pytest_plugins = ["preflight_support"]
pytestmark = pytest.mark.usefixtures("nothing_left")
GRAPHBOLT_FILE = "fused_csc_sampling_graph.pt"
ASKS = ["python3", "train.py", "--use_graphbolt"]


def parts(plan: JobPlan, index: int = 0, seconds: float = 10) -> list[Finding]:
    ((_name, arguments),) = plan.to_spec().checks
    return list(check_part(index, **arguments, seconds=seconds))


def change_entry(plan: JobPlan, change: dict[str, str | None]) -> None:
    """Change keys of part 0 in DGL's description. None removes a key."""
    config = Path(plan.part_config)
    description = json.loads(config.read_text())
    entry = {**description["part-0"], **change}
    description["part-0"] = {key: value for key, value in entry.items() if value is not None}
    config.write_text(json.dumps(description))


def test_a_good_partition(damaged):
    plan = damaged()
    checksums, formats, _shm = parts(plan)
    assert (checksums.status, checksums.detail.split()[-3:]) == ("ok", ["5", "checksums", "right"])
    assert (formats.status, formats.detail) == ("ok", "DGL and GraphBolt")
    finding = the_fail(parts(replace(plan, machines=[HERE, ELSEWHERE, ELSEWHERE])))
    assert "has 2 parts for 3 machines" in finding.detail


@pytest.mark.parametrize("name", ["graph.dgl", "node_feat.dgl", "edge_feat.dgl", GRAPHBOLT_FILE])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Path.unlink, "is missing"),
        (lambda path: os.truncate(path, path.stat().st_size - 3), "bytes, expected"),
        (flip_last_bit, "has other content than when it was written (checksum)"),
    ],
)
def test_a_damaged_file_of_this_machine_is_named(damaged, name, change, words):
    plan = damaged(f"part0/{name}", change)
    finding = the_fail(parts(plan))
    assert f"part0/{name}" in finding.detail
    assert words in finding.detail
    assert not failed(parts(plan, 1))  # the other machine has its own part


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("{", "is not a partition description"),
        ("{}", "is not a partition description"),
        ("[]", "is not a partition description"),
        ('{"num_parts": 2}', "does not describe part-0"),
    ],
)
def test_a_bad_description(tmp_path, text, words):
    config = tmp_path / "p.json"
    if text is not None:
        config.write_text(text)
    plan = replace(EMPTY, machines=[HERE, ELSEWHERE], part_config=str(config))
    assert words in the_fail(parts(plan)).detail


def test_a_format_that_the_part_does_not_have(damaged):
    plan = damaged()
    asks = replace(plan, command=ASKS)
    change_entry(plan, {"part_graph_graphbolt": None})
    (Path(plan.part_config).parent / "manifest.json").unlink()
    assert not failed(parts(plan))
    assert "has no structure for GraphBolt, only DGL" in the_fail(parts(asks)).detail
    change_entry(plan, {"part_graph": None, "part_graph_graphbolt": f"part0/{GRAPHBOLT_FILE}"})
    assert "use_graphbolt=True" in the_fail(parts(plan)).remedy
    assert not failed(parts(asks))


def test_files_of_other_tools(damaged):
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
    assert "node_feat.dgl is empty" in the_fail(parts(plan)).detail


def test_a_time_limit_skips_all_checksums_but_that_of_the_file_that_is_unpickled(damaged):
    plan = damaged("part0/node_feat.dgl", flip_last_bit)
    assert "1 checksums right" in parts(plan, seconds=0)[0].detail
    flip_last_bit(Path(plan.part_config).parent / "part0" / GRAPHBOLT_FILE)
    finding = the_fail(parts(plan, seconds=0))
    assert f"{GRAPHBOLT_FILE} has other content than when it was written (checksum)" in finding.detail


def test_an_address_file_that_is_missing(damaged, tmp_path):
    finding = the_fail(parts(replace(damaged(), ip_config=f"{tmp_path}/none.txt")))
    assert finding.detail == f"there is no file {tmp_path}/none.txt"


def needed(plan: JobPlan) -> float:
    return float(re.findall(r"about (\d+) MB", parts(plan)[-1].detail)[0])


def test_shared_memory_that_is_too_small(damaged, monkeypatch):
    plan = damaged()
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=4096000))
    finding = the_fail(parts(plan))
    assert re.fullmatch(r"4 MB free; the servers would put about 1\d MB there", finding.detail)
    assert "docker: --shm-size=1g" in finding.remedy
    assert 1.3 * needed(plan) < needed(replace(plan, graph_format="csc,coo")) < 1.7 * needed(plan)
    assert needed(replace(plan, command=ASKS)) < needed(plan) - 2
