"""The pictures of lesson 8, GraphBolt on several ranks."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from support.plots.colors import BLUE, GRAY, INK, LIGHT, ORANGE, SAND, SKY
from support.plots.shapes import arrow, box, cell, write
from support.plots.style import LOOKS, bare, cells, drawing, figure, named_rows

Batches = Sequence[Sequence[int]]
STAGES = (
    ("ItemSampler", "seed_nodes\nlabels", "selects items"),
    ("copy_to", "(no new data)", "to this rank's\ndevice"),
    ("sample_neighbor", "sampled_subgraphs\ninput_nodes", "samples hop\nby hop"),
    ("fetch_feature", "node_features", "reads rows of\nthe input nodes"),
    ("transform", "(your choice)", "calls your\nfunction"),
    ("your loop", "blocks, built\nat each access", "forward, backward"),
)
SOURCES = {"ItemSampler": "item set", "sample_neighbor": "graph", "fetch_feature": "feature store"}


def stages() -> Figure:
    """Draw the pipeline with one box per stage, its output, and its data sources."""
    fig, ax = drawing(10.5, 4.1, 12.7, 5.1, -1.7, 0.3)
    for k, (name, adds, does) in enumerate(STAGES):
        x = 2.15 * k
        last = k == len(STAGES) - 1
        box(ax, x, 2.2, 1.9, 0.7, name, LIGHT if last else SKY, INK if last else BLUE)
        write(ax, x + 0.95, 3.2, does, va="bottom")
        box(ax, x, 0.5, 1.9, 1.0, adds, "white", GRAY, fontsize=9)
        ax.plot([x + 0.95, x + 0.95], [1.55, 2.15], color=GRAY, lw=1, ls=":")
        if not last:
            arrow(ax, (x + 1.92, 2.55), (x + 2.13, 2.55))
        if source := SOURCES.get(name):
            box(ax, x, 4.3, 1.9, 0.6, source, SAND, ORANGE)
            arrow(ax, (x + 0.95, 4.3), (x + 0.95, 3.95), color=ORANGE)
    for y, text in ((4.6, "data"), (2.55, "stages"), (1.0, "the mini-batch\nreceives")):
        write(ax, -0.2, y, text, ha="right")
    return fig


def _replica_row(ax: Axes, row: int, share: Sequence[int], batches: Batches) -> None:
    """Draw the items of one rank as squares in batches. Dropped items are crossed out."""
    for k, batch in enumerate(batches):
        for item in batch:
            look = (SKY, SAND)[k % 2], (BLUE, ORANGE)[k % 2]
            cell(ax, item - 0.38, row - 0.3, 0.76, 0.6, str(item), *look, fontsize=8.5)
    for item in sorted(set(share).difference(*batches)):
        write(ax, item, row, str(item), fontsize=8.5, color=GRAY)
        ax.plot([item - 0.3, item + 0.3], [row + 0.25, row - 0.25], color=GRAY, lw=1)


def replicas(shares: Sequence[Sequence[int]], settings: Mapping[str, Sequence[Batches]]) -> Figure:
    """Draw the items of each rank in batches, for several settings of ``DistributedItemSampler``.

    Args:
        shares: for each rank, all items of its share, including dropped ones.
        settings: title of a panel -> batches of each rank, without shuffling.
    """
    fig, axes = figure(10.5, 4.6, 2, -(-len(settings) // 2), squeeze=False)
    for ax, (title, ranks) in zip(axes.flat, settings.items(), strict=True):
        for rank, batches in enumerate(ranks):
            _replica_row(ax, rank, shares[rank], batches)
        ax.set_yticks(range(len(ranks)), [f"rank {rank}: {len(b)}" for rank, b in enumerate(ranks)])
        ax.set(xlim=(-0.7, sum(map(len, shares)) - 0.3), ylim=(len(ranks) - 0.4, -0.6), xticks=[], title=title)
        bare(ax)
    fig.supxlabel("Colors separate batches. The number after a rank counts its batches. Dropped items are crossed out.")
    return fig


def classes_seen(panels: Mapping[str, np.ndarray]) -> Figure:
    """Draw the number of items of each class that each rank trains on in all epochs.

    Args:
        panels: title -> int array of shape (ranks, classes). Classes without items can be omitted.
    """
    fig, axes = figure(10.5, 3.2, len(panels), 1, sharex=True)
    colors = LinearSegmentedColormap.from_list("", ["white", SKY, BLUE])
    for ax, (title, counts) in zip(axes, panels.items(), strict=True):
        share = counts / counts.sum(axis=0, keepdims=True).clip(min=1)
        ax.imshow(share, aspect="auto", cmap=colors, vmin=0, vmax=1, interpolation="nearest")
        named_rows(ax, "rank", len(counts))
        ax.set_title(title)
        cells(ax, counts.shape[1], len(counts), 0.4)
    axes[-1].set(xlabel="classes of the training nodes, ordered by their IDs", xticks=[])
    fig.colorbar(axes[-1].images[0], ax=axes, label="share of the class\nthat the rank sees")
    return fig


def repeats(panels: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Draw each repetition of each loader as a point, and the median as a line, with one panel per measurement.

    Args:
        panels: title -> loader -> milliseconds per batch.
    """
    fig, axes = figure(10.5, 2.6, 1, len(panels), sharey=True, squeeze=False)
    for ax, (title, loaders) in zip(axes.flat, panels.items(), strict=True):
        for row, (times, (color, marker, _)) in enumerate(zip(loaders.values(), LOOKS, strict=False)):
            ax.plot(times, [row] * len(times), marker, color=color, ms=6, alpha=0.7)
            ax.plot([np.median(times)] * 2, [row - 0.3, row + 0.3], color=color, lw=2)
        ax.set_yticks(range(len(loaders)), list(loaders))
        ax.set(title=title, xlabel="milliseconds per batch", xlim=(0, None), ylim=(len(loaders) - 0.5, -0.5))
    return fig
