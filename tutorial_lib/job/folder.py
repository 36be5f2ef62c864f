"""The run folder of a job: its lock, its events, and the checks of ``--resume``. docs/commands.md lists its files."""

import contextlib
import json
import os
import secrets
import shlex
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from tutorial_lib.errors import InputError
from tutorial_lib.files import JsonObject, graph_name_of, lock_folder, write_json
from tutorial_lib.job.display import RunDisplay
from tutorial_lib.launcher.coordinator import Event
from tutorial_lib.trainer import manifest as manifests

OPTIONS_FILE = "options.json"
PENDING_FILE = "pending_download.json"  # see remote_files.py


@dataclass(frozen=True)
class CheckpointOptions:
    """Whether a run continues from a checkpoint, and how it saves its state.

    Attributes:
        resume: Continue the run in --out from its last complete checkpoint.
        every: Epochs between two checkpoints.
        trust: With --resume, do not ask before using the programs, machines and files that the run folder names.
    """

    resume: bool = False
    every: int = 1
    options: JsonObject | None = None  # of the command, for a later --resume
    trust: bool = False


def default_run_folder(dataset_name: str) -> Path:
    """Return ``runs/TIME-NAME-XXXX``. The random digits separate two runs that start in the same second."""
    return Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{graph_name_of(dataset_name)}-{secrets.token_hex(2)}"


def check_run_folder(out: Path, *, resume: bool = False) -> Path:
    """Return the absolute path of a run folder. An InputError refuses a new one with content, so no result is lost."""
    out = out.absolute()
    check_writable(out)
    if resume and not manifests.has_checkpoint(out / "checkpoint"):
        remedy = "Start a new run without --resume. With --copy_to, first fetch: python -m tutorial_lib fetch RUN"
        raise InputError(f"--resume: no checkpoint in {out / 'checkpoint'}", remedy)
    if not resume and out.exists() and any(out.iterdir()):
        raise InputError(f"--out {out} is not empty", "Choose another folder, or --resume if it has a checkpoint.")
    return out


def check_writable(out: Path) -> None:
    """Raise an InputError if a folder cannot be made or written, or if a run would write through links in it."""
    existing = next(folder for folder in [out, *out.parents] if folder.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        raise InputError(f"--out {out}: {existing} is not a folder that you may write to", "Choose another folder.")
    for path in out.rglob("*"):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise InputError(f"{path} is a link, a pipe or a device", "Remove it, or use another --out.")


def continue_command(kind: str, out: Path) -> str:
    """Return the command that continues a run of ``train`` or ``finale``, or an empty string if nothing was saved."""
    folder = shlex.quote(str(out))
    if manifests.has_checkpoint(out / "checkpoint"):
        return f"python -m tutorial_lib {kind} --resume --out {folder}"
    return f"python -m tutorial_lib fetch {folder}" if (out / PENDING_FILE).exists() else ""


class EventLog:
    """Writes ``events.jsonl``, stores the events of this start, and passes each one on to the display."""

    def __init__(self, file: FileIO, display: RunDisplay, resumed: list[manifests.EpochResult]) -> None:
        self.file, self.display, self.resumed = file, display, resumed
        self.events: list[Event] = []
        file.truncate(file.read().rfind(b"\n") + 1)  # a killed program or a full disk can cut off the last event

    def write(self, event: Event) -> None:
        """Append one event. A full disk does not end the job."""
        if event["kind"] != "output":
            self.events.append(event)
            with contextlib.suppress(OSError):
                self.file.write(json.dumps({"time": time.time(), **event}).encode() + b"\n")
        self.display.on_event(event)


@contextlib.contextmanager
def open_run(
    out: Path, display: RunDisplay, checkpointing: CheckpointOptions, settings: JsonObject | None = None
) -> Iterator[EventLog]:
    """Lock a run folder and open its log. A run with other ``settings`` than its checkpoint cannot continue."""
    with lock_folder(out, 0.0):
        check_run_folder(out, resume=checkpointing.resume)
        checkpoints = out / "checkpoint"
        resumed: list[manifests.EpochResult] = []
        if checkpointing.resume and settings:
            saved = manifests.read_checkpoint(checkpoints).manifest
            manifests.check_same_settings(saved.description, settings, checkpoints)
            manifests.remove_checkpoints(checkpoints)  # left by an interrupted save
            resumed = saved.epochs
        if checkpointing.options is not None:
            write_json(out / OPTIONS_FILE, checkpointing.options)
        # Unbuffered, because Python would write the rest of an event again after a full disk
        with (out / "events.jsonl").open("ab+", buffering=0) as file:
            file.seek(0)
            try:
                yield EventLog(file, display, resumed)
            except InputError:  # nothing was started
                if not manifests.has_checkpoint(checkpoints):
                    shutil.rmtree(out, ignore_errors=True)
                raise
