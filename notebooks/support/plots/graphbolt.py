"""The pictures of lesson 8, GraphBolt on several ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from support.plots.standalone import _box
from tutorial_lib.tools.finale.style import BLUE, GREEN, GREY, INK, LIGHT, ORANGE, SAND, SKY

Batches = Sequence[Sequence[int]]
STAGES = (
    ("ItemSampler", "seed_nodes\nlabels", "picks items"),
    ("copy_to", "(moves them)", "to this rank's\ndevice"),
    ("sample_neighbor", "sampled_subgraphs\ninput_nodes", "draws hop by hop"),
    ("fetch_feature", "node_features", "reads rows of\nthe input nodes"),
    ("your loop", "blocks: made\nwhen you ask", "forward, backward"),
)


def stages() -> Figure:
    """The pipeline: one box per stage, what it adds to the mini-batch, and what stands beside it."""
    fig = Figure(figsize=(10.5, 4.1), layout="constrained")
    ax = fig.subplots()
    for k, (name, adds, does) in enumerate(STAGES):
        x = 2.5 * k
        last = k == len(STAGES) - 1
        _box(ax, x, 2.2, 2.0, 0.7, name, LIGHT if last else SKY, INK if last else BLUE)
        ax.text(x + 1, 3.2, does, ha="center", va="bottom", fontsize=9.5, color=INK)
        _box(ax, x, 0.5, 2.0, 1.0, adds, "white", GREY)
        ax.plot([x + 1, x + 1], [1.55, 2.15], color=GREY, lw=1, ls=":")
        if not last:
            ax.annotate("", xy=(x + 2.47, 2.55), xytext=(x + 2.03, 2.55), arrowprops={"arrowstyle": "->", "color": INK})
    for x, text in ((0.0, "item set"), (5.0, "graph"), (7.5, "feature store")):
        _box(ax, x, 4.3, 2.0, 0.6, text, SAND, ORANGE)
        ax.annotate("", xy=(x + 1, 3.95), xytext=(x + 1, 4.3), arrowprops={"arrowstyle": "->", "color": ORANGE})
    ax.text(-0.2, 4.6, "data", ha="right", va="center", fontsize=10)
    ax.text(-0.2, 2.55, "stages", ha="right", va="center", fontsize=10)
    ax.text(-0.2, 1.0, "what the\nmini-batch\ngains", ha="right", va="center", fontsize=10)
    ax.set(xlim=(-1.7, 12.2), ylim=(0.3, 5.1))
    ax.axis("off")
    return fig


def _replica_row(ax: Axes, row: int, share: Sequence[int], batches: Batches) -> None:
    """The items of one rank as squares, grouped in batches; those that it leaves out in outline."""
    used = [item for batch in batches for item in batch]
    for k, batch in enumerate(batches):
        for item in batch:
            ax.add_patch(
                FancyBboxPatch(
                    (item - 0.38, row - 0.3),
                    0.76,
                    0.6,
                    boxstyle="round,pad=0,rounding_size=0.1",
                    facecolor=(SKY, SAND)[k % 2],
                    edgecolor=(BLUE, ORANGE)[k % 2],
                )
            )
            ax.text(item, row, str(item), ha="center", va="center", fontsize=8.5, color=INK)
    for item in sorted(set(share) - set(used)):
        ax.text(item, row, str(item), ha="center", va="center", fontsize=8.5, color=GREY)
        ax.plot([item - 0.3, item + 0.3], [row + 0.25, row - 0.25], color=GREY, lw=1)


def replicas(shares: Sequence[Sequence[int]], settings: Mapping[str, Sequence[Batches]]) -> Figure:
    """Which items each rank gets, in which batches, for several settings of ``DistributedItemSampler``.

    Args:
        shares: per rank, the items of its share, dropped ones included.
        settings: title of a panel -> per rank its batches; no shuffling.
    """
    count = sum(len(share) for share in shares)
    fig = Figure(figsize=(10.5, 4.6), layout="constrained")
    for ax, (title, ranks) in zip(fig.subplots(2, -(-len(settings) // 2)).flat, settings.items(), strict=True):
        for rank, batches in enumerate(ranks):
            _replica_row(ax, rank, shares[rank], batches)
        ax.set_yticks(range(len(ranks)), [f"rank {rank}: {len(b)}" for rank, b in enumerate(ranks)])
        ax.set(xlim=(-0.7, count - 0.3), ylim=(len(ranks) - 0.4, -0.6), xticks=[])
        ax.set_title(title, fontsize=10.5)
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
    fig.supxlabel(
        "number behind the rank: its batches; blue and sand: batches in turn; crossed out: left out", fontsize=10
    )
    return fig


def classes_seen(panels: Mapping[str, np.ndarray]) -> Figure:
    """How many items of each class each rank trains on, over all epochs.

    Args:
        panels: title -> int (ranks, classes); columns without any item may be left out by the caller.
    """
    fig = Figure(figsize=(10.5, 3.2), layout="constrained")
    axes = fig.subplots(len(panels), 1, sharex=True)
    colors = LinearSegmentedColormap.from_list("", ["white", SKY, BLUE])
    for ax, (title, counts) in zip(axes, panels.items(), strict=True):
        share = counts / counts.sum(axis=0, keepdims=True).clip(min=1)
        image = ax.imshow(share, aspect="auto", cmap=colors, vmin=0, vmax=1, interpolation="nearest")
        ax.set_yticks(range(len(counts)), [f"rank {rank}" for rank in range(len(counts))])
        ax.set_title(title, fontsize=10.5)
        ax.set_xticks([k - 0.5 for k in range(counts.shape[1] + 1)], minor=True)
        ax.set_yticks([k - 0.5 for k in range(len(counts) + 1)], minor=True)
        ax.grid(which="minor", color=GREY, lw=0.4)
        ax.tick_params(which="both", length=0)
    axes[-1].set_xlabel("classes that occur among the training nodes, in order of their number")
    axes[-1].set_xticks([])
    fig.colorbar(image, ax=axes, label="part of the class\nthat the rank sees")
    return fig


def files_per_pass(counts: Mapping[str, Sequence[int]]) -> Figure:
    """Open files of a rank after each pass over its mini-batches."""
    fig = Figure(figsize=(7, 2.8), layout="constrained")
    ax = fig.subplots()
    for (name, values), color, marker in zip(counts.items(), (ORANGE, BLUE, GREEN), ("o", "s", "^"), strict=False):
        ax.plot(range(1, len(values) + 1), values, color=color, marker=marker)
        ax.annotate(
            name, (len(values), values[-1]), xytext=(8, 0), textcoords="offset points", va="center", fontsize=9.5
        )
    ax.set(xlabel="passes over the mini-batches", ylabel="open files", ylim=(0, None))
    ax.set_xlim(0.8, max(len(values) for values in counts.values()) * 1.45)
    ax.set_xticks(range(1, max(len(values) for values in counts.values()) + 1))
    ax.spines[["top", "right"]].set_visible(False)
    return fig


def compared(
    accuracies: Mapping[str, Sequence[float]],
    seconds: Mapping[str, Sequence[float]],
    sampling: Mapping[str, Sequence[float]],
) -> Figure:
    """Accuracy after each epoch, seconds of each epoch, and seconds of drawing the batches alone, for several loaders.

    Args:
        seconds: without the first epoch, which warms up.
        sampling: one process, one thread, no training.
    """
    fig = Figure(figsize=(10.5, 3.6), layout="constrained")
    left, middle, right = fig.subplots(1, 3, width_ratios=[1.3, 1, 1])
    styles = dict(zip(accuracies, ((ORANGE, "o"), (BLUE, "s"), (GREEN, "^")), strict=True))
    for name, values in accuracies.items():
        color, marker = styles[name]
        left.plot(range(1, len(values) + 1), values, color=color, marker=marker, label=name)
    left.set(xlabel="epoch", ylabel="accuracy of the validation nodes", ylim=(None, 1))
    left.set_xticks(range(1, max(map(len, accuracies.values())) + 1))
    left.legend(frameon=False, fontsize=9.5, loc="lower right")
    for ax, times, title in (
        (middle, seconds, "an epoch of training, 2 ranks"),
        (right, sampling, "batches alone, 1 process"),
    ):
        for row, (name, values) in enumerate(times.items()):
            color, marker = styles[name]
            ax.barh(row, float(np.median(values)), color=color, alpha=0.3, height=0.5)
            ax.scatter(values, np.linspace(row - 0.12, row + 0.12, len(values)), 22, color, marker, zorder=2)
        ax.set_yticks(range(len(times)), [name.replace(", ", ",\n") for name in times])
        ax.set(xlabel="seconds (bar: median)", xlim=(0, None), ylim=(len(times) - 0.5, -0.5))
        ax.set_title(title, fontsize=10.5)
        ax.tick_params(axis="y", length=0)
        ax.spines[["top", "right"]].set_visible(False)
    return fig
