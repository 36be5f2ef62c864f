"""The progress of a job in the terminal, and the table with its result."""

from __future__ import annotations

import sys
import time
import zlib
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal as human_bytes
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Column, Table
from rich.text import Text

from tutorial_lib.launcher.coordinator import Event

BAR_WIDTH = 24
STAGES = {
    "checks": "checking the machines",
    "servers": "DGL servers are loading their parts",
    "trainers": "trainers are starting and connecting",
    "leaving": "servers are leaving",
    "evaluating": "evaluating every node over all its neighbors",
}
COLORS = ("cyan", "magenta", "yellow", "green", "blue", "red")  # of trainers


class Reporter:
    """Receives the events of a job and prints nothing. ``epochs`` is 0 if the number of epochs is unknown."""

    def __init__(self, epochs: int = 0) -> None:
        self.epochs = epochs

    def say(self, text: str) -> None:
        """Receive a line for the user."""

    def on_event(self, event: Event) -> None:
        """Receive an event. See ``trainer.events`` and ``cluster.coordinator`` for the kinds and their fields."""


class RunDisplay(Reporter):
    """Prints a line for each important event. On a terminal, a last line shows the progress of the epoch."""

    def __init__(self, epochs: int = 0, console: Console | None = None) -> None:
        super().__init__(epochs)
        # Jupyter sets FORCE_COLOR for its programs, but a pipe must not contain colors.
        terminal = sys.stdout.isatty()
        self.console = console or Console(force_terminal=terminal, markup=False, emoji=False, highlight=False)
        self.start = time.monotonic()
        self.status = "starting"
        self.steps: dict[int, Event] = {}  # the last step of each rank in this epoch
        self.spinner = Spinner("dots")
        self.live = Live(self, console=self.console, refresh_per_second=8, transient=True)

    def __enter__(self) -> RunDisplay:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.live.stop()

    def __rich__(self) -> Spinner:
        self.spinner.update(text=Text(self.status))
        return self.spinner

    def say(self, text: str) -> None:
        """Print a line with the seconds since the start."""
        self.console.print(f"{time.monotonic() - self.start:7.1f} s  {text}", soft_wrap=True)
        self.status = text

    def on_event(self, event: Event) -> None:
        """Print the line of an event, or update the progress."""
        kind = event["kind"]
        if kind == "step":
            self._show_step(event)
        elif kind == "progress":
            layer = f", layer {event['layer'] + 1} of {event['layers']}" if "layer" in event else ""
            self.status = f"{event['what']}{layer}: rank {event['rank']}, batch {event['batches']} of {event['of']}"
        elif event.get("stage") in ("checks", "leaving"):  # they take a moment only
            self.status = STAGES[event["stage"]]
        elif kind == "output":
            self._print_output(event)
        elif text := describe_event(event, self.epochs):
            self.say(text)

    def _show_step(self, event: Event) -> None:
        """Show the epoch, the step of the slowest rank, and the mean loss of all ranks."""
        steps = {rank: step for rank, step in self.steps.items() if step["epoch"] == event["epoch"]}
        self.steps = {**steps, event["rank"]: event}
        step = min(each["step"] + 1 for each in self.steps.values())
        loss = sum(each["loss"] for each in self.steps.values()) / len(self.steps)
        bar = ("█" * (BAR_WIDTH * step // event["steps"])).ljust(BAR_WIDTH, "·")
        of = f"/{self.epochs}" if self.epochs else ""
        self.status = f"{bar}  epoch {event['epoch'] + 1}{of}  step {step}/{event['steps']}  loss {loss:.4f}"

    def _print_output(self, event: Event) -> None:
        """Print lines of a trainer behind its machine and number, in a color for each trainer."""
        name = f"{event['machine']} {event['trainer']}"
        color = COLORS[zlib.crc32(name.encode()) % len(COLORS)]
        skipped = f"... {event['skipped']:,} lines are in the log only"
        for line in [skipped, *event["lines"]] if event["skipped"] else event["lines"]:
            self.console.print(Text.assemble((f"[{name}] ", color), line), soft_wrap=True)

    def summary(self, result: dict[str, Any], out: Path) -> None:
        """Print the table with the result, and the run folder on a line that is not folded."""
        self.console.print(summary_table(result))
        self.console.print(f"run folder: {out}\nnotebooks:  make lab", soft_wrap=True)


def describe_event(event: Event, epochs: int) -> str:
    """Return the line for an event, or an empty text for an event without one."""
    kind = event["kind"]
    if text := STAGES.get(event.get("stage", kind)):
        return text
    if kind in ("copied", "warning"):
        return event["text"]
    if kind == "joined":
        return f"rank {event['rank']} joined on {event['machine']}"
    if kind == "epoch":
        scores = f"loss {event['loss']:.4f}  valid {event['val_score']:.4f}  {event['seconds']:.2f} s"
        return f"epoch {event['epoch'] + 1:{len(str(epochs))}d}/{epochs}  {scores}"
    if kind not in ("resumed", "stopped"):
        return ""
    place = f"step {event['step']} of epoch {event['epochs'] + 1}" if "step" in event else f"epoch {event['epochs']}"
    if kind == "stopped":
        return f"stopped after {place}; go on with --resume"
    damaged = f"{event['damaged']}; the one before it is used; " if "damaged" in event else ""
    return f"{damaged}continuing after {place} from the checkpoint"


def summary_table(result: dict[str, Any]) -> Table:
    """Return a table with the machines, epochs, exact scores, seconds and bytes of a run."""
    title = f"{result['dataset']}: global result"
    table = Table(Column(style="bold"), "", show_header=False, title=title, title_justify="left")
    epochs, score = result["epochs"], result["score"]
    ranks = f"{result['trainers_per_machine']} trainer(s), {result['world_size']} ranks"
    table.add_row("machines", f"{result['machines']} x {ranks}")
    table.add_row("epochs", f"{len(epochs)}, {sum(e['seconds'] for e in epochs) / max(1, len(epochs)):.2f} s each")
    exact = {f"valid {score}": result["val_score"], f"test {score}": result["test_score"], **result.get("scores", {})}
    for name, value in (({"loss": epochs[-1]["loss"]} if epochs else {}) | exact).items():
        table.add_row(name, "-" if value is None else f"{value:.4f}")
    table.add_row("seconds", f"{result['seconds']:.1f}")
    if sent := [f"{name} {human_bytes(count)}" for name, count in result["bytes_sent"].items()]:
        table.add_row("sent on the wire", ", ".join(sent))
    return table
