"""Pictures of lesson 12: the steps of the finale, what crossed the wire, original ids, the published accuracies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from support.plots.pieces import arrow, box, frame, write
from support.plots.style import bars, drawing, figure, legend_above
from tutorial_lib.job.display import PUBLISHED
from tutorial_lib.tools.finale.style import BLUE, GREEN, GREY, INK, LIGHT, ORANGE, SAND, SKY

# name, what it does, what it leaves
STEPS = (
    ("machines", "does each have\nwhat a job needs?", ""),
    ("data", "load and check", "splits.npz"),
    ("partition", "one part\nfor each machine", "part0/ part1/\nnode_map.npy"),
    ("training", "", "run/\nresult.json\npredictions.npy"),
    ("predictions", "the accuracies again,\nfrom the file alone", ""),
    ("report", "one page,\nwith pictures", "report.html"),
)
WIDTH, GAP, HEIGHT = 2.15, 0.35, 2.1
SHOWN_NODES = 1500  # points in the picture of ids


def steps_figure() -> Figure:
    """The steps from left to right, and the files that each leaves for the next."""
    end = len(STEPS) * (WIDTH + GAP) - GAP
    fig, ax = drawing(11.5, 3.3, end + 0.15, 4.15, -0.15, -0.15)
    for k, (name, does, leaves) in enumerate(STEPS):
        x = k * (WIDTH + GAP)
        if name == "training":
            frame(ax, x, 1.3, WIDTH, HEIGHT, f"{k + 1}  {name}")
            for row, part in enumerate(("launch", "epochs", "evaluation")):
                box(ax, x + 0.25, 2.48 - 0.5 * row, WIDTH - 0.5, 0.4, part, SKY, BLUE)
        else:
            box(ax, x, 1.3, WIDTH, HEIGHT, f"{k + 1}  {name}\n\n{does}", SAND if k < 3 else LIGHT, GREY)
        if leaves:
            write(ax, x + WIDTH / 2, 0.85, leaves, va="top", fontsize=9, family="monospace")
            arrow(ax, (x + WIDTH / 2, 1.28), (x + WIDTH / 2, 0.9), color=GREY)
        if k + 1 < len(STEPS):
            arrow(ax, (x + WIDTH, 2.35), (x + WIDTH + GAP, 2.35), lw=1.4)
    arrow(ax, (0, 3.65), (end, 3.65), "|-|", color=GREY, mutation_scale=4)
    words = "finale.json: settings, and what each finished step has found. The same command goes on with the next one."
    write(ax, end / 2, 3.75, words, va="bottom")
    return fig


def wire_figure(parts: Mapping[str, float]) -> Figure:
    """What the bytes between the machines were, as one bar.

    Args:
        parts: bytes of each kind, at most four kinds.
    """
    fig, ax = figure(10.5, 1.5)
    whole = sum(parts.values())
    looks = [{"color": color, "edgecolor": GREY, "linewidth": 0.6} for color in (SKY, GREEN, LIGHT, SAND)]
    left = 0.0
    for (name, count), look in zip(parts.items(), looks, strict=False):
        ax.barh([""], [count / 1e6], 0.5, left, label=name, **look)
        if count > 0.06 * whole:
            write(ax, left + count / 2e6, 0, f"{count / whole:.0%}")
        left += count / 1e6
    ax.set(xlabel="MB between the machines, whole job", xlim=(0, left))
    ax.tick_params(length=0)
    ax.spines["left"].set_visible(False)
    legend_above(ax, len(parts))
    return fig


def ids_figure(node_map: np.ndarray, part_sizes: Sequence[int], accuracies: Mapping[str, float]) -> Figure:
    """Where nodes went, and what it costs to forget it.

    Args:
        node_map: int64 (N,), original id of each new id.
        part_sizes: nodes of each part; part 0 has the first new ids.
        accuracies: of the same predictions, read in several orders.
    """
    fig = Figure(figsize=(10.5, 3.5), layout="constrained")
    fig.get_layout_engine().set(wspace=0.06)
    left, right = fig.subplots(1, 2, width_ratios=[1, 1.25])
    _map_of_ids(left, node_map, part_sizes)
    bars(right, accuracies, ".2f", [GREEN, *[ORANGE] * (len(accuracies) - 1)], 0.55)
    right.set(xlim=(0, 1), xlabel="test accuracy of the same predictions")
    right.spines["left"].set_visible(False)
    return fig


def _map_of_ids(ax: Axes, node_map: np.ndarray, part_sizes: Sequence[int]) -> None:
    ends = np.cumsum(part_sizes)
    shown = np.arange(0, len(node_map), max(1, len(node_map) // SHOWN_NODES))
    for part, (end, size) in enumerate(zip(ends, part_sizes, strict=True)):
        own = shown[(shown >= end - size) & (shown < end)]
        color = (BLUE, ORANGE, GREEN, GREY)[part % 4]
        ax.scatter(node_map[own], own, s=2.5 if len(shown) > 200 else 30, color=color, linewidths=0)
        write(ax, len(node_map) * 1.02, end - 0.5 - size / 2, f"part {part}", ha="left")
        if part:
            ax.axhline(end - size - 0.5, color=GREY, lw=0.8)
    limits = (-0.5, len(node_map) - 0.5)
    ax.set(xlabel="original id", ylabel="id in the partition", xlim=limits, ylim=limits)
    ax.ticklabel_format(style="plain")


def published_figure(dataset: str, ours: Mapping[str, float], real: bool) -> Figure:
    """This run's accuracies beside the published ones, each with the name of its data set.

    Args:
        ours: keys as in ``display.PUBLISHED``.
        real: whether this run's graph is the published one.
    """
    fig, axes = figure(10.5, 2.5, 1, len(PUBLISHED), sharey=True)
    this = f"this run\n{dataset}" + ("" if real else ",\nanother graph")
    for ax, (name, (mean, deviation)) in zip(axes, PUBLISHED.items(), strict=True):
        hatch = None if real else "//"
        ax.barh([this], [ours[name]], 0.5, color=SKY, edgecolor=BLUE, hatch=hatch, linewidth=0.8)
        ax.barh(["published\nogbn-products"], [mean], 0.5, xerr=[deviation], color=LIGHT, edgecolor=INK, linewidth=0.8)
        write(ax, ours[name] + 0.02, 0, f"{ours[name]:.4f}", ha="left")
        write(ax, mean + 0.02, 1, f"{mean:.4f} ± {deviation:.4f}", ha="left")
        ax.set(xlim=(0, 1.25), xticks=[0, 0.25, 0.5, 0.75, 1], title=name)
        ax.invert_yaxis()
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
    axes[0].invert_yaxis()  # shared: the second call undid the first
    return fig
