"""The run folder of a job: its lock, its events, and the checks of ``--resume``.

result.json      settings, epochs, scores, seconds, bytes, memory, versions
events.jsonl     events of trainers and agents in the order of their arrival, for ``trace``
predictions.npy  int64 (N,): predicted class of each node, in the original order of the data set
predictions.csv  the same with the IDs of the user, if the data set has some
options.json     options of the command, for --resume
checkpoint/      trained weights and configuration, and the state for --resume
logs/            logs of each machine, resume-K/ of the K-th continuation, and failure.txt of a failed job
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import shlex
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutorial_lib.errors import InputError, WaitedTooLong, printable
from tutorial_lib.files import alone_in, graph_name_of, lock_holder, open_plain, read_json, write_json
from tutorial_lib.job.display import Reporter
from tutorial_lib.launcher.coordinator import Event
from tutorial_lib.trainer import manifest as manifests
from tutorial_lib.trainer.events import PHASES

if TYPE_CHECKING:
    from tutorial_lib.trainer.config import TrainConfig

OPTIONS_FILE = "options.json"
HOLDER_FILE = ".holder.json"  # only on file systems without locks
STEP_FIELDS = ("rank", "epoch", "step", *PHASES, "bytes_local", "bytes_remote")
NOT_EMPTY = "Choose another folder, or remove this one yourself."
NO_CHECKPOINT = (
    "A run has one after its first epoch or after a SIGTERM. Start it again without --resume, in another folder. "
    "With --copy_to, first fetch one from the machines: python -m tutorial_lib fetch RUN"
)


def default_run_folder(dataset_name: str) -> Path:
    """Return ``runs/TIME-NAME-XXXX``. The random digits separate two runs that start in the same second."""
    return Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{graph_name_of(dataset_name)}-{secrets.token_hex(2)}"


def check_run_folder(out: Path, *, resume: bool = False) -> Path:
    """Return the absolute path of a run folder. An InputError refuses a new one with content, so no result is lost."""
    out = out.absolute()
    if resume:
        if not out.is_dir():
            raise InputError(f"--resume: there is no folder {out}")
        check_plain(out)
        if not manifests.has_checkpoint(out / "checkpoint"):
            raise InputError(f"--resume: no checkpoint in {out / 'checkpoint'}", NO_CHECKPOINT)
    check_right_to_write(out)
    if not resume and out.exists() and any(out.iterdir()):
        raise InputError(f"--out {out} is not empty", NOT_EMPTY)
    return out


def check_right_to_write(out: Path) -> None:
    """Raise an InputError if a folder cannot be made or written."""
    found = next(folder for folder in [out, *out.parents] if folder.exists())
    if not found.is_dir():
        raise InputError(f"--out {out}{f': {found}' if found != out else ''} is a file, not a folder")
    if not os.access(found, os.W_OK | os.X_OK):
        raise InputError(f"--out {out}: no right to write in {found}", "Give a folder of your own with --out.")


def check_plain(out: Path) -> None:
    """Raise an InputError if a run folder contains links or devices, because a run would write somewhere else."""
    for top, folders, names in os.walk(out):
        for path in (Path(top, name) for name in (*folders, *names)):
            mode = path.lstat().st_mode
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                what = "a symbolic link" if stat.S_ISLNK(mode) else "a pipe, a socket or a device"
                raise InputError(f"{path} is {what}", "A run writes plain files only. Remove it, or use another --out.")


def log_folder(out: Path) -> Path:
    """Return the folder for the logs of the next start. The logs of earlier starts stay."""
    logs = out / "logs"
    return logs if not logs.exists() else logs / f"resume-{len(list(logs.glob('resume-*'))) + 1}"


def continue_command(kind: str, out: Path) -> str:
    """Return the command that continues a run of ``train`` or ``finale``, or an empty text if nothing was saved yet."""
    program, folder = "python -m tutorial_lib", shlex.quote(str(out))
    if manifests.has_checkpoint(out / "checkpoint") if kind == "train" else (out / OPTIONS_FILE).exists():
        return f"{program} {kind} --resume --out {folder}"
    return f"{program} fetch {folder}" if (out / "delivery.json").exists() else ""


@contextlib.contextmanager
def own_run_folder(out: Path, who: str = "program") -> Iterator[None]:
    """Make and lock a run folder. An InputError names another program (``who``) that runs in it, or a link in it."""
    with contextlib.ExitStack() as stack:
        try:
            if not stack.enter_context(alone_in(out, seconds=0)):
                stack.enter_context(_hold_without_locks(out, who))
        except WaitedTooLong:
            holder = lock_holder(out)
            raise InputError(f"another {who} is running in {out}: {holder}", "Wait for its end, or stop it.") from None
        check_plain(out)
        yield


@contextlib.contextmanager
def _hold_without_locks(out: Path, who: str) -> Iterator[None]:
    """Replace a lock by a file that names this process."""
    path = out / HOLDER_FILE
    try:
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w")
    except FileExistsError:
        holder = read_json(path, str, f"Remove {path} if no program runs in the folder.")
        remedy = f"Wait for its end. If it does not run any more, remove {path}."
        raise InputError(f"another {who} is running in {out}: {printable(holder)}", remedy) from None
    with file:
        json.dump(f"process {os.getpid()} on {platform.node()}, on a file system without locks", file)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def events_in(content: bytes) -> list[Event]:
    """Return the events of ``events.jsonl``, without lines that were cut off by a full disk or a killed program."""
    events = []
    for line in content.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict) and isinstance(event.get("kind"), str) and isinstance(event.get("time"), float):
                events.append(event)
    return events


def _has_numbers(event: Event) -> bool:
    return event["kind"] != "step" or all(isinstance(event.get(name), int | float) for name in STEP_FIELDS)


class EventLog:
    """Writes ``events.jsonl`` of a run folder, locks the folder, and passes each event on to the reporter.

    With ``resume``, it appends to the file, and ``earlier`` has the events of the earlier starts. An InputError reports
    that another program runs in the folder or that the folder cannot be written.
    """

    def __init__(self, out: Path, reporter: Reporter, *, resume: bool = False) -> None:
        path, self.reporter = out / "events.jsonl", reporter
        with contextlib.ExitStack() as stack:
            stack.enter_context(own_run_folder(out))
            try:
                # Unbuffered, because Python would write the rest of an event again after a full disk
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | (0 if resume else os.O_EXCL)
                self.file = stack.enter_context(open(open_plain(path, flags), "r+b", buffering=0))
            except FileExistsError:
                raise InputError(f"--out {out} is not empty", NOT_EMPTY) from None
            content = self.file.read()
            whole = content.rfind(b"\n") + 1
            self.file.truncate(whole)
            self.file.seek(whole)
            self.earlier = [event for event in events_in(content[:whole]) if _has_numbers(event)]
            self._open = stack.pop_all()

    def __enter__(self) -> EventLog:
        return self

    def write(self, event: Event) -> None:
        """Append one event. A full disk ends the file but not the job, because the checkpoint has the state."""
        if not self.file.closed and event["kind"] != "output":
            try:
                self.file.write(json.dumps({"time": time.time(), **event}).encode() + b"\n")
            except OSError as error:
                self.file.close()
                self.reporter.say(f"events.jsonl ends here: {error.strerror}")
        self.reporter.on_event(event)

    def __exit__(self, *_exc: object) -> None:
        self._open.close()


@dataclass(frozen=True)
class Continuation:
    """Whether a run continues from a checkpoint, and how it saves its state.

    Attributes:
        resume: continue the run in --out from its last complete checkpoint.
        every: epochs between two checkpoints.
        options: options of the command, which a later --resume repeats, or None without a command.
        trust: with --resume, use the programs, machines and files that the run folder names, without a question.
    """

    resume: bool = False
    every: int = 1
    options: dict[str, Any] | None = None
    trust: bool = False

    def remember(self, out: Path) -> None:
        """Write the options into the run folder."""
        if self.options is not None:
            write_json(out / OPTIONS_FILE, self.options)

    def folder(self, out: Path, config: TrainConfig | None = None) -> Path:
        """Return the absolute path of the run folder, checked as far as possible before the data are loaded."""
        out = check_run_folder(out, resume=self.resume)
        folder = out / "checkpoint"
        if self.resume and config is not None:
            try:
                saved = manifests.read_checkpoint(folder, manifests.read_manifest).manifest.description
            except InputError:  # `open` reports it, unless an intact checkpoint is still on the machines
                return out
            manifests.check_same_settings(saved, {**saved, **config.to_dict()}, folder)
        return out

    def open(self, out: Path, config: TrainConfig, settings: dict[str, Any]) -> list[manifests.EpochResult]:
        """Check the run folder and its checkpoint before anything is started. ``settings`` comes from ``settings_of``.

        Returns the results of the finished epochs. An InputError reports a missing or damaged checkpoint, other
        settings, a finished run, or a run that another program continues.
        """
        out = self.folder(out)
        if not self.resume:
            return []
        folder = out / "checkpoint"
        saved = manifests.read_checkpoint(folder).manifest
        manifests.check_same_settings(saved.description, settings, folder)
        done = len(saved.epochs)
        if config.epochs < done + bool(saved.step):
            more = f" and {saved.step} steps of the next" if saved.step else ""
            raise InputError(f"--epochs {config.epochs}, and the checkpoint in {folder} already has {done}{more}")
        if config.epochs == done and (out / "result.json").exists():
            remedy = f"To train on, give more, for example --epochs {done + 10}."
            raise InputError(f"the run in {out} is finished: it has {done} of {done} epochs", remedy)
        with own_run_folder(out):
            manifests.remove_leftovers(folder)
        return saved.epochs


NEW_RUN = Continuation()


def settings_of(
    config: TrainConfig, dataset: str, fingerprint: str, *, machines: int, trainers: int, partition: str | None
) -> dict[str, Any]:
    """Return all settings that must be equal when a checkpoint is continued."""
    job = {"machines": machines, "trainers": trainers, "partition": partition}
    return {"dataset": dataset, "data fingerprint": fingerprint[:16], **job, **config.to_dict()}
