"""What is known of a running job from its events, what a person sees of that in the terminal, the table at its end."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
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

from tutorial_lib.cluster.coordinator import Event, JobFailed
from tutorial_lib.errors import TutorialError, printable
from tutorial_lib.trainer.events import PHASES

BAR_WIDTH = 24
STAGES = {
    "checks": "checking the machines",
    "servers": "DGL servers are loading their parts",
    "trainers": "trainers are starting and connecting",
    "leaving": "servers are leaving",
}
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")  # of trainers


class Reporter:
    """Where a run tells how far it is. This one knows it, and shows nothing; ``RunDisplay`` and ``handle.Job`` do.

    Attributes:
        epochs: that will be trained; 0 if unknown.
        waiting: what the job is doing while no steps are done.
        epoch: the running one, counted from 0; None before the first step and between epochs.
        steps: of the epoch, of the rank that has the most.
        losses, done: by rank, of its last step in this epoch.
        seconds: by phase, of all steps and ranks so far.
    """

    def __init__(self, epochs: int = 0) -> None:
        self.epochs, self.steps = epochs, 0
        self.waiting = "starting"
        self.epoch: int | None = None
        self.losses: dict[int, float] = {}
        self.done: dict[int, int] = {}
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._spinner = Spinner("dots")

    def say(self, text: str, waiting: str = "") -> None:
        """A line for a person; ``waiting``: what comes next."""
        self.wait_for(waiting or text)

    def wait_for(self, text: str) -> None:
        """No steps for a while; ``text`` says why."""
        self.waiting, self.epoch = text, None

    def on_event(self, event: Event) -> None:
        """Take an event of a job: what each kind has is in ``trainer.events`` and ``cluster.coordinator``."""
        kind = event["kind"]
        if kind == "stage":
            quiet = event["stage"] in ("checks", "leaving")
            (self.wait_for if quiet else self.say)(STAGES[event["stage"]])
        elif kind in ("copied", "warning"):
            self.say(event["text"])
        elif kind == "joined":
            self.say(f"rank {event['rank']} joined on {event['machine']}", "training")
        elif kind == "resumed":
            if "damaged" in event:
                self.say(f"{event['damaged']}; the one before it is used")
            self.say(f"continuing after {_place(event)} from the checkpoint")
        elif kind == "stopped":
            self.say(f"stopped after {_place(event)}; go on with --resume")
        elif kind == "step":
            if event["epoch"] != self.epoch:
                self.epoch, self.steps, self.losses, self.done = event["epoch"], 0, {}, {}
            self.steps = max(self.steps, event["steps"])
            self.losses[event["rank"]], self.done[event["rank"]] = event["loss"], event["step"] + 1
            for phase in PHASES:
                self.seconds[phase] += event[phase]
        elif kind == "epoch":
            done, last = event["epoch"] + 1, self.epochs
            scores = f"loss {event['loss']:.4f}  valid {event['val_score']:.4f}  {event['seconds']:.2f} s"
            self.say(f"epoch {done:{len(str(last))}d}/{last}  {scores}", f"epoch {min(done + 1, last)} of {last}")
        elif kind == "evaluating":
            self.say("evaluating every node over all its neighbours", "evaluating")
        elif kind == "progress":
            layer = f", layer {event['layer'] + 1} of {event['layers']}" if "layer" in event else ""
            self.wait_for(f"{event['what']}{layer}: rank {event['rank']}, batch {event['batches']} of {event['of']}")

    def text(self) -> str:
        """What is being waited for; or a bar with epoch, step (of the slowest rank that has begun the epoch) and loss
        (mean of the ranks' last), and in a second line the share of each phase in the seconds of all steps so far.
        """
        if (epoch := self.epoch) is None:  # another thread may set it at any moment
            return self.waiting
        step, loss = min(self.done.values(), default=0), sum(self.losses.values()) / max(1, len(self.losses))
        bar = ("█" * (BAR_WIDTH * step // max(1, self.steps))).ljust(BAR_WIDTH, "·")
        number = f"epoch {epoch + 1}{f'/{self.epochs}' if self.epochs else ''}"
        total = sum(self.seconds.values()) or 1.0
        shares = "  ".join(f"{name} {seconds / total:.0%}" for name, seconds in self.seconds.items())
        return f"{bar}  {number}  step {step}/{self.steps}  loss {loss:.4f}\n{shares}"

    def __rich__(self) -> Spinner:
        """The same for a terminal."""
        self._spinner.update(text=Text(self.text()))
        return self._spinner


def _place(event: Event) -> str:
    """Where a run was when it saved."""
    epochs = event["epochs"]
    return f"step {event['step']} of epoch {epochs + 1}" if "step" in event else f"epoch {epochs}"


class RunDisplay(Reporter):
    """Prints one line per thing worth knowing; only on a terminal, lines below show the running epoch as it goes."""

    def __init__(self, epochs: int = 0, console: Console | None = None) -> None:
        super().__init__(epochs)
        self.console = console or own_console()
        self.start = time.monotonic()
        self.live = Live(self, console=self.console, refresh_per_second=8, transient=True)

    def __enter__(self) -> RunDisplay:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.live.stop()

    def say(self, text: str, waiting: str = "") -> None:
        """One line, with the seconds since the start."""
        self.console.print(f"{time.monotonic() - self.start:7.1f} s  {text}", soft_wrap=True)
        super().say(text, waiting)

    def on_event(self, event: Event) -> None:
        """Take an event; what trainers print comes with machine and number in front, in a colour of their own."""
        super().on_event(event)
        if event["kind"] != "output":
            return
        machine, trainer = event["machine"], event["trainer"]
        colour = COLOURS[zlib.crc32(f"{machine} {trainer}".encode()) % len(COLOURS)]
        skipped = [f"... {event['skipped']:,} lines are in the log only"] if event["skipped"] else []
        for line in [*skipped, *event["lines"]]:
            self.console.print(Text.assemble((f"[{machine} {trainer}] ", colour), line), soft_wrap=True)

    def summary(self, result: dict[str, Any], out: Path) -> None:
        """The table at the end; paths stand below it, on lines of their own, so that they are never folded."""
        self.console.print(summary_table(result))
        self.console.print(f"run folder: {out}\nnotebooks:  make lab", soft_wrap=True)


def own_console() -> Console:
    """A console that ignores markup in paths and, on a terminal, keeps writing there while output is redirected."""
    terminal = lasting_stream(sys.stdout, os.dup(sys.stdout.fileno())) if sys.stdout.isatty() else None
    # Jupyter sets FORCE_COLOR for its programs; in a pipe, colours would be signs between the words.
    return Console(file=terminal, force_terminal=terminal is not None, markup=False, emoji=False, highlight=False)


class _LastingFile(io.FileIO):
    """A file descriptor that never fails: a week of training does not end because nobody reads its output any more.

    Attributes:
        lost: why something was not written, other than that its reader or its terminal is gone; else empty.
    """

    lost = ""

    def write(self, data: Any) -> int:
        try:
            if (written := super().write(data)) is not None:
                return written
            # Another program has made this pipe or terminal one that does not wait; its reader gets a moment.
            select.select([], [self], [], 1.0)
            return super().write(data) or len(data)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO, errno.EBADF):
                self.lost = error.strerror or str(error)
            return len(data)


def lasting_stream(like: Any, number: int) -> io.TextIOWrapper:
    """A text stream to a file descriptor that goes on when its reader is gone, and writes any text in any locale.

    Args:
        like: the stream whose encoding and buffering it gets; None (it was closed at the start): UTF-8, by lines.
    """
    by_line = like is None or like.line_buffering or like.write_through
    encoding = getattr(like, "encoding", None) or "utf-8"
    file = io.BufferedWriter(_LastingFile(number, "w", closefd=False))
    return io.TextIOWrapper(file, encoding, "backslashreplace", line_buffering=by_line)


def lost_output() -> str:
    """Why something that was printed is not where it belongs, for example on a full disk; empty: nothing is lost."""
    with contextlib.suppress(AttributeError, ValueError):
        sys.stdout.flush()
        buffer: Any = sys.stdout.buffer
        return buffer.raw.lost
    return ""


def summary_table(result: dict[str, Any]) -> Table:
    """The end of a run: what ran, how well, how long, what went over the wire."""
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
    if result["bytes_sent"]:
        sent = ", ".join(f"{name} {human_bytes(count)}" for name, count in result["bytes_sent"].items())
        table.add_row("sent on the wire", sent)
    return table


# Hu et al. 2020 and the OGB leaderboard, GraphSAGE with neighbour sampling on the real ogbn-products.
PUBLISHED = {"valid accuracy": (0.9170, 0.0009), "test accuracy": (0.7870, 0.0036)}
PUBLISHED_NODES = 2_449_029


def is_published_graph(dataset: str, nodes: int) -> bool:
    """Whether the published figures are about this graph; a small one in its format may bear its name."""
    return dataset == "ogbn-products" and nodes == PUBLISHED_NODES


def beside_published(result: dict[str, Any], plus_minus: str = "±") -> list[tuple[str, str, str]]:
    """For each published accuracy its name, that of this run, and the published one with its deviation, as text."""
    ours = {"valid accuracy": result["val_accuracy"], "test accuracy": result["test_accuracy"]}
    return [
        (name, f"{ours[name]:.4f}", f"{mean:.4f} {plus_minus} {deviation:.4f}")
        for name, (mean, deviation) in PUBLISHED.items()
    ]


def comparison_table(result: dict[str, Any]) -> Table | str:
    """This run beside the published GraphSAGE figures; of another graph a line that says that they are not its own."""
    name = result["dataset"]
    if not is_published_graph(name, sum(result["partition"]["nodes"])):
        what = "not the published graph" if name == "ogbn-products" else "not ogbn-products"
        return f"data:       {name}, {what}: no published accuracy belongs to it"
    headings = ("", "this run", "published, ten runs")
    table = Table(*headings, title="Beside the published figures", title_justify="left")
    for row in beside_published(result, "+/-"):
        table.add_row(*row)
    return table


def rendered(template: str, **fields: Any) -> str:
    """A template of this package, named by its place in it, with these fields; into HTML, texts are escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parents[1]),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(fields)


def print_failure(error: TutorialError) -> None:
    """On standard error: one line of cause, then what to do, then the log of the process that failed."""
    print(f"error: {printable(error.message)}", file=sys.stderr)
    for number, line in enumerate(printable(error.remedy).splitlines()):
        print(f"{'what to do: ' if number == 0 else '            '}{line}", file=sys.stderr)
    if isinstance(error, JobFailed):
        print(f"log: {error.log}", file=sys.stderr)
        for line in error.tail:
            print(f"  | {printable(line)}", file=sys.stderr)
