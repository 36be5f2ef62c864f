"""The part files of a machine: each way in which they can be wrong is seen before a server loads them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from preflight_support import ELSEWHERE, EMPTY, HERE, failed, flip_last_bit, the_fail

from tutorial_lib.cluster import preflight_checks, preflight_parts
from tutorial_lib.cluster.findings import Finding
from tutorial_lib.cluster.plan import JobPlan

pytest_plugins = ["preflight_support"]
pytestmark = pytest.mark.usefixtures("nothing_left")


GRAPHBOLT_FILE = "fused_csc_sampling_graph.pt"


def parts(plan: JobPlan, index: int = 0, seconds: float = 10) -> list[Finding]:
    return list(preflight_parts.part_findings(plan, index, seconds))


def rewrite(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("manifest", [True, False])
def test_a_good_partition(damaged, manifest):
    plan = damaged("manifest.json", lambda path: manifest or path.unlink())
    findings = parts(plan)
    assert [f.status for f in findings] == ["ok", "ok"], findings
    assert ("checksums right" in findings[0].detail) == manifest
    assert findings[1].detail.split(";")[0] == "DGL and GraphBolt"


@pytest.mark.parametrize("name", ["graph.dgl", "node_feat.dgl", "edge_feat.dgl", "fused_csc_sampling_graph.pt"])
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


@pytest.mark.parametrize("name", ["node_feat.dgl", "graph.dgl"])
def test_an_empty_file_is_found_without_a_manifest(damaged, name):
    plan = damaged(f"part0/{name}", lambda path: os.truncate(path, 0))
    (Path(plan.part_config).parent / "manifest.json").unlink()
    assert f"{name} is empty" in the_fail(parts(plan)).detail


def test_the_number_of_parts_and_machines(damaged):
    plan = damaged()
    finding = the_fail(parts(replace(plan, machines=[HERE, ELSEWHERE, ELSEWHERE])))
    assert "has 2 parts for 3 machines" in finding.detail


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("{", "is not a partition description"),
        ("{}", "is not a partition description"),
        ('{"num_parts": 2}', "does not describe part-0"),
    ],
)
def test_a_bad_description(tmp_path, text, words):
    config = tmp_path / "p.json"
    if text is not None:
        config.write_text(text)
    plan = replace(EMPTY, machines=[HERE, ELSEWHERE], part_config=str(config))
    assert words in the_fail(parts(plan)).detail
    assert preflight_checks.shared_memory(plan, 0).status == "skip"


def test_formats(damaged):
    plan = damaged("manifest.json", Path.unlink)
    config = Path(plan.part_config)
    entry = json.loads(config.read_text())["part-0"]
    rewrite(config, **{"part-0": {k: v for k, v in entry.items() if k != "part_graph_graphbolt"}})
    assert not failed(parts(plan))
    asked = replace(plan, command=["python3", "train.py", "--use_graphbolt"])
    assert "asks for GraphBolt; the part has DGL's only" in the_fail(parts(asked)).detail
    rewrite(config, **{"part-0": {k: v for k, v in entry.items() if k != "part_graph"}})
    assert "has no DGL structure" in the_fail(parts(plan)).detail
    assert not failed(parts(asked))


def test_absolute_paths_in_the_description(damaged):
    plan = damaged("manifest.json", Path.unlink)
    config = Path(plan.part_config)
    entry = json.loads(config.read_text())["part-0"]
    rewrite(config, **{"part-0": {key: str(config.parent / value) for key, value in entry.items()}})
    moved = config.with_name("elsewhere")
    moved.mkdir()
    config = config.rename(moved / config.name)
    assert not failed(parts(replace(plan, part_config=str(config))))


def test_checksums_that_would_take_too_long_are_skipped(damaged):
    finding = parts(damaged(), seconds=0)[0]
    assert finding.status == "skip"
    assert "all sizes are right" in finding.detail


def test_a_file_that_is_unpickled_is_compared_however_long_it_takes(damaged):
    plan = replace(
        damaged(f"part0/{GRAPHBOLT_FILE}", flip_last_bit), command=["python3", "train.py", "--use_graphbolt"]
    )
    finding = the_fail(parts(plan, seconds=0))
    assert f"{GRAPHBOLT_FILE} has other content than when it was written (checksum)" in finding.detail


@pytest.mark.parametrize("asked", [True, False])
def test_a_file_from_elsewhere_that_would_be_unpickled_is_announced(damaged, asked):
    plan = damaged("manifest.json", Path.unlink)
    finding = parts(replace(plan, command=["--use-graphbolt"] if asked else []))[1]
    assert finding.status == "ok"  # a user's own partition may be without a manifest
    assert f"part0/{GRAPHBOLT_FILE}: " in finding.detail
    assert ("if the script calls initialize(use_graphbolt=True)" in finding.detail) != asked
    assert "DGL unpickles it, which can run any code" in finding.detail
    assert finding.remedy


def test_no_partition_given():
    assert [f.status for f in parts(EMPTY)] == ["skip"]
