"""The run folder: who may write to it, its events, and whether the run in it may continue. What is in it: ``result``.

Everything here is checked before anything is started.
"""

from __future__ import annotations

import contextlib
import errno
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

from tutorial_lib.cluster.coordinator import Event
from tutorial_lib.cluster.members import STARTED, stat_of
from tutorial_lib.errors import InputError
from tutorial_lib.files import graph_name_of, lock_holder, lock_now, open_folder, open_plain, read_json, write_json
from tutorial_lib.job.display import Reporter
from tutorial_lib.trainer import manifest as manifests
from tutorial_lib.trainer.events import phases_of

if TYPE_CHECKING:
    from tutorial_lib.trainer.config import TrainConfig

OPTIONS_FILE = "options.json"
HOLDER_FILE = ".holder.json"  # only on file systems without locks
NOT_EMPTY = "Choose another folder, or remove this one yourself."


def default_run_folder(dataset_name: str) -> Path:
    """``runs/TIME-NAME-XXXX`` in the working directory; the last digits tell apart two of the same second."""
    return Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{graph_name_of(dataset_name)}-{secrets.token_hex(2)}"


def check_run_folder(out: Path, *, resume: bool = False) -> Path:
    """The absolute path of a run folder to be; one that holds anything is refused: no earlier result gets lost.

    Args:
        resume: to continue in it; one without a checkpoint is refused.
    """
    out = out.absolute()
    if resume and not out.is_dir():
        raise InputError(f"--resume: there is no folder {out}")
    if resume:
        check_plain(out)
    if resume and not manifests.has_checkpoint(out / "checkpoint"):
        raise InputError(
            f"--resume: no checkpoint in {out / 'checkpoint'}",
            "A run has one when its first epoch is finished, or it was told to end (SIGTERM) in it. Start it again "
            "without --resume, in another folder. "
            "With --copy_to, one may still be on the machines: python -m tutorial_lib fetch RUN downloads it.",
        )
    check_right_to_write(out)
    if not resume and out.exists() and any(out.iterdir()):
        raise InputError(f"--out {out} is not empty", NOT_EMPTY)
    return out


def check_right_to_write(out: Path) -> None:
    """Raise an InputError where a folder cannot be made or written."""
    found = next(folder for folder in [out, *out.parents] if folder.exists())
    if not found.is_dir():
        raise InputError(f"--out {out}{f': {found}' if found != out else ''} is a file, not a folder")
    if not os.access(found, os.W_OK | os.X_OK):
        raise InputError(f"--out {out}: no right to write in {found}", "Give a folder of your own with --out.")


def log_folder(out: Path) -> Path:
    """Where the logs of the next start in a run folder go; earlier ones are kept."""
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
    """While the block runs, no other program writes to this run folder; it is made where there is none.

    Raises:
        InputError: the folder cannot be made, another program (``who``) is running in it, or it holds links.
    """
    with contextlib.ExitStack() as stack:
        try:
            handle = stack.enter_context(open_folder(out))
            locked = lock_now(handle)
            if locked is None:
                stack.enter_context(_holder_file(out, who))
        except OSError as error:
            raise _unwritable(out, error) from None
        if locked is False:
            holder = lock_holder(handle)
            raise InputError(f"another {who} is running in {out}: {holder}", "Wait for its end, or stop it.")
        check_plain(out)
        yield


@contextlib.contextmanager
def _holder_file(out: Path, who: str) -> Iterator[None]:
    """The lock of a file system without locks: a file that names its owner, and counts as long as that process runs."""
    path, me = out / HOLDER_FILE, {"host": platform.node(), "pid": os.getpid(), "started": _started(os.getpid())}
    try:
        found = read_json(path, dict[str, str | int | None], f"Remove {path} if no program runs in the folder.")
        if found.get("host") != me["host"] or (found.get("started") or 0) == _started(int(found.get("pid") or 0)):
            holder = f"process {found.get('pid')} on {found.get('host')}"
            remedy = f"Wait for its end. If it does not run any more, remove {path}."
            raise InputError(f"another {who} is running in {out}: {holder} (no locks on this file system)", remedy)
        path.unlink()
    except FileNotFoundError:
        pass
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w") as file:
        json.dump(me, file)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _started(pid: int) -> int | None:
    """Ticks from the start of the computer to that of a process; None if there is no such process."""
    fields = stat_of(pid)
    return int(fields[STARTED]) if fields else None


def check_plain(out: Path) -> None:
    """Raise an InputError if a run folder holds links or devices: whoever writes to them would write elsewhere."""
    for top, folders, names in os.walk(out):
        for path in (Path(top, name) for name in (*folders, *names)):
            mode = path.lstat().st_mode
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                what = "a symbolic link" if stat.S_ISLNK(mode) else "a pipe, a socket or a device"
                raise InputError(f"{path} is {what}", "A run writes plain files only. Remove it, or use another --out.")


def _unwritable(out: Path, error: OSError) -> InputError:
    remedy = "Give another folder with --out."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "Free space on that disk, or give another folder with --out."
    return InputError(f"cannot write the run folder {out}: {error.strerror}", remedy)


def events_in(content: bytes) -> list[Event]:
    """The events of ``events.jsonl``, less lines that a full disk has cut or a killed program has left half written."""
    events = []
    for line in content.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict) and isinstance(event.get("kind"), str) and isinstance(event.get("time"), float):
                events.append(event)
    return events


class EventLog:
    """``events.jsonl`` of a run folder, also shown to the reporter.

    Args:
        resume: append to what is there, less a last line that a killed program may have left half written.

    Raises:
        InputError: the folder cannot be written, or another program is writing to it.
    """

    def __init__(self, out: Path, reporter: Reporter, *, resume: bool = False) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(own_run_folder(out))
            try:
                # A new file, never a truncated one. Unbuffered: what a full disk refuses must not be tried again later.
                flags = os.O_RDWR | os.O_NOFOLLOW | (0 if resume else os.O_CREAT | os.O_EXCL)
                file = open(open_plain(out / "events.jsonl", flags), "r+b", buffering=0)  # noqa: SIM115
            except FileExistsError:
                raise InputError(f"--out {out} is not empty", NOT_EMPTY) from None
            except OSError as error:
                raise _unwritable(out / "events.jsonl", error) from None
            self.file, self.reporter = stack.enter_context(file), reporter
            content = file.read() if resume else b""
            whole = content.rfind(b"\n") + 1
            file.truncate(whole)
            file.seek(whole)
            self.earlier = events_in(content[:whole])
            try:
                phases_of(self.earlier)  # what the end of the run makes of them
            except (KeyError, TypeError, ValueError):
                where = out / "events.jsonl"
                raise InputError(f"{where} is damaged: a step has no number or time", f"Remove {where}.") from None
            self._open = stack.pop_all()

    def __enter__(self) -> EventLog:
        return self

    def write(self, event: Event) -> None:
        """Append one event. A full disk ends the file, not the job: what must be kept is in the checkpoint."""
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
    """How a run keeps its state, and whether it continues from it.

    Attributes:
        resume: continue the run in --out from its last complete checkpoint.
        every: epochs between two checkpoints.
        options: those that the run was started with, for a later ``--resume``; None: nobody will ask for them.
        trust: with --resume, use the programs, machines and files that the run folder names, without a question.
    """

    resume: bool = False
    every: int = 1
    options: dict[str, Any] | None = None
    trust: bool = False

    def remember(self, out: Path) -> None:
        """Write the options into the folder of the run."""
        if self.options is not None:
            write_json(out / OPTIONS_FILE, self.options)

    def folder(self, out: Path, config: TrainConfig | None = None) -> Path:
        """The absolute path of the run folder, checked as far as possible before the data are loaded."""
        out = check_run_folder(out, resume=self.resume)
        folder = out / "checkpoint"
        if self.resume and config is not None:
            try:
                saved = manifests.read_checkpoint(folder, manifests.read_manifest).manifest
            except InputError:  # `open` says so, if it is still so when what is left on machines has been fetched
                return out
            settings = {**saved.description, **config.to_dict()}
            manifests.check_same_settings(saved.description, settings, folder)
        return out

    def open(self, out: Path, config: TrainConfig, settings: dict[str, Any]) -> list[manifests.EpochResult]:
        """Check the run folder and its checkpoint before anything is started.

        Args:
            settings: ``settings_of`` this run.

        Returns:
            The results of the finished epochs of the checkpoint, empty for a new run.

        Raises:
            InputError: no checkpoint, two damaged ones, other settings, nothing left to do, or the run is running.
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
            raise InputError(
                f"the run in {out} is finished: it has {done} of {done} epochs",
                f"To train on, give more, for example --epochs {done + 10}.",
            )
        with own_run_folder(out):
            manifests.remove_leftovers(folder)
        return saved.epochs


NEW_RUN = Continuation()


def settings_of(
    config: TrainConfig, dataset: str, fingerprint: str, *, machines: int, trainers: int, partition: str | None
) -> dict[str, Any]:
    """Everything that must be equal for a checkpoint to be continued."""
    return {
        "dataset": dataset,
        "data fingerprint": fingerprint[:16],
        "machines": machines,
        "trainers": trainers,
        "partition": partition,
        **config.to_dict(),
    }
