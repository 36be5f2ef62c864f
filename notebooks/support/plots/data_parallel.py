"""The pictures of lesson 5: the data of each rank, and the times of communication. This module does not import DGL."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from support.plots.colors import BLUE, GRAY, GREEN, INK, LIGHT, ORANGE, SAND, SKY
from support.plots.shapes import MINT, arrow, box, cell, frame, write
from support.plots.style import canvas, drawing, figure, legend_below

RANKS = ((SKY, BLUE), (SAND, ORANGE))  # fill and edge
EVERYONE = (MINT, GREEN)


def one_step() -> Figure:
    """Draw a training step in one process next to the same step on two ranks."""
    fig, (left, right) = figure(10.5, 4.9, 1, 2, width_ratios=[1, 2.1])
    canvas(left, 4, 6.6, title="one process")
    canvas(right, 8.2, 6.6, title="two ranks: the same step")
    _step_column(left, 0.2, "the whole batch", "gradient of the batch", LIGHT, GRAY)
    for rank, x in enumerate((0.2, 4.4)):
        _step_column(right, x, f"share {rank} of the batch", "gradient of the share", *RANKS[rank])
        frame(right, x - 0.15, 0.05, 3.9, 6.5, f"rank {rank}")
    frame(left, 0.05, 0.05, 3.9, 6.5, "process")
    box(right, 0.35, 1.6, 7.5, 0.75, "all_reduce, then divide: each rank gets the mean of both gradients", *EVERYONE)
    box(left, 0.35, 1.6, 3.3, 0.75, "(nothing to do)", "white", GRAY)
    return fig


def _step_column(ax: Axes, x: float, batch: str, gradient: str, fill: str, edge: str) -> None:
    box(ax, x + 0.15, 5.25, 3.3, 0.7, batch, fill, edge)
    box(ax, x + 0.15, 4.05, 3.3, 0.7, "the whole model: weights w", *EVERYONE)
    box(ax, x + 0.15, 2.85, 3.3, 0.7, gradient, fill, edge)
    box(ax, x + 0.15, 0.3, 3.3, 0.8, "optimizer step:\nthe same new w everywhere", *EVERYONE)
    for start, end in ((5.25, 4.75), (4.05, 3.55), (2.85, 2.35), (1.6, 1.1)):
        arrow(ax, (x + 1.8, start), (x + 1.8, end))


def collectives(held: Sequence[Mapping[str, Sequence[float]]], undefined: str) -> Figure:
    """Draw the values of two ranks after each collective.

    Args:
        held: for each rank, name of a collective -> its values afterwards.
        undefined: the collective whose result is defined on rank 0 only.
    """
    names = list(held[0])
    fig, ax = drawing(9.5, 4.4, 9.6, len(names), -0.1, -0.75)
    owners = {value: RANKS[rank] for rank, ranks in enumerate(held) for value in ranks["at the start"]}
    for row, name in enumerate(names):
        y = len(names) - 1 - row
        write(ax, 0, y, name, ha="left", family="monospace" if "(" in name else None)
        for rank, (x, ranks) in enumerate(zip((4.6, 7.9), held, strict=True)):
            hidden = rank and name == undefined
            for k, value in enumerate(ranks[name]):
                look = ("white", GRAY) if hidden else owners.get(value, EVERYONE)
                left = x + 0.72 * (k - len(ranks[name]) / 2)
                cell(ax, left, y - 0.3, 0.72, 0.6, "?" if hidden else f"{value:g}", *look)
    for rank, x in enumerate((4.6, 7.9)):
        write(ax, x, len(names) - 0.35, f"rank {rank} holds", va="baseline", fontsize=11)
    keys = (*RANKS, EVERYONE, ("white", GRAY)), ("from rank 0", "from rank 1", "the sum", "not defined")
    handles = [Patch(facecolor=fill, edgecolor=edge, label=text) for (fill, edge), text in zip(*keys, strict=True)]
    legend_below(ax, 0.02, 4, handles=handles)
    return fig


def backward(steps: Mapping[str, Sequence[tuple[float, str, str]]]) -> Figure:
    """Draw measured backward passes with the times of each gradient and of each all-reduce.

    Args:
        steps: name -> events with seconds, "gradient", "starts", "done" or "end", and the layer or all-reduce.
    """
    fig, axes = figure(9.5, 4.8, len(steps), 1, sharex=True)
    for ax, (name, events) in zip(axes, steps.items(), strict=True):
        begin = 0.0
        starts = {}
        for seconds, event, source in events:
            now = seconds * 1e3
            if event == "gradient":
                ax.barh(0, now - begin, left=begin, height=0.6, color=SKY, edgecolor=BLUE)
                write(ax, (begin + now) / 2, 0, source, fontsize=9)
                begin = now
            elif event == "starts":
                starts[source] = now
            elif event == "done":
                start = starts[source]
                ax.barh(1 + int(source), now - start, left=start, height=0.6, color=MINT, edgecolor=GREEN)
        ax.set_yticks(range(len(starts) + 1), ["gradient of layer", *(f"all_reduce {number}" for number in starts)])
        ax.invert_yaxis()
        ax.axvline(events[-1][0] * 1e3, color=INK, lw=1, ls=":")
        ax.set_title(name, loc="left")
    axes[-1].set_xlabel("milliseconds since the call of backward() (dotted line: all gradients are averaged)")
    return fig
