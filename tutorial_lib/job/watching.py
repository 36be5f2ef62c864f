"""What is known of a running job, kept from its events: for a terminal (``display``) and a notebook (``handle``)."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tutorial_lib.trainer.events import PHASES

BAR_WIDTH = 24
STAGES = {
    "checks": "checking the machines",
    "servers": "DGL servers are loading their parts",
    "trainers": "trainers are starting and connecting",
    "leaving": "servers are leaving",
}


class JobView:
    """The state of a job as far as its events tell.

    Args:
        epochs: that will be trained; 0 if unknown.

    Attributes:
        waiting: what the job is doing while no steps are done.
        epoch: the running one, counted from 0; None before the first step and between epochs.
        steps: of the epoch, of the rank that has the most.
        losses, done: by rank, of its last step in this epoch.
        seconds: by phase, of all steps and ranks so far.
    """

    def __init__(self, epochs: int = 0) -> None:
        self.epochs = epochs
        self.waiting = "starting"
        self.epoch: int | None = None
        self.steps = 0
        self.losses: dict[int, float] = {}
        self.done: dict[int, int] = {}
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._spinner = Spinner("dots")

    def wait_for(self, text: str) -> None:
        """No steps for a while; ``text`` says why."""
        self.waiting, self.epoch = text, None

    def on_event(self, event: dict[str, Any]) -> None:
        """Take an event of a job; others than those of stages, steps and progress are ignored."""
        if event["kind"] == "stage":
            self.wait_for(STAGES[event["stage"]])
        elif event["kind"] == "step":
            self._step(event)
        elif event["kind"] == "progress":
            layer = f", layer {event['layer'] + 1} of {event['layers']}" if "layer" in event else ""
            self.wait_for(f"{event['what']}{layer}: rank {event['rank']}, batch {event['batches']} of {event['of']}")

    def _step(self, event: dict[str, Any]) -> None:
        if event["epoch"] != self.epoch:
            self.epoch, self.steps, self.losses, self.done = event["epoch"], 0, {}, {}
        self.steps = max(self.steps, event["steps"])
        self.losses[event["rank"]] = event["loss"]
        self.done[event["rank"]] = event["step"] + 1
        for phase in PHASES:
            self.seconds[phase] += event[phase]

    @property
    def step(self) -> int:
        """Steps done in this epoch by the slowest rank that has begun it."""
        return min(self.done.values(), default=0)

    @property
    def loss(self) -> float:
        """Mean of the ranks' last losses."""
        return sum(self.losses.values()) / max(1, len(self.losses))

    def position(self) -> str:
        """``epoch 2/4  step 12/50  loss 2.3456``, or what is being waited for."""
        if self.epoch is None:
            return self.waiting
        of = f"/{self.epochs}" if self.epochs else ""
        return f"epoch {self.epoch + 1}{of}  step {self.step}/{self.steps}  loss {self.loss:.4f}"

    def shares(self) -> str:
        """Share of each phase in the seconds of all steps so far: ``sampling 41 %  pull 3 %  ...``; may be empty."""
        total = sum(self.seconds.values())
        return "  ".join(f"{name} {seconds / total:.0%}" for name, seconds in self.seconds.items()) if total else ""

    def text(self) -> str:
        """Two lines without colours: a bar with the position, and the shares."""
        if self.epoch is None:
            return self.waiting
        filled = BAR_WIDTH * self.step // max(1, self.steps)
        return f"{'█' * filled}{'·' * (BAR_WIDTH - filled)}  {self.position()}\n{self.shares()}"

    def __rich__(self) -> Group:
        """The same for a terminal."""
        row = Table.grid(padding=(0, 1))
        if self.epoch is None:
            row.add_row(self._spinner, Text(self.position()))
            return Group(row)
        bar = ProgressBar(total=max(1, self.steps), completed=self.step, width=BAR_WIDTH)
        row.add_row(self._spinner, bar, Text(self.position()))
        return Group(row, Text(f"  {self.shares()}", style="dim"))
