"""Pictures of lesson 6, several processes on one machine."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from support.plots import style
from support.plots.colors import BLUE, GRAY, GREEN, INK, LIGHT, ORANGE, SAND, SKY
from support.plots.shapes import PURPLE, arrow, box, cell, frame, write
from support.plots.style import drawing, figure, legend_below

RANKS = (BLUE, ORANGE, GREEN, PURPLE)


def two_ranks() -> Figure:
    """Draw two ranks that read one graph and have separate shares, loaders and models."""
    fig, ax = drawing(10.5, 4.9, 10.8, 7.2)
    for rank, x in enumerate((0.1, 6.1)):
        frame(ax, x, 2.2, 4.6, 4.9, f"rank {rank}: one process, one CPU core or one GPU")
        box(ax, x + 0.4, 5.6, 3.8, 0.8, "its copy of the model", SKY, BLUE)
        box(ax, x + 0.4, 4.05, 3.8, 0.8, "its sampler and loader", LIGHT)
        box(ax, x + 0.4, 2.5, 3.8, 0.8, "its share of the training nodes", LIGHT)
        arrow(ax, (x + 2.3, 3.3), (x + 2.3, 4.05))
        arrow(ax, (x + 2.3, 4.85), (x + 2.3, 5.6))
        write(ax, x + 2.42, 5.22, "blocks, features, labels", ha="left", fontsize=9)
        write(ax, x + 2.42, 3.67, "seed nodes", ha="left", fontsize=9)
    arrow(ax, (4.3, 6.0), (6.5, 6.0), "<->")
    write(ax, 5.4, 6.12, "gradients,\naveraged (DDP)", va="bottom", fontsize=9)
    shared = "one copy in memory: the graph in its sparse formats, the features, the labels"
    box(ax, 0.1, 0.15, 10.6, 0.95, shared, SAND, ORANGE)
    write(ax, 5.4, 1.62, "forked ranks\nread it", fontsize=9)
    for start, end in (((4.75, 1.1), (4.3, 4.2)), ((6.05, 1.1), (6.5, 4.2))):
        arrow(ax, start, end, linestyle="--")
    return fig


def shares(rows: Mapping[str, Sequence[Sequence[int]]], ids: Sequence[int]) -> Figure:
    """Draw which rank trains on which node, with omitted and duplicated nodes.

    Args:
        rows: name of a division -> IDs of each rank, for at most four ranks.
        ids: all training nodes in order.
    """
    low = -1.6 * (len(rows) - 1) - 0.15
    fig, ax = drawing(10.5, 0.95 + 0.95 * len(rows), len(ids) + 0.05, 1.75, -0.05, low)
    for line, (name, parts) in enumerate(rows.items()):
        y = -1.6 * line
        visits = [sum(list(part).count(node) for part in parts) for node in ids]
        summary = f"{visits.count(0)} left out, {sum(count > 1 for count in visits)} visited twice"
        ax.text(0, y + 1.12, f"{name}: {summary}", va="bottom")
        for column, node in enumerate(ids):
            owners = [rank for rank, part in enumerate(parts) for other in part if other == node]
            owner = owners[0] if owners else None
            face = LIGHT if owner is None else RANKS[owner]
            edge = INK if visits[column] > 1 or owner is None else "white"
            label = " ".join(map(str, owners)) or "-"
            ink = "white" if owner in (0, 2) else INK
            look = {"hatch": "//" if owner is None else ""}
            cell(ax, column + 0.04, y + 0.04, 0.92, 0.92, label, face, edge, color=ink, patch=look)
    ranks = len(next(iter(rows.values())))
    handles = [Patch(color=RANKS[rank], label=f"rank {rank}") for rank in range(ranks)]
    handles.append(Patch(fc=LIGHT, ec=INK, hatch="//", label="no rank"))
    legend_below(ax, 0, ranks + 1, handles=handles)
    return fig


def accuracy_over_time(runs: Mapping[int, Sequence[Sequence[Mapping[str, float]]]], target: float) -> Figure:
    """Draw the validation accuracy against the seconds of training, one line per run.

    Args:
        runs: number of ranks -> runs -> epochs with "seconds" and "accuracy".
        target: accuracy at which runs are compared, as a dashed line.
    """
    fig, ax = figure(6.5, 3.2)
    for count, color in zip(sorted(runs), RANKS, strict=False):
        for number, epochs in enumerate(runs[count]):
            seconds = list(accumulate(epoch["seconds"] for epoch in epochs))
            label = f"{count} rank{'s' * (count > 1)}" if number == 0 else None
            ax.plot(seconds, [epoch["accuracy"] for epoch in epochs], "-o", color=color, ms=3, lw=1, label=label)
    ax.axhline(target, ls="--", color=GRAY)
    ax.set(xlabel="seconds of training", ylabel="validation accuracy")
    ax.legend()
    return fig


def memory(runs: Mapping[str, Mapping[int, Mapping[str, float]]]) -> Figure:
    """Draw the total memory of a parent and its ranks against the number of ranks.

    Args:
        runs: name -> number of ranks -> "together" in MB.
    """
    fig, ax = figure(6.5, 3.2)
    for (name, rows), (color, marker, dashes) in zip(runs.items(), style.LOOKS, strict=False):
        ax.plot(list(rows), [row["together"] for row in rows.values()], dashes, color=color, marker=marker, label=name)
    ax.set(xlabel="ranks", ylabel="MB of the parent and all ranks", xticks=max(map(list, runs.values()), key=len))
    ax.set_ylim(0)
    ax.legend()
    return fig
