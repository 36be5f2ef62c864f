"""The pictures of lesson 5: what each rank holds, and when it talks. Importing this module does not import DGL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from support.plots.pieces import MINT, VERMILION, arrow, box, cell, frame, write
from support.plots.style import bare, canvas, drawing, figure, legend_below, named_rows
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


def first_step(histories: Sequence[Sequence[Mapping[str, Tensor]]], single: Sequence[Mapping[str, Tensor]]) -> Figure:
    """What two ranks, and one process, hold in the first step of training by hand."""
    rows = {"weight": "weight", "own gradient": "own gradient", "gradient": "gradient after all_reduce"}
    rows |= {"weight after": "weight after the step"}
    fig, ax = drawing(10.5, 3.6, 10.6, len(rows), -0.1, -0.5)
    columns = ((3.9, "rank 0", histories[0][0]), (6.4, "rank 1", histories[1][0]), (9.4, "one process", single[0]))
    for column, (x, title, held) in enumerate(columns):
        write(ax, x, len(rows) - 0.4, title, va="baseline", fontsize=11)
        for y, (key, text) in enumerate(reversed(rows.items())):
            look = (*RANKS, EVERYONE)[column] if key == "own gradient" else EVERYONE
            if column == 2 and key == "gradient":
                write(ax, x, y, "(the same)")
            else:
                _cells(ax, x, y, [f"{value:g}" for value in held[key].tolist()], *look, 0.95)
            if column == 0:
                write(ax, 0, y, text, ha="left")
    ax.axvline(7.9, color=GREY, lw=1, ls=":")
    write(ax, 5.15, 1, "=", fontsize=13)
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


def uneven(own: Sequence[Tensor], sizes: Sequence[int], plain: Tensor, weighted: Tensor, single: Tensor) -> Figure:
    """Gradients of two uneven shares as points in the plane, and where their means lie."""
    fig, ax = figure(8.6, 3.8)
    ends = [gradient.tolist() for gradient in own]
    ax.plot(*zip(*ends, strict=True), color=GREY, lw=1, ls=":", zorder=1)
    for rank, (point, size) in enumerate(zip(ends, sizes, strict=True)):
        label = f"own gradient of rank {rank}: {size} examples"
        ax.scatter(*point, 45 * size, RANKS[rank][1], "^v"[rank], label=label, zorder=2)
    ax.scatter(*single.tolist(), 150, "none", "s", edgecolors=INK, linewidths=1.5, label="one process", zorder=3)
    ax.scatter(*weighted.tolist(), 45, GREEN, "o", label="weighted by the number of examples", zorder=4)
    ax.scatter(*plain.tolist(), 70, VERMILION, "X", label="plain mean of the two ranks", zorder=4)
    ax.set(xlabel="gradient of the first weight", ylabel="of the second weight")
    ax.margins(0.15)
    fig.legend(loc="outside right center", labelspacing=1.1)
    return fig


def construction(held: Sequence[Mapping[str, Mapping[str, Tensor]]]) -> Figure:
    """All numbers of the model of two ranks as strips of colour, at each moment; equal columns are equal numbers."""
    import torch

    moments = list(held[0])
    fig, axes = figure(10.5, 3.9, len(moments))
    for ax, moment in zip(axes, moments, strict=True):
        rows = [torch.cat([tensor.flatten() for tensor in ranks[moment].values()]) for ranks in held]
        ax.pcolormesh(torch.stack(rows), cmap="cividis", vmin=-0.6, vmax=1.1, edgecolors="white", linewidth=0.4)
        ax.invert_yaxis()
        named_rows(ax, "rank", 2, at=0.5)
        ax.set_xticks([])
        bare(ax)
        ax.set_ylabel(moment, rotation=0, ha="right", va="center", labelpad=8)
        for column in (rows[0] != rows[1]).nonzero().flatten().tolist():
            ax.plot([column + 0.15, column + 0.85], [2.22, 2.22], color=VERMILION, lw=2.2, clip_on=False)
    position = 0
    for name, tensor in held[0][moments[0]].items():
        write(axes[0], position + tensor.numel() / 2, -0.25, SHORT.get(name, name), va="bottom", fontsize=9)
        position += tensor.numel()
        for ax in axes:
            ax.axvline(position, color=INK, lw=1.2)
    axes[-1].plot([], [], color=VERMILION, lw=2.2, label="the ranks hold different numbers")
    legend_below(axes[-1], -0.25)
    return fig


SHORT = {"shift": "buffer", "layers.0.bias": "0.bias", "layers.2.bias": "2.bias"}


def differences(gaps: Mapping[str, Sequence[float]], sizes: Sequence[int]) -> Figure:
    """Largest difference between any weight and that of one process, after each step, on a logarithmic scale."""
    fig, ax = figure(8.6, 3.5)
    styles = ((BLUE, "o", -0.16), (VERMILION, "X", 0.0), (GREEN, "s", 0.16))
    floor = 1e-9
    for (name, values), (color, marker, shift) in zip(gaps.items(), styles, strict=True):
        steps = [step + 1 + shift for step in range(len(values))]
        heights = [max(value, floor) for value in values]
        ax.vlines(steps, floor / 3, heights, color=color, lw=1)
        ax.scatter(steps, heights, 42, color, marker, label=name, zorder=3)
    ax.axhspan(floor / 3, 1e-6, color=LIGHT, zorder=0)
    write(ax, 0.55, 3e-7, "rounding of float32", ha="left")
    ax.set_xticks(range(1, len(sizes) + 1), [f"step {k + 1}\nbatch of {size}" for k, size in enumerate(sizes)])
    ax.set(yscale="log", ylim=(floor / 3, 1), xlim=(0.5, len(sizes) + 0.5), ylabel="largest difference\nof a weight")
    fig.legend(loc="outside lower center", ncol=3)
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


def accuracy(right: Sequence[Tensor], mean: float, overall: float) -> Figure:
    """Each answer as a box, right or wrong, per rank; beside them the two numbers that one can make of it."""
    x = max(len(answers) for answers in right) + 4.6
    fig, ax = drawing(10.5, 2.5, x + 6.4, len(right) - 0.4, -1.6, -0.6)
    for rank, answers in enumerate(right):
        y = len(right) - 1 - rank
        write(ax, -0.3, y, f"rank {rank}", ha="right")
        for k, is_right in enumerate(answers.tolist()):
            fill, edge, sign = (MINT, GREEN, "✓") if is_right else ("white", VERMILION, "×")
            cell(ax, k + 0.06, y - 0.38, 0.88, 0.76, sign, fill, edge, fontsize=11)
        text = f"{int(answers.sum())} of {len(answers)} right: {answers.float().mean():.0%}"
        write(ax, len(answers) + 0.3, y, text, ha="left")
    correct, count = sum(int(a.sum()) for a in right), sum(len(a) for a in right)
    write(ax, x, len(right) - 1, f"mean of the accuracies: {mean:.0%}", ha="left", fontsize=11, color=VERMILION)
    write(ax, x, 0, f"counts summed: {correct} of {count}, {overall:.0%}", ha="left", fontsize=11, color="#00664B")
    return fig
