"""The timeline of a run, from its events: spans on the tracks of each machine, bytes, and requests to the servers.

Chrome's format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tutorial_lib.job.display import human_bytes

COORDINATOR = "coordinator"
US = 1e6
SLACK = 0.002  # seconds


@dataclass
class Span:
    """A piece of work on a track; ``start`` and ``end`` in seconds since 1970, by the coordinator's clock.

    ``level``: of so many others on its track it is a part.
    """

    machine: str
    track: str
    name: str
    start: float
    end: float
    facts: dict[str, Any] = field(default_factory=dict)
    level: int = 0


@dataclass
class Trace:
    """A run's timeline.

    Attributes:
        spans: those of a track lie inside each other, or one after the other; outer ones first.
        counters: machine, name, time, value; in the order of time.
        marks: time, text.
        facts: ``run``, ``start`` (of so many, the one that is shown), ``clocks`` and ``bytes`` by machine, ``left_out``
            (events that could not be read).
    """

    spans: list[Span]
    counters: list[tuple[str, str, float, float]]
    marks: list[tuple[float, str]]
    facts: dict[str, Any]

    @property
    def tracks(self) -> list[tuple[str, str]]:
        """Machine and track, in the order in which they are shown."""
        return sorted({(span.machine, span.track) for span in self.spans}, key=_place)

    def to_json(self) -> dict[str, Any]:
        """In the trace event format: times in microseconds since the first event; of counters, bytes so far."""
        zero = min(span.start for span in self.spans)
        tracks, found = self.tracks, []
        machines = list(dict.fromkeys(machine for machine, _ in tracks))
        of = {(m, t): {"pid": machines.index(m), "tid": k} for k, (m, t) in enumerate(tracks, start=1)}
        for pid, machine in enumerate(machines):
            found += _named("process", machine, pid, {"pid": pid, "tid": 0})
        for k, (_machine, track) in enumerate(tracks):
            found += _named("thread", track, k, of[tracks[k]])

        def at(time: float) -> float:
            return round((time - zero) * US, 1)

        for span in self.spans:
            where = of[span.machine, span.track]
            dur = round(at(span.end) - at(span.start), 1)
            found.append({"ph": "X", "name": span.name, "ts": at(span.start), "dur": dur, **where, "args": span.facts})
        for time, text in self.marks:
            found.append({"ph": "i", "s": "g", "name": text, "ts": at(time), "pid": 0, "tid": 1})
        for machine, name, time, value in self.counters:
            where = {"pid": machines.index(machine), "tid": 0} if machine in machines else {"pid": 0, "tid": 0}
            found.append({"ph": "C", "name": name, "ts": at(time), **where, "args": {"bytes": value}})
        return {"traceEvents": found, "displayTimeUnit": "ms", "otherData": self.facts}


def describe(trace: Trace) -> list[str]:
    """Return sentences about the clocks, the bytes and the unreadable events of a trace."""
    facts, lines = trace.facts, []
    for name, clock in facts["clocks"].items():
        lines.append(
            f"clock of {name}: {clock['ahead_ms']:+.2f} ms relative to the coordinator's clock, corrected here; "
            f"the remaining error is at most {clock['within_ms']:.2f} ms"
        )
    if not facts["clocks"]:
        lines.append("clocks: not compared, so each machine's times are those of its own clock")
    for name, count in facts["bytes"].items():
        lines.append(f"bytes of {name}: {human_bytes(count)} through its network card")
    if facts["left_out"]:
        lines.append(f"left out: {facts['left_out']} unreadable event(s)")
    return lines


def _named(kind: str, name: str, order: int, where: dict[str, int]) -> list[dict[str, Any]]:
    values = {"name": {"name": name}, "sort_index": {"sort_index": order}}
    return [{"ph": "M", "name": f"{kind}_{what}", "args": args, **where} for what, args in values.items()]


def _place(track: tuple[str, str]) -> tuple[Any, ...]:
    machine, name = track
    number = [int(part) for part in name.replace(",", " ").split() if part.isdigit()]
    digits = "".join(filter(str.isdigit, machine))
    return machine != COORDINATOR, int(digits or 0), machine, not name.startswith("rank"), number, name


def nested(spans: list[Span]) -> Iterable[Span]:
    """Spans of each track in order, an inner one not longer than what is around it.

    Ends and lengths are of different clocks, rounded: without this some would stick out by microseconds. What overlaps
    by more was done at the same time, and gets a track of its own. Of spans with the same times, the first is outside.
    """
    tracks: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in spans:
        tracks[span.machine, span.track].append(span)
    for (_machine, track), found in tracks.items():
        lanes: list[list[Span]] = []
        for span in sorted(found, key=lambda s: (round(s.start, 6), -round(s.end, 6))):
            number = next((k for k, lane in enumerate(lanes) if _fits(span, lane)), len(lanes))
            if number == len(lanes):
                lanes.append([])
            lanes[number].append(span)
            span.level = len(lanes[number]) - 1
            span.track = track if number == 0 else f"{track} ({number + 1})"
            yield span


def _fits(span: Span, around: list[Span]) -> bool:
    """Whether a span fits into the innermost of these that has not ended; those that have are taken away."""
    while around and around[-1].end <= span.start:
        around.pop()
    if around and span.end > around[-1].end:
        inside, outside = around[-1].end - span.start, span.end - around[-1].end
        if min(inside, outside) > SLACK:
            return False
        if inside < outside:  # it comes after it
            span.start = around.pop().end
            return _fits(span, around)
        span.end = around[-1].end
    return True
