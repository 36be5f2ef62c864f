"""``report.html``: one page without other files, made from what the steps of a finale have left behind."""

from __future__ import annotations

import base64
import io
import json
import statistics
from pathlib import Path
from typing import Any

from tutorial_lib.errors import InputError
from tutorial_lib.job.display import human_bytes
from tutorial_lib.tools.finale.settings import STATE
from tutorial_lib.tools.published import PUBLISHED, beside_published, is_published_graph
from tutorial_lib.tools.templates import render_template


def write_report(folder: Path) -> Path:
    """Write the report of a finale; returns its path.

    Raises:
        InputError: the training of this finale is not finished.
    """
    content = json.loads((folder / STATE).read_text())
    steps = content["steps"]
    if "training" not in steps:
        raise InputError(f"the finale in {folder} has not finished its training: nothing to report yet")
    result = steps["training"]["result"]
    real = is_published_graph(result["dataset"], steps["data"]["nodes"])
    page = render_template(
        "tools/finale/report.html.j2",
        result=result,
        layout=content["settings"]["layout"],
        data=steps["data"],
        real=real,
        published=beside_published(result),
        steps=steps,
        scaling=scaling_rows(steps),
        figures=_figures(steps, real),
        size=human_bytes,
        total_of=lambda peak_rss: sum(sum(roles.values()) for roles in peak_rss.values()),
        folder=folder.name,
    )
    (folder / "report.html").write_text(page)
    return folder / "report.html"


def scaling_rows(steps: dict[str, Any]) -> list[dict[str, Any]]:
    """For each scaling run: machines and the cores of each, seconds, steps and remote bytes per epoch, the accuracy
    on validation nodes at the end, seconds until the first step.
    """
    rows = [
        {
            "machines": result["machines"],
            "seconds": statistics.median(epoch["seconds"] for epoch in result["epochs"][1:] or result["epochs"]),
            "remote_bytes": sum(rank["bytes_remote"] for rank in result["phases"]),
            "startup": step["startup"],
            "cores": step["cores"],
            "steps": result["phases"][0]["steps"] // result["phases"][0]["epochs"],
            "val_accuracy": result["val_accuracy"],
            "rate": result["config"]["learning_rate"],
            "epochs": len(result["epochs"]),
            "nodes": sum(result["partition"]["nodes"]),
        }
        for name, step in steps.items()
        if name.startswith("scaling-") and (result := step["result"])
    ]
    return sorted(rows, key=lambda row: row["machines"])


def _figures(steps: dict[str, Any], real: bool) -> dict[str, str]:
    """By the names that the template has for them, as PNG in base64. ``real``: of the published graph."""
    from tutorial_lib.tools.finale import figures as draw

    result, published = steps["training"]["result"], PUBLISHED["test accuracy"][0] if real else None
    figures = {
        "learning": draw.learning_figure(result["epochs"], result["test_accuracy"], published),
        "memory": draw.memory_figure(result["peak_rss"]),
    }
    if result["phases"]:
        figures["phases"] = draw.phases_figure(result["phases"])
    if rows := scaling_rows(steps):
        figures["scaling"] = draw.scaling_figure(rows)
    pictures = {}
    for name, figure in figures.items():
        figure.savefig(page := io.BytesIO(), format="png", dpi=110)
        pictures[name] = base64.b64encode(page.getvalue()).decode()
    return pictures
