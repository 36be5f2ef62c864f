"""Lesson 10: run the script ``multi_machine`` on emulated machines from a notebook, and look at what came back."""

from __future__ import annotations

import argparse
import difflib
import html
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from support.lessons import multi_machine, multi_machine_single
from support.lessons.machines import require_machines  # noqa: F401  the notebook's
from tutorial_lib.job.launch import LaunchRequest, launch
from tutorial_lib.partition import Partition
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import phases_of

Event = dict[str, Any]


class SourceDiff:
    """What changes from one function to another, line by line; in a notebook new lines are green, old ones red.

    Attributes:
        lines: of ``difflib``, each beginning with ``"+ "``, ``"- "`` or two blanks.
    """

    _COLOURS = {"+": "background:#D6F0E3", "-": "background:#FBE3D6"}  # noqa: RUF012

    def __init__(self, old: Callable[..., Any], new: Callable[..., Any]) -> None:
        before, after = (inspect.getsource(function).splitlines() for function in (old, new))
        self.lines = [line for line in difflib.ndiff(before, after) if not line.startswith("?")]

    def count(self, sign: str) -> int:
        """Number of lines that begin with a sign."""
        return sum(line.startswith(sign) for line in self.lines)

    def __repr__(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines)

    def _row(self, line: str) -> str:
        style = f' style="{self._COLOURS[line[0]]}"' if line[:1] in self._COLOURS else ""
        return f"<span{style}>{html.escape(line)}</span>"

    def _repr_html_(self) -> str:
        rows = [self._row(line.rstrip()) for line in self.lines]
        return f'<pre style="line-height:1.25">{chr(10).join(rows)}</pre>'


@dataclass
class ScriptRun:
    """What a run of the script left behind.

    Attributes:
        ranks: number of trainers; 1 for the run in this process.
        events: everything that the ranks reported, in the order of arrival.
        logits: float32 (N, C), rows in the data set's original order.
        weights: path of the model's weights; None for the run in this process.
    """

    ranks: int
    events: list[dict[str, Any]] = field(repr=False)
    logits: torch.Tensor = field(repr=False)
    weights: Path | None = None

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of a kind, in rank order."""
        return sorted((event for event in self.events if event["kind"] == kind), key=lambda event: event["rank"])

    def losses(self, rank: int) -> list[float]:
        """Loss of every step of a rank."""
        return [event["loss"] for event in self.of("loss") if event["rank"] == rank]

    def accuracy(self, name: str) -> float:
        """Global accuracy on "val" or "test": every rank reported the same number."""
        (found,) = {event["accuracy"] for event in self.of(name)}
        return found


def run_single(settings: argparse.Namespace) -> ScriptRun:
    """Train and evaluate in this process."""
    events: list[dict[str, Any]] = []

    def report(kind: str, **fields: Any) -> None:
        events.append({"kind": kind, "rank": 0, **fields})

    g, model = multi_machine_single.train(settings, report)
    _nodes, logits = multi_machine_single.evaluate(g, model, report)
    return ScriptRun(1, events, logits)


def command_of(settings: argparse.Namespace, part: Partition, batch_size: int, out: Path) -> list[str]:
    """The command line that every server and every trainer runs."""
    options = {
        "ip_config": "ip_config.txt",
        "part_config": part.config,
        "graph_name": part.graph_name,
        "num_classes": settings.num_classes,
        "num_epochs": settings.num_epochs,
        "seed": settings.seed,
        "batch_size": batch_size,
        "out": out,
    }
    words = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    return [sys.executable, str(Path(multi_machine.__file__)), *words]


def run_script(settings: argparse.Namespace, part: Partition, machines: int, out: Path, *more: str) -> ScriptRun:
    """Run the script on emulated machines, one trainer each; all ranks together take ``settings.batch_size``.

    Args:
        out: folder for logs and results; is made.
        more: further words of the command line.

    Raises:
        InputError: found before anything was started. JobFailed: with the first cause.
    """
    out.mkdir()
    request = LaunchRequest(
        command=[*command_of(settings, part, settings.batch_size // machines, out), *more],
        workspace=out,
        part_config=part.config,
        ip_config=Path("ip_config.txt"),  # does not exist yet: launch writes it
        out=out / "logs",
        emulate=machines,
        num_omp_threads=1,
    )

    def told(event: Event) -> str:
        known = event["kind"] == "loss"
        return f"epoch {event['epoch'] + 1}, rank {event['rank']}: loss {event['loss']:.3f}" if known else ""

    title = f"{' '.join(['multi_machine.py', *more])} on {machines} machine(s)"
    events = launch_shown(request, title, told)
    reported = [event for event in events if "rank" in event]
    return ScriptRun(machines, reported, collect_logits(part, out), out / "model.safetensors")


def run_wires(
    part: Partition, config: TrainConfig, num_classes: int, speeds: Sequence[str], out: Path
) -> dict[str, list[dict[str, Any]]]:
    """Run ``multi_machine_wire`` on a machine for each part; by speed, the phases as in ``result.json``."""
    settings = {"config": config.to_dict(), "num_classes": num_classes, "speeds": list(speeds)}

    def told(event: Event) -> str:
        known = event["kind"] == "step"
        return f"{speeds[event['epoch'] // config.epochs]}: step {event['step'] + 1}" if known else ""

    title = f"the same epochs at {', '.join(speeds)}"
    events = launch_module("multi_machine_wire", [json.dumps(settings)], part, out, title, told)
    steps = [event for event in events if event["kind"] == "step"]
    return {
        speed: phases_of([event for event in steps if event["epoch"] // config.epochs == s])
        for s, speed in enumerate(speeds)
    }


def launch_module(
    module: str,
    words: Sequence[str],
    part: Partition,
    out: Path,
    title: str = "",
    told: Callable[[Event], str] = lambda _event: "",
    **options: Any,
) -> list[Event]:
    """Run ``python -m support.lessons.MODULE GRAPH WORDS`` on an emulated machine for each part; what the job told.

    Args:
        out: folder for the logs.
        title, told: see ``launch_shown``.
        options: further fields of the ``LaunchRequest``.

    Raises:
        InputError: found before anything was started. JobFailed: with the first cause.
    """
    out.mkdir(exist_ok=True)
    request = LaunchRequest(
        command=[sys.executable, "-m", f"support.lessons.{module}", part.graph_name, *words],
        workspace=out,
        part_config=part.config,
        ip_config=Path("ip_config.txt"),  # does not exist yet: launch writes it
        out=out / "logs",
        emulate=part.report.parts,
        num_omp_threads=1,
        **options,
    )
    return launch_shown(request, title, told)


def launch_shown(request: LaunchRequest, title: str, told: Callable[[Event], str]) -> list[Event]:
    """``launch``, and what the job told. The cell shows its title, the stage, and what ``told`` says of an event."""
    from IPython.display import display

    def bundle(text: str = "") -> dict[str, str]:
        return {"text/plain": f"{title}   {text}".rstrip()}

    events: list[Event] = []
    handle = display(bundle(), raw=True, display_id=True) if title else None

    def on_event(event: Event) -> None:
        events.append(event)
        text = event["stage"] if event["kind"] == "stage" else told(event)
        if text and handle is not None:  # None outside a notebook
            handle.update(bundle(text), raw=True)

    try:
        launch(request, on_event)
    finally:  # the title alone is left
        if handle is not None:
            handle.update(bundle(), raw=True)
    return events


def collect_logits(part: Partition, out: Path) -> torch.Tensor:
    """The logits that the ranks wrote, put back into the data set's original order."""
    files = [np.load(path) for path in sorted(out.glob("logits-*.npz"))]
    nodes = part.node_map[np.concatenate([file["nodes"] for file in files])]
    assert len(np.unique(nodes)) == len(nodes) == len(part.node_map)  # each node by exactly one rank
    logits = np.empty((len(nodes), files[0]["logits"].shape[1]), dtype=np.float32)
    logits[nodes] = np.concatenate([file["logits"] for file in files])
    return torch.from_numpy(logits)
