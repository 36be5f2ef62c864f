"""Pictures of lesson 10: losses, shares and steps, accuracies of ranks, the wire. Drawn without pyplot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from support.plots import style
from support.plots.pieces import cell, write
from support.plots.style import bare, bars, figure, legend_above, percent, stack
from tutorial_lib.tools.finale.figures import COLORS
from tutorial_lib.tools.finale.style import BLUE, GREEN, GREY, INK, LIGHT, ORANGE, SAND, SKY
from tutorial_lib.trainer.events import PHASES


def loss_curves(curves: Mapping[str, Sequence[float]], steps_per_epoch: int) -> Figure:
    """Loss of every step of some runs, over each other; lengths may differ."""
    # They may lie on each other: large dots, crosses over them, and lines through both.
    first, second, others = {"lw": 1, "ms": 5.5}, {"ms": 7}, {"lw": 1}
    looks = [(INK, "o", "-", first), (ORANGE, "x", "none", second), (BLUE, "s", "-", others), (GREEN, "^", "-", others)]
    return style.loss_curves(curves, steps_per_epoch, (10.5, 3.6), looks)


def shares_and_steps(nodes: Sequence[int], own: Sequence[int], batch_size: int) -> Figure:
    """For each rank, where its training nodes lie, and its steps in one epoch.

    Args:
        nodes: training nodes of each rank; own: those of them that lie in the part of its machine.
    """
    fig, (left, right) = figure(10.5, 0.9 + 0.6 * len(nodes), 1, 2, width_ratios=[1, 1.25])
    names = [f"rank {rank}" for rank in range(len(nodes))]
    others = [n - o for n, o in zip(nodes, own, strict=True)]
    here = {"color": SKY, "edgecolor": BLUE, "label": "in its own part"}
    there = {"color": SAND, "edgecolor": ORANGE, "hatch": "////", "label": "in another part"}
    stack(left, names, [(own, here), (others, there)])
    for rank, count in enumerate(nodes):
        write(left, count * 1.02, rank, f"{count}", ha="left")
    left.invert_yaxis()
    left.set(xlim=(0, max(nodes) * 1.14), xticks=[])
    left.set_title("training nodes", pad=26)
    left.legend(loc="lower center", bbox_to_anchor=(0.5, 0.98), ncol=2)

    longest = -(-max(nodes) // batch_size)
    for rank, count in enumerate(nodes):
        for step in range(longest):
            size = min(batch_size, count - step * batch_size)
            text, edge, line = (str(size), BLUE, "-") if size > 0 else ("zeros", GREY, "--")
            fill = SKY if size > 0 else "white"
            cell(right, step + 0.05, rank - 0.32, 0.9, 0.64, text, fill, edge, patch={"ls": line})
    right.set(xlim=(0, longest), ylim=(len(nodes) - 0.5, -0.5), yticks=range(len(nodes)), yticklabels=names)
    right.set_xticks([step + 0.5 for step in range(longest)], [f"step {step + 1}" for step in range(longest)])
    right.set_title("seed nodes in each step; dashed: Join answers", pad=26)
    bare(left, right)
    return fig


def rank_accuracies(right: Sequence[int], count: Sequence[int], what: str) -> Figure:
    """The accuracy of each rank on its own nodes, their mean, and the global accuracy.

    Args:
        right, count: of each rank.
        what: the nodes, for the title: ``"validation"``.
    """
    fig, ax = figure(10.5, 0.55 * len(right) + 1.5)
    own = [r / c for r, c in zip(right, count, strict=True)]
    labels = [f" {r} of {c}" for r, c in zip(right, count, strict=True)]
    drawn = ax.barh([f"rank {rank}" for rank in range(len(own))], own, 0.6, color=SKY, edgecolor=BLUE)
    ax.bar_label(drawn, labels, label_type="center")
    mean, total = sum(own) / len(own), sum(right) / sum(count)
    ax.axvline(mean, color=ORANGE, ls="--", lw=1.8, label=f"mean of the ranks: {mean:.2%}")
    ax.axvline(total, color=INK, lw=1.8, label=f"global: {sum(right)} of {sum(count)}, {total:.2%}")
    ax.invert_yaxis()
    low = min(own) - 0.35 * (max(own) - min(own)) - 0.02
    ax.set(xlim=(low, max(own) + 0.01))
    percent(ax.xaxis)
    ax.set_xlabel(f"accuracy on {what} nodes (the axis does not begin at 0)")
    legend_above(ax, 2)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    return fig


def wires(phases: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Seconds per epoch by phase, mean over the ranks, and bytes of features from other machines, sum over the ranks.

    Args:
        phases: by the name of a job, the ``phases`` of its result.
    """
    fig, (left, right) = figure(10.5, 1.7 + 0.55 * len(phases), 1, 2, width_ratios=[2.1, 1], sharey=True)
    names = list(phases)
    parts = []
    for phase in PHASES:
        means = [sum(rank["seconds"][phase] for rank in ranks) / len(ranks) for ranks in phases.values()]
        parts.append((means, {"color": COLORS[phase], "edgecolor": GREY, "linewidth": 0.6, "label": phase}))
    ends = stack(left, names, parts)
    for row, total in enumerate(ends):
        write(left, total, row, f" {total:.2f}", ha="left")
    left.set(xlabel="seconds per epoch, mean of the ranks", xlim=(0, max(ends) * 1.12))
    legend_above(left, 3)
    remote = {n: sum(rank["bytes_remote"] for rank in ranks) / 1e6 for n, ranks in phases.items()}
    bars(right, remote, ".1f", LIGHT, edgecolor=INK, linewidth=0.8)
    right.set(xlabel="MB of features per epoch\nfrom other machines", xlim=(0, max(remote.values()) * 1.2))
    for ax in (left, right):
        ax.spines["left"].set_visible(False)
    return fig
