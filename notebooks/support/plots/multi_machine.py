"""Pictures of lesson 10: losses, shares and steps, accuracies of ranks, the wire. Drawn without pyplot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from support.plots import style
from support.plots.pieces import write
from support.plots.style import bars, figure, legend_above, stack
from tutorial_lib.tools.finale.figures import COLORS
from tutorial_lib.tools.finale.style import BLUE, GREEN, GREY, INK, LIGHT, ORANGE
from tutorial_lib.trainer.events import PHASES


def loss_curves(curves: Mapping[str, Sequence[float]], steps_per_epoch: int) -> Figure:
    """Loss of every step of some runs, over each other; lengths may differ."""
    # They may lie on each other: large dots, crosses over them, and lines through both.
    first, second, others = {"lw": 1, "ms": 5.5}, {"ms": 7}, {"lw": 1}
    looks = [(INK, "o", "-", first), (ORANGE, "x", "none", second), (BLUE, "s", "-", others), (GREEN, "^", "-", others)]
    return style.loss_curves(curves, steps_per_epoch, (10.5, 3.6), looks)


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
