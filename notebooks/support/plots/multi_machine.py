"""Pictures of lesson 10: accuracy and seconds against the number of machines. The figures do not use pyplot."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from support.plots.colors import GRAY, INK, LIGHT, SKY
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


def predicted_seconds(measured: Mapping[tuple[int, int], tuple[float, Sequence[float]]], alone: float) -> Figure:
    """Draw the predicted seconds of an epoch as bars, and measured epochs as dots.

    Args:
        measured: (machines, Mbit/s) -> prediction and measurements.
        alone: seconds of an epoch on one machine, drawn as a line.
    """
    fig, ax = figure(8.5, 3.2)
    counts, speeds = (list(dict.fromkeys(values)) for values in zip(*measured, strict=True))
    for row, (machines, color) in enumerate(zip(counts, (SKY, LIGHT), strict=False)):
        for column, speed in enumerate(speeds):
            at = column + 0.36 * (row - 0.5)
            model, seconds = measured[machines, speed]
            label = f"predicted, {machines} machines" if column == 0 else None
            ax.bar(at, model, 0.32, color=color, edgecolor=INK, linewidth=0.7, label=label)
            ax.plot([at] * len(seconds), seconds, ".", color=INK, ms=5, label="measured" if row + column == 0 else None)
    ax.axhline(alone, color=GRAY, linestyle="--", label="one machine, measured")
    ax.set_xticks(range(len(speeds)), [f"{speed} Mbit/s" for speed in speeds])
    ax.set(ylabel="seconds per epoch", ylim=(0, None))
    legend_above(ax, 4)
    return fig
