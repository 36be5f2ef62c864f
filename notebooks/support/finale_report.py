"""The report of a finale, one page without other files: ``python -m support.finale_report FOLDER``.

The folder is that of ``finale`` (result.json) or of ``my_finale.py`` in lesson 12 (finale.json).
"""

import argparse
import base64
import io
import json
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
STARTS = {"checks": "checks", "servers": "servers load parts", "trainers": "trainers start", "split": "epochs"}
STARTS |= {"evaluating": "exact evaluation", "leaving": "results"}  # event that begins a phase -> name of the phase
LABELED_SHARE = 0.07  # share of the longest bar. Narrower parts have no room for their seconds


def write_report(folder: Path) -> Path:
    """Write ``report.html`` into the folder of a finale and return its path.

    Raises:
        InputError: the folder has no finished training.
    """
    if (folder / "finale.json").exists():
        result = read_json(folder / "finale.json", dict[str, Any])
        options, timeline = None, result["timeline"]
        plan = read_json(folder / "plan.json", dict[str, Any]) if (folder / "plan.json").exists() else None
    elif all((folder / name).exists() for name in ("result.json", "options.json")):
        result = read_json(folder / "result.json", dict[str, Any])
        options = read_json(folder / "options.json", dict[str, Any])
        plan = None
        timeline = read_timeline([json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()])
    else:
        remedy = f"Finish the training first: python -m tutorial_lib finale --resume --out {folder}"
        raise InputError(f"{folder} is not the folder of a finale with a finished training", remedy)
    theirs = published_accuracies(result)
    test_accuracy = theirs["test accuracy"][0] if theirs else None
    figures = {"learning": learning_figure(result["epochs"], result["test_accuracy"], test_accuracy, bool(options))}
    figures["timeline"] = timeline_figure(timeline)
    if result.get("phases"):
        figures["phases"] = phases_figure(result["phases"])
    templates = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=templates, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    page = environment.get_template("finale_report.html.j2").render(
        result=result,
        options=options,
        plan=plan,
        errors=[phase["error"] for phase in timeline if "error" in phase],
        timeline=timeline,
        nodes=sum(result["partition"]["nodes"]),
        accuracies={"validation accuracy": result["val_accuracy"], "test accuracy": result["test_accuracy"]},
        published={name.replace("valid ", "validation "): numbers for name, numbers in theirs.items()},
        figures={name: encode_picture(drawn) for name, drawn in figures.items()},
        size=decimal,
        folder=folder.name,
    )
    (folder / "report.html").write_text(page)
    return folder / "report.html"


def read_timeline(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return name, start, end and sent bytes of each phase of the last start, from the events of a run."""
    first = max((k for k, event in enumerate(events) if event.get("stage") == "checks"), default=0)
    starts: dict[str, float] = {}
    for event in events[first:]:
        if name := STARTS.get(event.get("stage", event["kind"])):
            starts.setdefault(name, event["time"])
    ends = [*list(starts.values())[1:], max(event["time"] for event in events[first:])]

    def sent(until: float) -> int:
        reports = [event for event in events[first:] if event["kind"] == "traffic" and event["time"] <= until]
        return sum({event["machine"]: event["bytes_sent"] for event in reports}.values())

    spans = zip(starts.items(), ends, strict=True)
    return [{"name": n, "start": start, "end": end, "bytes": sent(end) - sent(start)} for (n, start), end in spans]


def encode_picture(drawn: Figure) -> str:
    """Return a figure as a PNG in base64."""
    drawn.savefig(page := io.BytesIO(), format="png", dpi=110)
    return base64.b64encode(page.getvalue()).decode()


def learning_figure(epochs: Sequence[Mapping[str, Any]], test: float, published: float | None, sampled: bool) -> Figure:
    """Draw the loss and the validation accuracy of each epoch, and the exact test accuracy as one marker.

    Args:
        epochs: as in ``result.json``.
        test: exact test accuracy of the weights that the run returns.
        published: the published test accuracy, or None for another graph.
        sampled: whether the validation accuracies of the epochs use sampled neighbors.
    """
    fig, (left, right) = figure(10.5, 3.4, 1, 2)
    numbers = [epoch["epoch"] + 1 for epoch in epochs]
    left.plot(numbers, [epoch["loss"] for epoch in epochs], "-o", ms=3.5, color=BLUE)
    left.set(xlabel="epoch", ylabel="loss on training nodes", ylim=(0, None))
    scored = [epoch for epoch in epochs if epoch.get("val_accuracy") is not None]
    accuracies = [epoch["val_accuracy"] for epoch in scored]
    label = f"validation, {'sampled' if sampled else 'all'} neighbors"
    right.plot([epoch["epoch"] + 1 for epoch in scored], accuracies, "-o", ms=3.5, color=GREEN, label=label)
    at = numbers[-1] if sampled else 1 + max(scored, key=lambda epoch: epoch["val_accuracy"])["epoch"]
    right.plot([at], [test], "D", color=ORANGE, label=f"test, all neighbors: {test:.4f}")
    if published is not None:
        right.axhline(published, color=INK, lw=1, ls="--", label=f"published test, ogbn-products: {published:.4f}")
    right.set(xlabel="epoch", ylabel="accuracy", ylim=(0, 1))
    right.legend(loc="lower right")
    for ax in (left, right):
        ax.xaxis.get_major_locator().set_params(integer=True)
    return fig


def timeline_figure(timeline: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw each phase as a bar from its start to its end. The first phase begins at 0 s."""
    fig, ax = figure(10.5, 0.8 + 0.33 * len(timeline))
    begin = timeline[0]["start"]
    for row, phase in enumerate(timeline):
        seconds = phase["end"] - phase["start"]
        color = ORANGE if "error" in phase else SKY
        ax.barh(row, seconds, left=phase["start"] - begin, color=color, edgecolor=GRAY)
        failed = ", failed" if "error" in phase else ""
        sent = f", {decimal(phase['bytes'])}" if phase.get("bytes") else ""
        ax.text(phase["end"] - begin, row, f" {seconds:.1f} s{sent}{failed}", va="center")
    ax.set_yticks(range(len(timeline)), [phase["name"] for phase in timeline])
    ax.invert_yaxis()
    ax.set(xlabel="seconds since the start", xlim=(0, 1.25 * (timeline[-1]["end"] - begin)))
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
