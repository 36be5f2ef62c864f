"""Pictures of lesson 11: who dies, who notices and who is stopped; the losses of a broken run; seconds to a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from support.plots.pieces import VERMILION, write
from support.plots.style import figure
from tutorial_lib.tools.finale.style import BLUE, GREEN, GREY, INK, LIGHT, ORANGE, SAND, SKY

FILLS = {"trainer": SKY, "server": SAND, "torchrun": LIGHT, "agent": LIGHT}
LEFT = -0.3  # seconds before the fault that are shown


def deaths(panels: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Lives of all processes of a job around a kill, one panel for each job.

    Args:
        panels: title -> what ``lessons.breaking.timeline_of`` returns.
    """
    fig, axes = figure(10.5, 4.6, 1, len(panels), squeeze=False)
    for k, (ax, (title, data)) in enumerate(zip(axes[0], panels.items(), strict=True)):
        _lives(ax, data)
        ax.set_title(title, pad=30)
        if k:
            ax.set_yticklabels([])
    return fig


def _lives(ax: Axes, data: Mapping[str, Any]) -> None:
    rows, end = data["rows"], data["end"]
    for y, row in enumerate(rows):
        victim = row["name"] == data["victim"]
        start = max(LEFT, row["start"])
        stop = 0.0 if victim else row["stop"]  # it was last seen a moment before
        color = VERMILION if victim else GREY
        ax.barh(y, stop - start, 0.62, start, color=FILLS[row["role"]], edgecolor=color, lw=1.6 if victim else 0.7)
        steps = [step for step in row["steps"] if start <= step <= stop]
        ax.plot(steps, [y] * len(steps), ls="none", marker="|", color=BLUE, markersize=8)
        if row["note"]:
            behind = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}
            color = VERMILION if victim else INK
            write(ax, stop + 0.03 * (end - LEFT), y, row["note"], ha="left", fontsize=9, color=color, bbox=behind)
    span = end - LEFT
    for at, text, side, color in ((0.0, "killed", "right", VERMILION), (data["told"], "reported", "left", INK)):
        ax.axvline(at, color=color, lw=1, ls="--", zorder=0)
        shift = -0.01 * span if side == "right" else 0.01 * span
        write(ax, at + shift, -0.72, text, ha=side, va="bottom", fontsize=9, color=color)
    ax.set_yticks(range(len(rows)), [row["name"] for row in rows])
    ax.set(xlim=(LEFT, end + 0.5 * span), ylim=(len(rows) - 0.4, -0.7))
    ax.set_xlabel("seconds after the kill; each blue tick is a step")
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def losses(
    whole: Mapping[tuple[int, int], float], starts: Mapping[str, Mapping[tuple[int, int], float]], steps: int
) -> Figure:
    """The loss of each step: of an uninterrupted run, and of every start of a run that was broken and resumed.

    Args:
        whole: (epoch, step) -> loss.
        starts: name -> the same, for each start.
        steps: of an epoch.
    """
    fig, (top, bottom) = figure(10.5, 4.4, 2, 1, sharex=True, height_ratios=[2.6, 1])
    at = [epoch * steps + step for epoch, step in whole]
    top.plot(at, list(whole.values()), color=GREY, lw=6, alpha=0.45, label="uninterrupted", solid_capstyle="round")
    styles = zip(starts.items(), (ORANGE, BLUE, GREEN), ("o", "s", "^"), strict=False)
    for y, ((name, found), color, marker) in enumerate(styles):
        at = [epoch * steps + step for epoch, step in found]
        top.plot(at, list(found.values()), color=color, marker=marker, markersize=4, lw=1, label=name)
        bottom.barh(y, at[-1] - at[0] + 1, 0.6, at[0] - 0.5, color=color)
        if y + 1 < len(starts):
            bottom.plot(at[-1] + 1, y, marker="x", color=VERMILION, markersize=9, mew=2.2)
            write(bottom, at[-1] + 2.2, y, "killed", ha="left", fontsize=9, color=VERMILION)
    last = max(epoch for epoch, _ in whole) + 1
    for ax in (top, bottom):
        for epoch in range(last + 1):
            ax.axvline(epoch * steps - 0.5, color=GREY, lw=0.8, ls=":", zorder=0)
    for epoch in range(last):
        top.text(epoch * steps, 1.02, f"epoch {epoch}", transform=top.get_xaxis_transform(), fontsize=9)
    top.set(ylabel="loss", ylim=(0, None))
    top.legend(loc="upper right")
    bottom.set_yticks(range(len(starts)), list(starts), fontsize=9)
    bottom.set(xlabel="step since the beginning", ylim=(len(starts) - 0.5, -0.6), xlim=(-1.5, last * steps + 0.5))
    bottom.tick_params(axis="y", length=0)
    return fig
