"""The pictures of the lessons. Each function returns a matplotlib Figure; importing this module does not import DGL.

The figures are made without pyplot, so that none is shown twice or stays open. A notebook that shows them says
``%matplotlib inline`` once. Colours are those of Okabe and Ito (2008), which colour-blind readers can tell apart;
what a colour says is also said by a word or a shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from tutorial_lib.tools.finale.style import BLUE, GREEN, GREY, INK, LIGHT, ORANGE, SAND, SKY


def _box(ax: Axes, x: float, y: float, width: float, height: float, text: str, fill: str, edge: str = INK) -> None:
    """A rounded box with its text in the middle."""
    ax.add_patch(
        FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.12", facecolor=fill, edgecolor=edge)
    )
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", color=INK, fontsize=9.5)


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], **style: Any) -> None:
    """A line with a head at both ends: a question and its answer."""
    ax.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "<->", "color": INK, "lw": 1.2, **style})


def _frame(ax: Axes, x: float, y: float, width: float, height: float, text: str) -> None:
    """A dashed frame with its name at the top: a process or a machine that holds the boxes inside."""
    patch = FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.15")
    patch.set(facecolor="none", edgecolor=GREY, linestyle="--", linewidth=1.2)
    ax.add_patch(patch)
    ax.text(x + width / 2, y + height - 0.26, text, ha="center", va="center", color=INK, fontsize=9.5)


def standalone_and_distributed() -> Figure:
    """One process that holds everything, beside two machines with a trainer and a server each (lesson 1)."""
    fig = Figure(figsize=(10.5, 4.6), layout="constrained")
    left, right = fig.subplots(1, 2, width_ratios=[1, 2.35])
    face = "DistGraph\nndata · node_split · mini-batches"
    left.set_title("standalone: this notebook", fontsize=11.5)
    _frame(left, 0.1, 0.1, 3.8, 5.7, "one process")
    _box(left, 0.4, 4.2, 3.2, 0.8, "your code", LIGHT)
    _box(left, 0.4, 2.5, 3.2, 1.1, face, SKY, BLUE)
    _box(left, 0.4, 0.5, 3.2, 0.9, "the whole graph, as one part\nin the memory of the process", SAND, ORANGE)
    _arrow(left, (2, 3.6), (2, 4.2))
    _arrow(left, (2, 1.4), (2, 2.5))
    left.set(xlim=(0, 4), ylim=(0, 5.9))

    right.set_title("distributed: the same code, many processes", fontsize=11.5)
    for k, x in enumerate((0.1, 5.5)):
        _frame(right, x, 0.1, 3.8, 5.7, f"machine {k}")
        _box(right, x + 0.3, 4.2, 3.2, 0.8, f"trainer {k}: your code", LIGHT)
        _box(right, x + 0.3, 2.5, 3.2, 1.1, face, SKY, BLUE)
        _box(right, x + 0.3, 0.5, 3.2, 0.9, f"server {k}: part {k} of the graph", SAND, ORANGE)
        _arrow(right, (x + 1.9, 3.6), (x + 1.9, 4.2))
        _arrow(right, (x + 1.9, 1.4), (x + 1.9, 2.5))
    _arrow(right, (3.6, 4.6), (5.8, 4.6), linestyle="--")
    right.text(4.7, 4.72, "gradients", ha="center", va="bottom", fontsize=9.5)
    _arrow(right, (3.4, 1.4), (6.0, 2.5), linestyle="--")
    _arrow(right, (3.4, 2.5), (6.0, 1.4), linestyle="--")
    right.text(4.7, 2.75, "rows and\nneighbours\nof the\nother part", ha="center", va="bottom", fontsize=9.5)
    right.text(4.7, 0.62, "dashed:\nover the\nnetwork", ha="center", va="center", fontsize=9.5)
    right.set(xlim=(0, 9.4), ylim=(0, 5.9))
    for ax in (left, right):
        ax.axis("off")
    return fig


def _layer_positions(block: Any, is_input: bool) -> list[float]:
    """Heights of the nodes of one column, spread over 0 to 1 from the top."""
    count = block.num_src_nodes() if is_input else block.num_dst_nodes()
    return [1 - (i + 0.5) / count for i in range(count)]


def _draw_blocks(ax: Axes, blocks: Sequence[Any]) -> None:
    """Every node and edge of a small mini-batch, seeds on the right."""
    columns = [_layer_positions(b, True) for b in blocks] + [_layer_positions(blocks[-1], False)]
    hops = len(blocks)
    # A column starts with the nodes of the column to its right; those after them were found by this hop.
    styles = [("o", ORANGE, "seed"), ("s", BLUE, "found by hop 1"), ("^", GREEN, "found by hop 2")]
    for k, block in enumerate(blocks):
        for src, dst in zip(*(ends.tolist() for ends in block.edges()), strict=True):
            ax.plot([k, k + 1], [columns[k][src], columns[k + 1][dst]], color=INK, lw=0.6, zorder=1)
        for node, height in enumerate(columns[k + 1]):  # needs its own last vector too
            ax.plot([k, k + 1], [columns[k][node], height], color=GREY, lw=0.9, ls=":", zorder=0)
    for k in range(hops + 1):
        bounds = [0, *(len(c) for c in reversed(columns[k:]))]
        for found, (low, high) in enumerate(pairwise(bounds)):
            marker, color, label = styles[found]
            name = label if k == 0 else None
            size = min(36, 700 / len(columns[k]))
            ax.scatter([k] * (high - low), columns[k][low:high], size, color, marker, label=name, zorder=2)
    ax.plot([], [], color=INK, lw=0.8, label="sampled edge")
    ax.plot([], [], color=GREY, lw=1.1, ls=":", label="the node itself")
    counts = [len(c) for c in columns]
    ax.set_xticks(range(hops + 1), [f"{counts[0]} input nodes", f"{counts[1]} nodes", f"{counts[2]} seeds"])
    for k in range(hops):
        ax.text(k + 0.5, 1.03, f"blocks[{k}]", ha="center", fontsize=10)
    ax.set(yticks=[], xlim=(-0.3, hops + 0.3), ylim=(-0.02, 1.12))
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncol=3, frameon=False, fontsize=9.5)


def mini_batch(drawn: Sequence[Any], counted: Sequence[Any], num_nodes: int) -> Figure:
    """A small mini-batch with all its nodes and edges, beside the node counts of a real one (lesson 1).

    Args:
        drawn: two blocks, outermost hop first, of a few dozen nodes.
        counted: two blocks of any size.
        num_nodes: nodes of the whole graph.
    """
    fig = Figure(figsize=(10.5, 5.2), layout="constrained")
    left, right = fig.subplots(1, 2, width_ratios=[1.25, 1])
    _draw_blocks(left, drawn)
    left.set_title(f"a batch of {drawn[-1].num_dst_nodes()} seeds, node by node", fontsize=11.5)

    counts = [counted[-1].num_dst_nodes(), counted[1].num_src_nodes(), counted[0].num_src_nodes()]
    bars = right.barh(["seeds", "after hop 1", "after hop 2"], counts, color=[ORANGE, BLUE, GREEN], height=0.55)
    labels = [f" {count:,}\n {count / num_nodes:.0%} of all nodes" for count in counts]
    right.bar_label(bars, labels, fontsize=9.5)
    right.invert_yaxis()
    right.set(xlim=(0, max(counts) * 1.5), xticks=[])
    right.set_title(f"a batch of {counts[0]} seeds, counted", fontsize=11.5)
    for ax in (left, right):
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
    return fig


def loss_curve(losses: Sequence[float], steps_per_epoch: int, title: str = "") -> Figure:
    """Loss of every step, with a thin line where an epoch begins."""
    fig = Figure(figsize=(7, 3.2), layout="constrained")
    ax = fig.subplots()
    ax.plot(range(1, len(losses) + 1), losses, color=BLUE, marker="o", markersize=3)
    for epoch, step in enumerate(range(0, len(losses), steps_per_epoch)):
        ax.axvline(step + 0.5, color=GREY, lw=0.8, ls=":")
        ax.text(step + 0.8, 0.98, f"epoch {epoch}", transform=ax.get_xaxis_transform(), va="top", fontsize=9)
    ax.set(xlabel="step (one mini-batch)", ylabel="loss", ylim=(0, max(losses) * 1.15), xlim=(0.5, len(losses) + 0.5))
    ax.set_title(title, fontsize=11.5)
    ax.spines[["top", "right"]].set_visible(False)
    return fig


def neighbour_shares(shares: Mapping[str, Sequence[float]], expected: float, deviation: float) -> Figure:
    """How often each neighbour of one node was drawn, on two graphs, in a band of four standard deviations (lesson 1).

    Args:
        shares: per graph, for each neighbour the share of the draws that it was in.
        expected: the share that chance gives each neighbour.
        deviation: standard deviation of a share.
    """
    fig = Figure(figsize=(10.5, 3.4), layout="constrained")
    ax = fig.subplots()
    ax.axhspan(expected - 4 * deviation, expected + 4 * deviation, color=LIGHT, zorder=0, label="4 standard deviations")
    ax.axhline(expected, color=INK, lw=1, label=f"expected: {expected:.1%}", zorder=1)
    for (name, values), color, marker in zip(shares.items(), (BLUE, ORANGE), ("o", "^"), strict=True):
        ax.scatter(range(len(values)), values, 22, color, marker, label=name, zorder=2)
    ax.yaxis.set_major_formatter(lambda value, _at: f"{value:.0%}")
    ax.set(xlabel="neighbours of the node, one per column", ylabel="share of the draws")
    ax.set(
        ylim=(expected - 6 * deviation, expected + 6 * deviation), xlim=(-1.5, len(next(iter(shares.values()))) + 0.5)
    )
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncol=4, frameon=False, fontsize=9.5)
    ax.spines[["top", "right"]].set_visible(False)
    return fig
