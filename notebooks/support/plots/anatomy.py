"""Pictures of lesson 9: a cluster as it was found running, and where the rows of a mini-batch lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch

from support.plots.pieces import box, frame
from support.plots.style import drawing, legend_below
from tutorial_lib.tools.finale.style import BLUE, GREEN, GREY, LIGHT, ORANGE, SAND, SKY

WIDTH, GAP = 5.0, 1.9  # of a machine, and between two
ROWS = {"torchrun": 5.75, "trainer": 3.95, "sampler": 3.95, "server": 1.95}
HEIGHTS = {"torchrun": 0.55, "trainer": 0.85, "sampler": 0.85, "server": 0.95}
LOOKS = {"torchrun": (LIGHT, GREY), "trainer": (SKY, BLUE), "sampler": ("white", BLUE), "server": (SAND, ORANGE)}
KINDS = {
    "DGL: questions and answers": (BLUE, "-"),
    "gloo: gradients": (GREEN, "-"),
    "torchrun: who is there": (GREY, "--"),
}

Place = tuple[float, float, float, float]  # of a box: left, bottom, width, height


def cluster_figure(facts: Sequence[Mapping[str, Any]], calls: Sequence[Any]) -> Figure:
    """Machines, their processes, their shared memory, and a line for each two processes that are connected.

    Args:
        facts: what each machine says about itself, see ``lessons/look_around.py``.
        calls: TCP connections, each with ``caller`` and ``callee``, see ``lessons.anatomy.calls``.
    """
    fig, ax = drawing(10.5, 6.4, len(facts) * (WIDTH + GAP) - GAP + 0.1, 7.15, -0.1)
    places: dict[tuple[str, str, int], Place] = {}
    for number, machine in enumerate(facts):
        left = number * (WIDTH + GAP)
        address = machine["addresses"].get("eth0", ["?"])[0]
        frame(ax, left, 0.1, WIDTH, 6.95, f"{machine['machine']}   {address}")
        places |= _place_processes(ax, machine, left)
        box(ax, left + 0.25, 0.3, WIDTH - 0.5, 1.0, _memory_text(machine), LIGHT, GREY)
    pairs = Counter(tuple(sorted([_key(call.caller), _key(call.callee)])) for call in calls)
    for one, other in pairs:
        if one != other and one in places and other in places:
            _connect(ax, places, one, other, facts)
    handles = [Line2D([], [], color=color, ls=style, label=name) for name, (color, style) in KINDS.items()]
    legend_below(ax, 0.01, 3, handles=handles)
    return fig


def _key(who: Any) -> tuple[str, str, int]:
    return who.machine, who.role, who.index


def _place_processes(ax: Axes, machine: Mapping[str, Any], left: float) -> dict[tuple[str, str, int], Place]:
    """Draw a box for each process: torchrun above, its trainers and their samplers in the middle, servers below."""
    ports: dict[int, list[int]] = {}
    for pid, port in machine["listening"]:
        ports.setdefault(pid, []).append(port)
    places = {}
    for roles in (("torchrun",), ("trainer", "sampler"), ("server",)):
        row = sorted(
            (p["index"], roles.index(p["role"]), int(pid), p["role"])
            for pid, p in machine["processes"].items()
            if p["role"] in roles
        )
        for k, (index, _order, pid, role) in enumerate(row):
            slot = (WIDTH - 0.5) / len(row)
            width = min(slot - 0.25, 1.9)
            x = left + 0.25 + (k + 0.5) * slot - width / 2
            text = "torchrun" if role == "torchrun" else f"{role} {index}"
            if role == "server":
                kind = "" if len(row) == 1 else " (backup)" if index else " (main)"
                text += f"{kind}\nport {min(ports.get(pid, [0]))}"
            box(ax, x, ROWS[role], width, HEIGHTS[role], text, *LOOKS[role])
            places[machine["machine"], role, index] = (x, ROWS[role], width, HEIGHTS[role])
    return places


def _memory_text(machine: Mapping[str, Any]) -> str:
    names = [name for name in machine["shm"] if not name.startswith("sem.")]
    users = sorted({pid for name in names for pid in machine["shm"][name]})
    found = {int(pid): process for pid, process in machine["processes"].items()}
    mapped = sorted(f"{found[pid]['role']} {found[pid]['index']}" for pid in users if pid in found)
    return f"/dev/shm: {len(names)} names of DGL" + (f"\nmapped by {', '.join(mapped)}" if mapped else "")


def _kind(one: str, other: str) -> tuple[str, str]:
    if "torchrun" in (one, other):
        return KINDS["torchrun: who is there"]
    return KINDS["DGL: questions and answers" if "server" in (one, other) else "gloo: gradients"]


def _connect(
    ax: Axes,
    places: Mapping[tuple[str, str, int], Place],
    one: tuple[str, str, int],
    other: tuple[str, str, int],
    facts: Sequence[Mapping[str, Any]],
) -> None:
    color, style = _kind(one[1], other[1])
    upper, lower = sorted((one, other), key=lambda key: -ROWS[key[1]])
    order = [machine["machine"] for machine in facts]
    (x1, y1, w1, h1), (x2, y2, w2, h2) = places[upper], places[lower]
    lean = 0.22 * (order.index(lower[0]) - order.index(upper[0]))
    if ROWS[upper[1]] == ROWS[lower[1]]:  # side by side
        first, second = sorted((upper, lower), key=lambda key: places[key][0])
        (x1, y1, w1, h1), (x2, y2, _w2, h2) = places[first], places[second]
        start, end, bend = (x1 + w1, y1 + 0.7 * h1), (x2, y2 + 0.7 * h2), 0.0
        if w1 + x1 < x2 - GAP - 1.6:  # another box may be between them: go over it
            start, end, bend = (x1 + 0.7 * w1, y1 + h1), (x2 + 0.5 * w1, y2 + h2), -0.18
    else:
        start, end, bend = (x1 + (0.5 + lean) * w1, y1), (x2 + (0.5 - lean) * w2, y2 + h2), 0.0
    line = FancyArrowPatch(
        start, end, arrowstyle="-", shrinkA=0, shrinkB=0, connectionstyle=f"arc3,rad={bend}", color=color, ls=style
    )
    line.set(linewidth=1.3, zorder=1.5)
    ax.add_patch(line)
