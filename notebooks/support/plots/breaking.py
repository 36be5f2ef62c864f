"""The picture of lesson 11, the losses of resumed jobs without parts of their state."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from support.plots.colors import GRAY
from support.plots.shapes import write
from support.plots.style import LOOKS, figure


def differences(losses: Mapping[str, Sequence[float]], resumed: int) -> Figure:
    """Draw the differences between the losses of resumed jobs and those of the job "undisturbed".

    Args:
        losses: name -> loss of each epoch.
        resumed: number of the first epoch after the restart.
    """
    fig, ax = figure(8, 2.6)
    whole = losses["undisturbed"]
    others = [name for name in losses if name != "undisturbed"]
    for name, (color, marker, _) in zip(others, LOOKS, strict=False):
        values = [a - b for a, b in zip(losses[name], whole, strict=True)]
        ax.plot(values, color=color, marker=marker, lw=1.2, label=name)
    ax.axvline(resumed - 0.5, color=GRAY, lw=1, ls="--")
    write(ax, resumed - 0.5, ax.get_ylim()[1], "resumed ", ha="right", va="top", fontsize=9, color=GRAY)
    ax.set(xlabel="epoch", ylabel="loss - undisturbed", xticks=range(len(whole)))
    ax.legend(loc="center left")
    return fig
