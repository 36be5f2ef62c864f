"""What a run leaves behind, and how it tells how far it is.

The run folder::

    result.json      settings, epochs, accuracies and other scores, seconds, bytes on the wire, memory, versions
    events.jsonl     everything the trainers told, in the order it arrived
    predictions.npy  int64 (N,): predicted class of each node, in the data set's original order
    checkpoint/      trained weights and configuration, and what --resume continues from: see ``checkpoint``
    logs/            one folder a machine: server, trainer, torchrun and agent logs; resume-K/ of the K-th continuation

In ``result.json`` of a run that was continued with ``--resume``, ``epochs`` and ``phases`` are those of the whole run;
``seconds``, ``bytes_sent`` and ``peak_rss`` are those of the last start, whose first ``resumed_epochs`` epochs came
from the checkpoint. ``phases`` has for each rank the mean seconds per epoch in each phase of a step, and the mean bytes
of features per epoch from its own machine and from others; ``steps.phases_of`` makes it. Where the model was:
``device`` ("cpu", "cuda"), ``backend`` of the gradients ("gloo", "nccl", "none"), ``layers`` ("dgl", "plain torch") and
``device_reason``, see ``placement``.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import tutorial_lib
from tutorial_lib.cluster.coordinator import Event, JobFailed, MachineUse
from tutorial_lib.cluster.plan import JobPlan
from tutorial_lib.errors import InputError
from tutorial_lib.files import graph_name_of, lock_holder, lock_now
from tutorial_lib.trainer import generations

if TYPE_CHECKING:  # the command line needs this module without torch, for the doctor
    from tutorial_lib.partition import Partition
    from tutorial_lib.trainer.config import TrainConfig


NOT_EMPTY = "Choose another folder, or remove this one yourself."


class Reporter(Protocol):
    """Where a run tells how far it is; ``display.RunDisplay`` is one."""

    def say(self, text: str) -> None: ...

    def on_event(self, event: Event) -> None: ...


class Silent:
    """A reporter that says nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def on_event(self, event: Event) -> None:
        """Nothing."""


def default_run_folder(dataset_name: str) -> Path:
    """``runs/TIME-NAME-XXXX`` in the working directory; the last digits tell apart two of the same second."""
    return Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{graph_name_of(dataset_name)}-{secrets.token_hex(2)}"


def check_run_folder(out: Path) -> Path:
    """The absolute path of a run folder to be; one that holds anything is refused: no earlier result gets lost."""
    out = out.absolute()
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file, not a folder")
    if out.exists() and any(out.iterdir()):
        raise InputError(f"--out {out} is not empty", NOT_EMPTY)
    check_right_to_write(out)
    return out


def check_resume_folder(out: Path) -> Path:
    """The absolute path of a run folder to continue in; one without a checkpoint is refused."""
    out = out.absolute()
    if not out.is_dir():
        raise InputError(f"--resume: there is no folder {out}")
    if not generations.exists(out / "checkpoint"):
        raise InputError(
            f"--resume: no checkpoint in {out / 'checkpoint'}",
            "A run has one when its first epoch is finished. Start it again without --resume, in another folder. "
            "With --copy_to, one may still be on the machines: python -m tutorial_lib fetch RUN brings it home.",
        )
    check_right_to_write(out)
    return out


def check_right_to_write(out: Path) -> None:
    parent = next(folder for folder in [out, *out.parents] if folder.exists())
    if not parent.is_dir():
        raise InputError(f"--out {out}: {parent} is a file, not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"--out {out}: no right to write in {parent}")


def log_folder(out: Path) -> Path:
    """Where the logs of the next start in a run folder go; earlier ones are kept."""
    logs = out / "logs"
    return logs if not logs.exists() else logs / f"resume-{len(list(logs.glob('resume-*'))) + 1}"


@contextlib.contextmanager
def own_run_folder(out: Path) -> Iterator[None]:
    """While the block runs, no other program writes to this run folder; it is made where there is none.

    Raises:
        InputError: the folder cannot be made, or another program is running in it.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"cannot write the run folder {out}: {error.strerror}") from None
    try:
        if lock_now(handle) is False:
            raise InputError(
                f"another program is running in {out}: {lock_holder(handle)}", "Wait for its end, or stop it."
            )
        yield
    finally:
        os.close(handle)


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
                self.file = (out / "events.jsonl").open("r+b" if resume else "xb", buffering=0)
            except FileExistsError:
                raise InputError(f"--out {out} is not empty", NOT_EMPTY) from None
            except OSError as error:
                raise InputError(f"cannot write the run folder {out}: {error.strerror}") from None
            self._folder = stack.pop_all()
        self.earlier: list[Event] = self._keep_whole_lines() if resume else []
        self.reporter = reporter

    def _keep_whole_lines(self) -> list[Event]:
        content = self.file.read()
        self.file.truncate(content.rfind(b"\n") + 1)
        self.file.seek(0, os.SEEK_END)
        events = []
        for line in content[: content.rfind(b"\n") + 1].splitlines():
            with contextlib.suppress(ValueError):  # a line that a full disk has cut
                events.append(json.loads(line))
        return events

    def __enter__(self) -> EventLog:
        return self

    def write(self, event: Event) -> None:
        """Append one event. A full disk ends the file, not the job: what must be kept is in the checkpoint."""
        if not self.file.closed:
            try:
                self.file.write(json.dumps({"time": time.time(), **event}).encode() + b"\n")
            except OSError as error:
                self.file.close()
                self.reporter.say(f"events.jsonl ends here: {error.strerror}")
        self.reporter.on_event(event)

    def __exit__(self, *_exc: object) -> None:
        self.file.close()
        self._folder.close()


def distributed_result(
    partition: Partition,
    plan: JobPlan,
    config: TrainConfig,
    events: list[Event],
    use: dict[str, MachineUse],
    seconds: float,
    *,
    earlier: Sequence[Event] = (),
    resumed: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """The content of ``result.json``.

    Args:
        events, use, seconds: of this start of the job.
        earlier: events of the starts before it.
        resumed: epochs of the checkpoint as seen from here; fewer count where a file of another machine was damaged.

    Raises:
        JobFailed: the trainers ended well and never reported an accuracy.
    """
    from tutorial_lib.trainer.events import phases_of
    from tutorial_lib.trainer.loop import EpochResult, TrainResult

    evaluation = [event for event in events if event["kind"] == "evaluation"]
    placed = next((event for event in events if event["kind"] == "placed"), {})
    if not evaluation:
        machine = plan.machines[0].name
        log = plan.log_folder(0) / "trainer-0.log"
        raise JobFailed(
            f"trainer 0 (rank 0) on {machine}: ended without reporting an accuracy",
            machine=machine,
            role="trainer",
            index=0,
            rank=0,
            log=log,
            tail=[],
        )
    resumed = resumed[: next((event["epochs"] for event in events if event["kind"] == "resumed"), len(resumed))]
    score = evaluation[-1]["score"]
    epochs = [*resumed, *(event for event in events if event["kind"] == "epoch")]
    return result_of(
        partition.manifest["dataset"],
        config,
        processes=(len(plan.machines), plan.trainers, plan.servers, plan.samplers),
        epochs=[EpochResult.from_dict(epoch, score).to_dict() for epoch in epochs],
        evaluation={key: evaluation[-1][key] for key in TrainResult.SUMMARY},
        seconds=seconds,
        bytes_sent={name: used.bytes_sent for name, used in use.items()},
        peak_rss={name: used.peak_rss for name, used in use.items()},
        partition=asdict(partition.report),
        traffic={name: used.received for name, used in use.items()},
        **{key: placed[key] for key in ("device", "backend", "layers", "device_reason") if key in placed},
        resumed_epochs=len(resumed),
        phases=phases_of([*earlier, *events]),
        kept=kept_of(events),
    )


def kept_of(events: list[Event]) -> list[dict[str, Any]]:
    """What each rank's pipeline held of other machines at the end, in rank order; empty without a pipeline."""
    found = [{"rank": event["rank"], **event["pipeline"]} for event in events if event["kind"] == "kept"]
    return sorted(found, key=lambda kept: kept["rank"])


def result_of(
    dataset: dict[str, Any],
    config: TrainConfig,
    *,
    processes: tuple[int, int, int, int],
    epochs: list[dict[str, Any]],
    evaluation: dict[str, Any],
    seconds: float,
    bytes_sent: dict[str, int],
    peak_rss: dict[str, dict[str, int]],
    **more: Any,
) -> dict[str, Any]:
    """The content of ``result.json``, the same keys for every kind of run; ``more`` comes after ``config``.

    Args:
        processes: machines, trainers and servers per machine, samplers per trainer.
        evaluation: ``TrainResult.summary``, exact and over all ranks.
        bytes_sent, peak_rss: by machine.
    """
    machines, trainers, servers, samplers = processes
    return {
        "task": config.task,
        "dataset": dataset["name"],
        "dataset_info": dataset,
        "machines": machines,
        "trainers_per_machine": trainers,
        "servers_per_machine": servers,
        "samplers_per_trainer": samplers,
        "world_size": machines * trainers,
        "config": config.to_dict(),
        **more,
        "epochs": epochs,
        **evaluation,
        "seconds": seconds,
        "bytes_sent": bytes_sent,
        "peak_rss": peak_rss,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Versions of what decides a result."""
    packages = {name: version(name) for name in ("torch", "dgl", "torchdata", "numpy")}
    return {"python": platform.python_version(), "tutorial_lib": tutorial_lib.__version__, **packages}
