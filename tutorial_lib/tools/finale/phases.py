"""Where the seconds of a training job go. Drawn without pyplot, see ``style``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from tutorial_lib.tools.finale.style import BLUE, GREEN, GREY, INK, LIGHT, ORANGE, SAND, SKY
from tutorial_lib.trainer.events import PHASES, phases_of

COLORS = dict(zip(PHASES, (ORANGE, SAND, BLUE, SKY, GREEN, LIGHT), strict=True))
SHARE_WITH_LABEL = 0.07  # of the longest bar; narrower pieces have no room for their seconds


def phases_figure(events: Iterable[dict[str, Any]]) -> Figure:
    """Seconds per epoch in each phase of a step, stacked, one bar for each rank; a step is described in ``events``.

    Args:
        events: of a job, as in ``job.events`` or ``events.jsonl``; those of steps are used.

    Raises:
        ValueError: there are no steps among them.
    """
    ranks = phases_of(events)
    if not ranks:
        raise ValueError("no step events to draw")
    return phases_of_ranks_figure(ranks)


def phases_of_ranks_figure(ranks: Sequence[Mapping[str, Any]]) -> Figure:
    """The same from what ``result.json`` has as ``phases``: one entry for each rank, at least one."""
    fig = Figure(figsize=(10.5, 1.6 + 0.55 * len(ranks)), layout="constrained")
    ax = fig.subplots()
    longest = max(sum(rank["seconds"].values()) for rank in ranks)
    names = [f"rank {rank['rank']}" for rank in ranks]
    left = [0.0] * len(ranks)
    for phase in PHASES:
        widths = [rank["seconds"][phase] for rank in ranks]
        bars = ax.barh(names, widths, 0.6, left, color=COLORS[phase], edgecolor=GREY, linewidth=0.6, label=phase)
        labels = [f"{width:.2f}" if width > SHARE_WITH_LABEL * longest else "" for width in widths]
        dark = phase in ("forward", "update")
        ax.bar_label(bars, labels, label_type="center", fontsize=9.5, color="white" if dark else INK)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    ax.invert_yaxis()
    ax.set(xlabel="seconds per epoch", xlim=(0, longest * 1.02))
    ax.tick_params(length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    # Legend in the order of the pieces, above them, so that the place names a piece as well as its colour does.
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=len(PHASES), frameon=False, fontsize=9.5)
    return fig
