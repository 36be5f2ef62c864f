"""The pictures of lesson 0: what is distributed, how large graphs are, the map of the course, the data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse, FancyBboxPatch

from support.plots.pieces import Point, arrow, box, frame, write
from support.plots.style import drawing, figure, legend_below, percent
from tutorial_lib.tools.finale.style import BLUE, GREEN, GREY, INK, LIGHT, ORANGE, SAND, SKY

LEVELS = (
    (
        "Level 1",
        "one process",
        ("Start here", "DistGraph in\none process", "Tensors and\nembeddings", "Distributed\nsampling", "Partitioning"),
    ),
    (
        "Level 2",
        "one machine,\nmany processes",
        ("Data parallel\nby hand", "Multi-GPU node\nclassification", "DDP pitfalls", "GraphBolt on\nmany GPUs"),
    ),
    (
        "Level 3",
        "many machines",
        ("Anatomy of\na cluster", "Multi-machine\ntraining", "When things\nbreak", "Finale:\nogbn-products"),
    ),
    ("Level 4", "other graphs,\nother tasks", ("Link\nprediction", "Embeddings\nat scale", "Heterographs")),
)
MEMORIES = (("laptop, 16 GB", 16e9, "right"), ("large GPU, 80 GB", 80e9, "left"), ("large server, 1 TB", 1e12, "left"))
SPLIT_STYLES = (("train", BLUE, "o"), ("valid", GREEN, "s"), ("test", ORANGE, "^"))
DEGREES = ([1, 10, 100, 1000], ["1", "10", "100", "1,000"])


def one_step() -> Figure:
    """Two machines, the graph cut between them, and what crosses the network in one training step."""
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
        write(ax, x, 4.2, "1  rows of its own part", ha=side)
    write(ax, 6, 3.42, "2  rows of the\nother part,\nover the network", va="top")
    arrow(ax, (4.6, 5.35), (7.4, 5.35), "<->", lw=1.4)
    write(ax, 6, 5.5, "3  gradients,\naveraged", va="bottom")
    return fig


def _draw_cut_graph(ax: Axes) -> None:
    """A fixed small graph: circles lie on machine 0, squares on machine 1; the seed has neighbours on both."""
    left = [(1.0, 2.2), (1.2, 0.9), (2.3, 1.6), (3.3, 2.35), (3.5, 0.85), (4.2, 1.6)]
    right = [(7.8, 1.6), (8.5, 2.35), (8.7, 0.85), (9.7, 2.4), (10.8, 1.9), (11.0, 0.9)]
    inside = [(0, 1), (0, 2), (1, 2), (2, 3), (2, 4), (3, 5), (4, 5), (3, 4)]

    def line(a: Point, b: Point, width: float, color: str = INK, dashes: str = "-") -> None:
        ax.plot(*zip(a, b, strict=True), color=color, lw=width, ls=dashes, zorder=2)

    for nodes in (left, right):
        for a, b in inside:
            line(nodes[a], nodes[b], 1, GREY)
    line(left[4], right[2], 1.2, dashes="--")
    line(left[5], left[3], 2)
    line(left[5], left[4], 2)
    line(left[5], right[0], 2, dashes="--")
    ax.scatter(*zip(*left, strict=True), s=90, color=BLUE, marker="o", zorder=3)
    ax.scatter(*zip(*right, strict=True), s=80, color=GREEN, marker="s", zorder=3)
    ax.scatter(*left[5], s=90, color=ORANGE, marker="o", zorder=4)
    ax.add_patch(Ellipse(left[5], 0.42, 0.56, facecolor="none", edgecolor=INK, lw=1.4, zorder=4))
    write(ax, 4.2, 2.12, "seed")
    write(ax, 6, 0.78, "edges that\nthe cut crosses", va="top")


def sizes(rows: Sequence[tuple[str, int, int]]) -> Figure:
    """Bytes of structure, of features and of both for some graphs, on a logarithmic axis, beside common memories.

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
        ax.axvline(memory, color=GREY, lw=1.2, ls="--", zorder=1)
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


def course_map() -> Figure:
    """The sixteen lessons in their four levels."""
    fig, ax = drawing(10.5, 7.4, 12.05, 6.6, -0.05, -2.1)
    number = 0
    for level, (title, where, lessons) in enumerate(LEVELS):
        y = 4.6 - 2.2 * level
        shape = "round,pad=0,rounding_size=0.15"
        ax.add_patch(FancyBboxPatch((0, y), 12, 1.9, boxstyle=shape, facecolor=LIGHT, edgecolor="none"))
        ax.text(0.2, y + 1.55, title, va="center", fontsize=11.5, fontweight="bold")
        ax.text(0.2, y + 1.34, where, va="top")
        _level_sketch(ax, level, y)
        for column, lesson in enumerate(lessons):
            x = 3.05 + 1.78 * column
            box(ax, x, y + 0.3, 1.66, 1.3, "", SKY, BLUE)
            write(ax, x + 0.83, y + 1.32, f"{number:02d}", fontweight="bold")
            write(ax, x + 0.83, y + 0.76, lesson, fontsize=8.8)
            number += 1
        if level:
            arrow(ax, (7.5, y + 2.18), (7.5, y + 1.92), lw=1.4)
    return fig


def _level_sketch(ax: Axes, level: int, y: float) -> None:
    """One process, a machine with four of them, three machines with two each."""
    if level == 0:
        ax.scatter([2.42], [y + 0.95], 60, BLUE, zorder=2)
        return
    frames = [(1.98, 0.38, 0.88, 0.86)] if level == 1 else [(x, 0.38, 0.44, 0.86) for x in (1.3, 1.86, 2.42)]
    for x, low, width, height in frames:
        patch = FancyBboxPatch((x, y + low - 0.22), width, height, boxstyle="round,pad=0,rounding_size=0.1")
        patch.set(facecolor="white", edgecolor=GREY, linestyle="--", lw=1.1)
        ax.add_patch(patch)
        for dx in (0.26, 0.62) if level == 1 else (0.22,):
            ax.scatter([x + dx] * 2, [y + low + 0.02, y + low + 0.44], 40, BLUE, zorder=2)
    for (a, low, width, _), (b, *_rest) in pairwise(frames):
        ax.plot([a + width, b], [y + low + 0.23] * 2, color=INK, lw=1.2)


def degree_distribution(degrees: np.ndarray) -> Figure:
    """How many nodes have which degree, both axes logarithmic; degrees in bins that grow by a constant factor.

    Args:
        degrees: int (N,), every degree at least 1.
    """
    fig, ax = figure(7, 3.6)
    edges = np.unique(np.round(np.geomspace(1, degrees.max() + 1, 28)).astype(int))
    counts, _ = np.histogram(degrees, edges)
    density = counts / np.diff(edges) / len(degrees)
    middle = np.sqrt(edges[:-1] * (edges[1:] - 1))
    ax.plot(middle[counts > 0], density[counts > 0], color=BLUE, marker="o", markersize=5, lw=1)
    marks = (("median", np.median(degrees), "right", 0.88, ":"), ("mean", degrees.mean(), "left", 1.13, "--"))
    for name, value, side, shift, dashes in marks:
        ax.axvline(value, color=GREY, lw=1, ls=dashes)
        text = f"{name} {value:.0f}"
        ax.text(value * shift, 0.13, text, transform=ax.get_xaxis_transform(), ha=side, va="bottom")
    last = density[counts > 0][-1]
    write(ax, degrees.max() * 0.75, last, f"largest {degrees.max():,}", ha="right")
    ax.set(xscale="log", yscale="log", xlabel="degree", ylabel="share of nodes, per degree", ylim=(last / 2.5, 0.08))
    ax.set_xticks(*DEGREES)
    return fig


def classes_per_split(counts: Mapping[str, np.ndarray]) -> Figure:
    """Share of each class in each split, the most common of the test set first; classes without a node are left out.

    Args:
        counts: ``train``, ``valid`` and ``test``, each int (C,): nodes per class.
    """
    fig, ax = figure(10.5, 3.9)
    order = np.argsort(-counts["test"], kind="stable")
    order = order[np.sum(list(counts.values()), axis=0)[order] > 0]
    shares = {name: count[order] / count.sum() for name, count in counts.items()}
    positions = np.arange(len(order))
    ax.bar(positions, shares["test"], 0.8, color=SAND, edgecolor=ORANGE, lw=0.8, label="test")
    for (name, color, marker), size in zip(SPLIT_STYLES[:2], (56, 13), strict=True):
        seen = shares[name] > 0
        ax.scatter(positions[seen], shares[name][seen], size, color, marker=marker, label=name, zorder=3)
    missing = (shares["train"] == 0) & (shares["test"] > 0)
    low = 2e-5
    at_bottom = [low * 1.5] * missing.sum()
    ax.scatter(positions[missing], at_bottom, 40, INK, marker="x", label="in test, not in train", zorder=4)
    ax.set(yscale="log", ylim=(low, 0.6), xlim=(-0.8, len(order) - 0.2), ylabel="share of the split")
    ax.set_xticks(positions, order)
    ax.set_yticks([1e-4, 1e-3, 1e-2, 1e-1], ["0.01%", "0.1%", "1%", "10%"])
    ax.tick_params(axis="x", labelsize=8, length=0)
    ax.set_xlabel("class, the most common in the test set first")
    ax.legend(loc="upper right", ncol=4)
    return fig


def degree_per_split(degrees: Mapping[str, np.ndarray]) -> Figure:
    """Share of the nodes of each split that have at most so many neighbours.

    Args:
        degrees: ``train``, ``valid`` and ``test``, each int (n,).
    """
    fig, ax = figure(7, 3.6)
    ax.axhline(0.5, color=GREY, lw=1, ls=":")
    for (name, color, marker), style in zip(SPLIT_STYLES, ("-", "--", "-."), strict=True):
        values = np.sort(degrees[name])
        median = np.median(values)
        label = f"{name}: median {median:.0f}, mean {values.mean():.0f}"
        ax.plot(values, np.arange(1, len(values) + 1) / len(values), color=color, lw=1.6, ls=style)
        ax.plot([median], [0.5], color=color, marker=marker, markersize=8)
        ax.plot([], [], color=color, lw=1.6, ls=style, marker=marker, label=label)
    percent(ax.yaxis)
    ax.set(xscale="log", xlabel="degree", ylabel="nodes with at most this degree", ylim=(0, 1.03))
    ax.set_xticks(*DEGREES)
    ax.legend(loc="lower right")
    return fig
