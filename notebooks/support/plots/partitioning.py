"""The pictures of lesson 4: owners of nodes, costs of a cut, and the content of a part."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from support.plots.colors import BLUE, GREEN, INK, ORANGE
from support.plots.shapes import PALE, VERMILION, lines, write
from support.plots.style import drawing, figure, legend_below

COLORS = (BLUE, ORANGE, GREEN)
MARKERS = ("o", "s", "^")


def positions(groups: Sequence[int]) -> list[tuple[float, float]]:
    """Return positions for the nodes of a small graph, one disc for each group, with the discs on a circle."""
    count = max(groups) + 1
    members = [[node for node, group in enumerate(groups) if group == k] for k in range(count)]
    places = [(0.0, 0.0)] * len(groups)
    for k, nodes in enumerate(members):
        angle = math.pi / 2 + 2 * math.pi * k / count
        for i, node in enumerate(nodes):  # a spiral of even density
            radius = math.sqrt((i + 0.5) / len(nodes))
            turn = i * 2.39996  # the golden angle
            places[node] = (
                1.55 * math.cos(angle) + radius * math.cos(turn),
                1.25 * math.sin(angle) + 0.82 * radius * math.sin(turn),
            )
    return places


def _nodes(ax: Axes, places: Sequence[Any], nodes: Sequence[int], part: int, **style: Any) -> None:
    xs, ys = [places[n][0] for n in nodes], [places[n][1] for n in nodes]
    ax.scatter(xs, ys, marker=MARKERS[part], zorder=2, **{"s": 42, "color": COLORS[part], **style})


def colored_parts(graph: Any, groups: Sequence[int], part_of: Mapping[str, Any]) -> Figure:
    """Draw a small graph once for each partition. Color and shape show the part, and cut edges are dashed.

    Args:
        graph: undirected, with both directions of each edge.
        groups: community of each node, which determines the positions only.
        part_of: title -> part of each node, int64 tensor of shape (N,), at most 3 parts.
    """
    fig, axes = figure(10.5, 5.2, 1, len(part_of))
    places = positions(groups)
    pairs = [(a, b) for a, b in zip(*(ends.tolist() for ends in graph.edges()), strict=True) if a < b]
    for ax, (title, parts) in zip(axes, part_of.items(), strict=True):
        owner = parts.tolist()
        cut = [(a, b) for a, b in pairs if owner[a] != owner[b]]
        lines(ax, places, [pair for pair in pairs if pair not in cut], color=PALE, lw=1.1)
        lines(ax, places, cut, color=VERMILION, lw=1.1, ls="--")
        for part in sorted(set(owner)):
            _nodes(ax, places, [n for n, p in enumerate(owner) if p == part], part, label=f"part {part}")
        ax.plot([], [], color=VERMILION, lw=1.3, ls="--", label="cut")
        ax.set_title(f"{title}: {len(cut)} of {len(pairs)} pairs of neighbors cut")
        legend_below(ax, 0.02, 4)
        ax.set(aspect="equal")
        ax.axis("off")
    return fig


def epoch_seconds(measured: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw the seconds of an epoch as bars, for each bandwidth and partition.

    Args:
        measured: bandwidth -> partition -> seconds.
    """
    fig, ax = figure(6.5, 2.6)
    bars = [(f"{name}, {speed}", value) for speed, values in measured.items() for name, value in values.items()]
    colors = [COLORS[number % 2] for number in range(len(bars))]
    ax.barh([name for name, _ in bars], [value for _, value in bars], color=colors)
    ax.invert_yaxis()
    ax.set_xlabel("seconds per epoch")
    return fig


def renumbering(node_map: Any, ranges: Sequence[Sequence[int]]) -> Figure:
    """Draw old IDs above new IDs, with a line from each node to itself.

    Args:
        node_map: original ID of each new ID, int64 tensor of shape (N,), where N is a few dozen.
        ranges: first and end new ID of each part, at most 3 parts.
    """
    fig, ax = drawing(10.5, 2.9, len(node_map), 1.5, -1, -0.65)
    for part, (first, end) in enumerate(ranges):
        for new in range(first, end):
            old = int(node_map[new])
            ax.plot([old, new], [1, 0], color=COLORS[part], lw=0.9, zorder=1)
            for x, y in ((old, 1.0), (new, -0.24)):
                ax.add_patch(Rectangle((x - 0.45, y), 0.9, 0.24, facecolor=COLORS[part], edgecolor="none"))
        low, high = first - 0.45, end - 0.55
        ax.plot([low, low, high, high], [-0.3, -0.36, -0.36, -0.3], color=INK, lw=1)
        text = f"part {part}: new IDs {first} to {end - 1}"
        write(ax, (low + high) / 2, -0.42, text, va="top")
    last = len(node_map) - 1
    ax.text(-0.45, 1.3, f"original IDs 0 to {last}, the parts mixed", ha="left", va="bottom")
    return fig


def one_part(graph: Any, groups: Sequence[int], stored: Any, original: Any, part: int) -> Figure:
    """Draw the content of one part: inner nodes, halo nodes, owned edges, and stored edges that it does not own.

    Args:
        graph: the whole small graph, drawn in pale gray in the background.
        stored: the graph of ``load_partition``, with ``inner_node``, ``inner_edge`` and ``part_id``.
        original: original ID of each node of ``stored``.
    """
    fig, ax = figure(9, 5.4)
    places = positions(groups)
    ids = original.tolist()
    owner = stored.ndata["part_id"].tolist()
    everything = list(zip(*(ends.tolist() for ends in graph.edges()), strict=True))
    lines(ax, places, everything, color="#E8E8E8", lw=0.8)
    elsewhere = [places[n] for n in range(graph.num_nodes()) if n not in ids]
    xs, ys = [x for x, _y in elsewhere], [y for _x, y in elsewhere]
    ax.scatter(xs, ys, s=14, color=PALE, zorder=1.5, label="not stored in this part")

    pairs = list(zip(*(ends.tolist() for ends in stored.edges()), stored.edata["inner_edge"].tolist(), strict=True))
    inside = [(ids[a], ids[b]) for a, b, inner in pairs if inner and owner[a] == part]
    lines(ax, places, inside, color=COLORS[part], lw=1.0)
    for a, b, inner in pairs:
        if owner[a] != owner[b]:  # edges from halo nodes are owned, and edges to halo nodes are not
            style = {"color": INK if inner else VERMILION, "lw": 1.2, "ls": "-" if inner else "--"}
            bend = "arc3,rad=0.18"
            arrow = {"arrowstyle": "-|>", "connectionstyle": bend, "shrinkA": 5, "shrinkB": 5, **style}
            ax.annotate("", xy=places[ids[b]], xytext=places[ids[a]], arrowprops=arrow, zorder=1.8)
    for k in sorted(set(owner)):
        nodes = [ids[n] for n, p in enumerate(owner) if p == k]
        inner = k == part
        face = COLORS[k] if inner else "white"
        label = f"inner node of part {k}" if inner else f"halo node, owned by part {k}"
        _nodes(ax, places, nodes, k, color=None, facecolors=face, edgecolors=COLORS[k], linewidths=1.8, label=label)
    ax.plot([], [], color=COLORS[part], lw=1.2, label="owned edge between inner nodes")
    ax.plot([], [], color=INK, lw=1.2, label="owned edge, from a halo node to an inner node")
    ax.plot([], [], color=VERMILION, lw=1.2, ls="--", label="stored but not owned, from inner to halo")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    ax.set(aspect="equal")
    ax.axis("off")
    return fig
