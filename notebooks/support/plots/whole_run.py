"""Pictures of lesson 12: the steps of the finale, what crossed the wire, original ids, the published accuracies."""

from __future__ import annotations

from matplotlib.figure import Figure

from support.plots.pieces import arrow, box, frame, write
from support.plots.style import drawing
from tutorial_lib.tools.finale.style import BLUE, GREY, LIGHT, SAND, SKY

# name, what it does, what it leaves
STEPS = (
    ("machines", "does each have\nwhat a job needs?", ""),
    ("data", "load and check", "splits.npz"),
    ("partition", "one part\nfor each machine", "part0/ part1/\nnode_map.npy"),
    ("training", "", "run/\nresult.json\npredictions.npy"),
    ("predictions", "the accuracies again,\nfrom the file alone", ""),
    ("report", "one page,\nwith pictures", "report.html"),
)
WIDTH, GAP, HEIGHT = 2.15, 0.35, 2.1


def steps_figure() -> Figure:
    """The steps from left to right, and the files that each leaves for the next."""
    end = len(STEPS) * (WIDTH + GAP) - GAP
    fig, ax = drawing(11.5, 3.3, end + 0.15, 4.15, -0.15, -0.15)
    for k, (name, does, leaves) in enumerate(STEPS):
        x = k * (WIDTH + GAP)
        if name == "training":
            frame(ax, x, 1.3, WIDTH, HEIGHT, f"{k + 1}  {name}")
            for row, part in enumerate(("launch", "epochs", "evaluation")):
                box(ax, x + 0.25, 2.48 - 0.5 * row, WIDTH - 0.5, 0.4, part, SKY, BLUE)
        else:
            box(ax, x, 1.3, WIDTH, HEIGHT, f"{k + 1}  {name}\n\n{does}", SAND if k < 3 else LIGHT, GREY)
        if leaves:
            write(ax, x + WIDTH / 2, 0.85, leaves, va="top", fontsize=9, family="monospace")
            arrow(ax, (x + WIDTH / 2, 1.28), (x + WIDTH / 2, 0.9), color=GREY)
        if k + 1 < len(STEPS):
            arrow(ax, (x + WIDTH, 2.35), (x + WIDTH + GAP, 2.35), lw=1.4)
    arrow(ax, (0, 3.65), (end, 3.65), "|-|", color=GREY, mutation_scale=4)
    words = "finale.json: settings, and what each finished step has found. The same command goes on with the next one."
    write(ax, end / 2, 3.75, words, va="bottom")
    return fig
