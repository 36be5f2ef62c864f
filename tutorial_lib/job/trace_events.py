"""A run's events, read as a timeline: ``trace.Trace``.

Events of machines are moved by what their clock was ahead of the coordinator's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

from tutorial_lib.cluster.coordinator import Event
from tutorial_lib.errors import InputError
from tutorial_lib.files import open_plain
from tutorial_lib.job.folder import events_in
from tutorial_lib.job.trace import COORDINATOR, Span, Trace, nested
from tutorial_lib.trainer.events import PHASES

STAGES = {"checks": "checks", "servers": "servers load their parts", "trainers": "trainers", "leaving": "leaving"}


def read_trace(run: Path) -> Trace:
    """The timeline of the last start in a run folder, as far as its events go.

    Raises:
        InputError: it is no run folder, or nothing in it says what was when.
    """
    path = run / "events.jsonl"
    if not run.is_dir() or not (path.exists() or any((run / name).exists() for name in ("job.json", "logs"))):
        raise InputError(f"{run} is not a run folder", "Give the folder that train wrote; of a finale, its run/.")
    events = []
    if path.exists():
        try:
            with open(open_plain(path), "rb") as file:
                events = [event for event in events_in(file.read()) if _has_types(event)]
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from None
    starts = [k for k, e in enumerate(events) if (e["kind"], e.get("stage")) == ("stage", "checks")]
    starts = starts or [k for k, e in enumerate(events) if k == 0 or e["kind"] == "resumed"]
    try:
        trace = _Reading(events[starts[-1] :] if starts else []).trace()
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise InputError(f"{path} is damaged: its events are not those of a job", "Remove the file.") from None
    if not trace.spans:
        raise InputError(f"{run} has no events of a job", "What launch starts tells none; train and finale do.")
    trace.facts = {"run": run.resolve().name, "start": f"{len(starts)} of {len(starts)}", **trace.facts}
    return trace


def _has_types(event: Event) -> bool:
    """Whether the fields that many kinds of events share have their types."""
    texts, numbers = ("machine", "name", "role", "what", "text"), ("seconds", "bytes_sent", "epoch", "rank", "index")
    return all(isinstance(event.get(name, ""), str) for name in texts) and all(
        isinstance(event.get(name, 0), int | float) and math.isfinite(event.get(name, 0)) for name in (*numbers, "time")
    )


class _Reading:
    """Goes through the events of one start, and keeps what is needed of the earlier ones."""

    def __init__(self, events: list[Event]) -> None:
        self.events = events
        self.clocks = {e["machine"]: e for e in events if e["kind"] == "clock" and "machine" in e}
        self.end = max((self._time(e) for e in events), default=0.0)
        self.spans: list[Span] = []
        self.open: dict[tuple[str, str], Span] = {}
        self.ranks: dict[tuple[str, int], int] = {}
        self.counters: list[tuple[str, str, float, float]] = []
        self.bytes: dict[str, int] = {}
        self.marks: list[tuple[float, str]] = []
        self.left_out = 0

    def trace(self) -> Trace:
        for event in self.events:
            try:
                getattr(self, f"_{event['kind']}", lambda *_: None)(event, self._time(event))
            except (KeyError, TypeError, ValueError, AttributeError):
                self.left_out += 1
        self.spans += self.open.values()
        self._epochs()
        self.spans = list(nested(self.spans))
        clocks = {
            name: {"ahead_ms": round(1e3 * e["offset"], 3), "within_ms": round(1e3 * e["error"], 3)}
            for name, e in sorted(self.clocks.items())
        }
        facts: dict[str, Any] = {"clocks": clocks, "bytes": dict(sorted(self.bytes.items())), "left_out": self.left_out}
        self.counters.sort(key=lambda counter: counter[2])
        return Trace(self.spans, self.counters, self.marks, facts)

    def _time(self, event: Event) -> float:
        clock = self.clocks.get(event.get("machine", ""))
        return event["time"] - (clock["offset"] if clock else 0.0)

    def _track(self, event: Event) -> tuple[str, str]:
        if event.get("role") == "server":
            return event["machine"], f"server {event['index']}"
        return event.get("machine", "here"), f"rank {event['rank']}"

    def _add(self, track: tuple[str, str], name: str, start: float, end: float, **facts: Any) -> None:
        self.spans.append(Span(*track, name, start, max(start, end), facts))

    def _next(self, track: tuple[str, str], time: float, name: str = "") -> None:
        """On a track on which one thing follows the other: the end of one, and the beginning of the next."""
        if before := self.open.pop(track, None):
            before.end = time
            self.spans.append(before)
        if name:
            self.open[track] = Span(*track, name, time, self.end)

    def _stage(self, event: Event, time: float) -> None:
        self._next((COORDINATOR, COORDINATOR), time, STAGES[event["stage"]])

    def _started(self, event: Event, time: float) -> None:
        if event["role"] == "forkserver":
            self._next((event["machine"], "imports"), time, "imports, for all processes here")
            return
        self._next((event["machine"], "imports"), time)
        if event["role"] == "server":
            self._next((event["machine"], f"server {event['index']}"), time, "loading its part")

    def _serving(self, event: Event, time: float) -> None:
        for machine, track in list(self.open):
            if machine == event["machine"] and track.startswith("server"):
                self._next((machine, track), time, "serving")

    def _exited(self, event: Event, time: float) -> None:
        machine, index = event["machine"], event["index"]
        rank = self.ranks.get((machine, index), index)
        track = {"trainer": f"rank {rank}", "forkserver": "imports"}.get(event["role"], f"{event['role']} {index}")
        self._next((machine, track), time)

    def _span(self, event: Event, time: float) -> None:
        facts = {"epoch": event["epoch"]} if "epoch" in event else {}
        self._add(self._track(event), event["name"], time - event["seconds"], time, **facts)

    def _joined(self, event: Event, _time: float) -> None:
        self.ranks[event["machine"], event["local_rank"]] = event["rank"]

    def _step(self, event: Event, time: float) -> None:
        track, seconds = self._track(event), [event[phase] for phase in PHASES]
        at = time - sum(seconds)
        facts = {name: event[name] for name in ("epoch", "loss", "bytes_local", "bytes_remote")}
        shift = time - event["time"]
        for name, (start, took) in event.get("background", {}).items():
            self._add((track[0], f"{track[1]}, batches"), name, start + shift, start + shift + took)
        self._add(track, f"step {event['step'] + 1}", at, time, **facts)
        for phase, took in zip(PHASES, seconds, strict=True):
            if took:
                self._add(track, phase, at, at + took)
            at += took

    def _left(self, event: Event, time: float) -> None:
        self._next(self._track(event), time, "leaving")

    def _traffic(self, event: Event, time: float) -> None:
        machine = event["machine"]
        self.bytes[machine] = event["bytes_sent"]
        self.counters.append((machine, "sent, bytes", time, event["bytes_sent"]))

    def _mark(self, event: Event, time: float) -> None:
        text = event.get("text") or event.get("exception") or event["kind"]
        self.marks.append((time, f"epoch {event['epoch'] + 1} is done" if event["kind"] == "epoch" else text))

    _epoch = _warning = _failure = _resumed = _mark

    def _epochs(self) -> None:
        """What belongs to an epoch gets one span around it."""
        found: dict[tuple[str, str, int], list[Span]] = defaultdict(list)
        for span in self.spans:
            if "epoch" in span.facts:
                found[span.machine, span.track, span.facts["epoch"]].append(span)
        for (machine, track, epoch), inside in found.items():
            start, end = min(s.start for s in inside), max(s.end for s in inside)
            self.spans.insert(0, Span(machine, track, f"epoch {epoch + 1}", start, end))
