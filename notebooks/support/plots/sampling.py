"""The pictures of lesson 3: how a mini-batch is found, and what it costs. Importing this module does not import DGL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from torch import Tensor

from tutorial_lib.tools.finale.style import BLUE, GREEN, GREY, INK, ORANGE

VERMILION, PALE = "#D55E00", "#D9D9D9"
# Marker and colour of the nodes found by each hop; hop 0 are the seeds.
HOPS = (("o", ORANGE), ("s", BLUE), ("^", GREEN), ("D", VERMILION))


def frontier(
    points: Tensor, edges: tuple[Tensor, Tensor], seeds: Tensor, hops: Sequence[tuple[Tensor, Tensor]]
) -> Figure:
    """A small graph, once per hop: what is known so far, and the edges that this hop has sampled.

    Args:
        points: float32 (N, 2), where to draw each node.
        edges: sources and destinations of all edges.
        seeds: int64 ids where the sampling starts.
        hops: up to three hops, the one at the seeds first: sources and destinations of its sampled edges.
    """
    fig = Figure(figsize=(10.5, 3.6), layout="constrained")
    axes = fig.subplots(1, len(hops), squeeze=False)[0]
    found = dict.fromkeys(seeds.tolist(), 0)
    where = points.tolist()
    for hop, (ax, (src, dst)) in enumerate(zip(axes, hops, strict=True), start=1):
        before = len(found)
        for node in src.tolist():
            found.setdefault(node, hop)
        _every_edge(ax, points, edges)
        for a, b in zip(src.tolist(), dst.tolist(), strict=True):
            arrow = {"arrowstyle": "-|>", "color": INK, "lw": 0.9, "shrinkA": 2, "shrinkB": 3, "mutation_scale": 8}
            ax.annotate("", xy=where[b], xytext=where[a], arrowprops=arrow, zorder=3)
        _known_nodes(ax, points, found)
        ax.set_title(f"hop {hop}: {before} nodes ask, {len(found)} are known", fontsize=11)
        ax.set_aspect("equal")
        ax.axis("off")
    for hop in range(len(hops) + 1):
        marker, color = HOPS[hop]
        name = f"found by hop {hop}" if hop else "seed"
        axes[-1].scatter([], [], 34, color, marker, label=name)
    axes[-1].plot([], [], color=INK, lw=1, label="edge sampled by this hop")
    axes[-1].plot([], [], color=PALE, lw=1.2, label="other edge")
    fig.legend(loc="outside lower center", ncol=6, frameon=False, fontsize=9.5)
    return fig


def _every_edge(ax: Axes, points: Tensor, edges: tuple[Tensor, Tensor]) -> None:
    lines = [[points[a].tolist(), points[b].tolist()] for a, b in zip(*(e.tolist() for e in edges), strict=True)]
    ax.add_collection(LineCollection(lines, colors=PALE, linewidths=0.8, zorder=1))
    ax.scatter(points[:, 0], points[:, 1], 12, PALE, zorder=2)


def _known_nodes(ax: Axes, points: Tensor, found: Mapping[int, int]) -> None:
    for hop, (marker, color) in enumerate(HOPS):
        nodes = [node for node, of_hop in found.items() if of_hop == hop]
        ax.scatter(points[nodes, 0], points[nodes, 1], 34, color, marker, zorder=4)


def draws_per_neighbour(counts: Mapping[str, Sequence[float]], expected: float, deviation: float) -> Figure:
    """How often each neighbour of one node was drawn, by several samplers, beside what chance expects.

    Args:
        counts: name of a sampler to its number of draws per neighbour.
        expected, deviation: mean and standard deviation of such a number.
    """
    fig = Figure(figsize=(9, 3.4), layout="constrained")
    ax = fig.subplots()
    band = (expected - 3 * deviation, expected + 3 * deviation)
    ax.axhspan(*band, color="#F0F0F0", label="three standard deviations")
    ax.axhline(expected, color=INK, lw=1, label="expected")
    for (name, values), (marker, color) in zip(counts.items(), (("o", BLUE), ("x", VERMILION)), strict=False):
        ax.plot(range(len(values)), values, marker, color=color, markersize=6, label=name)
    ax.set(
        xlabel="neighbour of the node", ylabel="times drawn", ylim=(expected - 5 * deviation, expected + 5 * deviation)
    )
    _plain(ax)
    fig.legend(loc="outside lower center", ncol=4, frameon=False, fontsize=9.5)
    return fig


def input_nodes(
    fanouts: Sequence[int], sizes: Mapping[int, Sequence[float]], batch_size: int, num_nodes: int
) -> Figure:
    """Input nodes of a batch by fan-out, one line per depth, with the limits: the sampling tree and the graph.

    Args:
        fanouts: neighbours per node, the same in every hop.
        sizes: number of hops to the input nodes at each fan-out.
        batch_size: seeds of the batch.
        num_nodes: nodes of the whole graph.
    """
    fig = Figure(figsize=(9, 4.4), layout="constrained")
    ax = fig.subplots()
    for (hops, values), (marker, color) in zip(sizes.items(), HOPS[1:], strict=False):
        tree = [batch_size * (1 + f) ** hops for f in fanouts]
        ax.plot(fanouts, tree, color=color, lw=1, ls=":")
        ax.plot(fanouts, values, color=color, marker=marker, markersize=5)
        name = f"{hops} hop" if hops == 1 else f"{hops} hops"
        label = f"{name}: {values[-1] / num_nodes:.0%} of nodes"
        below = -8 if values[-1] > 0.8 * num_nodes else 0  # not on the line of the whole graph
        ax.annotate(label, (fanouts[-1], values[-1]), (8, below), textcoords="offset points", va="center", color=color)
    ax.axhline(num_nodes, color=GREY, lw=1)
    whole = f"the whole graph: {num_nodes:,} nodes"
    ax.text(fanouts[-1] * 1.3, num_nodes * 1.06, whole, ha="right", va="bottom", fontsize=9.5)
    ax.plot([], [], color=INK, lw=1, ls=":", label="if no node were met twice")
    ax.plot([], [], color=INK, marker="o", markersize=5, label="measured")
    ax.set_yscale("log")
    ax.set(xlabel="fan-out of every hop", ylabel=f"input nodes of {batch_size} seeds", xticks=list(fanouts))
    ax.set(ylim=(batch_size, num_nodes * 3), xlim=(0, fanouts[-1] * 1.3))
    _plain(ax)
    ax.legend(loc="lower right", frameon=False, fontsize=9.5)
    return fig


def losses_compared(losses: Mapping[str, Sequence[float]], steps_per_epoch: int, title: str = "") -> Figure:
    """Loss of every step of several runs; the name of a run stands in the legend."""
    fig = Figure(figsize=(9, 3.6), layout="constrained")
    ax = fig.subplots()
    styles = ((BLUE, "-", 3.2), (ORANGE, "--", 1.6), (GREEN, "-", 1.4), (VERMILION, "-.", 1.6))
    count = 0
    for (name, values), (color, style, width) in zip(losses.items(), styles, strict=False):
        ax.plot(range(1, len(values) + 1), values, style, color=color, lw=width, label=name)
        count = max(count, len(values))
    for epoch, step in enumerate(range(0, count, steps_per_epoch)):
        ax.axvline(step + 0.5, color=GREY, lw=0.8, ls=":")
        ax.text(step + 0.7, 0.99, f"epoch {epoch}", transform=ax.get_xaxis_transform(), va="top", fontsize=9)
    top = max(max(values) for values in losses.values())
    ax.set(xlabel="step (one mini-batch)", ylabel="loss", xlim=(0.5, count + 0.5), ylim=(0, top * 1.15))
    ax.set_title(title, fontsize=11.5)
    _plain(ax)
    ax.legend(loc="upper right", bbox_to_anchor=(1, 0.92), frameon=False, fontsize=9.5)
    return fig


def _plain(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
