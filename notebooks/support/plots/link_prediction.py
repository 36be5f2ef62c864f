"""The pictures of lesson 13, link prediction."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from support.plots.colors import BLUE, GRAY, GREEN, INK, ORANGE, SKY
from support.plots.shapes import VERMILION, lines
from support.plots.style import LOOKS, figure, legend_below, percent, stack

Pairs = Sequence[tuple[int, int]]
PLACES = [1, 2, 5, 10, 20, 50, 100]  # ticks on the axis of ranks


def batch_of_edges(points: Any, train: Pairs, held_out: Pairs, batch: Pairs, negatives: Pairs, seen: Pairs) -> Figure:
    """Draw a small graph three times: its split, a batch of edges with negatives, and the edges for message passing.

    Args:
        points: positions of the nodes, shape (N, 2).
        train: undirected training edges as pairs of nodes.
        held_out: held-out edges as pairs of nodes.
        batch: some of the training edges.
        negatives: one pair for each edge of the batch, source first.
        seen: edges in the blocks of the batch.
    """
    fig, (left, middle, right) = figure(10.5, 4.3, 1, 3)
    lines(left, points, train, color=GRAY, lw=1.3, label="training")
    lines(left, points, held_out, color=VERMILION, lw=1.8, ls=(0, (2, 2)), label="held out")
    left.set_title("split of the pairs of nodes")

    lines(middle, points, batch, color=BLUE, lw=3, label="edge of the batch: 1")
    lines(middle, points, negatives, color=ORANGE, lw=2, ls=(0, (4, 2)), label="negative: 0")
    middle.set_title("a batch")

    lines(right, points, seen, color=GREEN, lw=1.8, label="sampled")
    middle_of = [(points[a] + points[b]) / 2 for a, b in batch]
    lines(right, points, batch, color=BLUE, lw=1, ls=":")
    right.plot(*zip(*middle_of, strict=True), "x", color=INK, ms=9, mew=2, label="dropped, both directions")
    right.set_title("edges for message passing")

    nodes = sorted({node for pair in [*batch, *negatives] for node in pair})
    for ax in (left, middle, right):
        ax.scatter(points[:, 0], points[:, 1], 14, color=INK, zorder=2)
        if ax is not left:
            ax.scatter(points[nodes, 0], points[nodes, 1], 60, "white", edgecolors=INK, linewidths=1.5, zorder=3)
        ax.set_aspect("equal")
        ax.axis("off")
        ax.autoscale()
        legend_below(ax, 0.0, 1)
    return fig


def rank_curves(ranks: Mapping[str, Any], candidates: int) -> Figure:
    """Draw the share of the test edges that rank among the first k candidates, for every k.

    Args:
        ranks: name -> float array of ranks, starting at 1.
        candidates: number of candidates, which are the edge and its negatives.
    """
    fig, ax = figure(8.5, 3.9)
    at = list(range(1, candidates + 1))
    styles = [(BLUE, "-", 4.5), (ORANGE, "--", 2), (GREEN, "-.", 2), (VERMILION, ":", 2)]
    for (name, values), (color, dash, width) in zip(ranks.items(), styles, strict=False):
        ax.plot(at, [float((values <= k).mean()) for k in at], color=color, ls=dash, lw=width, label=name)
    ax.plot(at, [k / candidates for k in at], color=GRAY, lw=1, label="chance")
    ax.axvline(10, color=GRAY, lw=0.8, ls=":")
    ax.text(10.5, 0.03, "hits@10")
    percent(ax.yaxis)
    ax.set(xscale="log", xlim=(1, candidates), ylim=(0, 1.02), xlabel="k", ylabel="test edges of rank k or better")
    ax.set_xticks(PLACES, map(str, PLACES))
    ax.minorticks_off()
    ax.legend(loc="upper left")
    return fig


def cost_of_negatives(ways: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw the input rows of a batch for each way to sample negatives, divided into local and remote rows.

    Args:
        ways: name -> ``rows``, the ``remote`` ones among them, and ``came``, received bytes.
    """
    fig, ax = figure(8.5, 2.6)
    local = [way["rows"] - way["remote"] for way in ways.values()]
    remote = [way["remote"] for way in ways.values()]
    looks = ({"color": SKY, "label": "local"}, {"color": ORANGE, "hatch": "//", "label": "remote"})
    ends = stack(ax, list(ways), zip((local, remote), looks, strict=True))
    for row, (end, way) in enumerate(zip(ends, ways.values(), strict=True)):
        ax.text(end, row, f"  {way['came'] / 1e3:,.0f} kB received", va="center")
    ax.invert_yaxis()
    ax.set(xlabel="input rows of a batch", xlim=(0, max(ends) * 1.3))
    legend_below(ax, -0.25, 2)
    return fig


def dots(groups: Mapping[str, Sequence[float]], quantity: str) -> Figure:
    """Draw a row for each group, with a dot for each run and a line at the mean."""
    fig, ax = figure(8.5, 0.7 + 0.5 * len(groups))
    for row, ((name, values), (color, marker, _dashes)) in enumerate(zip(groups.items(), LOOKS * 2, strict=False)):
        ax.plot(values, [row] * len(values), marker, color=color, alpha=0.7, label=name)
        ax.plot([sum(values) / len(values)] * 2, [row - 0.3, row + 0.3], color=color, lw=2)
    ax.set_yticks(range(len(groups)), list(groups))
    ax.set(xlabel=quantity, ylim=(len(groups) - 0.5, -0.5))
    ax.grid(axis="x", color=GRAY, lw=0.4)
    return fig
