"""The cause of a failed job, derived from the messages of the agents."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tutorial_lib.errors import JobError, how_it_ended
from tutorial_lib.launcher.jobspec import JobSpec
from tutorial_lib.launcher.logs import ONE_A_MACHINE, PEER_GONE, WORKERS, log_name, uncaught
from tutorial_lib.launcher.logs import tail as tail_of
from tutorial_lib.launcher.messages import Failed
from tutorial_lib.launcher.watch import Stack

# Messages of a process that has lost another one: a peer, the coordinator, or its sampler (EOFError on a pipe). gloo
# and torch's store raise a RuntimeError or a DistError, and DGL a DGLError. A user's ValueError("refused") is a cause.
# An aborted trainer may have lost its server, because DGL's C++ threads end the process before Python can raise.
_CONSEQUENCE = re.compile(
    r": (Connection\w*Error\b|BrokenPipeError\b|EOFError( \(|$)|killed by signal 6 \(SIGABRT\)|no answer from \S+ \("
    rf"|heard nothing from the coordinator|(RuntimeError|[\w.]*(Dist|DGL)\w*Error): .*({PEER_GONE}))"
)
_STALL = "the job has not moved for"


class JobFailed(JobError):
    """The job was started and failed.

    Attributes:
        machine, role, index: the failed process. ``index`` counts the processes of a role on a machine.
        rank: global rank of a failed rank, or None.
        log, tail: the log file of the failed process, and its last lines.
    """

    def __init__(
        self, cause: str, *, machine: str, role: str, index: int, rank: int | None, log: Path, tail: list[str]
    ):
        super().__init__(cause)
        self.machine, self.role, self.index, self.rank, self.log, self.tail = machine, role, index, rank, log, tail

    @property
    def is_consequence(self) -> bool:
        """Whether the cause is the loss of another process."""
        return bool(_CONSEQUENCE.search(self.message))


def _name(spec: JobSpec, index: int, role: str, k: int) -> str:
    """Return ``trainer 1 (rank 3) on machine-1``."""
    rank = spec.rank("trainer" if role in WORKERS else role, index, k)
    number = "" if role in ONE_A_MACHINE else f" of trainer {k}" if role in WORKERS else f" {k}"
    return f"{role}{number}{'' if rank is None else f' (rank {rank})'} on {spec.machines[index].name}"


def failure(spec: JobSpec, index: int, role: str, k: int, cause: str, tail: list[str] | None = None) -> JobFailed:
    """Return the failure of process ``k`` of a role on machine ``index``. By default, ``tail`` is read from its log."""
    log, text = spec.log_folder(index) / log_name(role, k), f"{_name(spec, index, role, k)}: {cause}"
    machine, rank, tail = spec.machines[index].name, spec.rank(role, index, k), tail_of(log) if tail is None else tail
    return JobFailed(text, machine=machine, role=role, index=k, rank=rank, log=log, tail=tail)


def exit_failure(spec: JobSpec, index: int, message: Failed) -> JobFailed:
    """Return the failure that an agent reported: a process that ended badly."""
    how = message.note or how_it_ended(message.code)
    if message.out_of_memory:
        how += "; the kernel ended a process for want of memory at that time"
    # The last line of a Python traceback is more useful than the exit code.
    exception = uncaught(message.tail, message.code) if message.role not in WORKERS else None
    cause = f"{exception} ({how})" if exception else how
    return failure(spec, index, message.role, message.index, cause, message.tail)


def stall_failure(spec: JobSpec, seconds: float, stacks: Sequence[tuple[int, Stack]], path: Path) -> JobFailed:
    """Return the failure of a job without progress. It names a stopped process, or the call in which each rank waits.

    ``stacks`` has the index of the machine and the stack of each process that answered, and ``path`` is their file.
    """
    texts = {(index, s): f"{_name(spec, index, s.role, s.index)} is {s.where()}" for index, s in stacks}
    shown = [key for key in texts if key[1].state == "T"][:1]
    shown = shown or [key for key in texts if key[1].role == "trainer"] or list(texts)
    where = "; ".join(texts[key] for key in shown) or "no process answered"
    index, stack = shown[0] if shown else (0, Stack("agent", 0, 0))
    found = failure(spec, index, stack.role, stack.index, "", list(texts.values()))
    found.log = path
    return _reworded(found, f"{_STALL} {seconds:g} s: {where}")


def left_early(spec: JobSpec, found: JobFailed, events: Sequence[dict[str, Any]]) -> JobFailed:
    """Return the failure of a rank that ended with exit code 0 too early, if ``found`` is only its consequence.

    ``events`` are those of the job. A rank of ``train`` that ends in order reports ``left``.
    """
    left = {(event["machine"], event["local_rank"]) for event in events if event["kind"] == "left"}
    for event in events if found.is_consequence or _STALL in found.message else ():
        if event["kind"] == "exited" and event["role"] == "trainer" and event["code"] == 0:
            index = [machine.name for machine in spec.machines].index(event["machine"])
            if (event["machine"], event["index"]) not in left:
                cause = f"ended with exit code 0 before the others finished; one of them: {found.message}"
                return failure(spec, index, "trainer", event["index"], cause)
    return found


def machines_gone(found: JobFailed, why: str) -> JobFailed:
    """Return the first failure of a job with the cause that its machines have ended."""
    found.remedy = "Start machines again (machines start). A run of train then continues with --resume."
    return _reworded(found, why)


def _reworded(found: JobFailed, cause: str) -> JobFailed:
    found.args, found.message = (cause,), cause
    return found
