"""Pictures of lesson 14: accuracies of several seeds, one training step of an embedding, embeddings in a plane."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from torch import Tensor

from support.plots.colors import BLUE, LIGHT, ORANGE, SAND, SKY
from support.plots.link_prediction import dots
from support.plots.shapes import arrow, box, write
from support.plots.style import drawing, figure, plane

__all__ = ["dots", "one_step", "planes"]


def one_step() -> Figure:
    """Draw a training step in which two trainers use the same row of an embedding."""
    fig, ax = drawing(10.5, 3.6, 12, 4.8, 0, 0.6)
    for k, y in enumerate((3.3, 0.9)):
        box(ax, 0.1, y, 3.0, 1.2, f"trainer {k}, on machine {k}\nhas a gradient of row 0: {[2, 6][k]}", LIGHT)
    box(ax, 4.7, 2.1, 2.6, 1.2, "trainer 0, on the\nmachine of row 0:\nmean (2 + 6) / 2 = 4", SAND, ORANGE)
    box(ax, 8.9, 2.1, 3.0, 1.2, "row 0 and its state in\nmemory of machine 0:\none update, step + 1", SKY, BLUE)
    arrow(ax, (3.1, 3.8), (4.7, 3.0))
    arrow(ax, (3.1, 1.6), (4.7, 2.4), linestyle="--")
    arrow(ax, (7.3, 2.7), (8.9, 2.7))
    ax.text(4.0, 3.75, "in memory")
    ax.text(4.0, 1.55, "over the network,\ntrainer to trainer", va="top")
    write(ax, 8.1, 2.85, "SparseAdam", va="bottom")
    return fig


def planes(tables: Mapping[str, Tensor], labels: Tensor, classes: Sequence[int]) -> Figure:
    """Draw the embeddings of some classes in the plane of their first two principal components.

    Args:
        tables: title -> float32 array of shape (N, width).
        labels: int64 array of shape (N,).
    """
    fig, axes = figure(10.5, 4.4, 1, len(tables), squeeze=False)
    for ax, (title, table) in zip(axes[0], tables.items(), strict=True):
        plane(ax, table, labels, classes, s=7, alpha=0.55)
        ax.set_title(title)
    fig.legend(*axes[0, -1].get_legend_handles_labels(), loc="outside lower center", ncol=len(classes), markerscale=2.5)
    return fig
