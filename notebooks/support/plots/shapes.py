"""Elements of the drawings: boxes, cells, frames, arrows and texts, and further colors."""

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import FancyBboxPatch, Rectangle

from support.plots.colors import GRAY, INK

VERMILION, PURPLE, MINT, PALE = "#D55E00", "#CC79A7", "#CFEBDF", "#D0D0D0"
Point = tuple[float, float]


def write(ax: Axes, x: float, y: float, text: str, **style: Any) -> None:
    """Write a text centered at a point."""
    ax.text(x, y, text, **{"ha": "center", "va": "center", **style})


def box(
    ax: Axes, x: float, y: float, width: float, height: float, text: str, fill: str, edge: str = INK, **style: Any
) -> None:
    """Draw a box with round corners and centered text. ``style`` applies to the text."""
    shape = "round,pad=0,rounding_size=0.12"
    ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=shape, facecolor=fill, edgecolor=edge))
    write(ax, x + width / 2, y + height / 2, text, **style)


def cell(
    ax: Axes, x: float, y: float, width: float, height: float, text: str, fill: str, edge: str, **style: Any
) -> None:
    """Draw a box with square corners and centered text. ``style`` applies to the text, except for ``patch``."""
    ax.add_patch(Rectangle((x, y), width, height, facecolor=fill, edgecolor=edge, **style.pop("patch", {})))
    write(ax, x + width / 2, y + height / 2, text, **style)


def frame(ax: Axes, x: float, y: float, width: float, height: float, text: str) -> None:
    """Draw a dashed frame with its name at the top, for a process or a machine."""
    patch = FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.15")
    patch.set(facecolor="none", edgecolor=GRAY, linestyle="--", linewidth=1.2)
    ax.add_patch(patch)
    write(ax, x + width / 2, y + height - 0.26, text)


def arrow(ax: Axes, start: Point, end: Point, heads: str = "->", **style: Any) -> None:
    """Draw an arrow. ``heads`` has the format of ``annotate``, such as "<->" for a request and its response."""
    ax.annotate("", end, start, arrowprops={"arrowstyle": heads, "color": INK, "lw": 1.2, **style})


def lines(ax: Axes, points: Sequence[Any], pairs: Iterable[tuple[int, int]], **style: Any) -> None:
    """Draw a line for each pair of nodes. ``points`` are the positions of the nodes."""
    segments = [(tuple(points[a]), tuple(points[b])) for a, b in pairs]
    ax.add_collection(LineCollection(segments, **{"zorder": 1, **style}))
