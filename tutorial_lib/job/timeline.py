"""A trace as a picture: one SVG, in a page without other files, or under the cell of a notebook.

The wheel zooms and dragging moves it; without its few lines of script it is the whole run, as large as it is.
"""

from __future__ import annotations

import itertools
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tutorial_lib.job.display import human_bytes, rendered
from tutorial_lib.job.trace import Span, Trace
from tutorial_lib.job.trace_events import read_trace

WIDTH, ROW, GAP, CURVE = 4000, 13, 7, 30  # in units of the picture, which is as wide as its place; pixels of height
COLOURS = {  # of the phases, nearly those that the finale's figures have
    **{"sampling": "#E69F00", "pull": "#F5D58A", "forward": "#0072B2", "backward": "#9CCBE8", "update": "#009E73"},
    **{"waiting": "#C8C8C8", "validation": "#CC79A7", "checkpoint": "#7A5C58", "evaluation": "#D55E00"},
    **{"epoch": "#E8E8EE", "step": "#CFD4E0", "batch": "#DDE5D2", "all-reduce": "#5E3C99", "ask": "#8A8A8A"},
    **{"sampled neighbours": "#B5651D", "lists of neighbours": "#B59B1D", "rows of other machines": "#A8432F"},
    **{"serving": "#EEF2EE", "loading": "#8FA98F", "imports,": "#B7A98F", "starting": "#B7A98F", "joining": "#A79FC4"},
    **{"preparing": "#7F9FBF", "leaving": "#B0B0B0", "checks": "#B7A98F", "servers": "#8FA98F", "trainers": "#9FB2C8"},
}
OTHER = ("#56B4E9", "#C49C94", "#2F7F86", "#D6A15C", "#6F7FCB")  # requests to servers, and what is new


class Timeline:
    """A trace that shows itself: the value of a cell in a notebook, or ``page()`` as a file.

    Attributes:
        trace: what is shown; ``trace.to_json()`` is for a trace viewer.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._zero = min(span.start for span in trace.spans)
        self._seconds = max(1e-6, max(span.end for span in trace.spans) - self._zero)

    @classmethod
    def of(cls, run: str | Path) -> Timeline:
        """Of a run folder; an InputError where it has no events."""
        return cls(read_trace(Path(run)))

    def page(self) -> str:
        """A page of HTML that needs no other file and no network."""
        return self._repr_html_(whole=True)

    def _repr_html_(self, *, whole: bool = False) -> str:
        """The picture, as a piece of HTML."""
        bars, curves, names, y, machine = [], [], [], GAP, None
        rates = _rates(self.trace.counters)
        for of, track in self.trace.tracks:
            if of != machine:
                machine = of
                names.append((y, of, True))
                if of in rates:
                    curves.append(self._curve(rates[of], y))
                    names.append((y + ROW, f"sends, up to {human_bytes(int(max(r for _, r in rates[of])))}/s", False))
                    y += CURVE + GAP
                else:
                    y += ROW
            if track != of:
                names.append((y, track, False))
            spans = [span for span in self.trace.spans if (span.machine, span.track) == (of, track)]
            bars += [self._bar(span, y + ROW * span.level) for span in self._merged(spans)]
            y += ROW * (1 + max(span.level for span in spans)) + GAP
        used = {_kind(span.name) for span in self.trace.spans}
        return rendered(
            "job/timeline.html.j2",
            **{"whole": whole, "title": f"Timeline of {self.trace.facts['run']}", "facts": facts_of(self.trace)},
            id=f"tl{zlib.crc32(f'{self.trace.facts}{self._zero}'.encode()):x}",
            key={name.rstrip(","): colour for name, colour in COLOURS.items() if name in used},
            **{"names": names, "curves": curves, "bars": bars, "bar_height": ROW - 1},
            **{"width": WIDTH, "height": y, "seconds": self._seconds},
        )

    def _x(self, time: float) -> float:
        return WIDTH * (time - self._zero) / self._seconds

    def _merged(self, spans: list[Span]) -> Iterator[Span]:
        """The spans of a track; what is narrower than can be seen is one with its like."""
        last: dict[int, Span] = {}
        least = self._seconds / WIDTH
        for span in spans:
            before = last.get(span.level)
            if before is not None and span.end - before.start < least and span.start - before.end < least:
                before.end = max(before.end, span.end)
                before.name = before.name if before.name == span.name else "several"
                continue
            if before is not None:
                yield before
            last[span.level] = replace(span)
        yield from last.values()

    def _bar(self, span: Span, y: int) -> tuple[float, int, float, str, str]:
        """Left end, top, width, colour, and what is shown where it is pointed at."""
        shown = ((name, f"{v:.4g}" if isinstance(v, float) else v) for name, v in span.facts.items())
        facts = "".join(f"\n{name}: {value}" for name, value in shown)
        text = f"{span.name}\n{1e3 * (span.end - span.start):.3f} ms, from {span.start - self._zero:.3f} s{facts}"
        x, right, kind = self._x(span.start), self._x(span.end), _kind(span.name)
        colour = COLOURS.get(kind) or OTHER[zlib.crc32(kind.encode()) % len(OTHER)]
        return round(x, 2), y, round(max(0.4, right - x), 2), colour, text

    def _curve(self, rates: list[tuple[float, float]], y: int) -> str:
        """Corners of a polygon."""
        top = max(rate for _, rate in rates) or 1.0
        floor = y + CURVE - 2
        points = [(rates[0][0], floor)]
        for (time, rate), (until, _) in zip(rates, [*rates[1:], rates[-1]], strict=True):
            points += [(time, floor - (CURVE - 2) * rate / top), (until, floor - (CURVE - 2) * rate / top)]
        return " ".join(f"{self._x(time):.1f},{at:.1f}" for time, at in [*points, (rates[-1][0], floor)])


def _kind(name: str) -> str:
    return name if name in COLOURS else name.split(" ")[0]


def _rates(counters: list[tuple[str, str, float, float]]) -> dict[str, list[tuple[float, float]]]:
    """By machine, from when on how many bytes a second left it; the last is 0."""
    sent: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for machine, name, time, value in counters:
        if name.startswith("sent"):
            sent[machine].append((time, value))
    rates = {}
    for machine, found in sent.items():
        if len(found) > 1:
            steps = [(t, (v2 - v) / max(1e-3, t2 - t)) for (t, v), (t2, v2) in itertools.pairwise(found)]
            rates[machine] = [*steps, (found[-1][0], 0.0)]
    return rates


def facts_of(trace: Trace) -> list[str]:
    """What a reader of the times must know, one sentence each."""
    facts, lines = trace.facts, []
    for name, clock in facts["clocks"].items():
        lines.append(
            f"clock of {name}: {clock['ahead_ms']:+.2f} ms beside the coordinator's, taken away here; "
            f"what is left is at most {clock['within_ms']:.2f} ms"
        )
    if not facts["clocks"]:
        lines.append("clocks: not compared; times of several machines are as each of them had it")
    for name, count in facts["bytes"].items():
        others: Any = count["received_by_others"]
        line = f"bytes of {name}: {human_bytes(count['sent'])} through its network card"
        if others is not None and count["sent"]:
            more = (count["sent"] - others) / count["sent"]
            line += f", {human_bytes(others)} received from it over TCP; headers, repeats and other traffic: {more:.1%}"
        lines.append(line)
    if facts["left_out"]:
        lines.append(f"left out: {facts['left_out']} event(s) that are not whole")
    return lines
