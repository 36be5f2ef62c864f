"""Pictures of lesson 12: the steps of the finale, and the same training on 1, 2 and 4 machines."""

from matplotlib.figure import Figure

from support.plots.colors import BLUE, GRAY, LIGHT, SKY
from support.plots.shapes import arrow, box, frame, write
from support.plots.style import drawing

# name, task, output
STEPS = (
    ("data", "load and check", ""),
    ("partition", "one part\nfor each machine", "part0/ part1/\nnode_map.npy"),
    ("machines", "check each machine\nbefore the job", ""),
    ("training", "", "checkpoint/\nresult.json\npredictions.npy"),
    ("predictions", "compute accuracies\nfrom the file", ""),
    ("report", "one page\nwith pictures", "report.html"),
)
WIDTH, GAP, HEIGHT = 2.15, 0.35, 2.1


def steps_figure() -> Figure:
    """Draw the steps from left to right, and the output files of each step."""
    end = len(STEPS) * (WIDTH + GAP) - GAP
    fig, ax = drawing(11.5, 3.3, end + 0.15, 4.15, -0.15, -0.15)
    for k, (name, task, files) in enumerate(STEPS):
        x = k * (WIDTH + GAP)
        if name == "training":
            frame(ax, x, 1.3, WIDTH, HEIGHT, f"{k + 1}  {name}")
            for row, part in enumerate(("copy and launch", "epochs", "evaluation")):
                box(ax, x + 0.25, 2.48 - 0.5 * row, WIDTH - 0.5, 0.4, part, SKY, BLUE)
        else:
            box(ax, x, 1.3, WIDTH, HEIGHT, f"{k + 1}  {name}\n\n{task}", LIGHT, GRAY)
        if files:
            write(ax, x + WIDTH / 2, 0.85, files, va="top", fontsize=9, family="monospace")
            arrow(ax, (x + WIDTH / 2, 1.28), (x + WIDTH / 2, 0.9), color=GRAY)
        if k + 1 < len(STEPS):
            arrow(ax, (x + WIDTH, 2.35), (x + WIDTH + GAP, 2.35), lw=1.4)
    arrow(ax, (0, 3.65), (end, 3.65), "|-|", color=GRAY, mutation_scale=4)
    words = "result.json: scores, seconds, bytes and memory. --resume continues an interrupted training."
    write(ax, end / 2, 3.75, words, va="bottom")
    return fig
