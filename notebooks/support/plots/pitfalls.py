"""Pictures of lesson 7: the effects of fork, ``Join``, threads, files and seeds."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from support.plots.colors import BLUE, GRAY, INK, LIGHT, ORANGE, SAND, SKY
from support.plots.shapes import VERMILION, arrow, box, cell, frame, write
from support.plots.style import bare, canvas, figure, named_rows


def _pointer(ax: Axes, x: float, text: str, color: str = INK) -> None:
    arrow(ax, (x, 2.9), (x, 1.3), color=color, lw=1.4)
    write(ax, x + 0.12, 2.1, text, ha="left", color=color, fontsize=9)


def what_a_fork_copies() -> Figure:
    """Draw a parent with an OpenMP worker, the child that hangs, and the child with ``fix_openmp``."""
    fig, (parent, child, cured) = figure(10.5, 3.9, 1, 3)
    titles = ("parent before the fork", "child after the fork", "child with fix_openmp")
    for ax, title in zip((parent, child, cured), titles, strict=True):
        canvas(ax, 4, 4.9, title=title)
        frame(ax, 0.1, 0.1, 3.8, 4.7, "one process")
    note = "main thread\nrecord: one worker"
    box(parent, 0.4, 2.9, 3.2, 1.0, note, SKY, BLUE)
    box(parent, 0.9, 0.5, 2.2, 0.8, "worker thread", SAND, ORANGE)
    _pointer(parent, 2.0, "divides work")

    box(child, 0.4, 2.9, 3.2, 1.0, note + " (copied)", SKY, BLUE)
    dotted = {"ls": ":", "lw": 1.6}
    cell(child, 0.9, 0.5, 2.2, 0.8, "worker not copied", "none", VERMILION, color=VERMILION, patch=dotted)
    _pointer(child, 2.0, "waits forever", VERMILION)

    box(cured, 0.25, 2.9, 1.6, 1.0, "main thread\nwaits", LIGHT)
    box(cured, 2.1, 2.9, 1.65, 1.0, "new thread\nno record", SKY, BLUE)
    box(cured, 1.4, 0.5, 2.2, 0.8, "new worker", SAND, ORANGE)
    _pointer(cured, 2.7, "creates it")
    return fig


def steps_of_ranks(counts: Sequence[int]) -> Figure:
    """Draw the collectives of ranks with different numbers of batches, without and with ``Join``."""
    fig, (plain, joined) = figure(10.5, 2.7, 1, 2)
    longest, least = max(counts), min(counts)
    for ax, cure in ((plain, False), (joined, True)):
        for rank, count in enumerate(counts):
            y = len(counts) - 1 - rank
            for step in range(longest):
                if step < count and (cure or step <= least):
                    waits = not cure and step == least
                    text, fill, edge = ("waits", "white", VERMILION) if waits else ("gradient", SKY, BLUE)
                elif cure:
                    text, fill, edge = "zeros", LIGHT, GRAY
                else:
                    text, fill, edge = ("no batch" if step >= count else "not run"), "white", LIGHT
                box(ax, step + 0.06, y + 0.18, 0.88, 0.64, text, fill, edge)
        named_rows(ax, "rank", len(counts), at=len(counts) - 0.5, by=-1)
        ax.set_xticks([step + 0.5 for step in range(longest)], [f"step {step + 1}" for step in range(longest)])
        ax.set(xlim=(-0.05, longest + 0.05), ylim=(-0.05, len(counts) + 0.05))
        ax.set_title("with Join: a rank without batches sends zeros" if cure else "without Join: a rank waits")
        bare(ax)
    return fig
