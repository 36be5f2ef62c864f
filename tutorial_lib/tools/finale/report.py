"""``report.html``: one page without other files, made from what the steps of a finale have left behind."""

from __future__ import annotations

import base64
import io
import json
import statistics
from pathlib import Path
from typing import Any

from tutorial_lib.errors import InputError
from tutorial_lib.job.display import PUBLISHED, human_bytes, is_published_graph
from tutorial_lib.tools.finale.settings import STATE

REPORT = "report.html"
TEMPLATE = Path(__file__).with_name("report.html.j2")
TITLES = {
    "machines": "machines checked",
    "data": "data set",
    "partition": "partition",
    "training": "training and evaluation",
    "predictions": "predictions checked",
}


def write_report(folder: Path) -> Path:
    """Write the report of a finale; returns its path.

    Raises:
        InputError: the training of this finale is not finished.
    """
    from jinja2 import Environment, StrictUndefined

    content = json.loads((folder / STATE).read_text())
    steps = content["steps"]
    if "training" not in steps:
        raise InputError(f"the finale in {folder} has not finished its training: nothing to report yet")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(TEMPLATE.read_text()).render(
        **facts_of(content, folder), figures={name: _as_png(figure) for name, figure in _figures(steps)}
    )
    path = folder / REPORT
    path.write_text(page)
    return path


def read_events(path: Path) -> list[dict[str, Any]]:
    """Events of a run; a line that a killed program has left half written is passed over."""
    events = []
    for line in path.read_text().splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    return events


def facts_of(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What the page says in words and tables; strings are ready to print."""
    steps, settings = content["steps"], content["settings"]
    result = steps["training"]["result"]
    same_name = result["dataset"] == "ogbn-products"
    real = is_published_graph(result["dataset"], steps["data"]["nodes"])
    return {
        "title": f"{result['dataset']} on {result['machines']} machine(s)",
        "dataset": result["dataset"],
        "real": real,
        "is_toy": same_name and not real,
        "counts": f"{steps['data']['nodes']:,} nodes, {steps['data']['edges']:,} directed edges",
        "accuracies": _accuracies(result),
        "machines": _machines(result, settings),
        "recipe": _recipe(result),
        "cut": f"{steps['partition']['report']['edge_cut_share']:.1%}",
        "checked": "predictions" in steps,
        "resumed": result["resumed_epochs"],
        "steps": [
            (TITLES.get(name, name.replace("scaling-", "scaling, machines: ")), f"{step['seconds']:.1f}", _memory(step))
            for name, step in steps.items()
        ],
        "shaped": settings["layout"]["wire"],
        "emulated": settings["layout"]["emulate"],
        "cores": steps["machines"]["cores_here"],
        "scaling": scaling_rows(steps),
        "versions": ", ".join(f"{name} {version}" for name, version in result["versions"].items()),
        "folder": folder.name,
    }


def _accuracies(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    ours = {"valid accuracy": result["val_accuracy"], "test accuracy": result["test_accuracy"]}
    return [
        (name, f"{ours[name]:.4f}", f"{mean:.4f} ± {deviation:.4f}") for name, (mean, deviation) in PUBLISHED.items()
    ]


def _machines(result: dict[str, Any], settings: dict[str, Any]) -> str:
    kind = (
        "real, over ssh" if settings["layout"]["real"] else "emulated" if settings["layout"]["emulate"] else "this one"
    )
    each = f"{result['servers_per_machine']} server(s), {result['trainers_per_machine']} trainer(s)"
    samplers = result["samplers_per_trainer"]
    return f"{result['machines']} ({kind}); on each {each}" + (
        f", {samplers} sampler(s) per trainer" if samplers else ""
    )


def _recipe(result: dict[str, Any]) -> str:
    config = result["config"]
    layers, fanouts = len(config["fanouts"]), ", ".join(map(str, config["fanouts"]))
    return (
        f"GraphSAGE {layers} x {config['hidden_size']}, fan-out {fanouts}, {len(result['epochs'])} epochs, "
        f"batch {config['batch_size']} per trainer, learning rate {config['learning_rate']}, seed {config['seed']}"
    )


def _memory(step: dict[str, Any]) -> str:
    """Of the script itself, and of the largest process of each kind on each machine, where there were some."""
    text = human_bytes(step["peak_memory"])
    if "result" in step:
        roles = step["result"]["peak_rss"].values()
        text += f"; largest of each kind on the machines, added up: {human_bytes(sum(sum(r.values()) for r in roles))}"
    return text


def scaling_rows(steps: dict[str, Any]) -> list[dict[str, Any]]:
    """For each scaling run: machines, seconds and remote bytes per epoch, seconds until the first step."""
    rows = []
    for name, step in steps.items():
        if not name.startswith("scaling-"):
            continue
        result = step["result"]
        rows.append(
            {
                "machines": result["machines"],
                "seconds": statistics.median(epoch["seconds"] for epoch in result["epochs"][1:] or result["epochs"]),
                "remote_bytes": sum(rank["bytes_remote"] for rank in result["phases"]),
                "startup": step["startup"],
                "nodes": sum(result["partition"]["nodes"]),
            }
        )
    return sorted(rows, key=lambda row: row["machines"])


def _figures(steps: dict[str, Any]) -> list[tuple[str, Any]]:
    from tutorial_lib.tools.finale.figures import learning_figure, memory_figure, scaling_figure
    from tutorial_lib.tools.finale.phases import phases_of_ranks_figure
    from tutorial_lib.tools.finale.traffic import traffic_figure

    result = steps["training"]["result"]
    figures = [
        ("learning", learning_figure(result["epochs"], result["test_accuracy"], PUBLISHED["test accuracy"][0])),
        ("memory", memory_figure(result["peak_rss"])),
    ]
    if result["phases"]:
        figures.append(("phases", phases_of_ranks_figure(result["phases"])))
    if len(result["traffic"]) > 1 and any(result["traffic"].values()):
        figures.append(("traffic", traffic_figure(result["traffic"])))
    if rows := scaling_rows(steps):
        figures.append(("scaling", scaling_figure(rows)))
    return figures


def _as_png(figure: Any) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return base64.b64encode(buffer.getvalue()).decode()
