"""Events of a trainer: JSON lines that the agent of its machine reads.

Each event has ``kind``, ``time`` (seconds since 1970, of the end if the event has ``seconds``), ``rank`` and
``local_rank``. Epochs, steps and layers are counted from 0. Events marked with * come from rank 0 only. Kinds:

    joined        machine
    placed        device, backend, device_reason, see ``placement``
    split         numbers of this rank's train_nodes and val_nodes, or train_edges, val_edges and test_edges
    step          epoch, step, steps, loss, seconds of each phase, bytes_local, bytes_remote, and background (start and
                  seconds of "sampling" and "pull") if a background thread made the batch
    span          name (joining, preparing, validation, checkpoint, evaluation), seconds
    progress      what (validation, evaluation), batches, of, and in an evaluation layer, layers
    epoch*        epoch, loss, seconds, score (its name), val_score, val_accuracy (null for other scores)
    checkpoint*   epochs, and step of the next epoch. stopped* and resumed* (also damaged) have the same fields
    evaluating*   no fields, before the exact evaluation
    evaluation*   score, val_score, test_score, val_accuracy, test_accuracy, scores
    failure       exception, message, traceback, and role if it was a sampler
    left          peak_rss (bytes)

If a background thread made the batch, ``sampling`` and ``pull`` contain only the time spent waiting. ``forward``
includes the loss, and ``backward`` the all-reduce of gradients, in which each rank waits for the slowest one.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tutorial_lib.files import JsonObject

PHASES: tuple[str, ...] = ("sampling", "pull", "forward", "backward", "update")
SCORES = ("score", "val_score", "test_score", "val_accuracy", "test_accuracy", "scores")  # fields of ``evaluation``
Emit = Callable[..., None]  # takes the kind and the fields of an event, like ``EventWriter.emit``
OnBatch = Callable[..., None]  # takes the number of finished batches and of all, like ``ProgressReporter``


class EventWriter:
    """Appends the events of this trainer to a file of its job. Outside a job, it does nothing."""

    def __init__(self) -> None:
        folder, local_rank = os.environ.get("TUTORIAL_LOG_DIR"), int(os.environ.get("LOCAL_RANK", 0))
        self._who = {"rank": int(os.environ.get("RANK", 0)), "local_rank": local_rank}
        self._path = Path(folder) / f"events-{local_rank}.jsonl" if folder else None

    def emit(self, kind: str, **fields: object) -> None:
        if self._path is not None:
            try:
                with self._path.open("a") as file:
                    file.write(json.dumps({"kind": kind, "time": time.time(), **self._who, **fields}) + "\n")
            except OSError as error:  # Python does not name the file on a full disk
                raise OSError(error.errno, error.strerror, str(self._path)) from None


def no_events(*_values: object, **_fields: object) -> None:
    """Do nothing, as an ``Emit`` or an ``OnBatch``."""


@contextmanager
def span(emit: Emit, name: str, **fields: object) -> Iterator[None]:
    """Emit the time that the body takes as an event ``span``, unless it fails."""
    start = time.perf_counter()
    yield
    emit("span", name=name, seconds=round(time.perf_counter() - start, 6), **fields)


class StepTimer:
    """Measures the phases of one step, from its creation on, for the event ``step``."""

    def __init__(self) -> None:
        self.fields: JsonObject = dict.fromkeys(PHASES, 0.0)
        self._last = time.perf_counter()

    def lap(self, phase: str, background: Mapping[str, tuple[float, float]] | None = None) -> None:
        """Add the time since the last lap to a phase. The wait for a thread is divided among its phases."""
        before, self._last = self._last, time.perf_counter()
        spans = background or {phase: (0.0, 1.0)}
        if background:
            self.fields["background"] = background
        total = sum(seconds for _start, seconds in spans.values())
        for name, (_start, seconds) in spans.items():
            self.fields[name] = round(self.fields[name] + (self._last - before) * seconds / total, 6)


def local_and_remote_bytes(graph: Any, nodes: Any, rows: Any, ntype: str = "_N") -> tuple[int, int]:
    """Return the bytes of rows (I, F) of nodes (I,), or of such tensors by type, from this and from other machines."""
    if isinstance(rows, Mapping):
        type_bytes = [local_and_remote_bytes(graph, nodes[name], rows[name], name) for name in rows]
        return sum(local for local, _ in type_bytes), sum(remote for _, remote in type_bytes)
    row_bytes, local = rows.element_size() * rows.shape[1], len(nodes)
    if hasattr(graph, "get_partition_book") and local:
        book = graph.get_partition_book()
        local = int((book.nid2partid(nodes, ntype) == book.partid).sum())
    return local * row_bytes, (len(nodes) - local) * row_bytes


class ProgressReporter:
    """Emits at most one ``progress`` event per second, which shows that a long pass without steps is alive."""

    def __init__(self, emit: Emit, activity: str) -> None:
        self.emit, self.activity = emit, activity
        self._next = time.monotonic() + 1.0

    def __call__(self, num_done: int, total: int, **more: object) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 1.0
            self.emit("progress", what=self.activity, batches=num_done, of=total, **more)


def summarize_phases(events: Iterable[JsonObject]) -> list[JsonObject]:
    """Return the means per epoch of each rank's ``step`` events. A step that a resumed run repeated counts once."""
    steps = {(e["rank"], e["epoch"], e["step"]): e for e in events if e.get("kind") == "step"}
    summaries = []
    for rank in sorted({rank for rank, _, _ in steps}):
        group = [event for key, event in steps.items() if key[0] == rank]
        epochs = len({event["epoch"] for event in group})
        mean = {key: sum(event[key] for event in group) / epochs for key in (*PHASES, "bytes_local", "bytes_remote")}
        seconds = {phase: mean.pop(phase) for phase in PHASES}
        summaries.append({"rank": rank, "epochs": epochs, "steps": len(group), "seconds": seconds, **mean})
    return summaries
