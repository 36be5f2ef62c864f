"""The report of a finale, one page without other files: ``python -m support.finale_report FOLDER``."""

import argparse
import base64
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure
from rich.filesize import decimal

from support.plots.colors import BLUE, GRAY, GREEN, INK, ORANGE, SAND, SKY
from support.plots.style import bare, figure, legend_above, stack
from tutorial_lib.errors import InputError
from tutorial_lib.files import read_json
from tutorial_lib.tools.jobs import published_accuracies
from tutorial_lib.trainer.events import PHASES

COLORS = dict(zip(PHASES, (ORANGE, SAND, BLUE, SKY, GREEN), strict=True))
LABELED_SHARE = 0.07  # share of the longest bar. Narrower parts have no room for their seconds


def write_report(folder: Path) -> Path:
    """Write ``report.html`` into the folder of a finale and return its path.

    Raises:
        InputError: the folder has no finished training.
    """
    if not all((folder / name).exists() for name in ("result.json", "options.json")):
        remedy = f"Finish the training first: python -m tutorial_lib finale --resume --out {folder}"
        raise InputError(f"{folder} is not the folder of a finale with a finished training", remedy)
    result = read_json(folder / "result.json", dict[str, Any])
    options = read_json(folder / "options.json", dict[str, Any])
    theirs = published_accuracies(result)
    test_accuracy = theirs["test accuracy"][0] if theirs else None
    figures = {"learning": learning_figure(result["epochs"], result["test_accuracy"], test_accuracy)}
    if result["phases"]:
        figures["phases"] = phases_figure(result["phases"])
    templates = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=templates, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    page = environment.get_template("finale_report.html.j2").render(
        result=result,
        options=options,
        nodes=sum(result["partition"]["nodes"]),
        accuracies={"valid accuracy": result["val_accuracy"], "test accuracy": result["test_accuracy"]},
        published=theirs,
        figures={name: encode_picture(drawn) for name, drawn in figures.items()},
        size=decimal,
        folder=folder.name,
    )
    (folder / "report.html").write_text(page)
    return folder / "report.html"


def encode_picture(drawn: Figure) -> str:
    """Return a figure as a PNG in base64."""
    drawn.savefig(page := io.BytesIO(), format="png", dpi=110)
    return base64.b64encode(page.getvalue()).decode()


def learning_figure(epochs: Sequence[Mapping[str, Any]], test_accuracy: float, published: float | None) -> Figure:
    """Draw loss and validation accuracy of each epoch, and lines for the exact and the published test accuracy.

    Args:
        epochs: as in ``result.json``.
        published: the published test accuracy, or None for another graph.
    """
    fig, (left, right) = figure(10.5, 3.4, 1, 2)
    numbers = [epoch["epoch"] + 1 for epoch in epochs]
    left.plot(numbers, [epoch["loss"] for epoch in epochs], "-o", ms=3.5, color=BLUE)
    left.set(xlabel="epoch", ylabel="loss on training nodes", ylim=(0, None))
    accuracies = [epoch["val_accuracy"] for epoch in epochs]
    right.plot(numbers, accuracies, "-o", ms=3.5, color=GREEN, label="validation, sampled neighbors")
    right.axhline(test_accuracy, color=ORANGE, lw=1.6, label=f"test at the end, all neighbors: {test_accuracy:.4f}")
    if published is not None:
        right.axhline(published, color=INK, lw=1, ls="--", label=f"published test, ogbn-products: {published:.4f}")
    right.set(xlabel="epoch", ylabel="accuracy", ylim=(0, 1))
    right.legend(loc="lower right")
    for ax in (left, right):
        ax.xaxis.get_major_locator().set_params(integer=True)
    return fig


def phases_figure(ranks: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the seconds per epoch in each phase of a step as one stacked bar for each rank.

    Args:
        ranks: ``phases`` of ``result.json``; at least one.
    """
    fig, ax = figure(10.5, 1.6 + 0.55 * len(ranks))
    seconds = {phase: [rank["seconds"][phase] for rank in ranks] for phase in PHASES}
    looks = {phase: {"color": COLORS[phase], "ec": GRAY, "lw": 0.6, "label": phase} for phase in PHASES}
    longest = max(stack(ax, [f"rank {rank['rank']}" for rank in ranks], [(seconds[p], looks[p]) for p in PHASES]))
    for phase, drawn in zip(PHASES, ax.containers, strict=True):
        labels = [f"{width:.2f}" if width > LABELED_SHARE * longest else "" for width in seconds[phase]]
        color = "white" if phase in ("forward", "update") else INK
        ax.bar_label(drawn, labels, label_type="center", color=color)
    ax.invert_yaxis()
    ax.set(xlabel="seconds per epoch", xlim=(0, longest * 1.02))
    bare(ax)
    legend_above(ax, len(PHASES))
    return fig


def main() -> None:
    """Write the report of the folder in the command line."""
    parser = argparse.ArgumentParser(prog="python -m support.finale_report", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of a finale, its --out")
    try:
        print(f"report:     {write_report(parser.parse_args().folder)}")
    except InputError as error:
        print(f"error: {error.message}\n{error.remedy}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
