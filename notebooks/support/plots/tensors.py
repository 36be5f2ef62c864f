"""The pictures of lesson 2: names and rows of a DistTensor, rows of a step, training of embeddings."""

from collections.abc import Mapping, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from support.plots.colors import BLUE, GRAY, GREEN, INK, LIGHT, ORANGE, SAND, SKY
from support.plots.shapes import VERMILION, arrow, box, frame, write
from support.plots.style import bars, canvas, curves, drawing, figure


def names_and_rows() -> Figure:
    """Draw the Python names in a trainer, the keys of ``g.ndata``, and the named tensors in the store."""
    fig, ax = drawing(10, 4.3, 11, 5.9)
    frame(ax, 0.1, 0.1, 4.6, 5.7, "a trainer")
    frame(ax, 6.3, 0.1, 4.6, 5.7, "the store, in this process or on servers")
    left = [
        (4.3, "first", "creates the rows: owner", SKY),
        (3.15, "second", "same name, same rows", SKY),
        (2.0, 'g.ndata["points"]', "a key, only in this trainer", SKY),
        (0.45, 'g.ndata["mine"]', "an ordinary tensor in this trainer", LIGHT),
    ]
    for y, name, note, fill in left:
        box(ax, 0.4, y, 4.0, 0.85, f"{name}\n{note}", fill, BLUE if fill == SKY else GRAY)
    box(ax, 6.6, 3.15, 4.0, 0.85, '"views"\nrows 0, 1, 2, ...', SAND, ORANGE)
    box(ax, 6.6, 1.6, 4.0, 0.85, '"kept", persistent\nremains after its owner is deleted', SAND, ORANGE)
    for y in (4.72, 3.57, 2.42):
        arrow(ax, (4.4, y), (6.6, 3.57))
    write(ax, 5.5, 1.02, "no rows\nin the store")
    return fig


def lost_update(start: float, end: float, safe_end: float) -> Figure:
    """Draw two ranks that read, add 1 and write at the same time, next to two ranks that let the server add.

    Args:
        start: value of the row at the start.
        end: value after both ranks wrote.
        safe_end: value after the server added twice.
    """
    fig, (left, right) = figure(10, 3.7, 1, 2)
    _ladder(left, "both ranks add 1 at the same time", [f"reads {start:g}", f"writes {start:g} + 1"])
    box(left, 0.6, 0.6, 4.8, 0.9, f"the row contains {end:g}, one update is lost", LIGHT, VERMILION)
    _ladder(right, "one server adds for one rank at a time", ["requests to add 1"])
    box(right, 0.6, 2.1, 4.8, 1.3, f"the server writes {start:g} + 1\nand then {start + 1:g} + 1", SAND, ORANGE)
    box(right, 0.6, 0.6, 4.8, 0.9, f"the row contains {safe_end:g}", LIGHT, GREEN)
    for x in (1.45, 4.55):
        arrow(left, (x, 2.9), (x, 1.5))
        arrow(right, (x, 4.4), (x, 3.4))
    arrow(right, (3, 2.1), (3, 1.5))
    return fig


def _ladder(ax: Axes, title: str, steps: Sequence[str]) -> None:
    """Draw the operations of both ranks from top to bottom."""
    canvas(ax, 6, 6.2, title=title)
    for k, x in enumerate((0.25, 3.35)):
        write(ax, x + 1.2, 5.75, f"rank {k}", va="baseline")
        for place, text in enumerate(steps):
            box(ax, x, 4.4 - 1.5 * place, 2.4, 0.8, text, SKY, BLUE)
            if place:
                arrow(ax, (x + 1.2, 5.9 - 1.5 * place), (x + 1.2, 5.2 - 1.5 * place))


def touched_rows(before: Tensor, after: Tensor, touched: Sequence[int]) -> Figure:
    """Draw an embedding before and after some steps, and the difference.

    Args:
        before, after: float32 arrays of shape (rows, width), with a few dozen rows.
        touched: rows of the batches, which are marked with an arrow.
    """
    fig, axes = figure(10, 4.8, 1, 3)
    change = after - before
    limit = float(torch.cat([before, after]).abs().max())
    tables = [(before, "before the steps", limit), (after, "after the steps", limit)]
    tables.append((change, "after minus before", float(change.abs().max())))
    for ax, (table, title, top) in zip(axes, tables, strict=True):
        image = ax.imshow(table, cmap="PuOr", vmin=-top, vmax=top, aspect="auto", interpolation="nearest")
        fig.colorbar(image, ax=ax, shrink=0.6, location="bottom", pad=0.02)
        ax.set(xticks=[], yticks=range(0, len(before), 4), title=title)
        ax.spines[:].set_visible(True)
        for row in touched:
            ends = (before.shape[1] - 0.4, row), (before.shape[1] + 0.6, row)
            ax.annotate("", *ends, arrowprops={"arrowstyle": "->", "color": INK}, annotation_clip=False)
    axes[0].set_ylabel("row (node), arrows mark the rows of the batches")
    return fig


def two_optimizers() -> Figure:
    """Draw a forward and backward pass, and the parameters that each of two optimizers updates."""
    fig, ax = drawing(10, 3.9, 11.9, 5.4)
    frame(ax, 0.1, 0.1, 3.4, 5.2, "the store, in general on servers")
    frame(ax, 4.6, 0.1, 7.0, 5.2, "each trainer")
    box(ax, 0.4, 2.7, 2.8, 1.5, "DistEmbedding\na row per node\n(millions)", SAND, ORANGE)
    box(ax, 4.9, 2.9, 2.5, 1.1, "emb(ids)\na copy of some rows", SKY, BLUE)
    box(ax, 8.8, 2.9, 2.5, 1.1, "nn.Module\n(thousands)", SKY, BLUE)
    box(ax, 4.9, 0.5, 2.5, 1.0, "SparseAdagrad\nrows of the batch", LIGHT, GREEN)
    box(ax, 8.8, 0.5, 2.5, 1.0, "torch Adam\nall parameters", LIGHT, GREEN)
    arrow(ax, (3.2, 3.45), (4.9, 3.45))
    arrow(ax, (7.4, 3.45), (8.8, 3.45))
    for x in (6.15, 9.5):
        arrow(ax, (x, 2.9), (x, 1.5), linestyle="--")
        write(ax, x - 0.1, 2.2, "gradient", ha="right")
    arrow(ax, (4.9, 1.0), (1.8, 2.7))
    ax.text(2.55, 1.75, "new rows", ha="right")
    arrow(ax, (10.2, 1.5), (10.2, 2.9))
    write(ax, 10.3, 2.2, "new values", ha="left")
    ax.text(4.05, 3.62, "rows", ha="center")
    ax.text(8.1, 3.62, "x", ha="center")
    return fig


LINES = [(VERMILION, "s", "--"), (BLUE, "o", "-"), (GREEN, "^", "-.")]


def embedding_training(
    losses: Mapping[str, Sequence[float]], accuracies: Mapping[str, float], most_common: float
) -> Figure:
    """Draw the loss of each epoch of several runs, and their test accuracies next to the share of the largest class.

    Args:
        losses: mean loss of each epoch, for each run.
        accuracies: test accuracy of each run.
        most_common: share of the test nodes in the largest class.
    """
    fig, (left, right) = figure(10, 3.6, 1, 2)
    curves(left, losses, LINES, ms=4)
    left.set(xlabel="epoch", ylabel="loss", ylim=(0, None), title="loss on the training nodes")
    left.legend()
    shares = {"most common class": most_common, **accuracies}
    colors = [GRAY, *(color for color, _, _ in LINES)]
    bars(right, shares, ".0%", colors[: len(shares)], 0.55)
    right.set(xlim=(0, 1), xticks=[], title="test accuracy")
    right.spines["bottom"].set_visible(False)
    return fig
