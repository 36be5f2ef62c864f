"""Which machine sent how much to which. Drawn without pyplot, see ``style``."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from tutorial_lib.tools.finale.style import BLUE, GREY, INK

DARK_SHARE = 0.55  # of the largest entry; on darker fields the figures are white


def traffic_figure(traffic: Mapping[str, Mapping[str, int]]) -> Figure:
    """A matrix of bytes: rows send, columns receive, with the sums beside it.

    Args:
        traffic: receiver -> sender -> bytes, as in ``result.json``; a machine sends itself nothing over the wire.

    Raises:
        ValueError: fewer than two machines.
    """
    names = sorted(set(traffic) | {sender for row in traffic.values() for sender in row})
    if len(names) < 2:
        raise ValueError("traffic between machines needs two of them")
    counts = np.array([[traffic.get(to, {}).get(sender, 0) for to in names] for sender in names], dtype=float)
    unit, factor = ("GB", 1e9) if counts.max() >= 1e9 else ("MB", 1e6) if counts.max() >= 1e6 else ("kB", 1e3)
    side = max(2.6, 0.95 * len(names))
    fig = Figure(figsize=(side + 2.6, side + 1.1), layout="constrained")
    ax = fig.subplots()
    shades = LinearSegmentedColormap.from_list("traffic", ["white", BLUE])
    ax.imshow(counts, cmap=shades, vmin=0, vmax=max(counts.max(), 1))
    for i, row in enumerate(counts):
        for k, count in enumerate(row):
            text, color = ("-", GREY) if i == k else (f"{count / factor:.3g}", INK)
            dark = count > DARK_SHARE * counts.max()
            ax.text(k, i, text, ha="center", va="center", color="white" if dark else color, fontsize=11)
    received = [f"{name}\nin: {total:.3g} {unit}" for name, total in zip(names, counts.sum(0) / factor, strict=True)]
    sent = [f"{name}\nout: {total:.3g} {unit}" for name, total in zip(names, counts.sum(1) / factor, strict=True)]
    ax.set_xticks(range(len(names)), received, fontsize=9.5)
    ax.set_yticks(range(len(names)), sent, fontsize=9.5)
    ax.set_xlabel("receives")
    ax.set_ylabel("sends")
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.set_title(f"{unit} between machines", fontsize=10.5, color=INK)
    ax.tick_params(length=0)
    ax.spines[:].set_color(GREY)
    return fig
