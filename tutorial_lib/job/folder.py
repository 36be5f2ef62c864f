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
from tutorial_lib.files import JsonObject, graph_name_of, lock_holder, try_lock, write_json
from tutorial_lib.job.display import Reporter
from tutorial_lib.launcher.coordinator import Event
from tutorial_lib.trainer import manifest as manifests
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import PHASES

OPTIONS_FILE = "options.json"
NUMBERS = ("rank", "epoch", "step", *PHASES, "bytes_local", "bytes_remote")  # of an event ``step``


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
    options: JsonObject | None = None
    trust: bool = False


NEW_RUN = Continuation()


def default_run_folder(dataset_name: str) -> Path:
    """Return ``runs/TIME-NAME-XXXX``. The random digits separate two runs that start in the same second."""
    return Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{graph_name_of(dataset_name)}-{secrets.token_hex(2)}"


def check_run_folder(out: Path, *, resume: bool = False) -> Path:
    """Return the absolute path of a run folder. An InputError refuses a new one with content, so no result is lost."""
    out = out.absolute()
    check_right_to_write(out)
    if resume and not manifests.has_checkpoint(out / "checkpoint"):
        remedy = "Start a new run without --resume. With --copy_to, first fetch: python -m tutorial_lib fetch RUN"
        raise InputError(f"--resume: no checkpoint in {out / 'checkpoint'}", remedy)
    if not resume and out.exists() and any(out.iterdir()):
        raise InputError(f"--out {out} is not empty", "Choose another folder, or remove this one yourself.")
    return out


def check_right_to_write(out: Path) -> None:
    """Raise an InputError if a folder cannot be made or written, or if a run would write through links in it."""
    found = next(folder for folder in [out, *out.parents] if folder.exists())
    if not (found.is_dir() and os.access(found, os.W_OK | os.X_OK)):
        raise InputError(f"--out {out}: {found} is not a folder that you may write to", "Give one of your own.")
    for path in out.rglob("*"):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise InputError(f"{path} is a link, a pipe or a device", "Remove it, or use another --out.")


def log_folder(out: Path) -> Path:
    """Return the folder for the logs of the next start. The logs of earlier starts stay."""
    logs = out / "logs"
    return logs if not logs.exists() else logs / f"resume-{len(list(logs.glob('resume-*'))) + 1}"


def continue_command(kind: str, out: Path) -> str:
    """Return the command that continues a run of ``train`` or ``finale``, or an empty text if nothing was saved yet."""
    program, folder = "python -m tutorial_lib", shlex.quote(str(out))
    if manifests.has_checkpoint(out / "checkpoint"):
        return f"{program} {kind} --resume --out {folder}"
    return f"{program} fetch {folder}" if (out / "delivery.json").exists() else ""


@contextlib.contextmanager
def own_run_folder(out: Path) -> Iterator[None]:
    """Make, lock and check a run folder. An InputError names another program that runs in it."""
    out.mkdir(parents=True, exist_ok=True)
    folder = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if try_lock(folder) is False:  # None without locks
            message = f"another program is running in {out}: {lock_holder(out)}"
            raise InputError(message, "Wait for its end, or stop it.")
        check_right_to_write(out)
        yield
    finally:
        os.close(folder)


class EventLog:
    """Writes ``events.jsonl`` and passes each event on to the reporter. ``earlier`` are those of earlier starts."""

    def __init__(self, file: FileIO, reporter: Reporter, resumed: list[manifests.EpochResult]) -> None:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)  # a killed program or a full disk can cut off the last event
        self.file, self.reporter, self.resumed, self.earlier = file, reporter, resumed, events_in(content)

    def write(self, event: Event) -> None:
        """Append one event. A full disk ends the file but not the job."""
        if not self.file.closed and event["kind"] != "output":
            try:
                self.file.write(json.dumps({"time": time.time(), **event}).encode() + b"\n")
            except OSError as error:
                self.file.close()
                self.reporter.say(f"events.jsonl ends here: {error.strerror}")
        self.reporter.on_event(event)

    def warn(self, text: str) -> None:
        """Report a line that does not end the job."""
        self.write({"kind": "warning", "text": text})


def events_in(content: bytes) -> list[Event]:
    """Return the events of ``events.jsonl``, without damaged lines."""
    events = []
    for line in content.splitlines():
        with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError):
            event = json.loads(line)
            numbers = [event[name] for name in ("time", *(NUMBERS if event["kind"] == "step" else ()))]
            if isinstance(event["kind"], str) and all(isinstance(number, int | float) for number in numbers):
                events.append(event)
    return events


@contextlib.contextmanager
def open_run(
    out: Path, reporter: Reporter, keep: Continuation = NEW_RUN, settings: JsonObject | None = None
) -> Iterator[EventLog]:
    """Lock a run folder and open its log. With ``settings``, a run continues only if they are those of its checkpoint.

    If the block raises an InputError before a process was started, a new folder is left as it was.
    """
    existed = out.exists()
    with own_run_folder(out):
        check_run_folder(out, resume=keep.resume)
        resumed = read_finished_epochs(out, settings) if keep.resume and settings else []
        if keep.options is not None:
            write_json(out / OPTIONS_FILE, keep.options)
        # Unbuffered, because Python would write the rest of an event again after a full disk
        with (out / "events.jsonl").open("ab+", buffering=0) as file:
            file.seek(0)
            try:
                yield EventLog(file, reporter, resumed)
            except InputError:
                if not manifests.has_checkpoint(out / "checkpoint"):
                    for path in out.iterdir():
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
                    if not existed:
                        out.rmdir()
                raise


def read_finished_epochs(out: Path, settings: JsonObject) -> list[manifests.EpochResult]:
    """Return the results of the epochs in the checkpoint of a run, and remove the files of an interrupted save."""
    folder = out / "checkpoint"
    saved = manifests.read_checkpoint(folder).manifest
    manifests.check_same_settings(saved.description, settings, folder)
    done, steps = len(saved.epochs), f" and {saved.step} steps of the next" if saved.step else ""
    if settings["epochs"] < done + bool(steps) or (settings["epochs"] == done and (out / "result.json").exists()):
        remedy = f"To train on, give more, for example --epochs {done + 10}."
        raise InputError(f"--epochs {settings['epochs']}, and the run in {out} already has {done}{steps}", remedy)
    manifests.remove_checkpoints(folder)
    return saved.epochs


def settings_of(
    config: TrainConfig, dataset: str, fingerprint: str, *, machines: int, trainers: int, partition: str | None
) -> JsonObject:
    """Return all settings that must be equal when a checkpoint is continued."""
    job = {"machines": machines, "trainers": trainers, "partition": partition}
    return {"dataset": dataset, "data fingerprint": fingerprint[:16], **job, **config.to_dict()}
