"""Run a module of ``support.lessons`` as a job on emulated machines, from a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.lessons.machines import require_machines  # noqa: F401  the notebook's
from tutorial_lib.job.launch import LaunchRequest, launch
from tutorial_lib.partition import Partition

Event = dict[str, Any]


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
