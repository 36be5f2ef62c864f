"""Pictures of a run's report: how it learned, its memory, how it grows with machines. Style as in ``standalone``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from tutorial_lib.tools.finale.style import BLUE, GREEN, GREY, INK, ORANGE, SAND, SKY

ROLES = {"server": SAND, "trainer": SKY, "torchrun": GREY}


def learning_figure(
    epochs: Sequence[Mapping[str, Any]], test_accuracy: float, published: float | None = None
) -> Figure:
    """Loss, and accuracy on validation nodes, of each epoch; lines for the exact test accuracy and a published one.

    Args:
        epochs: as in ``result.json``: ``epoch`` from 0, ``loss``, ``val_accuracy`` (with sampled neighbours).
        test_accuracy: exact, at the end.
        published: test accuracy to compare with; None draws no line.
    """
    fig = Figure(figsize=(10.5, 3.4), layout="constrained")
    left, right = fig.subplots(1, 2)
    numbers = [epoch["epoch"] + 1 for epoch in epochs]
    left.plot(numbers, [epoch["loss"] for epoch in epochs], color=BLUE, marker="o", markersize=3.5)
    left.set(xlabel="epoch", ylabel="loss on training nodes", ylim=(0, None))
    right.plot(
        numbers,
        [epoch["val_accuracy"] for epoch in epochs],
        color=GREEN,
        marker="o",
        markersize=3.5,
        label="validation, sampled neighbours",
    )
    right.axhline(test_accuracy, color=ORANGE, lw=1.6, label=f"test at the end, all neighbours: {test_accuracy:.4f}")
    if published is not None:
        right.axhline(published, color=INK, lw=1, ls="--", label=f"published test, ogbn-products: {published:.4f}")
    right.set(xlabel="epoch", ylabel="accuracy", ylim=(0, 1))
    right.legend(loc="lower right", fontsize=8.5, frameon=False)
    for ax in (left, right):
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.spines[["top", "right"]].set_visible(False)
    return fig


def memory_figure(peak_rss: Mapping[str, Mapping[str, int]]) -> Figure:
    """Largest resident memory of one process of each kind, machine by machine.

    Args:
        peak_rss: machine -> role -> bytes, as in ``result.json``.
    """
    rows = [(f"{machine} {role}", role, count) for machine, roles in peak_rss.items() for role, count in roles.items()]
    fig = Figure(figsize=(8.5, 1.0 + 0.42 * len(rows)), layout="constrained")
    ax = fig.subplots()
    colors = [ROLES.get(role, GREY) for _name, role, _count in rows]
    bars = ax.barh([name for name, _role, _count in rows], [c / 1e9 for *_rest, c in rows], 0.62, color=colors, ec=GREY)
    ax.bar_label(bars, [f"{count / 1e9:.2f}" for *_rest, count in rows], padding=4, fontsize=9.5, color=INK)
    ax.invert_yaxis()
    ax.set(xlabel="GB of resident memory at its largest (shared memory counts for each process that uses it)")
    ax.margins(x=0.1)
    ax.tick_params(length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    return fig


def scaling_figure(runs: Sequence[Mapping[str, float | None]]) -> Figure:
    """Seconds per epoch, features over the wire per epoch and start-up, by number of machines.

    Args:
        runs: ``machines``, ``seconds`` per epoch, ``remote_bytes`` per epoch of all ranks, ``startup`` seconds (None:
            not known).
    """
    fig = Figure(figsize=(10.5, 2.9), layout="constrained")
    names = [str(int(run["machines"])) for run in runs]
    panels = (
        ("seconds", "seconds per epoch", 1.0, BLUE),
        ("remote_bytes", "MB of features over the wire per epoch", 1e6, ORANGE),
        ("startup", "seconds from start to first step", 1.0, GREEN),
    )
    for ax, (key, title, unit, color) in zip(fig.subplots(1, 3), panels, strict=True):
        bars = ax.bar(names, [(run[key] or 0.0) / unit for run in runs], 0.55, color=color)
        labels = ["?" if run[key] is None else f"{run[key] / unit:.3g}" for run in runs]
        ax.bar_label(bars, labels, fontsize=9.5, color=INK)
        ax.set_title(title, fontsize=10)
        ax.set(xlabel="machines")
        ax.margins(y=0.15)
        ax.set_yticks([])
        ax.tick_params(length=0)
        ax.spines[["top", "right", "left"]].set_visible(False)
    return fig
