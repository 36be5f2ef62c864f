"""Pictures of lesson 7: what a fork copies, who waits for whom, and what threads, files and seeds do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from support.plots.standalone import _box, _frame
from tutorial_lib.tools.finale.style import BLUE, GREEN, GREY, INK, LIGHT, ORANGE, SAND, SKY

RED = "#D55E00"  # vermilion of Okabe and Ito


def _ghost(ax: Axes, x: float, y: float, width: float, height: float, text: str) -> None:
    """Something that is not there."""
    patch = FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.12")
    patch.set(facecolor="none", edgecolor=RED, linestyle=":", linewidth=1.6)
    ax.add_patch(patch)
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", color=RED, fontsize=9.5)


def _pointer(ax: Axes, start: tuple[float, float], end: tuple[float, float], text: str, color: str) -> None:
    ax.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "->", "color": color, "lw": 1.4})
    ax.text(start[0] + 0.12, (start[1] + end[1]) / 2, text, ha="left", va="center", color=color, fontsize=9)


def what_a_fork_copies() -> Figure:
    """A parent with an OpenMP pool, the child that waits for it, and the child with ``fix_openmp``."""
    fig = Figure(figsize=(10.5, 3.9), layout="constrained")
    parent, child, cured = fig.subplots(1, 3)
    titles = ("before the fork: the parent", "after the fork: the child", "the child with fix_openmp")
    for ax, title in zip((parent, child, cured), titles, strict=True):
        ax.set_title(title, fontsize=11.5)
        _frame(ax, 0.1, 0.1, 3.8, 4.7, "one process")
        ax.set(xlim=(0, 4), ylim=(0, 4.9))
        ax.axis("off")
    note = "main thread\n“my pool has one worker”"
    _box(parent, 0.4, 2.9, 3.2, 1.0, note, SKY, BLUE)
    _box(parent, 0.9, 0.5, 2.2, 0.8, "worker thread", SAND, ORANGE)
    _pointer(parent, (2.0, 2.9), (2.0, 1.3), "divides work", INK)

    _box(child, 0.4, 2.9, 3.2, 1.0, note + ": copied", SKY, BLUE)
    _ghost(child, 0.9, 0.5, 2.2, 0.8, "not copied")
    _pointer(child, (2.0, 2.9), (2.0, 1.3), "waits for ever", RED)

    _box(cured, 0.25, 2.9, 1.6, 1.0, "main thread\nwaits", LIGHT)
    _box(cured, 2.1, 2.9, 1.65, 1.0, "new thread\n“no pool yet”", SKY, BLUE)
    _box(cured, 1.4, 0.5, 2.2, 0.8, "its own worker", SAND, ORANGE)
    _pointer(cured, (2.7, 2.9), (2.7, 1.3), "makes one", INK)
    return fig


def steps_of_ranks(counts: Sequence[int]) -> Figure:
    """Who meets whom in each step when ranks have different numbers of batches, without and with ``Join``."""
    fig = Figure(figsize=(10.5, 2.7), layout="constrained")
    plain, joined = fig.subplots(1, 2)
    longest, least = max(counts), min(counts)
    for ax, cure in ((plain, False), (joined, True)):
        for rank, count in enumerate(counts):
            y = len(counts) - 1 - rank
            for step in range(longest):
                if step < count and (cure or step <= least):
                    waits = not cure and step == least
                    text, fill, edge = ("waits", "white", RED) if waits else ("gradient", SKY, BLUE)
                elif cure:
                    text, fill, edge = "zeros", LIGHT, GREY
                else:
                    text, fill, edge = ("gone" if step >= count else "never"), "white", LIGHT
                _box(ax, step + 0.06, y + 0.18, 0.88, 0.64, text, fill, edge)
        ax.set_yticks(
            [len(counts) - 0.5 - rank for rank in range(len(counts))], [f"rank {k}" for k in range(len(counts))]
        )
        ax.set_xticks([step + 0.5 for step in range(longest)], [f"step {step}" for step in range(longest)])
        ax.set(xlim=(-0.05, longest + 0.05), ylim=(-0.05, len(counts) + 0.05))
        ax.set_title(
            "with Join: each step has an answer" if cure else "without: one rank waits for the other", fontsize=11.5
        )
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
    return fig


def threads_and_speed(rates: Mapping[int, Sequence[float]], share: int) -> Figure:
    """Steps per second of each rank by its number of threads.

    Args:
        rates: threads of a rank to the steps per second of every rank.
        share: threads that a rank may have when the CPUs are divided.
    """
    fig = Figure(figsize=(8, 3.3), layout="constrained")
    ax = fig.subplots()
    totals = {threads: sum(values) for threads, values in rates.items()}
    colors = [GREEN if threads <= share else ORANGE for threads in totals]
    bars = ax.bar(range(len(totals)), list(totals.values()), color=colors, width=0.6)
    ax.bar_label(bars, [f"{total:.0f}" for total in totals.values()], fontsize=9.5)
    ax.set_xticks(range(len(totals)), [f"{threads}" for threads in totals])
    ax.set(
        xlabel="OpenMP threads of each rank",
        ylabel="steps per second, all ranks",
        ylim=(0, max(totals.values()) * 1.15),
    )
    for color, text in ((GREEN, "no more threads than CPUs"), (ORANGE, "more threads than CPUs")):
        ax.bar(0, 0, color=color, label=text)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=2, frameon=False, fontsize=9.5)
    ax.spines[["top", "right"]].set_visible(False)
    return fig


def open_files(counts: Mapping[str, Sequence[tuple[int, int]]]) -> Figure:
    """Open files and names in /dev/shm, both more than at the start, while batches are kept, by way to share."""
    fig = Figure(figsize=(10.5, 3.2), layout="constrained")
    axes = fig.subplots(1, 2, sharey=True)
    for which, (ax, title) in enumerate(zip(axes, ("open files of the rank", "names in /dev/shm"), strict=True)):
        for (name, pairs), color, style in zip(counts.items(), (BLUE, ORANGE), ("-", "--"), strict=True):
            ax.plot(range(1, len(pairs) + 1), [pair[which] for pair in pairs], color=color, ls=style, lw=2, label=name)
        ax.set_title(title, fontsize=11.5)
        ax.set(xlabel="batches kept", xlim=(0, None), ylim=(-4, None))
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("more than at the start")
    axes[0].legend(frameon=False, fontsize=9.5, loc="upper left")
    return fig


def dropout_masks(masks: Mapping[str, Sequence[Any]]) -> Figure:
    """Which values each rank keeps: one row of pictures per case, one picture per rank.

    Args:
        masks: name of the case to the bool (rows, columns) masks of the ranks.
    """
    columns = len(next(iter(masks.values())))
    fig = Figure(figsize=(10.5, 1.75 * len(masks)), layout="constrained")
    axes = fig.subplots(len(masks), columns, squeeze=False)
    for row, (case, ranks) in zip(axes, masks.items(), strict=True):
        for rank, (ax, mask) in enumerate(zip(row, ranks, strict=True)):
            ax.pcolormesh(mask.numpy()[::-1], cmap=_two_colours(), vmin=0, vmax=1, edgecolors="white", linewidth=0.8)
            ax.set_title(f"{case}: rank {rank}", fontsize=10.5)
            ax.set(xticks=[], yticks=[], aspect="equal")
            ax.spines[:].set_visible(False)
    return fig


def _two_colours() -> Any:
    from matplotlib.colors import ListedColormap

    return ListedColormap([LIGHT, BLUE])


def visits(cases: Mapping[str, Sequence[Sequence[Sequence[int]]]], count: int) -> Figure:
    """Which rank visits which node in which epoch.

    Args:
        cases: name of the case to ``[epoch][rank]``, the nodes that this rank visits.
        count: number of nodes.
    """
    fig = Figure(figsize=(10.5, 0.9 + 1.05 * len(cases)), layout="constrained")
    axes = fig.subplots(len(cases), 1, squeeze=False)[:, 0]
    looks = {(0,): (SKY, BLUE, "0"), (1,): (SAND, ORANGE, "1"), (): ("white", RED, "–"), (0, 1): (RED, RED, "both")}
    for ax, (case, epochs) in zip(axes, cases.items(), strict=True):
        for epoch, ranks in enumerate(epochs):
            for node in range(count):
                fill, edge, text = looks[tuple(k for k, nodes in enumerate(ranks) if node in nodes)]
                _cell(ax, node, len(epochs) - 1 - epoch, fill, edge, text)
        ax.set_title(case, fontsize=10.5, loc="left")
        ax.set_yticks([len(epochs) - 0.5 - e for e in range(len(epochs))], [f"epoch {e}" for e in range(len(epochs))])
        ax.set_xticks([node + 0.5 for node in range(count)], [str(node) for node in range(count)])
        ax.set(xlim=(0, count), ylim=(0, len(epochs)))
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0, labelsize=9)
    axes[-1].set_xlabel("node; in its box, the rank that visits it")
    return fig


def _cell(ax: Axes, x: float, y: float, fill: str, edge: str, text: str) -> None:
    ax.add_patch(
        FancyBboxPatch((x + 0.06, y + 0.1), 0.88, 0.8, boxstyle="square,pad=0", facecolor=fill, edgecolor=edge)
    )
    ax.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=9, color="white" if text == "both" else INK)
