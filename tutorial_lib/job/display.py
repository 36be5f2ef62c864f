"""The progress and the result of a job in the terminal."""

import sys
import time
from pathlib import Path

from rich.filesize import decimal as human_bytes

from tutorial_lib.files import JsonObject
from tutorial_lib.launcher.coordinator import Event

LINES = {  # lines by kind of event or stage
    "servers": "DGL servers are loading their parts",
    "trainers": "trainers are starting and connecting",
    "joined": "rank {rank} joined on {machine}",
    "copied": "{text}",
    "warning": "{text}",
    "step": "epoch {epoch}/{total}  step {step}/{steps}  loss {loss:.4f}",
    "progress": "{what}: batch {batches} of {of}",
    "epoch": "epoch {epoch:{width}}/{total}  loss {loss:.4f}  valid {val_score:.4f}  {seconds:.2f} s",
    "evaluating": "evaluating every node over all its neighbors",
    "stopped": "stopped after {place}; continue with --resume",
    "resumed": "continuing after {place} from the checkpoint",
}


class RunDisplay:
    """Prints the important events of a job. On a terminal, a last line shows the progress of rank 0."""

    def __init__(self, epochs: int = 0, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.start = time.monotonic()
        self.epochs = epochs  # of the run, 0 if unknown

    def show(self, text: str) -> None:
        """Print a text. On a terminal, it replaces a line that ends with a carriage return."""
        if not self.quiet:
            print(f"\x1b[K{text}" if sys.stdout.isatty() else text, end="", flush=True)

    def log(self, text: str) -> None:
        """Print a line with the seconds since the start."""
        self.show(f"{time.monotonic() - self.start:7.1f} s  {text}\n")

    def on_event(self, event: Event) -> None:
        """Print an event of a rank (``trainer.events``) or of the job (``coordinator``), or update the last line."""
        if event["kind"] == "output":
            skipped = [f"... {event['skipped']:,} bytes omitted, see the log"] if event["skipped"] else []
            for line in [*skipped, *event["lines"]]:
                self.show(f"[{event['machine']} {event['trainer']}] {line}\n")
        elif text := describe_event(event, self.epochs):
            if event["kind"] not in ("step", "progress"):
                self.log(text)
            elif event["rank"] == 0 and sys.stdout.isatty():
                self.show(f"{text}\r")

    def summary(self, result: JsonObject, out: Path) -> None:
        """Print the result and the run folder."""
        width = max(16, len(f"valid {result['score']}"))
        rows = "".join(f"{name:{width}}  {value}\n" for name, value in summary_rows(result).items())
        self.show(f"{result['dataset']}: global result\n{rows}run folder: {out}\nnotebooks:  make lab\n")


SILENT = RunDisplay(quiet=True)


def describe_event(event: Event, epochs: int) -> str:
    """Return the line for an event, or an empty string for an event without one."""
    counted = {name: event[name] + 1 for name in ("epoch", "step") if name in event}  # from 0 in events
    fields = {**event, **counted, "total": epochs, "width": len(str(epochs)), "place": f"epoch {event.get('epochs')}"}
    if "epochs" in event and "step" in event:
        fields["place"] = f"step {event['step']} of epoch {event['epochs'] + 1}"
    damaged = "{damaged}; using the previous checkpoint; " if "damaged" in event else ""
    return (damaged + LINES.get(event.get("stage", event["kind"]), "")).format(**fields)


def summary_rows(result: JsonObject) -> dict[str, str]:
    """Return the machines, epochs, exact scores, seconds and bytes of a run as texts."""
    epochs, score = result["epochs"], result["score"]
    loss = {"loss": epochs[-1]["loss"]} if epochs else {}
    scores = {f"valid {score}": result["val_score"], f"test {score}": result["test_score"], **result.get("scores", {})}
    seconds = sum(epoch["seconds"] for epoch in epochs) / max(1, len(epochs))
    sent = [f"{name} {human_bytes(count)}" for name, count in result["bytes_sent"].items() if count]
    return {
        "machines": f"{result['machines']} x {result['trainers_per_machine']} trainer(s), {result['world_size']} ranks",
        "epochs": f"{len(epochs)}, {seconds:.2f} s each",
        **{name: f"{value:.4f}" for name, value in {**loss, **scores}.items() if value is not None},
        "seconds": f"{result['seconds']:.1f}",
        "bytes sent": ", ".join(sent) or "nothing",
    }
