"""Pictures of lesson 6, several processes on one machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from support.plots import style
from support.plots.pieces import PURPLE, arrow, box, cell, frame, write
from support.plots.style import drawing, figure, legend_below, named_rows, percent
from tutorial_lib.tools.finale.style import BLUE, GREEN, GREY, INK, LIGHT, ORANGE, SAND, SKY

RANKS = (BLUE, ORANGE, GREEN, PURPLE)


def two_ranks() -> Figure:
    """Two ranks that read one graph, each with its own share, loader and model."""
    fig, ax = drawing(10.5, 4.9, 10.8, 7.2)
    for rank, x in enumerate((0.1, 6.1)):
        frame(ax, x, 2.2, 4.6, 4.9, f"rank {rank}: one process, one CPU share or one GPU")
        box(ax, x + 0.4, 5.6, 3.8, 0.8, "its copy of the model", SKY, BLUE)
        box(ax, x + 0.4, 4.05, 3.8, 0.8, "its sampler and loader", LIGHT)
        box(ax, x + 0.4, 2.5, 3.8, 0.8, "its share of the training nodes", LIGHT)
        arrow(ax, (x + 2.3, 3.3), (x + 2.3, 4.05))
        arrow(ax, (x + 2.3, 4.85), (x + 2.3, 5.6))
        write(ax, x + 2.42, 5.22, "blocks, features, labels", ha="left", fontsize=9)
        write(ax, x + 2.42, 3.67, "seed nodes", ha="left", fontsize=9)
    arrow(ax, (4.3, 6.0), (6.5, 6.0), "<->")
    write(ax, 5.4, 6.12, "gradients,\naveraged (DDP)", va="bottom", fontsize=9)
    shared = "one memory: the graph in its sparse formats, the features, the labels"
    box(ax, 0.1, 0.15, 10.6, 0.95, shared, SAND, ORANGE)
    write(ax, 5.4, 1.62, "read by all\nunder fork", fontsize=9)
    for start, end in (((4.75, 1.1), (4.3, 4.2)), ((6.05, 1.1), (6.5, 4.2))):
        arrow(ax, start, end, linestyle="--")
    return fig


def shares(rows: Mapping[str, Sequence[Sequence[int]]], ids: Sequence[int]) -> Figure:
    """Which rank trains on which node; who is left out, and who comes twice.

    Args:
        rows: per way to share, the ids of each rank (at most four ranks).
        ids: all training nodes, in order.
    """
    low = -1.6 * (len(rows) - 1) - 0.15
    fig, ax = drawing(10.5, 0.95 + 0.95 * len(rows), len(ids) + 0.05, 1.75, -0.05, low)
    for line, (name, parts) in enumerate(rows.items()):
        y = -1.6 * line
        visits = [sum(list(part).count(node) for part in parts) for node in ids]
        summary = f"{visits.count(0)} left out, {sum(count > 1 for count in visits)} visited twice"
        ax.text(0, y + 1.12, f"{name}: {summary}", va="bottom")
        for column, node in enumerate(ids):
            owner = next((rank for rank, part in enumerate(parts) if node in list(part)), None)
            face, text = (LIGHT, "-") if owner is None else (RANKS[owner], str(owner))
            edge = INK if visits[column] > 1 or owner is None else "white"
            label = f"{text} {text}" if visits[column] > 1 else text
            ink = "white" if owner in (0, 2) else INK
            look = {"hatch": "//" if owner is None else ""}
            cell(ax, column + 0.04, y + 0.04, 0.92, 0.92, label, face, edge, color=ink, patch=look)
    ranks = len(next(iter(rows.values())))
    handles = [Patch(color=RANKS[rank], label=f"rank {rank}") for rank in range(ranks)]
    handles.append(Patch(fc=LIGHT, ec=INK, hatch="//", label="no rank"))
    legend_below(ax, 0, ranks + 1, handles=handles)
    return fig


def curves(values: Mapping[str, Sequence[float]], ylabel: str) -> Figure:
    """One line per run, over the epochs."""
    fig, ax = figure(7.5, 3.4)
    style.curves(ax, values, ms=5)
    percent(ax.yaxis)
    ax.set(xlabel="epoch", ylabel=ylabel, xticks=range(1, 1 + max(map(len, values.values()))))
    ax.legend(loc="lower right")
    return fig


def timelines(panels: Mapping[str, Sequence[Sequence[tuple[str, float, float]]]]) -> Figure:
    """What each rank did when.

    Args:
        panels: per title, per rank, (what, start, end) in seconds of one clock; what: train, validate or wait.
    """
    fig, axes = figure(10.5, 1.1 + 1.25 * len(panels), len(panels), 1, sharex=True, squeeze=False)
    axes = axes[:, 0]
    looks = {"train": (BLUE, ""), "validate": (ORANGE, ""), "wait": (LIGHT, "////")}
    for ax, (title, ranks) in zip(axes, panels.items(), strict=True):
        origin = min(start for spans in ranks for _what, start, _end in spans)
        for rank, spans in enumerate(ranks):
            for what, start, end in spans:
                color, hatch = looks[what]
                ax.barh(rank, end - start, 0.7, start - origin, color=color, hatch=hatch, edgecolor=GREY, lw=0.6)
        ax.set_title(title, loc="left")
        named_rows(ax, "rank", len(ranks))
        ax.invert_yaxis()
    axes[-1].set_xlabel("seconds since the first of these epochs began")
    handles = [Patch(fc=color, ec=GREY, hatch=hatch, label=what) for what, (color, hatch) in looks.items()]
    fig.legend(handles=handles, loc="outside lower center", ncol=3)
    return fig
