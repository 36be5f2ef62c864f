"""Pictures of lesson 10: accuracy against the number of machines, and traffic. The figures do not use pyplot."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from support.plots.colors import GRAY, INK, LIGHT, SKY
from support.plots.shapes import write
from support.plots.style import LOOKS, figure, legend_above, percent


def accuracies(measured: Mapping[tuple[int, str], Sequence[float]]) -> Figure:
    """Draw the test accuracy against the number of machines, for each choice of learning rate and batch size.

    Args:
        measured: (machines, choice) -> accuracies of runs with different seeds. One machine has only the choice "same".
    """
    fig, ax = figure(7.5, 3.4)
    counts = sorted({machines for machines, _ in measured})
    ways = list(dict.fromkeys(way for _, way in measured))
    for k, (way, (color, marker, dashes)) in enumerate(zip(ways, LOOKS, strict=False)):
        runs = [measured.get((machines, way), measured[1, "same"]) for machines in counts]
        ax.plot(range(len(counts)), [sum(each) / len(each) for each in runs], dashes, color=color, label=way)
        for at, each in enumerate(runs):
            if (counts[at], way) in measured:
                shift = 0.03 * (k - (len(ways) - 1) / 2) * (at > 0)
                ax.plot([at + shift] * len(each), each, marker, color=color, ms=6)
    ax.set_xticks(range(len(counts)), [f"{n} machine{'s' * (n > 1)}" for n in counts])
    ax.set(ylabel="test accuracy", xlim=(-0.3, len(counts) - 0.7))
    percent(ax.yaxis)
    legend_above(ax, len(ways))
    return fig


def epoch_costs(measured: Mapping[str, Sequence[Mapping[str, float]]]) -> Figure:
    """Draw the seconds and megabytes of an epoch. Bars are medians, and dots are measured epochs.

    Args:
        measured: choice -> epochs with ``seconds``, ``waited`` (seconds without a batch) and ``bytes``.
    """
    fig, (left, right) = figure(10.5, 1.3 + 0.42 * len(measured), 1, 2, width_ratios=[2.1, 1], sharey=True)
    names = list(measured)
    for row, epochs in enumerate(measured.values()):
        middle = sorted(epochs, key=lambda epoch: epoch["seconds"])[len(epochs) // 2]
        look = {"edgecolor": INK, "linewidth": 0.7}
        waits, computes = ("waits for the batch", "computes") if row == 0 else (None, None)
        waited = middle["waited"]
        left.barh(row, waited, 0.6, color=SKY, label=waits, **look)
        left.barh(row, middle["seconds"] - waited, 0.6, waited, color="white", label=computes, **look)
        left.plot([epoch["seconds"] for epoch in epochs], [row] * len(epochs), ".", color=INK, ms=5)
        size = middle["bytes"] / 1e6
        right.barh(row, size, 0.6, color=LIGHT, edgecolor=GRAY, linewidth=0.7)
        write(right, size, row, f" {size:.1f}", ha="left")
    left.set_yticks(range(len(names)), names)
    left.invert_yaxis()
    left.set(xlabel="seconds per epoch (dots: single epochs)", xlim=(0, None))
    right.set(xlabel="MB received per epoch, all machines")
    right.set_xlim(0, right.get_xlim()[1] * 1.15)
    legend_above(left, 2)
    for ax in (left, right):
        ax.tick_params(axis="y", length=0)
    return fig
