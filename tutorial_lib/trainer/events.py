"""What a trainer tells while it runs: JSON lines, one event each, picked up by the machine's agent.

Each event has ``kind``, ``time`` (seconds since 1970; where it also has ``seconds``, of their end), ``rank`` and
``local_rank``. Kinds, with their fields:

    joined      machine, client (this rank's number among those that ask DGL's servers)
    placed      device, backend, device_reason: see ``placement``
    split       train_nodes, val_nodes (of links, of each side its edges): this rank's share
    step        epoch, step, steps, loss, seconds of each phase, bytes_local, bytes_remote; background: start (seconds
                since 1970) and seconds of "sampling" and "pull", if a background thread made the batch
    warning     text: something that the user should read, from rank 0
    span        name, seconds, and what it is of: starting (imports too, where they are not shared), joining,
                preparing, validation, checkpoint, evaluation; of each rank
    progress    what (validation, evaluation), batches, of, in an evaluation also layer, layers
    epoch       epoch, loss, seconds, score, val_score, val_accuracy: of all ranks, from rank 0
    checkpoint  epochs: so many are saved, from rank 0; of a run that stopped in the middle of the next, its step
    stopped     epochs, step: as in checkpoint; the run was told to end and has saved, from rank 0
    resumed     epochs: so many came from the checkpoint, from rank 0; step, as in checkpoint
    evaluating  from rank 0
    evaluation  score, val_score, test_score, val_accuracy, test_accuracy, scores: of all ranks, from rank 0
    failure     exception, message, traceback, and role where it was not the trainer but its sampler
    left        peak_rss (bytes)

Epochs, steps and layers are counted from 0. ``score`` names what ``val_score`` and ``test_score`` are: "accuracy", or
"MRR" for links; ``val_accuracy`` and ``test_accuracy`` are null where the score is no accuracy. Phases of a step:

    sampling   this process and the servers of other machines sample neighbors of the seeds
    pull       rows of features and labels are read from this machine's memory or over the network
               (for batches from a background thread, both phases contain only the time spent waiting)
    forward    logits and loss
    backward   gradients and their all-reduce, in which each rank waits for the slowest one
    update     the optimizer updates the weights
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PHASES: tuple[str, ...] = ("sampling", "pull", "forward", "backward", "update")
PULSE_SECONDS = 1.0


class EventWriter:
    """Appends events of this trainer, or of this DGL server of its machine, to a file; does nothing outside a job."""

    def __init__(self, server: int | None = None) -> None:
        folder, local_rank = os.environ.get("TUTORIAL_LOG_DIR"), int(os.environ.get("LOCAL_RANK", 0))
        self._who: dict[str, Any] = {"rank": int(os.environ.get("RANK", 0)), "local_rank": local_rank}
        if server is not None:
            self._who = {"role": "server", "index": server}
        name = local_rank if server is None else f"server-{server}"
        self._path = Path(folder) / f"events-{name}.jsonl" if folder else None

    def emit(self, kind: str, **fields: Any) -> None:
        """Write one event; whole lines only, so that a reader never sees half of one for long.

        Raises:
            OSError: it cannot be written; the file is named.
        """
        if self._path is not None:
            event = {"kind": kind, "time": time.time(), **self._who, **fields}
            try:
                with self._path.open("a") as file:
                    file.write(json.dumps(event) + "\n")
            except OSError as error:  # of a full disk, Python does not say which file
                raise OSError(error.errno, error.strerror, str(self._path)) from None


Emit = Callable[..., None]  # takes an event: its kind and its fields; ``EventWriter.emit`` is one
OnBatch = Callable[..., None]  # takes the batches that are done and their number; a ``Pulse`` is one


def no_events(*_values: Any, **_fields: Any) -> None:
    """An ``Emit`` that forgets, and an ``OnBatch`` that stays silent."""


@contextmanager
def span(emit: Emit, name: str, **fields: Any) -> Iterator[None]:
    """The time that the body takes becomes an event ``span``, unless it fails."""
    start = time.perf_counter()
    yield
    emit("span", name=name, seconds=round(time.perf_counter() - start, 6), **fields)


def age_of_process() -> float:
    """Seconds since this process was started, or forked; to a hundredth."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


class StepTimer:
    """Measures the phases of the steps of one epoch on this rank and emits a ``step`` event for each step."""

    def __init__(self, emit: Emit, epoch: int, steps: int) -> None:
        self.emit, self.epoch, self.steps = emit, epoch, steps
        self._restart()

    def _restart(self) -> None:
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._background: dict[str, tuple[float, float]] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str, batch: Any = None) -> None:
        """Add the time since the last lap to a phase.

        The wait for a batch that a background thread made is shorter than the thread's work. It is divided among the
        phases of the thread in proportion to their durations.
        """
        now = time.perf_counter()
        self._background = getattr(batch, "background", None) or self._background
        phases = self._background if batch is not None else {}
        total = sum(seconds for _start, seconds in phases.values())
        shares = {name: seconds / total for name, (_start, seconds) in phases.items()} if total else {phase: 1.0}
        for name, share in shares.items():
            self._seconds[name] += (now - self._last) * share
        self._last = now

    def emit_step(self, step: int, loss: float, bytes_local: int, bytes_remote: int) -> None:
        """Emit the event of a finished step. The time of this call belongs to no phase."""
        seconds = {phase: round(seconds, 6) for phase, seconds in self._seconds.items()}
        event = {"epoch": self.epoch, "step": step, "steps": self.steps, "loss": loss, **seconds}
        event |= {"bytes_local": bytes_local, "bytes_remote": bytes_remote}
        event |= {"background": self._background} if self._background else {}
        self.emit("step", **event)
        self._restart()


def bytes_by_place(graph: Any, nodes: Any, rows: Any, ntype: str = "_N") -> tuple[int, int]:
    """Bytes of rows that came from this machine's part and from other machines.

    Args:
        graph: ``DistGraph``, or a plain graph, all of which is here.
        nodes: int64 (I,) ids whose rows were pulled; or by type.
        rows: (I, F) what was pulled; or by type.
    """
    if isinstance(rows, Mapping):
        each = [bytes_by_place(graph, nodes[name], rows[name], name) for name in rows]
        return sum(local for local, _ in each), sum(remote for _, remote in each)
    row_bytes, local = rows.element_size() * rows.shape[1], len(nodes)
    if hasattr(graph, "get_partition_book") and local:
        book = graph.get_partition_book()
        local = int((book.nid2partid(nodes, ntype) == book.partid).sum())
    return local * row_bytes, (len(nodes) - local) * row_bytes


class Pulse:
    """Emits a ``progress`` event at most once a second: a long pass without steps is seen to be alive."""

    def __init__(self, emit: Emit, what: str) -> None:
        self.emit, self.what = emit, what
        self._next = time.monotonic() + PULSE_SECONDS

    def __call__(self, done: int, of: int, **more: Any) -> None:
        """``done`` of ``of`` batches are through; ``more`` goes into the event."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PULSE_SECONDS
            self.emit("progress", what=self.what, batches=done, of=of, **more)


def phases_of(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means per epoch of each rank, from ``step`` events: the ``phases`` of ``result.json``.

    A step that was done twice, because the run was resumed in between, counts once, with its later event.

    Returns:
        In rank order: rank, epochs and steps that were counted, ``seconds`` per epoch by phase, and
        ``bytes_local`` and ``bytes_remote`` per epoch.
    """
    steps = {(e["rank"], e["epoch"], e["step"]): e for e in events if e.get("kind") == "step"}
    found = []
    for rank in sorted({rank for rank, _, _ in steps}):
        own = [event for key, event in steps.items() if key[0] == rank]
        epochs = len({event["epoch"] for event in own})
        mean = {key: sum(event[key] for event in own) / epochs for key in (*PHASES, "bytes_local", "bytes_remote")}
        seconds = {phase: mean.pop(phase) for phase in PHASES}
        found.append({"rank": rank, "epochs": epochs, "steps": len(own), "seconds": seconds, **mean})
    return found
