"""One style of pictures. Colours are those of Okabe and Ito (2008), which colour-blind readers can tell apart.

Figures are made without pyplot, so that none is shown twice or stays open.
"""

from __future__ import annotations

from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"
SKY, GREY, LIGHT, INK = "#CDE6F5", "#8A8A8A", "#EFEFEF", "#222222"
SAND = "#FBE5B6"
STYLE: dict[str, Any] = {
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "font.size": 9.5,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "text.color": INK,
}
styled = rc_context(STYLE)  # ``@styled`` above a function that draws


def figure(width: float, height: float, columns: int = 1) -> tuple[Figure, Any]:
    """A figure, in inches, and its axes: one, or an array of ``columns``."""
    fig = Figure(figsize=(width, height))
    return fig, fig.subplots(1, columns)


def bare(ax: Axes) -> None:
    """Neither ticks nor a line on the left: for bars that have their numbers beside them."""
    ax.tick_params(length=0)
    ax.spines["left"].set_visible(False)
