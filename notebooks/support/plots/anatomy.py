"""The picture of lesson 9, the processes of a running cluster."""

from collections.abc import Collection, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from support.plots.colors import BLUE, GREEN, ORANGE, SAND, SKY
from support.plots.shapes import Point, arrow, box, frame
from support.plots.style import drawing, legend_below

MACHINE, GAP = 3.4, 1.4  # width of a machine, and distance between two machines
WIDTH, HEIGHT = 2.0, 0.8  # size of a process
LEVELS = {"trainer": 3.2, "server": 0.6}
LOOKS = {"trainer": (SKY, BLUE), "server": (SAND, ORANGE)}
TO_SERVER, TO_CLIENT, BETWEEN_TRAINERS = BLUE, ORANGE, GREEN


def cluster(roles: Mapping[tuple[str, int], str], calls: Collection[tuple[str, str]]) -> Figure:
    """Draw machines with one server and one trainer each, and an arrow for each connection.

    Args:
        roles: (machine, process number) -> "server 0" or "trainer 1".
        calls: (client, server), once for each connection.
    """
    machines = sorted({machine for machine, _pid in roles})
    fig, ax = drawing(8.5, 4.2, len(machines) * (MACHINE + GAP) - GAP + 0.1, 4.75, -0.1)
    places: dict[str, Point] = {}
    for k, machine in enumerate(machines):
        left = k * (MACHINE + GAP)
        frame(ax, left, 0.2, MACHINE, 4.4, machine)
        for (owner, pid), role in sorted(roles.items()):
            if owner == machine:
                kind = role.split()[0]
                x = left + (MACHINE - WIDTH) / 2
                y = LEVELS[kind]
                box(ax, x, y, WIDTH, HEIGHT, f"{role}\nprocess {pid}", *LOOKS[kind])
                places[role] = (x, y)
    for caller, called in sorted(set(calls)):
        if caller != called:
            _arrow(ax, caller, called, places)
    named = ("client calls server", TO_SERVER), ("server calls back", TO_CLIENT), ("between trainers", BETWEEN_TRAINERS)
    legend_below(ax, 0.02, 3, handles=[Line2D([], [], color=color, label=name) for name, color in named])
    return fig


def _arrow(ax: Axes, caller: str, called: str, places: Mapping[str, Point]) -> None:
    """Draw an arrow next to the opposite one."""
    (x1, y1), (x2, y2) = places[caller], places[called]
    if y1 == y2:  # horizontal
        aside = 0.55 if x1 < x2 else 0.25
        start, end = (x1 + WIDTH * (x1 < x2), y1 + aside), (x2 + WIDTH * (x2 < x1), y2 + aside)
        arrow(ax, start, end, color=BETWEEN_TRAINERS, shrinkA=0, shrinkB=0)
        return
    up = y2 > y1
    lean = 0.5 * (x2 > x1) - 0.5 * (x2 < x1)  # toward the other machine
    aside = 0.12 if up else -0.12
    start = (x1 + WIDTH / 2 + lean + aside, y1 + HEIGHT * up)
    end = (x2 + WIDTH / 2 - lean + aside, y2 + HEIGHT * (not up))
    arrow(ax, start, end, color=TO_CLIENT if up else TO_SERVER, shrinkA=0, shrinkB=0)
