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
    assert [f.status for f in findings] == ["ok", "ok", "ok"], findings
    assert ("checksums right" in findings[0].detail) == manifest
    assert findings[1].detail.split(";")[0] == "DGL and GraphBolt"
    assert "_N/feat float32" in findings[2].detail


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


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        ("node_feat.dgl", 100_000, "is cut off: it ends at byte 100000, inside '_N/"),
        ("node_feat.dgl", 20, "is cut off: it ends at byte 20, inside a header"),
        ("node_feat.dgl", 0, "is cut off: it ends at byte 0, inside a header"),
        ("fused_csc_sampling_graph.pt", 100_000, "is not a file of torch.save, or a part of one"),
        ("graph.dgl", 0, "is not a file of dgl.save_graphs"),
    ],
)
def test_a_cut_file_is_found_without_a_manifest(damaged, name, size, words):
    plan = damaged(f"part0/{name}", lambda path: os.truncate(path, size))
    (Path(plan.part_config).parent / "manifest.json").unlink()
    assert words in the_fail(parts(plan)).detail


def test_headers_are_checked(tmp_path):
    path = tmp_path / "node_feat.dgl"
    magic = preflight_parts.TENSORS_MAGIC.to_bytes(8, "little")
    for content, words in [
        (b"12345678", "is not a file of dgl.data.save_tensors"),
        (magic + b"\1" * 8 + b"\0" * 8 + b"\xff" * 8, "has a damaged header"),
        (magic + b"\0" * 16 + b"more", "has 4 bytes too many"),
    ]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=words):
            preflight_parts.tensor_types(path)


def test_types_are_read_from_the_headers(tmp_path):
    """And they are those that DGL itself reads."""
    import dgl
    import torch

    kinds = ["uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
    path = str(tmp_path / "x.dgl")
    dgl.data.save_tensors(path, {f"_N/{kind}": torch.ones(3, 2, dtype=getattr(torch, kind)) for kind in kinds})
    assert preflight_parts.tensor_types(Path(path)) == {f"_N/{kind}": kind for kind in kinds}
    dgl.data.save_tensors(path, {})
    assert preflight_parts.tensor_types(Path(path)) == {}


def test_a_type_that_servers_cannot_hold(damaged):
    def save(path: Path) -> None:
        import dgl
        import torch

        dgl.data.save_tensors(str(path), {"_N/feat": torch.ones(4, 2, dtype=torch.bfloat16), "_N/label": torch.ones(4)})
        (path.parents[1] / "manifest.json").unlink()

    finding = the_fail(parts(damaged("part0/node_feat.dgl", save)))
    assert finding.detail == "_N/feat is bfloat16, which a DGL server cannot hold"


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
