"""Pictures of lesson 10: losses, shares and steps, accuracies of ranks, the wire. Drawn without pyplot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tutorial_lib.tools.finale.figures import COLORS
from tutorial_lib.tools.finale.style import BLUE, GREEN, GREY, INK, LIGHT, ORANGE, SAND, SKY
from tutorial_lib.trainer.events import PHASES


def loss_curves(curves: Mapping[str, Sequence[float]], steps_per_epoch: int) -> Figure:
    """Loss of every step of some runs, over each other.

    Args:
        curves: by the name of the run; lengths may differ.
        steps_per_epoch: where thin lines are drawn.
    """
    fig = Figure(figsize=(10.5, 3.6), layout="constrained")
    ax = fig.subplots()
    styles = [(INK, "o", "-", 5.5), (ORANGE, "x", "none", 7), (BLUE, "s", "-", 3.5), (GREEN, "^", "-", 4)]
    for (name, losses), (colour, marker, line, size) in zip(curves.items(), styles, strict=False):
        ax.plot(range(1, len(losses) + 1), losses, color=colour, marker=marker, ls=line, lw=1, ms=size, label=name)
    longest = max(map(len, curves.values()))
    for step in range(0, longest + 1, steps_per_epoch):
        ax.axvline(step + 0.5, color=GREY, lw=0.8, ls=":", zorder=0)
    ax.set(xlabel="step (dotted: an epoch begins)", ylabel="loss", xlim=(0.3, longest + 0.7))
    ax.set_ylim(bottom=0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=9.5)
    return fig


def shares_and_steps(nodes: Sequence[int], own: Sequence[int], batch_size: int) -> Figure:
    """For each rank, where its training nodes lie, and its steps in one epoch.

    Args:
        nodes: training nodes of each rank; own: those of them that lie in the part of its machine.
    """
    fig = Figure(figsize=(10.5, 0.9 + 0.6 * len(nodes)), layout="constrained")
    left, right = fig.subplots(1, 2, width_ratios=[1, 1.25])
    names = [f"rank {rank}" for rank in range(len(nodes))]
    left.barh(names, own, 0.6, color=SKY, edgecolor=BLUE, label="in its own part")
    others = [n - o for n, o in zip(nodes, own, strict=True)]
    left.barh(names, others, 0.6, own, color=SAND, edgecolor=ORANGE, hatch="////", label="in another part")
    for rank, count in enumerate(nodes):
        left.text(count * 1.02, rank, f"{count}", va="center", fontsize=9.5)
    left.invert_yaxis()
    left.set(xlim=(0, max(nodes) * 1.14), xticks=[])
    left.set_title("training nodes", fontsize=11.5, pad=26)
    left.legend(loc="lower center", bbox_to_anchor=(0.5, 0.98), ncol=2, frameon=False, fontsize=9.5)

    longest = -(-max(nodes) // batch_size)
    for rank, count in enumerate(nodes):
        for step in range(longest):
            size = min(batch_size, count - step * batch_size)
            has = size > 0
            style = {"facecolor": SKY if has else "white", "edgecolor": BLUE if has else GREY}
            right.add_patch(Rectangle((step + 0.05, rank - 0.32), 0.9, 0.64, ls="-" if has else "--", **style))
            right.text(step + 0.5, rank, str(size) if has else "zeros", ha="center", va="center", fontsize=9.5)
    right.set(xlim=(0, longest), ylim=(len(nodes) - 0.5, -0.5), yticks=range(len(nodes)), yticklabels=names)
    right.set_xticks([step + 0.5 for step in range(longest)], [f"step {step + 1}" for step in range(longest)])
    right.set_title("seed nodes in each step; dashed: Join answers", fontsize=11.5, pad=26)
    for ax in (left, right):
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
    return fig


def rank_accuracies(right: Sequence[int], count: Sequence[int], what: str) -> Figure:
    """The accuracy of each rank on its own nodes, their mean, and the global accuracy.

    Args:
        right, count: of each rank.
        what: the nodes, for the title: ``"validation"``.
    """
    fig = Figure(figsize=(10.5, 0.55 * len(right) + 1.5), layout="constrained")
    ax = fig.subplots()
    own = [r / c for r, c in zip(right, count, strict=True)]
    bars = ax.barh([f"rank {rank}" for rank in range(len(own))], own, 0.6, color=SKY, edgecolor=BLUE)
    ax.bar_label(bars, [f" {r} of {c}" for r, c in zip(right, count, strict=True)], fontsize=9.5, label_type="center")
    mean, total = sum(own) / len(own), sum(right) / sum(count)
    ax.axvline(mean, color=ORANGE, ls="--", lw=1.8, label=f"mean of the ranks: {mean:.2%}")
    ax.axvline(total, color=INK, lw=1.8, label=f"global: {sum(right)} of {sum(count)}, {total:.2%}")
    ax.invert_yaxis()
    low = min(own) - 0.35 * (max(own) - min(own)) - 0.02
    ax.set(xlim=(low, max(own) + 0.01))
    ax.xaxis.set_major_formatter(lambda value, _at: f"{value:.0%}")
    ax.set_xlabel(f"accuracy on {what} nodes (the axis does not begin at 0)")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=2, frameon=False, fontsize=9.5)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    return fig


def wires(phases: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Seconds per epoch by phase, mean over the ranks, and bytes of features from other machines, sum over the ranks.

    Args:
        phases: by the name of a job, the ``phases`` of its result.
    """
    fig = Figure(figsize=(10.5, 1.7 + 0.55 * len(phases)), layout="constrained")
    left, right = fig.subplots(1, 2, width_ratios=[2.1, 1], sharey=True)
    names = list(phases)
    start = [0.0] * len(names)
    for phase in PHASES:
        widths = [sum(rank["seconds"][phase] for rank in ranks) / len(ranks) for ranks in phases.values()]
        left.barh(names, widths, 0.6, start, color=COLORS[phase], edgecolor=GREY, linewidth=0.6, label=phase)
        start = [a + b for a, b in zip(start, widths, strict=True)]
    for row, total in enumerate(start):
        left.text(total, row, f" {total:.2f}", va="center", fontsize=9.5, color=INK)
    left.set(xlabel="seconds per epoch, mean of the ranks", xlim=(0, max(start) * 1.12))
    left.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=3, frameon=False, fontsize=9.5)
    left.invert_yaxis()
    remote = [sum(rank["bytes_remote"] for rank in ranks) / 1e6 for ranks in phases.values()]
    bars = right.barh(names, remote, 0.6, color=LIGHT, edgecolor=INK, linewidth=0.8)
    right.bar_label(bars, [f" {value:.1f}" for value in remote], fontsize=9.5)
    right.set(xlabel="MB of features per epoch\nfrom other machines", xlim=(0, max(remote) * 1.2))
    for ax in (left, right):
        ax.tick_params(axis="y", length=0)
        ax.spines[["top", "right", "left"]].set_visible(False)
    return fig
