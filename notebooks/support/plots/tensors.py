"""The pictures of lesson 2: names and rows of a DistTensor, rows that a step touches, what embeddings learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from support.plots.standalone import _arrow, _box, _frame
from tutorial_lib.tools.finale.style import BLUE, GREEN, GREY, INK, LIGHT, ORANGE, SAND, SKY

VERMILION, PURPLE = "#D55E00", "#CC79A7"


def _bare(ax: Axes, width: float, height: float) -> None:
    """No axis lines; coordinates from 0 to the given size."""
    ax.set(xlim=(0, width), ylim=(0, height))
    ax.axis("off")


def names_and_rows() -> Figure:
    """Python names in a trainer, keys of ``g.ndata``, and the named tensors in the store that they lead to."""
    fig = Figure(figsize=(10, 4.3), layout="constrained")
    ax = fig.subplots()
    _frame(ax, 0.1, 0.1, 4.6, 5.7, "a trainer")
    _frame(ax, 6.3, 0.1, 4.6, 5.7, "the store: in this process, or on servers")
    left = [
        (4.3, "first", "makes it: the owner", SKY),
        (3.15, "second", "same name: shares the rows", SKY),
        (2.0, 'g.ndata["points"]', "a key, only in this trainer", SKY),
        (0.45, 'g.ndata["mine"]', "a plain tensor: rows here", LIGHT),
    ]
    for y, name, note, fill in left:
        _box(ax, 0.4, y, 4.0, 0.85, f"{name}\n{note}", fill, BLUE if fill == SKY else GREY)
    _box(ax, 6.6, 3.15, 4.0, 0.85, '"views"\nrows 0, 1, 2, ...', SAND, ORANGE)
    _box(ax, 6.6, 1.6, 4.0, 0.85, '"kept", persistent\nstays when its owner is gone', SAND, ORANGE)
    for y in (4.72, 3.57, 2.42):
        _arrow(ax, (4.4, y), (6.6, 3.57), arrowstyle="->")
    ax.text(5.5, 1.02, "no arrow:\nnobody else\nsees it", ha="center", va="center", fontsize=9.5)
    _bare(ax, 11, 5.9)
    return fig


def lost_update(start: float, end: float, safe_end: float) -> Figure:
    """Two ranks that read, add 1 and write at the same time, beside two that add up first (lesson 2).

    Args:
        start: the row before; end: the row after both ranks wrote; safe_end: after only one wrote the sum.
    """
    fig = Figure(figsize=(10, 3.7), layout="constrained")
    left, right = fig.subplots(1, 2)
    read, write = f"reads {start:g}", f"writes {start:g} + 1"
    steps = [(4.4, read, read), (2.9, write, write)]
    _ladder(left, "each adds 1 by itself", steps, f"the row holds {end:g}: one update is lost", VERMILION)
    steps = [(4.4, "wants to add 1", "wants to add 1"), (2.9, f"writes {start:g} + 2", "waits")]
    _ladder(right, "they add up first, one writes", steps, f"the row holds {safe_end:g}", GREEN)
    _arrow(right, (2.65, 4.8), (3.35, 4.8))
    right.text(3, 5.0, "sum", ha="center", fontsize=9.5)
    return fig


def _ladder(ax: Axes, title: str, steps: Sequence[tuple[float, str, str]], result: str, color: str) -> None:
    """Two columns of boxes, time downwards, and the result below."""
    ax.set_title(title, fontsize=11.5)
    for k, x in enumerate((0.25, 3.35)):
        ax.text(x + 1.2, 5.75, f"rank {k}", ha="center", fontsize=10)
        for y, *texts in steps:
            _box(ax, x, y, 2.4, 0.8, texts[k], SKY, BLUE)
        _arrow(ax, (x + 1.2, 4.4), (x + 1.2, 3.7), arrowstyle="->")
    _box(ax, 0.6, 0.6, 4.8, 0.9, result, LIGHT, color)
    for x in (1.45, 4.55)[: 1 if steps[-1][2] == "waits" else 2]:
        _arrow(ax, (x, 2.9), (x, 1.5), arrowstyle="->")
    _bare(ax, 6, 6.2)


def touched_rows(before: Tensor, after: Tensor, touched: Sequence[int]) -> Figure:
    """An embedding table before and after a step, and the difference (lesson 2).

    Args:
        before, after: float32 (rows, width), a few dozen rows.
        touched: the rows that the batch asked for; marked with an arrow.
    """
    fig = Figure(figsize=(10, 4.8), layout="constrained")
    axes = fig.subplots(1, 3)
    change = after - before
    limit = float(torch.cat([before, after]).abs().max())
    tables = [(before, "before the step", limit), (after, "after the step", limit)]
    tables.append((change, "after minus before", float(change.abs().max())))
    for ax, (table, title, top) in zip(axes, tables, strict=True):
        image = ax.imshow(table, cmap="PuOr", vmin=-top, vmax=top, aspect="auto", interpolation="nearest")
        fig.colorbar(image, ax=ax, shrink=0.6, location="bottom", pad=0.02)
        ax.set_title(title, fontsize=11.5)
        ax.set(xticks=[], yticks=range(0, len(before), 4))
        for row in touched:
            ax.annotate(
                "",
                xy=(before.shape[1] - 0.4, row),
                xytext=(before.shape[1] + 0.6, row),
                arrowprops={"arrowstyle": "->", "color": INK},
                annotation_clip=False,
            )
    axes[0].set_ylabel("row (node); an arrow marks what the batch asked for")
    return fig


def two_optimizers() -> Figure:
    """One forward and backward pass, and which optimizer changes which numbers (lesson 2)."""
    fig = Figure(figsize=(10, 3.9), layout="constrained")
    ax = fig.subplots()
    _frame(ax, 0.1, 0.1, 3.4, 5.2, "the store: in general, servers")
    _frame(ax, 4.6, 0.1, 7.0, 5.2, "each trainer")
    _box(ax, 0.4, 2.7, 2.8, 1.5, "DistEmbedding\na row per node\n(millions)", SAND, ORANGE)
    _box(ax, 4.9, 2.9, 2.5, 1.1, "emb(ids)\na copy of some rows", SKY, BLUE)
    _box(ax, 8.8, 2.9, 2.5, 1.1, "nn.Module\n(thousands)", SKY, BLUE)
    _box(ax, 4.9, 0.5, 2.5, 1.0, "SparseAdagrad\nrows of the batch", LIGHT, GREEN)
    _box(ax, 8.8, 0.5, 2.5, 1.0, "torch Adam\nall parameters", LIGHT, GREEN)
    style = {"arrowstyle": "->"}
    _arrow(ax, (3.2, 3.45), (4.9, 3.45), **style)
    _arrow(ax, (7.4, 3.45), (8.8, 3.45), **style)
    for x in (6.15, 9.5):
        _arrow(ax, (x, 2.9), (x, 1.5), **style, linestyle="--")
        ax.text(x - 0.1, 2.2, "gradient", ha="right", va="center", fontsize=9.5)
    _arrow(ax, (4.9, 1.0), (1.8, 2.7), **style)
    ax.text(2.55, 1.75, "new rows", ha="right", fontsize=9.5)
    _arrow(ax, (10.2, 1.5), (10.2, 2.9), **style)
    ax.text(10.3, 2.2, "new values", va="center", fontsize=9.5)
    ax.text(4.05, 3.62, "rows", ha="center", fontsize=9.5)
    ax.text(8.1, 3.62, "x", ha="center", fontsize=9.5)
    _bare(ax, 11.9, 5.4)
    return fig


def moved_rows(asked: Tensor, dense: Tensor, sparse: Tensor) -> Figure:
    """Which rows were asked for and which moved, step by step, with two optimizers (lesson 2).

    Args:
        asked, dense, sparse: bool (steps, rows).
    """
    fig = Figure(figsize=(10, 2.5), layout="constrained")
    axes = fig.subplots(1, 3)
    tables = [("asked for by the batch", asked, GREY), ("moved by torch Adam, dense", dense, VERMILION)]
    tables.append(("moved by SparseAdam", sparse, BLUE))
    for ax, (title, table, color) in zip(axes, tables, strict=True):
        ax.imshow(table, cmap=ListedColormap(["white", color]), vmin=0, vmax=1, aspect="auto")
        ax.set_title(f"{title}: {int(table.sum())}", fontsize=11)
        steps, rows = table.shape
        ax.set(xticks=range(0, rows, 2), yticks=range(steps), yticklabels=[f"step {k}" for k in range(steps)])
        ax.set_xticks([r - 0.5 for r in range(rows + 1)], minor=True)
        ax.set_yticks([r - 0.5 for r in range(steps + 1)], minor=True)
        ax.grid(which="minor", color=GREY, lw=0.6)
        ax.tick_params(which="both", length=0)
        ax.set_xlabel("row")
    return fig


LINES = [(VERMILION, "--", "s"), (BLUE, "-", "o"), (GREEN, "-.", "^")]


def embedding_training(
    losses: Mapping[str, Sequence[float]], accuracies: Mapping[str, float], most_common: float
) -> Figure:
    """Loss of each epoch of several runs, and their test accuracy beside the most common class (lesson 2).

    Args:
        losses: for each run, the mean loss of each epoch.
        accuracies: for the same runs, the share of test nodes that are right.
        most_common: share of the test nodes in the most common class.
    """
    fig = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = fig.subplots(1, 2)
    for (name, values), (color, line, marker) in zip(losses.items(), LINES, strict=False):
        left.plot(range(1, len(values) + 1), values, color=color, ls=line, marker=marker, ms=4, label=name)
    left.set(xlabel="epoch", ylabel="loss", ylim=(0, None))
    left.set_title("loss on the training nodes", fontsize=11.5)
    left.legend(frameon=False, fontsize=9.5)
    bars = {"most common class": most_common, **accuracies}
    colors = [GREY, *(color for color, _, _ in LINES)]
    drawn = right.barh(list(bars), list(bars.values()), color=colors[: len(bars)], height=0.55)
    right.bar_label(drawn, [f" {value:.0%}" for value in bars.values()], fontsize=10)
    right.invert_yaxis()
    right.set(xlim=(0, 1), xticks=[])
    right.tick_params(length=0)
    right.set_title("share of test nodes that are right", fontsize=11.5)
    left.spines[["top", "right"]].set_visible(False)
    right.spines[["top", "right", "bottom"]].set_visible(False)
    return fig


def embedding_map(before: Tensor, after: Tensor, labels: Tensor, classes: Sequence[int]) -> Figure:
    """Two tables of vectors in their own two main directions, some classes marked (lesson 2).

    Args:
        before, after: float32 (nodes, width). labels: int64 (nodes,).
        classes: up to four classes to draw.
    """
    fig = Figure(figsize=(10, 4.4), layout="constrained")
    axes: Any = fig.subplots(1, 2)
    marks = [(BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D")]
    for ax, table, title in zip(axes, (before, after), ("before training", "after training"), strict=True):
        chosen = table[torch.isin(labels, torch.tensor(list(classes)))]
        axis = torch.linalg.svd(chosen - chosen.mean(0), full_matrices=False).Vh[:2]
        points = (table - chosen.mean(0)) @ axis.T
        for kind, (color, marker) in zip(classes, marks, strict=False):
            x, y = points[labels == kind].T
            ax.scatter(x, y, 12, color, marker, alpha=0.6, linewidths=0, label=f"class {kind}")
        ax.set(xticks=[], yticks=[])
        ax.set_title(title, fontsize=11.5)
    axes[1].legend(fontsize=9.5, markerscale=1.6)
    return fig
