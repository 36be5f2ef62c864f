"""The style of all pictures, and functions that create figures, bars and curves. This module does not import DGL.

The figures do not use pyplot, so none is shown twice or stays open. A notebook calls ``%matplotlib inline`` once. The
colors are those of Okabe and Ito (2008), which color-blind readers can tell apart. Each color has a word or a shape
with the same meaning.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from torch import Tensor

from support.plots.colors import BLUE, GRAY, GREEN, INK, ORANGE, SKY
from support.plots.shapes import PURPLE, VERMILION

# Color, marker and dashes of several lines or groups of points.
LOOKS = ((BLUE, "o", "-"), (ORANGE, "s", "--"), (GREEN, "^", ":"), (VERMILION, "D", "-."))

matplotlib.rcParams.update(
    {
        "figure.constrained_layout.use": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 11.5,
        "font.size": 9.5,
        "legend.frameon": False,
        "legend.fontsize": 9.5,
        "text.color": INK,
    }
)


def figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """Return a figure, with sizes in inches, and its axes. The options are those of ``pyplot.subplots``."""
    fig = Figure(figsize=(width, height))
    return fig, fig.subplots(rows, columns, **options)


def drawing(width: float, height: float, right: float, top: float, left: float = 0, bottom: float = 0) -> Any:
    """Return a figure for boxes and arrows, and its invisible axes with limits (left, bottom) and (right, top)."""
    fig, ax = figure(width, height)
    canvas(ax, right, top, left, bottom)
    return fig, ax


def canvas(ax: Axes, right: float, top: float, left: float = 0, bottom: float = 0, title: str = "") -> None:
    """Set limits and title of the axes of a drawing, and hide their lines."""
    ax.set(xlim=(left, right), ylim=(bottom, top), title=title)
    ax.axis("off")


def bare(*axes: Axes) -> None:
    """Hide axis lines and tick marks, but not tick labels."""
    for ax in axes:
        ax.spines[:].set_visible(False)
        ax.tick_params(which="both", length=0)


def cells(ax: Axes, columns: int, rows: int, width: float = 0.6) -> None:
    """Draw lines between the cells of an image, without ticks."""
    ax.set_xticks([k - 0.5 for k in range(columns + 1)], minor=True)
    ax.set_yticks([k - 0.5 for k in range(rows + 1)], minor=True)
    ax.grid(which="minor", color=GRAY, lw=width)
    ax.spines[:].set_visible(True)
    ax.tick_params(which="both", length=0)


def named_rows(ax: Axes, name: str, count: int, at: float = 0, by: int = 1) -> None:
    """Label the rows of a picture "rank 0", "rank 1" and so on. The first label has the height ``at``."""
    ax.set_yticks([at + by * k for k in range(count)], [f"{name} {k}" for k in range(count)])


def percent(axis: Axis) -> None:
    """Show the numbers of an axis as percentages."""
    axis.set_major_formatter(lambda value, _at: f"{value:.0%}")


def legend_below(ax: Axes, down: float = -0.2, columns: int = 4, **options: Any) -> None:
    """Add a centered legend below the axes."""
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, down), ncol=columns, **options)


def legend_above(ax: Axes, columns: int, **options: Any) -> None:
    """Add a centered legend above the axes."""
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=columns, **options)


def bars(
    ax: Axes,
    values: Mapping[str, float],
    labels: Iterable[str] | str,
    color: Any = SKY,
    height: float = 0.6,
    **style: Any,
) -> Any:
    """Draw horizontal bars from top to bottom, with a text at the end of each.

    Args:
        labels: the texts, or a format of numbers such as ``".0%"``.
    """
    if isinstance(labels, str):
        labels = [f" {value:{labels}}" for value in values.values()]
    drawn = ax.barh(list(values), list(values.values()), height, color=color, **style)
    ax.bar_label(drawn, list(labels))
    ax.invert_yaxis()
    ax.tick_params(axis="y", length=0)
    return drawn


def stack(ax: Axes, names: Sequence[str], parts: Iterable[tuple[Sequence[float], dict[str, Any]]]) -> list[float]:
    """Draw stacked horizontal bars. Each part has a name, one width per bar, and a style.

    Returns:
        The end of each bar.
    """
    ends = [0.0] * len(names)
    for widths, look in parts:
        ax.barh(names, widths, 0.6, ends, **look)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    ax.tick_params(axis="y", length=0)
    return ends


def curves(ax: Axes, runs: Mapping[str, Sequence[float]], looks: Iterable[Sequence[Any]] = LOOKS, **style: Any) -> None:
    """Draw a line for each run against 1, 2, and so on. Looks are (color, marker, dashes)."""
    for (name, values), (color, marker, dashes) in zip(runs.items(), looks, strict=False):
        ax.plot(range(1, len(values) + 1), values, dashes, color=color, marker=marker, label=name, **style)


def plane(ax: Axes, table: Tensor, labels: Tensor, classes: Sequence[int], **style: Any) -> None:
    """Draw rows of up to five classes, shape (N, width), in the plane of their first two principal components."""
    chosen = torch.isin(labels, torch.tensor(list(classes)))
    rows = table[chosen] - table[chosen].mean(0)
    points = rows @ torch.linalg.svd(rows, full_matrices=False).Vh[:2].T
    looks = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"), (GRAY, "v"))
    for kind, (color, marker) in zip(classes, looks, strict=False):
        x, y = points[labels[chosen] == kind].T
        ax.scatter(x, y, color=color, marker=marker, linewidths=0, label=f"class {kind}", **style)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(True)
