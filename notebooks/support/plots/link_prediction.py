"""The pictures of lesson 13, link prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from tutorial_lib.tools.finale.style import BLUE, GREEN, GREY, INK, ORANGE

RED = "#D55E00"
Pairs = Sequence[tuple[int, int]]


def _lines(ax: Axes, points: Any, pairs: Pairs, **style: Any) -> None:
    """A line for each pair of nodes."""
    segments = [[tuple(points[a]), tuple(points[b])] for a, b in pairs]
    ax.add_collection(LineCollection(segments, **{"zorder": 1, **style}))


def batch_of_edges(points: Any, train: Pairs, held_out: Pairs, batch: Pairs, negatives: Pairs, seen: Pairs) -> Figure:
    """A small graph three times: its split, a batch of edges with negatives, and what messages may pass through.

    Args:
        points: (N, 2), where the nodes are.
        train, held_out: undirected pairs of nodes, by side of the split; batch: some of ``train``.
        negatives: one pair for each of the batch, the source first.
        seen: the pairs of the batch's blocks.
    """
    fig = Figure(figsize=(10.5, 4.3), layout="constrained")
    left, middle, right = fig.subplots(1, 3)
    _lines(left, points, train, color=GREY, lw=1.3, label="training")
    _lines(left, points, held_out, color=RED, lw=1.8, ls=(0, (2, 2)), label="held out")
    left.set_title("every pair is on one side", fontsize=11.5)

    _lines(middle, points, batch, color=BLUE, lw=3, label="edge of the batch: 1")
    _lines(middle, points, negatives, color=ORANGE, lw=2, ls=(0, (4, 2)), label="negative: 0")
    middle.set_title("a batch", fontsize=11.5)

    _lines(right, points, seen, color=GREEN, lw=1.8, label="sampled")
    middle_of = [(points[a] + points[b]) / 2 for a, b in batch]
    _lines(right, points, batch, color=BLUE, lw=1, ls=":")
    right.plot(*zip(*middle_of, strict=True), "x", color=INK, ms=9, mew=2, label="dropped, both directions")
    right.set_title("what its ends may look at", fontsize=11.5)

    ends = sorted({node for pair in [*batch, *negatives] for node in pair})
    for ax in (left, middle, right):
        ax.scatter(points[:, 0], points[:, 1], 14, color=INK, zorder=2)
        if ax is not left:
            ax.scatter(points[ends, 0], points[ends, 1], 60, "white", edgecolors=INK, linewidths=1.5, zorder=3)
        ax.set_aspect("equal")
        ax.axis("off")
        ax.autoscale()
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), frameon=False, fontsize=9.5)
    return fig


def rank_curves(ranks: Mapping[str, Any], candidates: int) -> Figure:
    """Share of the test edges that are among the first k candidates, for every k.

    Args:
        ranks: by name, float array of ranks from 1 up.
        candidates: the edge itself and its negatives.
    """
    fig = Figure(figsize=(8.5, 3.9), layout="constrained")
    ax = fig.subplots()
    at = list(range(1, candidates + 1))
    styles = [(BLUE, "-", 4.5), (ORANGE, "--", 2), (GREEN, "-.", 2), (RED, ":", 2)]
    for (name, found), (color, dash, width) in zip(ranks.items(), styles, strict=False):
        ax.plot(at, [float((found <= k).mean()) for k in at], color=color, ls=dash, lw=width, label=name)
    ax.plot(at, [k / candidates for k in at], color=GREY, lw=1, label="chance")
    ax.axvline(10, color=GREY, lw=0.8, ls=":")
    ax.text(10.5, 0.03, "hits@10", color=INK, fontsize=9.5)
    ax.yaxis.set_major_formatter(lambda value, _at: f"{value:.0%}")
    ax.set(xscale="log", xlim=(1, candidates), ylim=(0, 1.02), xlabel="k", ylabel="test edges of rank k or better")
    ax.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    ax.minorticks_off()
    ax.legend(frameon=False, fontsize=9.5, loc="upper left")
    ax.spines[["top", "right"]].set_visible(False)
    return fig


def leak_figure(losses: Mapping[str, Sequence[float]], scores: Mapping[str, float]) -> Figure:
    """Loss of every epoch with the batch's edges dropped and with the leak; and test scores, honest and not.

    Args:
        losses: by name, one number for each epoch.
        scores: MRR by name, in the order of the bars; the last is the one that is not honest.
    """
    fig = Figure(figsize=(10.5, 3.4), layout="constrained")
    left, right = fig.subplots(1, 2, width_ratios=[1, 1.15])
    for (name, values), color, marker in zip(losses.items(), (BLUE, RED), "os", strict=True):
        left.plot(range(1, len(values) + 1), values, color=color, marker=marker, markersize=4, label=name)
    left.set(
        xlabel="epoch", ylabel="training loss", ylim=(0, None), xticks=range(1, len(next(iter(losses.values()))) + 1)
    )
    left.legend(frameon=False, fontsize=9.5)
    colors = [*[BLUE] * (len(scores) - 1), RED]
    bars = right.barh(list(scores), list(scores.values()), color=colors, height=0.55)
    right.bar_label(bars, [f" {value:.3f}" for value in scores.values()], fontsize=9.5)
    right.invert_yaxis()
    right.set(xlim=(0, max(scores.values()) * 1.2), xlabel="MRR of the test edges")
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    return fig


def probe_bars(accuracies: Mapping[str, float], labels_used: Sequence[str]) -> Figure:
    """Accuracy on the test nodes by what the classifier sees.

    Args:
        accuracies: by name.
        labels_used: those names whose vectors were trained with labels; they are hatched.
    """
    fig = Figure(figsize=(8.5, 2.9), layout="constrained")
    ax = fig.subplots()
    bars = ax.barh(list(accuracies), list(accuracies.values()), color=BLUE, height=0.6)
    for name, bar in zip(accuracies, bars, strict=True):
        if name in labels_used:
            bar.set(facecolor="white", edgecolor=BLUE, hatch="///")
    ax.bar_label(bars, [f" {value:.0%}" for value in accuracies.values()], fontsize=9.5)
    ax.invert_yaxis()
    ax.xaxis.set_major_formatter(lambda value, _at: f"{value:.0%}")
    ax.set(xlim=(0, 1), xlabel="accuracy on the test nodes (hatched: trained with labels)")
    ax.spines[["top", "right"]].set_visible(False)
    return fig


def worth_of_ranks(candidates: int) -> Figure:
    """What an edge of each rank adds to MRR and to hits@10."""
    fig = Figure(figsize=(8, 3), layout="constrained")
    ax = fig.subplots()
    at = list(range(1, candidates + 1))
    ax.plot(at, [1 / k for k in at], color=BLUE, marker="o", markersize=3, label="MRR: 1 / rank")
    ax.plot(at, [float(k <= 10) for k in at], color=ORANGE, ls="--", drawstyle="steps-post", label="hits@10")
    ax.set(xscale="log", xlim=(0.95, candidates), ylim=(0, 1.05), xlabel="rank of the edge", ylabel="what it adds")
    ax.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    ax.minorticks_off()
    ax.legend(frameon=False, fontsize=9.5)
    ax.spines[["top", "right"]].set_visible(False)
    return fig
