"""The pictures of lesson 3: how a mini-batch is sampled, and its size. This module does not import DGL."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from support.plots.colors import BLUE, GRAY, GREEN, INK, ORANGE
from support.plots.shapes import PALE, VERMILION, lines
from support.plots.style import figure, percent

# Marker and color of the nodes of each hop. Hop 0 is the seeds.
HOPS = (("o", ORANGE), ("s", BLUE), ("^", GREEN), ("D", VERMILION))


def frontier(
    points: Tensor, edges: tuple[Tensor, Tensor], seeds: Tensor, hops: Sequence[tuple[Tensor, Tensor]]
) -> Figure:
    """Draw a small graph once per hop, with the nodes so far and the edges that this hop sampled.

    Args:
        points: positions of the nodes, float32 tensor of shape (N, 2).
        edges: sources and destinations of all edges.
        seeds: int64 IDs of the seed nodes.
        hops: sources and destinations of the sampled edges of up to three hops, first the hop of the seeds.
    """
    fig, axes = figure(10.5, 3.6, 1, len(hops), squeeze=False)
    axes = axes[0]
    hop_of = dict.fromkeys(seeds.tolist(), 0)
    where = points.tolist()
    for hop, (ax, (src, dst)) in enumerate(zip(axes, hops, strict=True), start=1):
        before = len(hop_of)
        for node in src.tolist():
            hop_of.setdefault(node, hop)
        _every_edge(ax, points, edges)
        for a, b in zip(src.tolist(), dst.tolist(), strict=True):
            arrow = {"arrowstyle": "-|>", "color": INK, "lw": 0.9, "shrinkA": 2, "shrinkB": 3, "mutation_scale": 8}
            ax.annotate("", xy=where[b], xytext=where[a], arrowprops=arrow, zorder=3)
        _known_nodes(ax, points, hop_of)
        ax.set_title(f"hop {hop}: {before} nodes sample, {len(hop_of)} nodes in total", fontsize=11)
        ax.set_aspect("equal")
        ax.axis("off")
    for hop in range(len(hops) + 1):
        marker, color = HOPS[hop]
        name = f"found by hop {hop}" if hop else "seed"
        axes[-1].scatter([], [], 34, color, marker=marker, label=name)
    axes[-1].plot([], [], color=INK, lw=1, label="edge sampled by this hop")
    axes[-1].plot([], [], color=PALE, lw=1.2, label="other edge")
    fig.legend(loc="outside lower center", ncol=6)
    return fig


def _every_edge(ax: Axes, points: Tensor, edges: tuple[Tensor, Tensor]) -> None:
    lines(ax, points.tolist(), zip(*(e.tolist() for e in edges), strict=True), color=PALE, lw=0.8)
    ax.scatter(points[:, 0], points[:, 1], 12, PALE, zorder=2)


def _known_nodes(ax: Axes, points: Tensor, hop_of: Mapping[int, int]) -> None:
    for hop, (marker, color) in enumerate(HOPS):
        nodes = [node for node, first_hop in hop_of.items() if first_hop == hop]
        ax.scatter(points[nodes, 0], points[nodes, 1], 34, color, marker=marker, zorder=4)


def input_nodes(
    fanouts: Sequence[int], sizes: Mapping[int, Sequence[float]], batch_size: int, num_nodes: int
) -> Figure:
    """Draw the input nodes of a batch against the fan-out, one line per depth, with two upper limits.

    Args:
        fanouts: neighbors per node, equal in all hops.
        sizes: number of hops -> input nodes at each fan-out.
        batch_size: seeds of the batch.
        num_nodes: nodes of the whole graph.
    """
    fig, ax = figure(9, 4.4)
    for (hops, values), (marker, color) in zip(sizes.items(), HOPS[1:], strict=False):
        tree = [batch_size * (1 + f) ** hops for f in fanouts]
        ax.plot(fanouts, tree, color=color, lw=1, ls=":")
        ax.plot(fanouts, values, color=color, marker=marker, markersize=5)
        name = f"{hops} hop" if hops == 1 else f"{hops} hops"
        label = f"{name}: {values[-1] / num_nodes:.0%} of nodes"
        below = -8 if values[-1] > 0.8 * num_nodes else 0  # not on the line of the whole graph
        ax.annotate(label, (fanouts[-1], values[-1]), (8, below), textcoords="offset points", va="center", color=color)
    ax.axhline(num_nodes, color=GRAY, lw=1)
    whole = f"the whole graph: {num_nodes:,} nodes"
    ax.text(fanouts[-1] * 1.3, num_nodes * 1.06, whole, ha="right", va="bottom")
    ax.plot([], [], color=INK, lw=1, ls=":", label="if no node were sampled twice")
    ax.plot([], [], color=INK, marker="o", markersize=5, label="measured")
    ax.set_yscale("log")
    ax.set(xlabel="fan-out of every hop", ylabel=f"input nodes of {batch_size} seeds", xticks=list(fanouts))
    ax.set(ylim=(batch_size, num_nodes * 3), xlim=(0, fanouts[-1] * 1.3))
    ax.legend(loc="lower right")
    return fig


def sampled_means(means: Mapping[int, Tensor], exact: Tensor) -> Figure:
    """Draw a histogram of the sampled means for each fan-out, and a line at the exact mean."""
    fig, axes = figure(9, 3.6, len(means), 1, sharex=True)
    for ax, (fanout, values), color in zip(axes, means.items(), (ORANGE, BLUE, GREEN), strict=True):
        ax.hist(values.numpy(), 60, color=color)
        ax.axvline(float(exact), color=INK, lw=1)
        ax.set_ylabel(f"fan-out {fanout}")
        ax.set_yticks([])
    axes[-1].set_xlabel("mean of the sampled neighbors in 2,000 samples (line: exact mean)")
    return fig


def accuracy_of_fanouts(results: Mapping[tuple[int, ...], tuple[int, Sequence[float]]]) -> Figure:
    """Draw the test accuracy against the edges of a batch, one point per random seed."""
    fig, ax = figure(9, 3.2)
    for fanouts, (edges, accuracies) in results.items():
        name = "all neighbors" if fanouts[0] < 0 else str(list(fanouts))
        ax.plot([edges] * len(accuracies), accuracies, color=BLUE, marker="o", ls="", markersize=5)
        ax.annotate(name, (edges, min(accuracies)), (0, -9), textcoords="offset points", ha="center", va="top")
    ax.set(xscale="log", xlabel="edges of a batch of 200 seeds", ylabel="accuracy on the test nodes")
    ax.margins(0.1, 0.35)
    percent(ax.yaxis)
    return fig
