"""The cause of a failed job, derived from the messages of the agents."""

from __future__ import annotations

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

# Messages of a process that has lost another one: a peer, the coordinator, or its sampler (EOFError on a pipe).
# Other messages can contain the same words. A user's ValueError("request refused") is a cause.
# An aborted trainer may have lost its server, because DGL's C++ threads end the process before Python can raise.
_CONSEQUENCE = re.compile(
    r": (ConnectionResetError|ConnectionRefusedError|ConnectionAbortedError|BrokenPipeError)\b"
    r"|: EOFError( \(|$)"
    # gloo and the store raise a RuntimeError or an error of torch.distributed, and DGL raises a DGLError
    r"|: (RuntimeError|[\w.]*Dist\w*Error|[\w.]*DGLError): (\[[^]]*(gloo|rpc|network|socket)[^]]*\].*)?"
    rf"({PEER_GONE})"
    r"|: killed by signal 6 \(SIGABRT\)"
    r"|: no answer from \S+ \(|: heard nothing from the coordinator"
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


def failure(spec: JobSpec, index: int, role: str, k: int, cause: str, tail: list[str] | None = None) -> JobFailed:
    """Return the failure of process ``k`` of a role on machine ``index``. By default, ``tail`` is read from its log."""
    log, text = spec.log_folder(index) / log_name(role, k), f"{_who(spec, index, role, k)}: {cause}"
    return JobFailed(text, **_where(spec, index, role, k), log=log, tail=tail_of(log) if tail is None else tail)


def _where(spec: JobSpec, index: int, role: str, k: int) -> dict[str, Any]:
    return {"machine": spec.machines[index].name, "role": role, "index": k, "rank": spec.rank(role, index, k)}


def _who(spec: JobSpec, index: int, role: str, k: int) -> str:
    name, rank = spec.machines[index].name, spec.rank(role, index, k)
    if role in ONE_A_MACHINE:
        return f"{role} on {name}"
    if role in WORKERS:
        return f"{role} of trainer {k} (rank {spec.rank('trainer', index, k)}) on {name}"
    return f"{role} {k}{'' if rank is None else f' (rank {rank})'} on {name}"


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

    Args:
        stacks: index of the machine and stack of each process that answered.
        path: file with all stacks.
    """
    names = [_who(spec, index, stack.role, stack.index) for index, stack in stacks]
    found = [(index, stack, f"{name} is {stack.where()}") for name, (index, stack) in zip(names, stacks, strict=True)]
    shown = [entry for entry in found if entry[1].stopped][:1]
    shown = shown or [entry for entry in found if entry[1].role == "trainer"] or found
    where = "; ".join(text for *_, text in shown) or "no process answered"
    index, role, k = (shown[0][0], shown[0][1].role, shown[0][1].index) if shown else (0, "agent", 0)
    cause = f"{_STALL} {seconds:g} s: {where}"
    return JobFailed(cause, **_where(spec, index, role, k), log=path, tail=[text for *_, text in found])


def left_early(spec: JobSpec, found: JobFailed, events: Sequence[dict[str, Any]]) -> JobFailed:
    """Return the failure of a rank that ended with exit code 0 too early, if ``found`` is only its consequence.

    Args:
        found: the first failure.
        events: events of the job. A rank of ``train`` that ends in order reports ``left``.
    """
    if not (found.is_consequence or _STALL in found.message):
        return found
    left = {(event["machine"], event["local_rank"]) for event in events if event["kind"] == "left"}
    for event in events:
        if event["kind"] == "exited" and event["role"] == "trainer" and event["code"] == 0:
            name, k = event["machine"], event["index"]
            index = next(number for number, machine in enumerate(spec.machines) if machine.name == name)
            if (name, k) not in left:
                cause = f"ended with exit code 0 before the others finished; one of them: {found.message}"
                return failure(spec, index, "trainer", k, cause)
    return found


def machines_gone(found: JobFailed, why: str) -> JobFailed:
    """Return the failure of a job whose machines have ended. ``found`` is the first failure."""
    cause = JobFailed(why, **{n: getattr(found, n) for n in ("machine", "role", "index", "rank", "log", "tail")})
    cause.remedy = "Start machines again (machines start). A run of train then continues with --resume."
    return cause
