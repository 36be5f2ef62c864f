"""The pictures of lesson 1: one process and many processes, and a mini-batch."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from support.plots.colors import BLUE, GRAY, GREEN, INK, LIGHT, ORANGE, SAND, SKY
from support.plots.shapes import arrow, box, frame, write
from support.plots.style import bare, bars, canvas, figure, legend_below


def standalone_and_distributed() -> Figure:
    """Draw one process with all data next to two machines with a trainer and a server each."""
    fig, (left, right) = figure(10.5, 4.6, 1, 2, width_ratios=[1, 2.35])
    canvas(left, 4, 5.9, title="standalone: this notebook")
    canvas(right, 9.4, 5.9, title="distributed: the same code, many processes")
    _layers(left, 0.1, "one process", "your code", "the whole graph, as one part\nin the memory of the process")
    for k, x in enumerate((0.1, 5.5)):
        _layers(right, x, f"machine {k}", f"trainer {k}: your code", f"server {k}: part {k} of the graph")
    arrow(right, (3.6, 4.6), (5.8, 4.6), "<->", linestyle="--")
    write(right, 4.7, 4.72, "gradients", va="bottom")
    arrow(right, (3.4, 1.4), (6.0, 2.5), "<->", linestyle="--")
    arrow(right, (3.4, 2.5), (6.0, 1.4), "<->", linestyle="--")
    write(right, 4.7, 2.75, "rows and\nneighbors\nof the\nother part", va="bottom")
    write(right, 4.7, 0.62, "dashed:\nover the\nnetwork")
    return fig


def _layers(ax: Axes, x: float, name: str, code: str, store: str) -> None:
    """Draw a machine with the learner's code, DistGraph, and the place of the graph."""
    frame(ax, x, 0.1, 3.8, 5.7, name)
    box(ax, x + 0.3, 4.2, 3.2, 0.8, code, LIGHT)
    box(ax, x + 0.3, 2.5, 3.2, 1.1, "DistGraph\ndata · node_split · mini-batches", SKY, BLUE)
    box(ax, x + 0.3, 0.5, 3.2, 0.9, store, SAND, ORANGE)
    arrow(ax, (x + 1.9, 3.6), (x + 1.9, 4.2), "<->")
    arrow(ax, (x + 1.9, 1.4), (x + 1.9, 2.5), "<->")


def _draw_blocks(ax: Axes, blocks: Sequence[Any]) -> None:
    """Draw every node and edge of a small mini-batch, with the seeds on the right."""
    counts = [*(block.num_src_nodes() for block in blocks), blocks[-1].num_dst_nodes()]
    columns = [[1 - (i + 0.5) / count for i in range(count)] for count in counts]  # heights, from the top
    hops = len(blocks)
    # A column starts with the nodes of the column to its right. This hop found the other nodes.
    styles = [("o", ORANGE, "seed"), ("s", BLUE, "found by hop 1"), ("^", GREEN, "found by hop 2")]
    for k, block in enumerate(blocks):
        for src, dst in zip(*(ends.tolist() for ends in block.edges()), strict=True):
            ax.plot([k, k + 1], [columns[k][src], columns[k + 1][dst]], color=INK, lw=0.6, zorder=1)
        for node, height in enumerate(columns[k + 1]):  # the node's features are an input, too
            ax.plot([k, k + 1], [columns[k][node], height], color=GRAY, lw=0.9, ls=":", zorder=0)
        write(ax, k + 0.5, 1.03, f"blocks[{k}]", va="baseline")
    for k in range(hops + 1):
        bounds = [0, *reversed(counts[k:])]
        for (low, high), (marker, color, label) in zip(pairwise(bounds), styles, strict=False):
            name = label if k == 0 else None
            size = min(36, 700 / counts[k])
            ax.scatter([k] * (high - low), columns[k][low:high], size, color, marker=marker, label=name, zorder=2)
    ax.plot([], [], color=INK, lw=0.8, label="sampled edge")
    ax.plot([], [], color=GRAY, lw=1.1, ls=":", label="the node itself")
    ax.set_xticks(range(hops + 1), [f"{counts[0]} input nodes", f"{counts[1]} nodes", f"{counts[2]} seeds"])
    ax.set(yticks=[], xlim=(-0.3, hops + 0.3), ylim=(-0.02, 1.12))
    legend_below(ax, -0.1, 3)


def mini_batch(drawn: Sequence[Any], counted: Sequence[Any], num_nodes: int) -> Figure:
    """Draw all nodes of a small mini-batch next to the numbers of nodes of a real one.

    Args:
        drawn: two blocks, outermost hop first, of a few dozen nodes.
        counted: two blocks of any size.
        num_nodes: nodes of the whole graph.
    """
    fig, (left, right) = figure(10.5, 5.2, 1, 2, width_ratios=[1.25, 1])
    _draw_blocks(left, drawn)
    left.set_title(f"a batch of {drawn[-1].num_dst_nodes()} seeds, node by node")
    counts = [counted[-1].num_dst_nodes(), counted[1].num_src_nodes(), counted[0].num_src_nodes()]
    labels = [f" {count:,}\n {count / num_nodes:.0%} of all nodes" for count in counts]
    values: dict[str, float] = dict(zip(("seeds", "after hop 1", "after hop 2"), counts, strict=True))
    bars(right, values, labels, [ORANGE, BLUE, GREEN], 0.55)
    right.set(xlim=(0, max(counts) * 1.5), xticks=[], title=f"a batch of {counts[0]} seeds, counted")
    bare(left, right)
    return fig
