"""Pictures of lesson 12: the steps of the finale, and the same training on 1, 2 and 4 machines."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from support.plots.colors import BLUE, GRAY, LIGHT, ORANGE, SKY
from support.plots.shapes import arrow, box, frame, write
from support.plots.style import LOOKS, drawing, figure

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


def scaling_figure(runs: Mapping[int, Sequence[Mapping[str, Any]]], cpus: int) -> Figure:
    """Draw the validation accuracy and the seconds of the epochs on several numbers of machines.

    Args:
        runs: number of machines -> epochs with ``epoch``, ``val_accuracy`` and ``seconds``.
        cpus: CPUs that all machines share.
    """
    fig, (left, right) = figure(9.5, 3.3, 1, 2)
    for (count, epochs), (color, marker, dashes) in zip(sorted(runs.items()), LOOKS, strict=False):
        numbers = [epoch["epoch"] + 1 for epoch in epochs]
        name = f"{count} machine{'s' if count > 1 else ''}"
        left.plot(numbers, [e["val_accuracy"] for e in epochs], dashes, color=color, marker=marker, ms=4, label=name)
    left.set(xlabel="epochs", ylabel="validation accuracy", ylim=(0, 1))
    left.legend(loc="lower right")
    counts = sorted(runs)
    later = {count: sorted(e["seconds"] for e in runs[count][1:]) for count in runs}
    for count in counts:
        right.plot([count] * len(later[count]), later[count], "o", color=ORANGE, ms=4)
    right.plot(counts, [median(later[count]) for count in counts], "-s", color=BLUE, label="median")
    right.plot([], [], "o", color=ORANGE, ms=4, label="one epoch, without the first")
    right.set(xlabel=f"machines, all on the same {cpus} CPUs", ylabel="seconds per epoch", xticks=counts)
    right.set_ylim(0, 1.25 * max(max(seconds) for seconds in later.values()))
    right.legend(loc="upper left")
    return fig
