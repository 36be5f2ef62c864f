"""The pictures of lesson 0: the parts of a distributed job, and the sizes of graphs."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from support.plots.colors import BLUE, GRAY, GREEN, INK, LIGHT, ORANGE, SAND
from support.plots.shapes import Point, arrow, box, frame, write
from support.plots.style import drawing, figure, legend_below

MEMORIES = (("laptop, 16 GB", 16e9, "right"), ("large GPU, 80 GB", 80e9, "left"), ("large server, 1 TB", 1e12, "left"))


def one_step() -> Figure:
    """Draw two machines with a partitioned graph, and the traffic of one training step."""
    fig, ax = drawing(10.5, 5.2, 12, 6.6)
    for k, x in enumerate((0.1, 7.1)):
        frame(ax, x, 0.1, 4.8, 6.4, f"machine {k}")
        box(ax, x + 0.3, 4.9, 4.2, 0.9, f"trainer {k}: computes a mini-batch", LIGHT)
        box(ax, x + 0.3, 0.4, 4.2, 2.8, "", SAND, ORANGE)
        ax.text(x + 0.5, 2.95, f"server {k}: part {k} of the graph", va="center")
    _draw_cut_graph(ax)
    ends: tuple[tuple[Point, Point], ...]
    ends = (((2.5, 3.2), (2.5, 4.9)), ((9.5, 3.2), (9.5, 4.9)), ((7.6, 3.2), (4.2, 4.9)), ((4.4, 3.2), (7.8, 4.9)))
    for start, end in ends:
        arrow(ax, start, end, lw=1.4)
    for x, side in ((2.35, "right"), (9.65, "left")):
        write(ax, x, 4.2, "1  rows of the local part", ha=side)
    write(ax, 6, 3.42, "2  rows of the\nother part,\nover the network", va="top")
    arrow(ax, (4.6, 5.35), (7.4, 5.35), "<->", lw=1.4)
    write(ax, 6, 5.5, "3  gradients,\naveraged", va="bottom")
    return fig


def _draw_cut_graph(ax: Axes) -> None:
    """Draw a fixed small graph. Machine 0 stores circles, machine 1 squares. The seed has neighbors on both."""
    left = [(1.0, 2.2), (1.2, 0.9), (2.3, 1.6), (3.3, 2.35), (3.5, 0.85), (4.2, 1.6)]
    right = [(7.8, 1.6), (8.5, 2.35), (8.7, 0.85), (9.7, 2.4), (10.8, 1.9), (11.0, 0.9)]
    inside = [(0, 1), (0, 2), (1, 2), (2, 3), (2, 4), (3, 5), (4, 5), (3, 4)]

    def line(a: Point, b: Point, width: float, color: str = INK, dashes: str = "-") -> None:
        ax.plot(*zip(a, b, strict=True), color=color, lw=width, ls=dashes, zorder=2)

    for nodes in (left, right):
        for a, b in inside:
            line(nodes[a], nodes[b], 1, GRAY)
    line(left[4], right[2], 1.2, dashes="--")
    line(left[5], left[3], 2)
    line(left[5], left[4], 2)
    line(left[5], right[0], 2, dashes="--")
    ax.scatter(*zip(*left, strict=True), s=90, color=BLUE, marker="o", zorder=3)
    ax.scatter(*zip(*right, strict=True), s=80, color=GREEN, marker="s", zorder=3)
    ax.scatter(*left[5], s=90, color=ORANGE, marker="o", zorder=4)
    ax.add_patch(Ellipse(left[5], 0.42, 0.56, facecolor="none", edgecolor=INK, lw=1.4, zorder=4))
    write(ax, 4.2, 2.12, "seed")
    write(ax, 6, 0.78, "cut edges", va="top")


def sizes(rows: Sequence[tuple[str, int, int]]) -> Figure:
    """Draw the bytes of structure and features of some graphs on a logarithmic axis, with typical memory sizes.

    Args:
        rows: (name, bytes of structure, bytes of features), smallest graph first.
    """
    fig, ax = figure(10.5, 0.62 * len(rows) + 1.7)
    heights = np.arange(len(rows))[::-1]
    structure, features = (np.array([row[k] for row in rows], dtype=float) for k in (1, 2))
    for y, total in zip(heights, structure + features, strict=True):
        ax.axhline(y, color=LIGHT, lw=6, zorder=0)
        ax.text(total * 1.25, y, _bytes(total), va="center", fontweight="bold")
    ax.scatter(structure, heights, 55, BLUE, marker="o", label="structure", zorder=3)
    ax.scatter(features, heights, 50, ORANGE, marker="s", label="features", zorder=3)
    ax.scatter(structure + features, heights, 55, INK, marker="D", label="both", zorder=2)
    for name, memory, side in MEMORIES:
        ax.axvline(memory, color=GRAY, lw=1.2, ls="--", zorder=1)
        write(ax, memory * (1.1 if side == "left" else 1 / 1.1), len(rows) - 0.42, name, ha=side)
    ticks = {1e7: "10 MB", 1e8: "100 MB", 1e9: "1 GB", 1e10: "10 GB", 1e11: "100 GB", 1e12: "1 TB", 1e13: "10 TB"}
    ax.set(xscale="log", xlim=(6e6, 1.3e13), ylim=(-0.6, len(rows) + 0.1))
    ax.set_xticks(list(ticks), list(ticks.values()))
    ax.minorticks_off()
    ax.set_yticks(heights, [row[0] for row in rows])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    legend_below(ax, -0.14, 3)
    return fig


def _bytes(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"
