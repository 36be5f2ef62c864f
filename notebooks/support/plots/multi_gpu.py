"""Pictures of lesson 6, several processes on one machine. Style and helpers as in ``standalone``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from support.plots.standalone import _arrow, _box, _frame
from tutorial_lib.tools.finale.style import BLUE, GREEN, GREY, INK, LIGHT, ORANGE, SAND, SKY

PINK = "#CC79A7"
RANKS = (BLUE, ORANGE, GREEN, PINK)
MIB = 2**20


def two_ranks() -> Figure:
    """Two ranks that read one graph, each with its own share, loader and model."""
    fig = Figure(figsize=(10.5, 4.9), layout="constrained")
    ax = fig.subplots()
    for rank, x in enumerate((0.1, 6.1)):
        _frame(ax, x, 2.2, 4.6, 4.9, f"rank {rank}: one process, one CPU share or one GPU")
        _box(ax, x + 0.4, 5.6, 3.8, 0.8, "its copy of the model", SKY, BLUE)
        _box(ax, x + 0.4, 4.05, 3.8, 0.8, "its sampler and loader", LIGHT)
        _box(ax, x + 0.4, 2.5, 3.8, 0.8, "its share of the training nodes", LIGHT)
        _arrow(ax, (x + 2.3, 3.3), (x + 2.3, 4.05), arrowstyle="->")
        _arrow(ax, (x + 2.3, 4.85), (x + 2.3, 5.6), arrowstyle="->")
        ax.text(x + 2.42, 5.22, "blocks, features, labels", va="center", fontsize=9)
        ax.text(x + 2.42, 3.67, "seed nodes", va="center", fontsize=9)
    _arrow(ax, (4.3, 6.0), (6.5, 6.0))
    ax.text(5.4, 6.12, "gradients,\naveraged (DDP)", ha="center", va="bottom", fontsize=9)
    _box(
        ax, 0.1, 0.15, 10.6, 0.95, "one memory: the graph in its sparse formats, the features, the labels", SAND, ORANGE
    )
    ax.text(5.4, 1.62, "read by all\nunder fork", ha="center", va="center", fontsize=9)
    for start, end in (((4.75, 1.1), (4.3, 4.2)), ((6.05, 1.1), (6.5, 4.2))):
        _arrow(ax, start, end, arrowstyle="->", linestyle="--")
    ax.set(xlim=(0, 10.8), ylim=(0, 7.2))
    ax.axis("off")
    return fig


def shares(rows: Mapping[str, Sequence[Sequence[int]]], ids: Sequence[int]) -> Figure:
    """Which rank trains on which node; who is left out, and who comes twice.

    Args:
        rows: per way to share, the ids of each rank (at most four ranks).
        ids: all training nodes, in order.
    """
    fig = Figure(figsize=(10.5, 0.95 + 0.95 * len(rows)), layout="constrained")
    ax = fig.subplots()
    for line, (name, parts) in enumerate(rows.items()):
        y = -1.6 * line
        visits = [sum(list(part).count(node) for part in parts) for node in ids]
        summary = f"{visits.count(0)} left out, {sum(count > 1 for count in visits)} visited twice"
        ax.text(0, y + 1.12, f"{name}: {summary}", fontsize=10, va="bottom")
        for column, node in enumerate(ids):
            owner = next((rank for rank, part in enumerate(parts) if node in list(part)), None)
            face, text = (LIGHT, "-") if owner is None else (RANKS[owner], str(owner))
            edge = INK if visits[column] > 1 or owner is None else "white"
            ax.add_patch(
                Rectangle(
                    (column + 0.04, y + 0.04), 0.92, 0.92, fc=face, ec=edge, hatch="" if owner is not None else "//"
                )
            )
            label = f"{text} {text}" if visits[column] > 1 else text
            ink = "white" if owner in (0, 2) else INK
            ax.text(column + 0.5, y + 0.5, label, ha="center", va="center", fontsize=10, color=ink)
    ranks = len(next(iter(rows.values())))
    handles = [Patch(color=RANKS[rank], label=f"rank {rank}") for rank in range(ranks)]
    handles.append(Patch(fc=LIGHT, ec=INK, hatch="//", label="no rank"))
    ax.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0), ncol=ranks + 1, frameon=False, fontsize=9.5)
    ax.set(xlim=(-0.05, len(ids) + 0.05), ylim=(-1.6 * (len(rows) - 1) - 0.15, 1.75))
    ax.axis("off")
    return fig


def curves(values: Mapping[str, Sequence[float]], ylabel: str) -> Figure:
    """One line per run, over the epochs."""
    fig = Figure(figsize=(7.5, 3.4), layout="constrained")
    ax = fig.subplots()
    styles = zip((BLUE, ORANGE, GREEN, PINK), ("o", "s", "^", "D"), ("-", "--", ":", "-."), strict=True)
    for (name, line), (color, marker, dashes) in zip(values.items(), styles, strict=False):
        ax.plot(range(1, len(line) + 1), line, dashes, color=color, marker=marker, markersize=5, label=name)
    ax.yaxis.set_major_formatter(lambda value, _at: f"{value:.0%}")
    ax.set(xlabel="epoch", ylabel=ylabel, xticks=range(1, 1 + max(map(len, values.values()))))
    ax.legend(loc="lower right", frameon=False, fontsize=9.5)
    ax.spines[["top", "right"]].set_visible(False)
    return fig


def timelines(panels: Mapping[str, Sequence[Sequence[tuple[str, float, float]]]]) -> Figure:
    """What each rank did when.

    Args:
        panels: per title, per rank, (what, start, end) in seconds of one clock; what: train, validate or wait.
    """
    fig = Figure(figsize=(10.5, 1.1 + 1.25 * len(panels)), layout="constrained")
    axes = fig.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    looks = {"train": (BLUE, ""), "validate": (ORANGE, ""), "wait": (LIGHT, "////")}
    for ax, (title, ranks) in zip(axes, panels.items(), strict=True):
        origin = min(start for spans in ranks for _what, start, _end in spans)
        for rank, spans in enumerate(ranks):
            for what, start, end in spans:
                color, hatch = looks[what]
                ax.barh(
                    rank, end - start, left=start - origin, height=0.7, color=color, hatch=hatch, edgecolor=GREY, lw=0.6
                )
        ax.set_title(title, fontsize=11.5, loc="left")
        ax.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in range(len(ranks))])
        ax.invert_yaxis()
        ax.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("seconds since the first of these epochs began")
    handles = [Patch(fc=color, ec=GREY, hatch=hatch, label=what) for what, (color, hatch) in looks.items()]
    fig.legend(handles=handles, loc="outside lower center", ncol=3, frameon=False, fontsize=9.5)
    return fig


def memory(bars: Mapping[str, Sequence[Mapping[str, int]]]) -> Figure:
    """Proportional set size of each rank, split into pages of its own and its part of shared ones.

    Args:
        bars: per way to start, for each rank ``pss`` and ``private`` in bytes.
    """
    fig = Figure(figsize=(10.5, 1.3 + 0.5 * sum(len(ranks) for ranks in bars.values())), layout="constrained")
    ax = fig.subplots()
    y, ticks = 0.0, []
    for name, ranks in bars.items():
        for rank, values in enumerate(ranks):
            private, pss = values["private"] / MIB, values["pss"] / MIB
            ax.barh(y, private, color=ORANGE, height=0.8, label="its own pages" if y == 0 else None)
            ax.barh(
                y, pss - private, left=private, color=SKY, edgecolor=BLUE, hatch="..", height=0.8, lw=0.6,
                label="its part of shared pages" if y == 0 else None,
            )  # fmt: skip
            ax.text(pss + 6, y, f"{pss:.0f}, of which {private:.0f} its own", va="center", fontsize=9.5)
            ticks.append((y, f"{name}, rank {rank}"))
            y += 0.9
        y += 0.5
    ax.set_yticks(*zip(*ticks, strict=True), fontsize=9.5)
    ax.invert_yaxis()
    most = max(values["pss"] for ranks in bars.values() for values in ranks) / MIB
    ax.set(xlabel="MiB (proportional set size)", xlim=(0, most * 1.35))
    ax.legend(loc="upper center", bbox_to_anchor=(0.4, -0.16), ncol=2, frameon=False, fontsize=9.5)
    ax.spines[["top", "right"]].set_visible(False)
    return fig
