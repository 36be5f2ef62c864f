"""``trace``: spans nest, clocks are aligned, bytes are those of the interfaces, and half a run is enough."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from commands import events_of, tutorial

from tutorial_lib.errors import InputError
from tutorial_lib.job.trace import Trace, describe
from tutorial_lib.job.trace_events import read_trace
from tutorial_lib.trainer.events import PHASES, age_of_process, span

MEGABYTE = 1_000_000


def event(kind: str, time: float, rank: int = 0, **fields) -> dict:
    return {"kind": kind, "time": time, "machine": f"machine-{rank}", "rank": rank, "local_rank": 0, **fields}


def step(number: int, time: float, rank: int = 0, **phases: float) -> dict:
    fields = {"epoch": 0, "step": number, "steps": 2, "loss": 1.5, "bytes_local": 4, "bytes_remote": 8}
    return event("step", time, rank, **fields, **{**dict.fromkeys(PHASES, 0.0), **phases})


def run_with(folder: Path, *lines: dict | str) -> Path:
    folder.mkdir(exist_ok=True)
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    (folder / "events.jsonl").write_text(text)
    return folder


def times(trace: Trace, track: str) -> list[tuple[str, float, float]]:
    """Name, start and end of the spans of a track, in its order."""
    return [(s.name, round(s.start, 4), round(s.end, 4)) for s in trace.spans if s.track == track]


def check_nesting(trace: dict) -> None:
    """Of the file: on each track a span lies inside the one around it, or comes after it."""
    tracks = defaultdict(list)
    for found in trace["traceEvents"]:
        if found["ph"] == "X":
            assert found["dur"] >= 0
            tracks[found["pid"], found["tid"]].append((found["ts"], found["ts"] + found["dur"], found["name"]))
    assert tracks
    for found in tracks.values():
        around: list[tuple[float, float, str]] = []
        for begin, end, name in sorted(found, key=lambda each: (each[0], -each[1])):
            while around and around[-1][1] <= begin + 0.11:  # times have a tenth of a microsecond
                around.pop()
            assert not around or end <= around[-1][1] + 0.11, (name, around[-1])
            around.append((begin, end, name))


def test_a_step_ends_at_its_time_and_its_phases_are_in_their_order(tmp_path):
    run = run_with(
        tmp_path / "run",
        step(0, 101.0, sampling=0.1, pull=0.2, forward=0.3, backward=0.4),
        step(1, 102.0, forward=0.5, update=0.25),
        event("span", 103.0, name="validation", seconds=0.5, epoch=0),
    )
    trace = read_trace(run)
    assert times(trace, "rank 0") == [
        ("epoch 1", 100.0, 103.0),
        ("step 1", 100.0, 101.0),
        ("sampling", 100.0, 100.1),
        ("pull", 100.1, 100.3),
        ("forward", 100.3, 100.6),
        ("backward", 100.6, 101.0),
        ("step 2", 101.25, 102.0),
        ("forward", 101.25, 101.75),
        ("update", 101.75, 102.0),
        ("validation", 102.5, 103.0),
    ]
    check_nesting(trace.to_json())


def test_machines_are_moved_by_what_their_clocks_are_ahead(tmp_path):
    """The best comparison of each counts: the last one that was told."""
    clocks = [
        {"kind": "clock", "time": 99.0, "machine": "machine-1", "offset": 9.0, "error": 1.0, "exchanges": 1},
        {"kind": "clock", "time": 99.5, "machine": "machine-1", "offset": 5.0, "error": 0.002, "exchanges": 2},
    ]
    run = run_with(tmp_path / "run", *clocks, step(0, 101.0, forward=1.0), step(0, 106.0, 1, forward=1.0))
    trace = read_trace(run)
    assert times(trace, "rank 0")[1] == times(trace, "rank 1")[1] == ("step 1", 100.0, 101.0)
    assert trace.facts["clocks"] == {"machine-1": {"ahead_ms": 5000.0, "within_ms": 2.0}}
    assert describe(trace)[0].startswith("clock of machine-1: +5000.00 ms relative to the coordinator's")
    assert describe(trace)[0].endswith("at most 2.00 ms")


def test_work_at_the_same_time_gets_a_track_of_its_own(tmp_path):
    """A step event holds the spans of the thread that made the batch."""
    steps = [
        {**step(0, 14.0, forward=0.5), "background": {"sampling": [10.0, 2.0], "pull": [12.9995, 1.0]}},
        {**step(1, 15.0, forward=0.5), "background": {"sampling": [11.0, 2.0]}},
    ]
    trace = read_trace(run_with(tmp_path / "run", *steps))
    assert times(trace, "rank 0, batches") == [("sampling", 10.0, 12.0), ("pull", 12.9995, 13.9995)]
    assert times(trace, "rank 0, batches (2)") == [("sampling", 11.0, 13.0)]
    check_nesting(trace.to_json())


def test_events_of_a_killed_job_are_read_as_far_as_they_go(tmp_path):
    whole = step(0, 101.0, forward=1.0)
    cut = json.dumps(step(1, 102.0, forward=0.5))[:70]
    broken = {"kind": "step", "time": 103.0, "rank": 0}
    trace = read_trace(run_with(tmp_path / "run", whole, "7\n", cut + "\n", broken, "null\n", cut))
    assert [name for name, *_ in times(trace, "rank 0")] == ["epoch 1", "step 1", "forward"]
    assert trace.facts["left_out"] == 1
    assert "left out: 1 unreadable event(s)" in describe(trace)


def test_of_a_run_that_was_continued_the_last_start_is_shown(tmp_path):
    check = {"kind": "stage", "stage": "checks"}
    run = run_with(tmp_path / "run", {**check, "time": 1.0}, step(0, 2.0), {**check, "time": 900.0}, step(1, 950.0))
    trace = read_trace(run)
    assert trace.facts["start"] == "2 of 2"
    assert min(each.start for each in trace.spans) == 900.0


def test_what_is_no_run_or_has_no_events_is_one_sentence(tmp_path, run_here):
    (tmp_path / "empty").mkdir()
    (tmp_path / "launched" / "logs").mkdir(parents=True)
    run_with(tmp_path / "told", {"kind": "warning", "time": 1.0, "text": "x"})
    for name, says in [
        ("nowhere", "is not a run folder"),
        ("empty", "is not a run folder"),
        ("launched", "has no events of a job"),
        ("told", "has no events of a job"),
    ]:
        done = run_here("trace", str(tmp_path / name))
        assert done.returncode == 2
        assert done.stderr.splitlines()[0] == f"error: {tmp_path / name} {says}"
    done = run_here("trace", str(run_with(tmp_path / "run", step(0, 2.0))), "--out", str(tmp_path / "none" / "x.json"))
    assert (done.returncode, "No such file or directory" in done.stderr) == (2, True)


def test_a_span_has_the_seconds_of_its_body():
    told: list[dict] = []
    with span(lambda kind, **fields: told.append({"kind": kind, **fields}), "validation", epoch=3):
        pass
    (event,) = told
    assert 0 <= event.pop("seconds") < age_of_process()
    assert event == {"kind": "span", "name": "validation", "epoch": 3}


@pytest.mark.cluster
def test_a_job_on_two_machines(finished_run, tmp_path):
    """The whole way: the command, its file, what it says of clocks and bytes."""
    run = shutil.copytree(finished_run.out, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoint"))
    done = tutorial("trace", str(run))
    trace = json.loads((run / "trace.json").read_text())
    check_nesting(trace)
    events = trace["traceEvents"]
    names = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"].endswith("_name")}
    assert names >= {"coordinator", "machine-0", "machine-1", "rank 0", "rank 1", "rank 0, batches", "server 0"}
    spans = {e["name"] for e in events if e["ph"] == "X"}
    assert spans >= {"loading its part", "serving", "joining", "preparing", "epoch 3", "step 25", *PHASES}
    assert spans >= {"imports, for all processes here", "validation", "checkpoint", "evaluation", "leaving"}
    for machine, clock in trace["otherData"]["clocks"].items():  # one clock, in truth
        assert machine in ("machine-0", "machine-1")
        assert abs(clock["ahead_ms"]) <= clock["within_ms"] + 0.1 < 500
    result = finished_run.result
    for machine, count in trace["otherData"]["bytes"].items():
        assert count == result["bytes_sent"][machine] > MEGABYTE
        assert f"clock of {machine}" in done.stdout
        assert f"bytes of {machine}" in done.stdout
    assert [e["args"]["bytes"] for e in events if e["ph"] == "C" and e["name"] == "sent, bytes"][-1] > MEGABYTE


@pytest.mark.cluster
def test_phases_add_up_to_what_the_steps_told(finished_run):
    found = defaultdict(float)
    for each in read_trace(finished_run.out).spans:
        if each.track == "rank 1" and each.name in PHASES:
            found[each.name] += each.end - each.start
    told = [e for e in events_of(finished_run.out) if e["kind"] == "step" and e["rank"] == 1]
    for phase in PHASES:
        assert found[phase] == pytest.approx(sum(e[phase] for e in told), abs=0.002 * len(told), rel=0.01)


@pytest.mark.whole_run
def test_a_single_process_has_its_steps(single_run):
    trace = read_trace(single_run.out)
    assert trace.tracks == [("here", "rank 0")]
    assert {"epoch 3", "validation", "checkpoint", "evaluation", "forward"} <= {each.name for each in trace.spans}
    assert describe(trace)[0].startswith("clocks: not compared")
    with pytest.raises(InputError, match="is not a run folder"):
        read_trace(single_run.out / "checkpoint")
