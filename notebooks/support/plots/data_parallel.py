"""The pictures of lesson 5: what each rank holds, and when it talks. Importing this module does not import DGL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from support.plots.standalone import _box, _frame
from tutorial_lib.tools.finale.style import BLUE, GREEN, GREY, INK, LIGHT, ORANGE, SAND, SKY

VERMILION, MINT = "#D55E00", "#CFEBDF"
RANK_COLORS = (BLUE, ORANGE)
RANK_FILLS = (SKY, SAND)


def _down(ax: Axes, x: float, start: float, end: float, **style: Any) -> None:
    """An arrow from one height to another."""
    ax.annotate("", xy=(x, end), xytext=(x, start), arrowprops={"arrowstyle": "->", "color": INK, "lw": 1.2, **style})


def one_step() -> Figure:
    """A training step in one process, beside the same step on two ranks."""
    fig = Figure(figsize=(10.5, 4.9), layout="constrained")
    left, right = fig.subplots(1, 2, width_ratios=[1, 2.1])
    left.set_title("one process", fontsize=11.5)
    right.set_title("two ranks: the same step", fontsize=11.5)
    _step_column(left, 0.2, "the whole batch", "gradient of the batch", LIGHT, GREY)
    for rank, x in enumerate((0.2, 4.4)):
        _step_column(
            right, x, f"share {rank} of the batch", "gradient of the share", RANK_FILLS[rank], RANK_COLORS[rank]
        )
        _frame(right, x - 0.15, 0.05, 3.9, 6.5, f"rank {rank}")
    _frame(left, 0.05, 0.05, 3.9, 6.5, "process")
    _box(right, 0.35, 1.6, 7.5, 0.75, "all_reduce, then divide: each rank gets the mean of both gradients", MINT, GREEN)
    _box(left, 0.35, 1.6, 3.3, 0.75, "(nothing to do)", "white", GREY)
    left.set(xlim=(0, 4), ylim=(0, 6.6))
    right.set(xlim=(0, 8.2), ylim=(0, 6.6))
    for ax in (left, right):
        ax.axis("off")
    return fig


def _step_column(ax: Axes, x: float, batch: str, gradient: str, fill: str, edge: str) -> None:
    _box(ax, x + 0.15, 5.25, 3.3, 0.7, batch, fill, edge)
    _box(ax, x + 0.15, 4.05, 3.3, 0.7, "the whole model: weights w", MINT, GREEN)
    _box(ax, x + 0.15, 2.85, 3.3, 0.7, gradient, fill, edge)
    _box(ax, x + 0.15, 0.3, 3.3, 0.8, "optimizer step:\nthe same new w everywhere", MINT, GREEN)
    for start, end in ((5.25, 4.75), (4.05, 3.55), (2.85, 2.35), (1.6, 1.1)):
        _down(ax, x + 1.8, start, end)


def _cells(ax: Axes, x: float, y: float, values: Sequence[str], fill: str, edge: str, width: float) -> None:
    """Numbers of a tensor, one per box; ``x`` is the middle."""
    left = x - width * len(values) / 2
    for k, value in enumerate(values):
        ax.add_patch(Rectangle((left + k * width, y - 0.3), width, 0.6, facecolor=fill, edgecolor=edge, lw=1.2))
        ax.text(left + (k + 0.5) * width, y, value, ha="center", va="center", fontsize=10, color=INK)


def collectives(held: Sequence[Mapping[str, Sequence[float]]], undefined: str) -> Figure:
    """What two ranks hold after each collective.

    Args:
        held: per rank, the numbers after each collective, by its name.
        undefined: the collective after which only rank 0 has an answer.
    """
    fig = Figure(figsize=(9.5, 4.4), layout="constrained")
    ax = fig.subplots()
    names = list(held[0])
    origin = {tuple(ranks["at the start"]): rank for rank, ranks in enumerate(held)}
    for row, name in enumerate(names):
        y = len(names) - 1 - row
        ax.text(0, y, name, va="center", fontsize=10.5, family="monospace" if "(" in name else None)
        for rank, (x, ranks) in enumerate(zip((4.6, 7.9), held, strict=True)):
            values = ranks[name]
            halves = [values[:2], values[2:]] if len(values) > 2 else [values]
            for k, half in enumerate(halves):
                where = x + (k - (len(halves) - 1) / 2) * 1.5
                if rank and name == undefined:
                    _cells(ax, where, y, ["?", "?"], "white", GREY, 0.72)
                    continue
                owner = origin.get(tuple(half))
                fill, edge = (MINT, GREEN) if owner is None else (RANK_FILLS[owner], RANK_COLORS[owner])
                _cells(ax, where, y, [f"{value:g}" for value in half], fill, edge, 0.72)
    for rank, x in enumerate((4.6, 7.9)):
        ax.text(x, len(names) - 0.35, f"rank {rank} holds", ha="center", fontsize=11)
    keys = ((SKY, BLUE, "from rank 0"), (SAND, ORANGE, "from rank 1"), (MINT, GREEN, "the sum"))
    handles = [ax.add_patch(Rectangle((0, -9), 1, 1, facecolor=f, edgecolor=e, label=text)) for f, e, text in keys]
    handles.append(ax.add_patch(Rectangle((0, -9), 1, 1, facecolor="white", edgecolor=GREY, label="not defined")))
    ax.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.02), ncol=4, frameon=False, fontsize=9.5)
    ax.set(xlim=(-0.1, 9.6), ylim=(-0.75, len(names)))
    ax.axis("off")
    return fig


def first_step(histories: Sequence[Sequence[Mapping[str, Tensor]]], single: Sequence[Mapping[str, Tensor]]) -> Figure:
    """What two ranks, and one process, hold in the first step of training by hand."""
    fig = Figure(figsize=(10.5, 3.6), layout="constrained")
    ax = fig.subplots()
    rows = (("weight", "weight"), ("own gradient", "own gradient"), ("gradient", "gradient after all_reduce"))
    rows = (*rows, ("weight after", "weight after the step"))
    columns = ((3.9, "rank 0", histories[0][0]), (6.4, "rank 1", histories[1][0]), (9.4, "one process", single[0]))
    for column, (x, title, held) in enumerate(columns):
        ax.text(x, len(rows) - 0.4, title, ha="center", fontsize=11)
        for row, (key, _text) in enumerate(rows):
            y = len(rows) - 1 - row
            fill, edge = (MINT, GREEN)
            if key == "own gradient":
                fill, edge = ((SKY, BLUE), (SAND, ORANGE), (MINT, GREEN))[column]
            if column == 2 and key == "gradient":
                ax.text(x, y, "(the same)", ha="center", va="center", fontsize=10, color=INK)
                continue
            _cells(ax, x, y, [f"{value:g}" for value in held[key].tolist()], fill, edge, 0.95)
    for row, (_key, text) in enumerate(rows):
        ax.text(0, len(rows) - 1 - row, text, va="center", fontsize=10.5)
    ax.axvline(7.9, color=GREY, lw=1, ls=":")
    ax.text(5.15, 1, "=", ha="center", va="center", fontsize=13)
    ax.set(xlim=(-0.1, 10.6), ylim=(-0.5, len(rows)))
    ax.axis("off")
    return fig


def paths(averaged: Tensor, alone: Sequence[Tensor], single: Tensor, x: Tensor, y: Tensor) -> Figure:
    """The weights step by step, on a map of the loss of the whole batch.

    Args:
        averaged, single: (steps + 1, 2), weights of a rank with averaging, and of one process.
        alone: per rank the same, without averaging.
        x, y: the whole batch, (n, 2) and (n,).
    """
    import torch

    fig = Figure(figsize=(8.6, 4.4), layout="constrained")
    ax = fig.subplots()
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
        ax.plot(*path.T, color=RANK_COLORS[rank], marker=marker, ls=style, markersize=5, label=label)
    ax.annotate("start", (0, 0), xytext=(-0.05, 0.12), ha="right", fontsize=9.5)
    ax.set(xlabel="first weight", ylabel="second weight")
    ax.spines[["top", "right"]].set_visible(False)
    fig.legend(loc="outside right center", frameon=False, fontsize=9.5)
    return fig


def uneven(own: Sequence[Tensor], sizes: Sequence[int], plain: Tensor, weighted: Tensor, single: Tensor) -> Figure:
    """Gradients of two uneven shares as points in the plane, and where their means lie."""
    fig = Figure(figsize=(8.6, 3.8), layout="constrained")
    ax = fig.subplots()
    ends = [gradient.tolist() for gradient in own]
    ax.plot(*zip(*ends, strict=True), color=GREY, lw=1, ls=":", zorder=1)
    for rank, (point, size) in enumerate(zip(ends, sizes, strict=True)):
        label = f"own gradient of rank {rank}: {size} examples"
        ax.scatter(*point, 45 * size, RANK_COLORS[rank], "^v"[rank], label=label, zorder=2)
    ax.scatter(*single.tolist(), 150, "none", "s", edgecolors=INK, linewidths=1.5, label="one process", zorder=3)
    ax.scatter(*weighted.tolist(), 45, GREEN, "o", label="weighted by the number of examples", zorder=4)
    ax.scatter(*plain.tolist(), 70, VERMILION, "X", label="plain mean of the two ranks", zorder=4)
    ax.set(xlabel="gradient of the first weight", ylabel="of the second weight")
    ax.margins(0.15)
    ax.spines[["top", "right"]].set_visible(False)
    fig.legend(loc="outside right center", frameon=False, fontsize=9.5, labelspacing=1.1)
    return fig


def construction(held: Sequence[Mapping[str, Mapping[str, Tensor]]]) -> Figure:
    """All numbers of the model of two ranks as strips of colour, at each moment; equal columns are equal numbers."""
    import torch

    fig = Figure(figsize=(10.5, 3.9), layout="constrained")
    moments = list(held[0])
    axes = fig.subplots(len(moments), 1)
    for ax, moment in zip(axes, moments, strict=True):
        rows = [torch.cat([tensor.flatten() for tensor in ranks[moment].values()]) for ranks in held]
        ax.pcolormesh(torch.stack(rows), cmap="cividis", vmin=-0.6, vmax=1.1, edgecolors="white", linewidth=0.4)
        ax.invert_yaxis()
        ax.set_yticks([0.5, 1.5], ["rank 0", "rank 1"], fontsize=9.5)
        ax.set_xticks([])
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.set_ylabel(moment, rotation=0, ha="right", va="center", fontsize=10.5, labelpad=8)
        differs = (rows[0] != rows[1]).nonzero().flatten().tolist()
        for column in differs:
            ax.plot([column + 0.15, column + 0.85], [2.22, 2.22], color=VERMILION, lw=2.2, clip_on=False)
    position = 0
    for name, tensor in held[0][moments[0]].items():
        axes[0].text(position + tensor.numel() / 2, -0.25, SHORT.get(name, name), ha="center", va="bottom", fontsize=9)
        position += tensor.numel()
        for ax in axes:
            ax.axvline(position, color=INK, lw=1.2)
    axes[-1].plot([], [], color=VERMILION, lw=2.2, label="the ranks hold different numbers")
    axes[-1].legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), frameon=False, fontsize=9.5)
    return fig


SHORT = {"shift": "buffer", "layers.0.bias": "0.bias", "layers.2.bias": "2.bias"}


def differences(gaps: Mapping[str, Sequence[float]], sizes: Sequence[int]) -> Figure:
    """Largest difference between any weight and that of one process, after each step, on a logarithmic scale."""
    fig = Figure(figsize=(8.6, 3.5), layout="constrained")
    ax = fig.subplots()
    styles = ((BLUE, "o", -0.16), (VERMILION, "X", 0.0), (GREEN, "s", 0.16))
    floor = 1e-9
    for (name, values), (color, marker, shift) in zip(gaps.items(), styles, strict=True):
        steps = [step + 1 + shift for step in range(len(values))]
        heights = [max(value, floor) for value in values]
        ax.vlines(steps, floor / 3, heights, color=color, lw=1)
        ax.scatter(steps, heights, 42, color, marker, label=name, zorder=3)
    ax.axhspan(floor / 3, 1e-6, color=LIGHT, zorder=0)
    ax.text(0.55, 3e-7, "rounding of float32", fontsize=9.5, va="center")
    ax.set_xticks(range(1, len(sizes) + 1), [f"step {k + 1}\nbatch of {size}" for k, size in enumerate(sizes)])
    ax.set(yscale="log", ylim=(floor / 3, 1), xlim=(0.5, len(sizes) + 0.5), ylabel="largest difference\nof a weight")
    ax.spines[["top", "right"]].set_visible(False)
    fig.legend(loc="outside lower center", ncol=3, frameon=False, fontsize=9.5)
    return fig


def backward(events: Sequence[tuple[float, str, str]], title: str = "") -> Figure:
    """A measured backward pass: when each layer was computed, and when each bucket was on its way."""
    fig = Figure(figsize=(9.5, 3.4), layout="constrained")
    ax = fig.subplots()
    begin, end = 0.0, events[-1][0] * 1e3
    for seconds, what, of in events:
        if what == "gradient" and of.endswith("weight"):
            now = seconds * 1e3
            ax.barh(0, now - begin, left=begin, height=0.55, color=SKY, edgecolor=BLUE)
            ax.text((begin + now) / 2, 0, of.split(".")[0], ha="center", va="center", fontsize=9)
            begin = now
    buckets = [(seconds * 1e3, of) for seconds, what, of in events if what == "starts"]
    for row, (start, of) in enumerate(buckets, start=1):
        stop = next(seconds for seconds, what, name in events if what == "done" and name == of) * 1e3
        ax.barh(row, stop - start, left=start, height=0.55, color=MINT, edgecolor=GREEN)
        right = stop < 0.6 * end
        place = {"ha": "left"} if right else {"ha": "right"}
        ax.text(stop + 0.01 * end if right else start - 0.01 * end, row, of, va="center", fontsize=9, **place)
    names = ["computing layer", *(f"all_reduce, bucket {k}" for k in range(len(buckets)))]
    ax.set_yticks(range(len(names)), names, fontsize=9.5)
    ax.invert_yaxis()
    ax.axvline(end, color=INK, lw=1, ls=":")
    ax.set(xlim=(0, end * 1.02), xlabel="milliseconds since backward() was called; the dotted line: it returns")
    ax.set_title(title, fontsize=11.5)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    return fig


def accuracy(right: Sequence[Tensor], mean: float, overall: float) -> Figure:
    """Each answer as a box, right or wrong, per rank; beside them the two numbers that one can make of it."""
    fig = Figure(figsize=(10.5, 2.5), layout="constrained")
    ax = fig.subplots()
    width = max(len(answers) for answers in right)
    for rank, answers in enumerate(right):
        y = len(right) - 1 - rank
        ax.text(-0.3, y, f"rank {rank}", ha="right", va="center", fontsize=10.5)
        for k, is_right in enumerate(answers.tolist()):
            fill, edge, sign = (MINT, GREEN, "✓") if is_right else ("white", VERMILION, "×")
            ax.add_patch(Rectangle((k + 0.06, y - 0.38), 0.88, 0.76, facecolor=fill, edgecolor=edge, lw=1.2))
            ax.text(k + 0.5, y, sign, ha="center", va="center", fontsize=11)
        text = f"{int(answers.sum())} of {len(answers)} right: {answers.float().mean():.0%}"
        ax.text(len(answers) + 0.3, y, text, va="center", fontsize=10)
    x = width + 4.6
    correct, count = sum(int(a.sum()) for a in right), sum(len(a) for a in right)
    ax.text(x, len(right) - 1, f"mean of the accuracies: {mean:.0%}", va="center", fontsize=11, color=VERMILION)
    ax.text(x, 0, f"counts summed: {correct} of {count}, {overall:.0%}", va="center", fontsize=11, color="#00664B")
    ax.set(xlim=(-1.6, x + 6.4), ylim=(-0.6, len(right) - 0.4))
    ax.axis("off")
    return fig
