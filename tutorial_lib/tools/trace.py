"""Write the timeline of a run for Perfetto: ``python -m tutorial_lib trace RUN``.

The format is Chrome's: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tutorial_lib.errors import InputError
from tutorial_lib.files import open_plain, replacing
from tutorial_lib.job.folder import events_in
from tutorial_lib.launcher.coordinator import Event
from tutorial_lib.trainer.events import PHASES

Track = tuple[str, str]  # machine and name
MARKS = ("epoch", "warning", "failure", "resumed", "stopped")


@dataclass
class Span:
    """Work in seconds since 1970 by the clock of the coordinator."""

    name: str
    start: float
    end: float


class Timeline:
    """Spans, marks and counters of the events of a job."""

    def __init__(self, events: list[Event]) -> None:
        clocks = [event for event in events if event["kind"] == "clock"]  # the last of a machine is the best one
        self.offsets = {event["machine"]: event["offset"] for event in clocks}
        self.spans: defaultdict[Track, list[Span]] = defaultdict(list)
        self.marks: list[tuple[str, float, dict[str, Any]]] = []  # marks and counters, with machine and time
        self.epochs: dict[tuple[Track, int], Span] = {}
        self.last = max((event["time"] for event in events), default=0.0)
        for event in events:
            self._add(event, event["kind"], event.get("machine", "here"))

    def _add(self, event: Event, kind: str, machine: str) -> None:
        offset = self.offsets.get(machine, 0.0)
        time, rank = event["time"] - offset, (machine, f"rank {event.get('rank')}")
        process = (machine, f"{event.get('role')} {event.get('index')}")
        if kind == "stage":
            self._follow(("coordinator", "stages"), event["stage"], time)
        elif kind == "started":
            self._follow(process, "loading its part" if event["role"] == "server" else "running", time)
        elif kind == "serving":
            for track in [track for track in self.spans if track[0] == machine and track[1].startswith("server ")]:
                self._follow(track, "serving", time)
        elif kind == "exited" and process in self.spans:
            self.spans[process][-1].end = time
        elif kind == "span":
            self._add_span(rank, event["name"], time - event["seconds"], time, event.get("epoch"))
        elif kind == "step":
            start = time - sum(event[phase] for phase in PHASES)
            self._add_span(rank, f"step {event['step'] + 1}", start, time, event["epoch"])
            for phase in PHASES:
                self._add_span(rank, phase, start, start + event[phase])
                start += event[phase]
            for name, (began, seconds) in event.get("background", {}).items():
                self._add_span((machine, f"{rank[1]}, batches"), name, began - offset, began - offset + seconds)
        elif kind == "traffic":
            self.marks.append((machine, time, {"ph": "C", "name": "sent", "args": {"bytes": event["bytes_sent"]}}))
        elif kind in MARKS:
            name = event.get("text") or event.get("exception") or kind
            self.marks.append((machine, time, {"ph": "i", "s": "g", "name": name}))

    def _add_span(self, track: Track, name: str, start: float, end: float, epoch: int | None = None) -> None:
        self.spans[track].append(Span(name, start, end))
        if epoch is not None:
            outer = self.epochs.setdefault((track, epoch), Span(f"epoch {epoch + 1}", start, end))
            outer.start, outer.end = min(outer.start, start), max(outer.end, end)

    def _follow(self, track: Track, name: str, time: float) -> None:
        """End the work on a track, and begin work that lasts until the next call or the last event."""
        if self.spans[track]:
            self.spans[track][-1].end = time
        self._add_span(track, name, time, self.last)

    def to_json(self) -> dict[str, Any]:
        """Return the timeline in the trace event format, with microseconds since the first span."""
        zero = min(span.start for spans in self.spans.values() for span in spans)
        machines = sorted({machine for machine, _ in self.spans} | {machine for machine, _, _ in self.marks})
        found: list[dict[str, Any]] = []
        for pid, machine in enumerate(machines, start=1):
            found.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": machine}})
        for tid, track in enumerate(sorted(self.spans), start=1):
            where = {"pid": machines.index(track[0]) + 1, "tid": tid}
            found.append({"ph": "M", "name": "thread_name", **where, "args": {"name": track[1]}})
            outer = [span for (of, _), span in self.epochs.items() if of == track]
            for span in _nest([*outer, *self.spans[track]]):
                times = {"ts": 1e6 * (span.start - zero), "dur": 1e6 * max(0.0, span.end - span.start)}
                found.append({"ph": "X", "name": span.name, **times, **where})
        for machine, time, fields in self.marks:
            found.append({**fields, "ts": 1e6 * (time - zero), "pid": machines.index(machine) + 1, "tid": 0})
        return {"traceEvents": found, "displayTimeUnit": "ms"}


def _nest(spans: list[Span]) -> list[Span]:
    """Return the spans in order, without partial overlaps (of rounded times), because Perfetto drops such spans."""
    ordered = sorted(spans, key=lambda span: (round(span.start, 6), -round(span.end, 6)))
    outer: list[Span] = []
    for span in ordered:
        while outer and outer[-1].end - span.start < span.end - outer[-1].end:  # most of the span is outside
            span.start = max(span.start, outer.pop().end)
        if outer:
            span.end = min(span.end, outer[-1].end)
        outer.append(span)
    return ordered


def write_trace(run: Path, out: Path) -> list[str]:
    """Write the timeline of the last start of a run, and return sentences about it.

    Raises:
        InputError: the folder has no events of a job, they are damaged, or ``out`` cannot be written.
    """
    path = run / "events.jsonl"
    try:
        with open(open_plain(path), "rb") as file:
            events = events_in(file.read())
    except FileNotFoundError:
        raise InputError(f"{run} is not a run folder: it has no events.jsonl", "Of a finale, give its run/.") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    starts = [k for k, event in enumerate(events) if event.get("stage") == "checks"]
    starts = starts or [k for k, event in enumerate(events) if event["kind"] == "resumed"] or [0]
    try:
        timeline = Timeline(events[starts[-1] :])
        text = json.dumps(timeline.to_json(), allow_nan=False) if timeline.spans else ""
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise InputError(f"{path} is damaged: an event has wrong fields", "Remove the damaged lines.") from None
    if not text:
        raise InputError(f"{path} has no events of a job")
    if out.suffix == ".html" or (out.exists() and not out.is_file()):
        raise InputError(f"--out {out} is not a .json file", "Name a .json file and open it in Perfetto.")
    try:
        with replacing(out) as file:  # does not follow a link in the folder of another user
            file.write(text.encode())
    except OSError as error:
        raise InputError(f"--out {out}: {error.strerror}") from None
    clocks = [f"clock of {name}: {1e3 * ahead:+.2f} ms, corrected" for name, ahead in timeline.offsets.items()]
    return [f"{len(timeline.spans)} tracks", *clocks, f"{out}: open it in https://ui.perfetto.dev or chrome://tracing"]
