"""Pictures of a run: how it learned, where its seconds go, memory, and how it grows with machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from tutorial_lib.tools.finale.style import BLUE, GREEN, GREY, INK, ORANGE, SAND, SKY, bare, figure, styled
from tutorial_lib.trainer.events import PHASES

ROLES = {"server": SAND, "trainer": SKY, "torchrun": GREY}
COLORS = dict(zip(PHASES, (ORANGE, SAND, BLUE, SKY, GREEN), strict=True))
SHARE_WITH_LABEL = 0.07  # of the longest bar; narrower pieces have no room for their seconds


@styled
def learning_figure(
    epochs: Sequence[Mapping[str, Any]], test_accuracy: float, published: float | None = None
) -> Figure:
    """Loss, and accuracy on validation nodes, of each epoch; lines for the exact test accuracy and a published one.

    Args:
        epochs: as in ``result.json``: ``epoch`` from 0, ``loss``, ``val_accuracy`` (with sampled neighbours).
        test_accuracy: exact, at the end.
        published: test accuracy to compare with; None draws no line.
    """
    fig, (left, right) = figure(10.5, 3.4, 2)
    numbers = [epoch["epoch"] + 1 for epoch in epochs]
    line = {"marker": "o", "markersize": 3.5}
    left.plot(numbers, [epoch["loss"] for epoch in epochs], color=BLUE, **line)
    left.set(xlabel="epoch", ylabel="loss on training nodes", ylim=(0, None))
    valid = [epoch["val_accuracy"] for epoch in epochs]
    right.plot(numbers, valid, color=GREEN, label="validation, sampled neighbours", **line)
    right.axhline(test_accuracy, color=ORANGE, lw=1.6, label=f"test at the end, all neighbours: {test_accuracy:.4f}")
    if published is not None:
        right.axhline(published, color=INK, lw=1, ls="--", label=f"published test, ogbn-products: {published:.4f}")
    right.set(xlabel="epoch", ylabel="accuracy", ylim=(0, 1))
    right.legend(loc="lower right")
    for ax in (left, right):
        ax.xaxis.get_major_locator().set_params(integer=True)
    return fig


@styled
def memory_figure(peak_rss: Mapping[str, Mapping[str, int]]) -> Figure:
    """Largest resident memory of one process of each kind, machine by machine.

    Args:
        peak_rss: machine -> role -> bytes, as in ``result.json``.
    """
    rows = [(f"{machine} {role}", role, count) for machine, roles in peak_rss.items() for role, count in roles.items()]
    fig, ax = figure(8.5, 1.0 + 0.42 * len(rows))
    names, roles, counts = zip(*rows, strict=True)
    bars = ax.barh(names, [c / 1e9 for c in counts], 0.62, color=[ROLES.get(role, GREY) for role in roles], ec=GREY)
    ax.bar_label(bars, [f"{count / 1e9:.2f}" for count in counts], padding=4)
    ax.invert_yaxis()
    ax.set(xlabel="GB of resident memory at its largest (shared memory counts for each process that uses it)")
    ax.margins(x=0.1)
    bare(ax)
    return fig


@styled
def scaling_figure(runs: Sequence[Mapping[str, float | None]]) -> Figure:
    """Seconds per epoch, features over the wire per epoch, accuracy and start-up, by number of machines.

    Args:
        runs: ``machines``, ``steps`` and ``seconds`` per epoch, ``remote_bytes`` per epoch of all ranks,
            ``val_accuracy`` at the end, ``startup`` seconds (None: not known).
    """
    fig, panels = figure(10.5, 3.1, 4)
    names = [f"{run['machines']}\n{run['steps']} steps" for run in runs]
    shown = (
        ("seconds", "seconds per epoch", 1.0, BLUE),
        ("remote_bytes", "MB over the wire per epoch", 1e6, ORANGE),
        ("val_accuracy", "valid accuracy at the end", 1.0, SKY),
        ("startup", "seconds to the first step", 1.0, GREEN),
    )
    for ax, (key, title, unit, color) in zip(panels, shown, strict=True):
        values = [run[key] for run in runs]
        bars = ax.bar(names, [(value or 0.0) / unit for value in values], 0.55, color=color)
        ax.bar_label(bars, ["?" if value is None else f"{value / unit:.3g}" for value in values])
        ax.set(xlabel="machines, and steps in an epoch", title=title)
        ax.margins(y=0.15)
        ax.set_yticks([])
        bare(ax)
    return fig


@styled
def phases_figure(ranks: Sequence[Mapping[str, Any]]) -> Figure:
    """Seconds per epoch in each phase of a step, stacked, one bar for each rank; a step is described in ``steps``.

    Args:
        ranks: ``phases`` of ``result.json``, or ``phases_of`` the events of a job; at least one.
    """
    fig, ax = figure(10.5, 1.6 + 0.55 * len(ranks))
    longest = max(sum(rank["seconds"].values()) for rank in ranks)
    names = [f"rank {rank['rank']}" for rank in ranks]
    left = [0.0] * len(ranks)
    for phase in PHASES:
        widths = [rank["seconds"][phase] for rank in ranks]
        bars = ax.barh(names, widths, 0.6, left, color=COLORS[phase], edgecolor=GREY, linewidth=0.6, label=phase)
        labels = [f"{width:.2f}" if width > SHARE_WITH_LABEL * longest else "" for width in widths]
        ax.bar_label(bars, labels, label_type="center", color="white" if phase in ("forward", "update") else INK)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    ax.invert_yaxis()
    ax.set(xlabel="seconds per epoch", xlim=(0, longest * 1.02))
    bare(ax)
    # Legend in the order of the pieces, above them, so that the place names a piece as well as its colour does.
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=len(PHASES))
    return fig
