"""The picture of lesson 11, the losses of a job that was killed and resumed."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from support.plots.colors import GRAY
from support.plots.shapes import VERMILION, write
from support.plots.style import LOOKS, figure


def restart(whole: Sequence[float], starts: Mapping[str, tuple[int, Sequence[float]]], killed: float) -> Figure:
    """Draw the loss of each epoch of an uninterrupted job, and of each start of a killed one.

    Args:
        starts: name -> index of its first epoch, and its losses.
        killed: epoch in which the first start ended.
    """
    fig, ax = figure(8, 3)
    ax.plot(range(len(whole)), whole, color=GRAY, lw=7, alpha=0.45, label="undisturbed", solid_capstyle="round")
    for (name, (first, losses)), (color, marker, _) in zip(starts.items(), LOOKS, strict=False):
        ax.plot(range(first, first + len(losses)), losses, color=color, marker=marker, lw=1.2, label=name)
    ax.axvline(killed - 1, color=VERMILION, lw=1, ls="--")
    write(ax, killed - 1, max(whole), " killed", ha="left", va="top", fontsize=9, color=VERMILION)
    ax.set(xlabel="epoch", ylabel="loss", xticks=range(len(whole)), ylim=(0, None))
    ax.legend(loc="lower left")
    return fig
