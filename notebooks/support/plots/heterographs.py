"""Pictures of lessons 15 and 17: node types and relations, the two kinds of IDs, remote rows by type, memory."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from support.plots.colors import BLUE, GRAY, GREEN, INK, LIGHT, ORANGE, SAND, SKY
from support.plots.shapes import Point, cell, write
from support.plots.style import bars, drawing, figure, legend_below, stack

Relation = tuple[str, str, str]
FILLS = {"author": SAND, "field": "#D6F0E3", "paper": SKY}
EDGES = {"author": ORANGE, "field": GREEN, "paper": BLUE}
PLACES = {"author": (0.13, 0.76), "paper": (0.5, 0.2), "field": (0.87, 0.76)}


def metagraph(nodes: Mapping[str, int], edges: Mapping[Relation, int], with_features: Sequence[str]) -> Figure:
    """Draw the three types as boxes, and each relation and its reverse as two labeled arrows."""
    fig, ax = drawing(10.5, 4.6, 1, 1)
    for name, (x, y) in PLACES.items():
        feature = "features, labels" if name in with_features else "no features"
        shape = "round,pad=0.01,rounding_size=0.02"
        look: dict[str, Any] = {"boxstyle": shape, "fc": FILLS[name], "ec": EDGES[name]}
        ax.add_patch(FancyBboxPatch((x - 0.11, y - 0.1), 0.22, 0.2, **look))
        write(ax, x, y, f"{name}\n{nodes[name]:,} nodes\n{feature}")
    curved = {("author", "field"): 0.1, ("field", "author"): 0.1}
    for start, name, end in edges:
        if start != end:
            _relation(ax, *_ends(PLACES[start], PLACES[end]), curved.get((start, end), 0.13))
            _name_of(ax, PLACES[start], PLACES[end], name)
    for side, name in ((-1, "cites"), (1, "cited-by")):
        x, y = PLACES["paper"]
        _relation(ax, (x + side * 0.12, y + 0.05), (x + side * 0.12, y - 0.05), -side * 1.6)
        write(ax, x + side * 0.165, y, name, ha="left" if side > 0 else "right")
    return fig


def _relation(ax: Axes, start: Point, end: Point, bend: float) -> None:
    style: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 13, "color": INK, "lw": 1.2}
    ax.add_patch(FancyArrowPatch(start, end, connectionstyle=f"arc3,rad={bend}", **style))


def _ends(start: Point, end: Point) -> tuple[Point, Point]:
    """Return the points where an arrow leaves one box and touches the other."""
    if start[1] == end[1]:  # horizontal
        right = 1 if end[0] > start[0] else -1
        return (start[0] + right * 0.125, start[1]), (end[0] - right * 0.125, end[1])
    down = 1 if end[1] > start[1] else -1
    return (start[0], start[1] + down * 0.12), (end[0], end[1] - down * 0.12)


def _name_of(ax: Axes, start: Point, end: Point, name: str) -> None:
    """Write the name of a relation next to its arrow. Each of two opposite arrows bends to its right side."""
    (x0, y0), (x1, y1) = _ends(start, end)
    length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
    across = ((y1 - y0) / length, -(x1 - x0) / length)  # to the right of the arrow
    off = 0.045 if y0 != y1 else 0.085
    x, y = (x0 + x1) / 2 + across[0] * off * 1.6, (y0 + y1) / 2 + across[1] * off
    write(ax, x, y, name, bbox={"fc": "white", "ec": "none", "pad": 1})


def id_line(ranges: Mapping[str, Sequence[Sequence[int]]]) -> Figure:
    """Draw the homogeneous IDs, divided by part and type, above the type-wise IDs.

    Args:
        ranges: ``node_map`` of the partition description, type -> [first, end] for each part.
    """
    fig, ax = figure(10.5, 2.3)
    seen = dict.fromkeys(ranges, 0)
    segments = sorted((first, end, part, name) for name, own in ranges.items() for part, (first, end) in enumerate(own))
    least = 0.055 * segments[-1][1]  # minimal width of a type with few nodes
    at = 0.0
    for first, end, part, name in segments:
        width = max(least, end - first)
        cell(ax, at, 0, width, 1, name, FILLS.get(name, LIGHT), INK, patch={"lw": 0.8})
        count = end - first
        begin = seen[name]
        seen[name] += count
        ax.text(at, 1.1, f"{first:,}", ha="center", va="bottom", fontsize=9)
        between = f"{begin:,} to\n{begin + count - 1:,}"
        ax.text(at + width / 2, -0.12, between, ha="center", va="top", fontsize=9, color=GRAY)
        if first == min(row[0] for row in segments if row[2] == part):
            for low, high in ((-0.75, 1), (1.42, 1.95)):
                ax.plot([at, at], [low, high], color=INK, lw=1.4)
            ax.text(at + least * 0.15, 1.55, f"part {part}", va="bottom")
        at += width
    ax.text(at, 1.1, f"{segments[-1][1]:,}", ha="center", va="bottom", fontsize=9)
    ax.text(-least * 0.4, 1.1, "homogeneous", ha="right", va="bottom")
    ax.text(-least * 0.4, -0.12, "type-wise", ha="right", va="top", color=GRAY)
    ax.set(xlim=(-least * 2.4, at * 1.03), ylim=(-0.85, 2.0), xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    return fig


def remote_rows(rows: Mapping[str, Sequence[int]]) -> Figure:
    """Draw the number of local and remote rows that were read, by type.

    Args:
        rows: type -> number of rows that were read, and of the remote rows among them.
    """
    fig, ax = figure(7.5, 2.2)
    names = list(rows)
    local = [read - away for read, away in rows.values()]
    remote = [away for _read, away in rows.values()]
    looks = [{"color": SKY, "label": "local"}, {"color": ORANGE, "label": "remote"}]
    ends = stack(ax, names, zip((local, remote), looks, strict=True))
    for at, (end, away) in enumerate(zip(ends, remote, strict=True)):
        ax.text(end, at, f" {away / max(end, 1):.0%} remote", va="center")
    ax.invert_yaxis()
    ax.set(xlim=(0, max(ends) * 1.18), xlabel="rows read in training")
    ax.xaxis.set_major_formatter(lambda value, _at: f"{value:,.0f}")
    legend_below(ax, -0.35)
    return fig


def peaks(megabytes: Mapping[str, float]) -> Figure:
    """Draw the peak memory of each command in MB."""
    fig, ax = figure(7.5, 0.5 + 0.42 * len(megabytes))
    bars(ax, megabytes, [f" {value:,.0f} MB" for value in megabytes.values()])
    ax.set(xlim=(0, max(megabytes.values()) * 1.15), xlabel="peak memory in MB")
    return fig
