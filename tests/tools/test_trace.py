"""``trace``: spans do not overlap, clocks are corrected, and an incomplete run is shown."""

import json
import shutil
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from commands import read_events

from tutorial_lib.errors import InputError
from tutorial_lib.tools.after_job import trace
from tutorial_lib.trainer.events import PHASES

Spans = dict[tuple[str, str], list[tuple[str, float, float]]]


def event(kind: str, time: float, rank: int = 0, **fields) -> dict:
    return {"kind": kind, "time": time, "machine": f"machine-{rank}", "rank": rank, "local_rank": 0, **fields}


def step(number: int, time: float, rank: int = 0, **more) -> dict:
    numbers = dict.fromkeys([*PHASES, "bytes_local", "bytes_remote"], 0.0)
    return event("step", time, rank, epoch=0, step=number, **{**numbers, **more})


def spans_of(run: Path) -> Spans:
    """Return name, start and end in seconds of the spans in the trace of a run, and check that they do not overlap."""
    trace(run)
    spans = defaultdict(list)
    complete = [e for e in json.loads((run / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    zero = min(found["ts"] for found in complete)
    for found in complete:
        if found["dur"] > 0:
            start = found["ts"] - zero
            spans[found["pid"], found["tid"]].append((found["name"], start, start + found["dur"]))
    for found in spans.values():
        assert all(end <= start for (*_, end), (_, start, _) in pairwise(found))
    return {
        track: [(name, round(a / 1e6, 4), round(b / 1e6, 4)) for name, a, b in found] for track, found in spans.items()
    }


def trace_of(tmp_path: Path, *lines: dict | str) -> Spans:
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    (tmp_path / "events.jsonl").write_text(text)
    return spans_of(tmp_path)


def test_step_spans_contain_ordered_phases(tmp_path):
    """The phases and the spans of the background thread have separate tracks."""
    spans = trace_of(
        tmp_path,
        step(0, 101.0, sampling=0.1, pull=0.2, forward=0.3, backward=0.4),
        step(1, 102.0, forward=0.5, update=0.25, background={"sampling": [100.5, 0.5], "pull": [100.9999, 0.5]}),
        event("span", 103.0, name="validation", seconds=0.5, epoch=0),
    )
    assert spans["machine-0", "rank 0"] == [
        ("epoch 1, step 1", 0.0, 1.0),
        ("epoch 1, step 2", 1.25, 2.0),
        ("validation", 2.5, 3.0),
    ]
    assert spans["machine-0", "rank 0, phases"] == [
        ("sampling", 0.0, 0.1),
        ("pull", 0.1, 0.3),
        ("forward", 0.3, 0.6),
        ("backward", 0.6, 1.0),
        ("forward", 1.25, 1.75),
        ("update", 1.75, 2.0),
    ]
    assert spans["machine-0", "rank 0, batches"] == [("sampling", 0.5, 1.0), ("pull", 1.0, 1.4999)]


def test_times_are_corrected_by_clock_offsets(tmp_path):
    clocks = [{"kind": "clock", "time": 99.0, "machine": "machine-1", "offset": offset} for offset in (9.0, 5.0)]
    spans = trace_of(tmp_path, step(0, 101.0, forward=1.0), step(0, 106.0, 1, forward=1.0), *clocks)
    assert spans["machine-0", "rank 0"] == spans["machine-1", "rank 1"]


def test_trace_shows_last_start_of_run(tmp_path):
    """L38. The last event of a killed job may be incomplete."""
    check, cut = {"kind": "stage", "stage": "checks"}, json.dumps(step(1, 990.0, forward=0.5))[:70]
    spans = trace_of(
        tmp_path, {**check, "time": 1.0}, step(0, 2.0), {**check, "time": 900.0}, step(1, 950.0, pull=1.0), cut
    )
    assert spans["machine-0", "rank 0"] == [("epoch 1, step 2", 49.0, 50.0)]
    assert spans["machine-0", "rank 0, phases"] == [("pull", 49.0, 50.0)]
    assert spans["coordinator", "stages"] == [("checks", 0.0, 50.0)]


def test_mistake_gives_one_sentence(tmp_path):
    events = tmp_path / "events.jsonl"
    with pytest.raises(InputError, match=r"events.jsonl: No such file"):
        trace(tmp_path)
    for content, message in [
        ('{"kind": "other", "time": 1.0}', "has no events of a job"),
        (json.dumps(step(0, 1.0)), r"x.json: No such file"),
    ]:
        events.write_text(content + "\n")
        with pytest.raises(InputError, match=message):
            trace(tmp_path, out=tmp_path / "none" / "x.json")
    with pytest.raises(InputError, match="Is a directory"):
        trace(tmp_path, out=tmp_path)


@pytest.mark.cluster
def test_trace_of_two_machines(finished_run, tmp_path, run_here):
    run = shutil.copytree(finished_run.out, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoint"))
    printed = run_here("trace", str(run)).stdout
    assert f"wrote {run / 'trace.json'}. Open it in https://ui.perfetto.dev" in printed
    assert "clock of machine-1: " in printed
    spans = spans_of(run)
    assert {*spans} >= {("coordinator", "stages"), ("machine-0", "server 0"), ("machine-1", "rank 1, batches")}
    names = {name for found in spans.values() for name, *_ in found}
    assert names >= {"running", "joining", "preparing", "epoch 3, step 25", *PHASES}
    assert names >= {"validation", "checkpoint", "evaluation"}
    steps = [found for found in read_events(run) if found["kind"] == "step" and found["rank"] == 1]
    for phase in PHASES:
        total = sum(end - start for name, start, end in spans["machine-1", "rank 1, phases"] if name == phase)
        assert total == pytest.approx(sum(found[phase] for found in steps), abs=0.002 * len(steps), rel=0.01)
