"""How a job failed: the one cause that a person needs, told from the messages of the agents."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tutorial_lib.cluster.logs import tail as tail_of
from tutorial_lib.cluster.logs import uncaught
from tutorial_lib.cluster.plan import JobPlan
from tutorial_lib.cluster.stacks import Stack
from tutorial_lib.errors import JobError

# What a process says when another one is gone: a peer, the coordinator, or (EOFError: a pipe's other end) its sampler.
# Not every message with these words: a user's ValueError("request refused") is a cause.
_CONSEQUENCE = re.compile(
    r": (ConnectionResetError|ConnectionRefusedError|ConnectionAbortedError|BrokenPipeError)\b"
    r"|: EOFError( \(|$)"
    # gloo and the trainers' store say it as a RuntimeError or an error of torch.distributed; DGL as a DGLError
    r"|: (RuntimeError|[\w.]*Dist\w*Error|[\w.]*DGLError): (\[[^]]*(gloo|rpc|network|socket)[^]]*\].*)?"
    r"(Connection (reset|closed|refused)|[Rr]eset by peer|[Cc]losed by peer|[Cc]onnection refused|Broken pipe)"
    r"|: no answer from \S+ \(|: heard nothing from the coordinator"
)


class JobFailed(JobError):
    """The job was started and failed.

    Attributes:
        machine, role, index: where it failed; ``index`` is the number of that role on its machine.
        rank: global rank, when a trainer failed.
        log: the log file of the process that failed.
        tail: the last lines of that log.
    """

    def __init__(
        self, cause: str, *, machine: str, role: str, index: int, rank: int | None, log: Path, tail: list[str]
    ):
        super().__init__(cause)
        self.machine, self.role, self.index, self.rank, self.log, self.tail = machine, role, index, rank, log, tail

    @property
    def is_consequence(self) -> bool:
        """Whether this only says that a peer is gone."""
        return bool(_CONSEQUENCE.search(self.message))


def failure(
    plan: JobPlan,
    index: int,
    role: str,
    k: int,
    cause: str,
    *,
    rank: int | None = None,
    tail: list[str] | None = None,
    log: str | None = None,
) -> JobFailed:
    """The failure of process ``k`` of a role on machine ``index`` of the plan."""
    machine = plan.machines[index].name
    path = plan.log_folder(index) / (log or ("agent.log" if role == "agent" else f"{role}-{k}.log"))
    if tail is None:
        tail = tail_of(path)
    who = f"{role} {k}" if rank is None else f"trainer {k} (rank {rank})"
    if role in ("agent", "torchrun"):  # one a machine
        who = role
    elif role in ("sampler", "worker"):
        who = f"{role} of trainer {k} (rank {index * plan.trainers + k})"
    return JobFailed(
        f"{who} on {machine}: {cause}", machine=machine, role=role, index=k, rank=rank, log=path, tail=tail
    )


def exit_failure(plan: JobPlan, index: int, message: dict[str, Any]) -> JobFailed:
    """From an agent's ``failed`` message: a process that ended badly."""
    how = message.get("note") or how_it_ended(message["code"])
    if message.get("out_of_memory"):
        how += "; the kernel ended a process for want of memory at that time"
    role, k = message["role"], message["index"]
    rank = index * plan.trainers + k if role == "trainer" else None
    # The last line of a Python traceback says more than the exit code. (A sampler has no log of its own.)
    exception = uncaught(message["tail"], message["code"]) if role not in ("sampler", "worker") else None
    cause = f"{exception} ({how})" if exception else how
    return failure(plan, index, role, k, cause, rank=rank, tail=message["tail"], log=message["log"])


def stall_failure(plan: JobPlan, seconds: float, stacks: Sequence[tuple[int, Stack]], path: Path) -> JobFailed:
    """Nothing moves any more: name who is stopped, else say where every trainer waits.

    Args:
        stacks: (number of the machine, stack) of every process that answered.
        path: where all stacks have been written.
    """

    def who(index: int, stack: Stack) -> str:
        rank = f" (rank {index * plan.trainers + stack.index})" if stack.role in ("trainer", "sampler") else ""
        return f"{stack.role} {stack.index}{rank} on {plan.machines[index].name}"

    trainers = [(index, stack) for index, stack in stacks if stack.role == "trainer"]
    stopped = [(index, stack) for index, stack in stacks if stack.stopped]
    lines = [f"{who(index, stack)} is {stack.where()}" for index, stack in stopped or trainers or stacks]
    index, stack = (stopped or trainers or stacks or [(0, Stack("agent", 0, 0, "?", ""))])[0]
    where = f"{lines[0]}" if stopped else "; ".join(lines) or "no process answered"
    return JobFailed(
        f"the job has not moved for {seconds:g} s: {where}",
        machine=plan.machines[index].name,
        role=stack.role,
        index=stack.index,
        rank=index * plan.trainers + stack.index if stack.role == "trainer" else None,
        log=path,
        tail=[f"{who(i, s)}: {s.where()}" for i, s in stacks],
    )


def how_it_ended(code: int) -> str:
    """``1`` to "exit code 1", ``-9`` to "killed by signal 9 (SIGKILL)", with a likely reason where there is one."""
    if code >= 0:
        return f"exit code {code}"
    reasons = {signal.SIGBUS: "; /dev/shm was full, or another job wrote to the same files in it"}
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"killed by signal {-code} ({name}{reasons.get(-code, '')})"
