"""The pictures of lesson 5: what each rank holds, and when it talks. Importing this module does not import DGL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from support.plots.pieces import MINT, arrow, box, cell, frame, write
from support.plots.style import canvas, drawing, figure, legend_below
from tutorial_lib.tools.finale.style import BLUE, GREEN, GREY, INK, LIGHT, ORANGE, SAND, SKY

RANKS = ((SKY, BLUE), (SAND, ORANGE))  # fill and edge
EVERYONE = (MINT, GREEN)


def one_step() -> Figure:
    """A training step in one process, beside the same step on two ranks."""
    fig, (left, right) = figure(10.5, 4.9, 1, 2, width_ratios=[1, 2.1])
    canvas(left, 4, 6.6, title="one process")
    canvas(right, 8.2, 6.6, title="two ranks: the same step")
    _step_column(left, 0.2, "the whole batch", "gradient of the batch", LIGHT, GREY)
    for rank, x in enumerate((0.2, 4.4)):
        _step_column(right, x, f"share {rank} of the batch", "gradient of the share", *RANKS[rank])
        frame(right, x - 0.15, 0.05, 3.9, 6.5, f"rank {rank}")
    frame(left, 0.05, 0.05, 3.9, 6.5, "process")
    box(right, 0.35, 1.6, 7.5, 0.75, "all_reduce, then divide: each rank gets the mean of both gradients", *EVERYONE)
    box(left, 0.35, 1.6, 3.3, 0.75, "(nothing to do)", "white", GREY)
    return fig


def _step_column(ax: Axes, x: float, batch: str, gradient: str, fill: str, edge: str) -> None:
    box(ax, x + 0.15, 5.25, 3.3, 0.7, batch, fill, edge)
    box(ax, x + 0.15, 4.05, 3.3, 0.7, "the whole model: weights w", *EVERYONE)
    box(ax, x + 0.15, 2.85, 3.3, 0.7, gradient, fill, edge)
    box(ax, x + 0.15, 0.3, 3.3, 0.8, "optimizer step:\nthe same new w everywhere", *EVERYONE)
    for start, end in ((5.25, 4.75), (4.05, 3.55), (2.85, 2.35), (1.6, 1.1)):
        arrow(ax, (x + 1.8, start), (x + 1.8, end))


def _cells(ax: Axes, x: float, y: float, values: Sequence[str], fill: str, edge: str, width: float) -> None:
    """Numbers of a tensor, one per box; ``x`` is the middle."""
    left = x - width * len(values) / 2
    for k, value in enumerate(values):
        cell(ax, left + k * width, y - 0.3, width, 0.6, value, fill, edge)


def collectives(held: Sequence[Mapping[str, Sequence[float]]], undefined: str) -> Figure:
    """What two ranks hold after each collective.

    Args:
        held: per rank, the numbers after each collective, by its name.
        undefined: the collective after which only rank 0 has an answer.
    """
    names = list(held[0])
    fig, ax = drawing(9.5, 4.4, 9.6, len(names), -0.1, -0.75)
    origin = {tuple(ranks["at the start"]): rank for rank, ranks in enumerate(held)}
    for row, name in enumerate(names):
        y = len(names) - 1 - row
        write(ax, 0, y, name, ha="left", family="monospace" if "(" in name else None)
        for rank, (x, ranks) in enumerate(zip((4.6, 7.9), held, strict=True)):
            values = ranks[name]
            halves = [values[:2], values[2:]] if len(values) > 2 else [values]
            for k, half in enumerate(halves):
                where = x + (k - (len(halves) - 1) / 2) * 1.5
                if rank and name == undefined:
                    _cells(ax, where, y, ["?", "?"], "white", GREY, 0.72)
                    continue
                owner = origin.get(tuple(half))
                look = EVERYONE if owner is None else RANKS[owner]
                _cells(ax, where, y, [f"{value:g}" for value in half], *look, 0.72)
    for rank, x in enumerate((4.6, 7.9)):
        write(ax, x, len(names) - 0.35, f"rank {rank} holds", va="baseline", fontsize=11)
    keys = (*RANKS, EVERYONE, ("white", GREY)), ("from rank 0", "from rank 1", "the sum", "not defined")
    handles = [Patch(facecolor=fill, edgecolor=edge, label=text) for (fill, edge), text in zip(*keys, strict=True)]
    legend_below(ax, 0.02, 4, handles=handles)
    return fig


def paths(averaged: Tensor, alone: Sequence[Tensor], single: Tensor, x: Tensor, y: Tensor) -> Figure:
    """The weights step by step, on a map of the loss of the whole batch.

    Args:
        averaged, single: (steps + 1, 2), weights of a rank with averaging, and of one process.
        alone: per rank the same, without averaging.
        x, y: the whole batch, (n, 2) and (n,).
    """
    import torch

    fig, ax = figure(8.6, 4.4)
    points = torch.cat([averaged, *alone])
    low, high = points.min(0).values - 0.3, points.max(0).values + 0.45
    first, second = (torch.linspace(float(low[k]), float(high[k]), 80) for k in (0, 1))
    grid = torch.cartesian_prod(second, first).flip(1)
    loss = ((grid @ x.T - y) ** 2).mean(1).reshape(80, 80)
    levels = [float(loss.min()) * 1.02 + 0.02 * 2.1**k for k in range(10)]
    ax.contour(first, second, loss, levels=levels, colors="#CCCCCC", linewidths=0.9)
    ax.plot([], [], color="#CCCCCC", label="equal loss on the whole batch")
    ax.plot(*single.T, color=GREY, marker="s", markersize=10, lw=0, markerfacecolor="none", label="one process")
    ax.plot(*averaged.T, color=GREEN, marker="o", markersize=4.5, label="both ranks, gradients averaged")
    for rank, path in enumerate(alone):
        marker, style = (("^", "--"), ("v", ":"))[rank]
        label = f"rank {rank} without averaging"
        ax.plot(*path.T, color=RANKS[rank][1], marker=marker, ls=style, markersize=5, label=label)
    ax.annotate("start", (0, 0), xytext=(-0.05, 0.12), ha="right")
    ax.set(xlabel="first weight", ylabel="second weight")
    fig.legend(loc="outside right center")
    return fig


def backward(events: Sequence[tuple[float, str, str]], title: str = "") -> Figure:
    """A measured backward pass: when each layer was computed, and when each bucket was on its way."""
    fig, ax = figure(9.5, 3.4)
    begin, end = 0.0, events[-1][0] * 1e3
    for seconds, what, of in events:
        if what == "gradient" and of.endswith("weight"):
            now = seconds * 1e3
            ax.barh(0, now - begin, left=begin, height=0.55, color=SKY, edgecolor=BLUE)
            write(ax, (begin + now) / 2, 0, of.split(".")[0], fontsize=9)
            begin = now
    buckets = [(seconds * 1e3, of) for seconds, what, of in events if what == "starts"]
    for row, (start, of) in enumerate(buckets, start=1):
        stop = next(seconds for seconds, what, name in events if what == "done" and name == of) * 1e3
        ax.barh(row, stop - start, left=start, height=0.55, color=MINT, edgecolor=GREEN)
        x, side = (stop + 0.01 * end, "left") if stop < 0.6 * end else (start - 0.01 * end, "right")
        write(ax, x, row, of, ha=side, fontsize=9)
    names = ["computing layer", *(f"all_reduce, bucket {k}" for k in range(len(buckets)))]
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.axvline(end, color=INK, lw=1, ls=":")
    ax.set(xlim=(0, end * 1.02), xlabel="milliseconds since backward() was called; the dotted line: it returns")
    ax.set_title(title)
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
    return fig
