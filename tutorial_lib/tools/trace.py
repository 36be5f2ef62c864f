"""Write the timeline of a run for Perfetto: ``python -m tutorial_lib trace RUN``.

The format is Chrome's: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tutorial_lib.errors import InputError
from tutorial_lib.files import open_plain, replacing
from tutorial_lib.job.folder import events_in
from tutorial_lib.launcher.coordinator import Event
from tutorial_lib.trainer.events import PHASES

Track = tuple[str, str]  # machine and name
MARKS = ("epoch", "serving", "warning", "failure", "resumed", "stopped")


def spans_in(events: list[Event]) -> Iterator[tuple[Track, str, float, float]]:
    """Yield track, name, start and end of everything that took time in a job."""
    running: dict[Track, tuple[str, float]] = {}  # name and start of work without an end
    for event in events:
        kind, machine, time, rank = event["kind"], event["machine"], event["time"], f"rank {event.get('rank')}"
        if kind in ("stage", "started", "exited"):
            process = (machine, f"{event.get('role')} {event.get('index')}")
            track: Track = ("coordinator", "stages") if kind == "stage" else process
            if track in running:
                name, start = running.pop(track)
                yield track, name, start, time
            if kind != "exited":
                running[track] = event.get("stage", "running"), time
        elif kind == "span":
            yield (machine, rank), event["name"], time - event["seconds"], time
        elif kind == "step":
            start = time - sum(event[phase] for phase in PHASES)
            yield (machine, rank), f"epoch {event['epoch'] + 1}, step {event['step'] + 1}", start, time
            for phase in PHASES:
                yield (machine, f"{rank}, phases"), phase, start, start + event[phase]
                start += event[phase]
            for name, (start, seconds) in event.get("background", {}).items():
                start -= event["ahead"]
                yield (machine, f"{rank}, batches"), name, start, start + seconds
    for track, (name, start) in running.items():
        yield track, name, start, max(event["time"] for event in events)


def to_chrome(events: list[Event]) -> list[dict[str, Any]]:
    """Return the spans, the marks and the counters of a job in Chrome's format. Times are microseconds since 1970."""
    spans = list(spans_in(events))
    machines = sorted({event["machine"] for event in events} | {machine for (machine, _), *_ in spans})
    tracks, ends = sorted({track for track, *_ in spans}), dict[Track, int]()  # end of the last span of each track
    found: list[dict[str, Any]] = []
    for pid, machine in enumerate(machines):
        found.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": machine}})
    for tid, (machine, track) in enumerate(tracks):
        where = {"pid": machines.index(machine), "tid": tid}
        found.append({"ph": "M", "name": "thread_name", **where, "args": {"name": track}})
    for track, name, start, end in spans:
        where = {"pid": machines.index(track[0]), "tid": tracks.index(track)}
        first = max(round(1e6 * start), ends.get(track, 0))  # Perfetto drops spans that overlap by rounded times
        ends[track] = max(first, round(1e6 * end))
        found.append({"ph": "X", "name": name, "ts": first, "dur": ends[track] - first, **where})
    for event in events:
        where = {"ts": round(1e6 * event["time"]), "pid": machines.index(event["machine"]), "tid": 0}
        if event["kind"] == "traffic":
            found.append({"ph": "C", "name": "sent", "args": {"bytes": event["bytes_sent"]}, **where})
        elif event["kind"] in MARKS:
            name = event.get("text") or event.get("exception") or event["kind"]
            found.append({"ph": "i", "s": "g", "name": name, **where})
    return found


def write_trace(run: Path, out: Path) -> list[str]:
    """Write the timeline of the last start of a run, and return sentences about it, or raise an InputError."""
    path = run / "events.jsonl"
    try:
        with open(open_plain(path), "rb") as file:
            events = events_in(file.read())
        starts = [k for k, event in enumerate(events) if event.get("stage") == "checks"] or [0]
        offsets = {event["machine"]: event["offset"] for event in events if event["kind"] == "clock"}
        for event in events:  # to the clock of the coordinator
            event["machine"] = event.get("machine", "here")
            event["ahead"] = offsets.get(event["machine"], 0.0)
            event["time"] -= event["ahead"]
        trace = to_chrome(events[starts[-1] :])
        if all(event["ph"] != "X" for event in trace):
            raise InputError(f"{path} has no events of a job")
        with replacing(out) as file:  # does not follow a link in the folder of another user
            file.write(json.dumps({"traceEvents": trace}, allow_nan=False).encode())
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}", "RUN is a run folder; of a finale, its run/.") from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise InputError(f"{path} is damaged: an event has wrong fields", "Remove the damaged lines.") from None
    clocks = [f"clock of {name}: {1e3 * ahead:+.2f} ms, corrected" for name, ahead in offsets.items()]
    return [*clocks, f"{out}: open it in https://ui.perfetto.dev or chrome://tracing"]
