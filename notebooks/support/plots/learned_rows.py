"""Pictures of lesson 14: accuracies without features, a row in one step, what each machine holds, rows in a plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from torch import Tensor

from support.plots.pieces import arrow, box, write
from support.plots.style import bars, drawing, figure, percent, plane
from tutorial_lib.tools.finale.style import BLUE, GREEN, INK, LIGHT, ORANGE, SAND, SKY

TENSORS = {"weight": (SKY, "the rows"), "mem": (SAND, "mean gradient"), "power": (LIGHT, "mean square")}


def accuracies(scores: Mapping[str, float]) -> Figure:
    """A bar for each way to predict, the best one in blue."""
    fig, ax = figure(10.5, 0.7 + 0.5 * len(scores))
    best = max(scores, key=scores.__getitem__)
    bars(ax, scores, ".1%", [BLUE if name == best else SKY for name in scores], edgecolor=BLUE)
    ax.set(xlim=(0, 1), xlabel="accuracy on the test nodes")
    percent(ax.xaxis)
    ax.spines["left"].set_visible(False)
    return fig


def one_step() -> Figure:
    """Two trainers need the same row in one step; what happens to it."""
    fig, ax = drawing(10.5, 3.6, 12, 4.8, 0, 0.6)
    for k, y in enumerate((3.3, 0.9)):
        box(ax, 0.1, y, 3.0, 1.2, f"trainer {k}, on machine {k}\nhas a gradient of row 0: {[2, 6][k]}", LIGHT)
    box(ax, 4.7, 2.1, 2.6, 1.2, "trainer 0, which is\non row 0's machine:\nmean (2 + 6) / 2 = 4", SAND, ORANGE)
    box(ax, 8.9, 2.1, 3.0, 1.2, "row 0 and its state in\nmachine 0's memory:\none update, step + 1", SKY, BLUE)
    arrow(ax, (3.1, 3.8), (4.7, 3.0))
    arrow(ax, (3.1, 1.6), (4.7, 2.4), linestyle="--")
    arrow(ax, (7.3, 2.7), (8.9, 2.7))
    ax.text(4.0, 3.75, "in memory")
    ax.text(4.0, 1.55, "over the wire,\ntrainer to trainer", va="top")
    write(ax, 8.1, 2.85, "SparseAdam", va="bottom")
    return fig


def memory(held: Mapping[str, Mapping[str, int]], model_bytes: int) -> Figure:
    """What the learned rows and their optimiser take on each machine, beside the model's weights.

    Args:
        held: by machine, bytes of ``weight``, ``mem``, ``power`` and ``step``.
    """
    fig, ax = figure(10.5, 1.6 + 0.5 * len(held))
    start = [0.0] * len(held)
    for key, (colour, label) in TENSORS.items():
        widths = [machine[key] / 1e6 for machine in held.values()]
        bars = ax.barh(list(held), widths, 0.6, start, color=colour, edgecolor=INK, linewidth=0.8, label=label)
        ax.bar_label(bars, [f"{label}\n{width:.2f}" for width in widths], label_type="center", fontsize=9)
        start = [a + b for a, b in zip(start, widths, strict=True)]
    steps = [machine["step"] / 1e6 for machine in held.values()]
    bars = ax.barh(list(held), steps, 0.6, start, color=INK)
    ax.bar_label(bars, [f" steps {width:.2f}" for width in steps], fontsize=9)
    bars = ax.barh(["model and Adam,\non each rank"], [model_bytes / 1e6], 0.6, color=GREEN)
    ax.bar_label(bars, [f" {model_bytes / 1e6:.2f}"], fontsize=9)
    ax.invert_yaxis()
    ax.set(xlabel="MB", xlim=(0, max(a + b for a, b in zip(start, steps, strict=True)) * 1.1))
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    return fig


def planes(tables: Mapping[str, Tensor], labels: Tensor, classes: Sequence[int]) -> Figure:
    """Rows of the nodes of some classes, in the plane of the two directions in which they differ most.

    Args:
        tables: by title, float32 (N, width).
        labels: int64 (N,).
    """
    fig, axes = figure(10.5, 4.4, 1, len(tables), squeeze=False)
    for ax, (title, table) in zip(axes[0], tables.items(), strict=True):
        plane(ax, table, labels, classes, s=7, alpha=0.55)
        ax.set_title(title)
    fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncol=len(classes), markerscale=2.5)
    return fig
