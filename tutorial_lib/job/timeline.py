"""A trace as a picture: one SVG, in a page without other files, or under the cell of a notebook.

The wheel zooms and dragging moves it; without its few lines of script it is the whole run, as large as it is.
"""

from __future__ import annotations

import html
import itertools
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tutorial_lib.job.display import human_bytes
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
STYLE, SCRIPT = Path(__file__).with_suffix(".html").read_text().split("\n<script>", 1)


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
        title = html.escape(f"Timeline of {self.trace.facts['run']}")
        facts = "".join(f"<li>{html.escape(line)}</li>" for line in facts_of(self.trace))
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
            f"<style>body{{font:16px/1.5 system-ui,sans-serif;margin:1.5rem}}</style></head>\n<body><h1>{title}</h1>\n"
            f"<p>Wheel: zoom. Drag: move. Double click: all of it. Point at a bar: what it is.</p>\n"
            f"{self._repr_html_()}\n<ul>{facts}</ul></body></html>\n"
        )

    def _repr_html_(self) -> str:
        """The picture, as a piece of HTML."""
        rows, names, y = [], [], GAP
        rates = _rates(self.trace.counters)
        machine = None
        for of, track in self.trace.tracks:
            if of != machine:
                machine = of
                names.append((y, f"<b>{html.escape(of)}</b>"))
                if of in rates:
                    rows.append(self._curve(rates[of], y))
                    names.append((y + ROW, f"sends, up to {human_bytes(int(max(r for _, r in rates[of])))}/s"))
                    y += CURVE + GAP
                else:
                    y += ROW
            if track != of:
                names.append((y, html.escape(track)))
            bars = [span for span in self.trace.spans if (span.machine, span.track) == (of, track)]
            levels = 0
            for level, bar in self._merged(bars):
                levels = max(levels, level + 1)
                rows.append(self._bar(bar, y + ROW * level))
            y += ROW * levels + GAP
        name = f"tl{zlib.crc32(f'{self.trace.facts}{self._zero}'.encode()):x}"
        used = {_kind(span.name) for span in self.trace.spans}
        key = "".join(
            f'<span><i style="background:{c}"></i>{n.rstrip(",")}</span>' for n, c in COLOURS.items() if n in used
        )
        left = "".join(f'<div class="name" style="top:{at + 16}px">{text}</div>' for at, text in names)
        ticks = "".join(f'<span style="left:{25 * k}%">{self._seconds * k / 4:.1f} s</span>' for k in range(4))
        script = SCRIPT.replace("ID", name).replace("SECONDS", f"{self._seconds:.6f}")
        return (
            f'{STYLE}<div class="timeline"><div class="key">{key}</div></div>\n<div class="timeline" id="{name}">{left}'
            f'<div class="picture"><div class="ruler">{ticks}</div><svg viewBox="0 0 {WIDTH} {y}" style="height:{y}px" '
            f'preserveAspectRatio="none">{"".join(rows)}</svg></div></div>\n<script>{script}'
        )

    def _x(self, time: float) -> float:
        return WIDTH * (time - self._zero) / self._seconds

    def _merged(self, spans: list[Span]) -> Iterator[tuple[int, Span]]:
        """Each span with the number of those around it; what is narrower than can be seen is one with its like."""
        around: list[Span] = []
        last: dict[int, Span] = {}
        least = self._seconds / WIDTH
        for span in spans:
            while around and around[-1].end <= span.start:
                around.pop()
            level, before = len(around), last.get(len(around))
            around.append(span)
            if before is not None and span.end - before.start < least and span.start - before.end < least:
                before.end = max(before.end, span.end)
                before.name = before.name if before.name == span.name else "several"
                continue
            if before is not None:
                yield level, before
            last[level] = Span(span.machine, span.track, span.name, span.start, span.end, span.facts)
        yield from last.items()

    def _bar(self, span: Span, y: int) -> str:
        shown = ((name, f"{v:.4g}" if isinstance(v, float) else v) for name, v in span.facts.items())
        facts = "".join(f"\n{name}: {value}" for name, value in shown)
        text = f"{span.name}\n{1e3 * (span.end - span.start):.3f} ms, from {span.start - self._zero:.3f} s{facts}"
        x, right = self._x(span.start), self._x(span.end)
        return (
            f'<rect x="{x:.2f}" y="{y}" width="{max(0.4, right - x):.2f}" height="{ROW - 1}" '
            f'fill="{_colour(span.name)}"><title>{html.escape(text)}</title></rect>'
        )

    def _curve(self, rates: list[tuple[float, float]], y: int) -> str:
        top = max(rate for _, rate in rates) or 1.0
        points, height = [], CURVE - 2
        for (time, rate), (until, _) in zip(rates, [*rates[1:], rates[-1]], strict=True):
            at = y + height * (1 - rate / top)
            points += [f"{self._x(time):.1f},{at:.1f}", f"{self._x(until):.1f},{at:.1f}"]
        ends = f"{self._x(rates[0][0]):.1f},{y + height} {{}} {self._x(rates[-1][0]):.1f},{y + height}"
        return f'<polygon class="bytes" points="{ends.format(" ".join(points))}" fill="#b9c7d6"/>'


def _kind(name: str) -> str:
    return name if name in COLOURS else name.split(" ")[0]


def _colour(name: str) -> str:
    return COLOURS.get(_kind(name)) or OTHER[zlib.crc32(_kind(name).encode()) % len(OTHER)]


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
