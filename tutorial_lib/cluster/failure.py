"""How a job failed: the one cause that a person needs, told from the messages of the agents."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tutorial_lib.cluster.logs import tail as tail_of
from tutorial_lib.cluster.logs import uncaught
from tutorial_lib.cluster.members import Stack
from tutorial_lib.cluster.plan import JobPlan
from tutorial_lib.errors import JobError
from tutorial_lib.processes.failures import PEER_GONE, signal_name

# What a process says when another one is gone: a peer, the coordinator, or (EOFError: a pipe's other end) its sampler.
# Not every message with these words: a user's ValueError("request refused") is a cause.
_CONSEQUENCE = re.compile(
    r": (ConnectionResetError|ConnectionRefusedError|ConnectionAbortedError|BrokenPipeError)\b"
    r"|: EOFError( \(|$)"
    # gloo and the trainers' store say it as a RuntimeError or an error of torch.distributed; DGL as a DGLError
    r"|: (RuntimeError|[\w.]*Dist\w*Error|[\w.]*DGLError): (\[[^]]*(gloo|rpc|network|socket)[^]]*\].*)?"
    rf"({PEER_GONE})"
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
    plan: JobPlan, index: int, role: str, k: int, cause: str, *, tail: list[str] | None = None, log: str | None = None
) -> JobFailed:
    """The failure of process ``k`` of a role on machine ``index`` of the plan."""
    path = plan.log_folder(index) / (log or ("agent.log" if role == "agent" else f"{role}-{k}.log"))
    return JobFailed(
        f"{_who(plan, index, role, k)}: {cause}",
        machine=plan.machines[index].name,
        role=role,
        index=k,
        rank=index * plan.trainers + k if role == "trainer" else None,
        log=path,
        tail=tail_of(path) if tail is None else tail,
    )


def _who(plan: JobPlan, index: int, role: str, k: int) -> str:
    name, rank = plan.machines[index].name, index * plan.trainers + k
    if role in ("agent", "torchrun"):  # one a machine
        return f"{role} on {name}"
    if role in ("sampler", "worker"):
        return f"{role} of trainer {k} (rank {rank}) on {name}"
    return f"{role} {k}{f' (rank {rank})' if role == 'trainer' else ''} on {name}"


def exit_failure(plan: JobPlan, index: int, message: dict[str, Any]) -> JobFailed:
    """From an agent's ``failed`` message: a process that ended badly."""
    how = message.get("note") or how_it_ended(message["code"])
    if message.get("out_of_memory"):
        how += "; the kernel ended a process for want of memory at that time"
    role, tail = message["role"], message["tail"]
    # The last line of a Python traceback says more than the exit code. (A sampler has no log of its own.)
    exception = uncaught(tail, message["code"]) if role not in ("sampler", "worker") else None
    cause = f"{exception} ({how})" if exception else how
    return failure(plan, index, role, message["index"], cause, tail=tail, log=message["log"])


def stall_failure(plan: JobPlan, seconds: float, stacks: Sequence[tuple[int, Stack]], path: Path) -> JobFailed:
    """Nothing moves any more: name who is stopped, else say where every trainer waits.

    Args:
        stacks: (number of the machine, stack) of every process that answered.
        path: where all stacks have been written.
    """
    stopped = [(index, stack) for index, stack in stacks if stack.stopped][:1]
    shown = stopped or [(index, stack) for index, stack in stacks if stack.role == "trainer"] or stacks
    where = "; ".join(f"{_who(plan, i, s.role, s.index)} is {s.where()}" for i, s in shown) or "no process answered"
    index, stack = shown[0] if shown else (0, Stack("agent", 0, 0, "?", ""))
    return JobFailed(
        f"the job has not moved for {seconds:g} s: {where}",
        machine=plan.machines[index].name,
        role=stack.role,
        index=stack.index,
        rank=index * plan.trainers + stack.index if stack.role == "trainer" else None,
        log=path,
        tail=[f"{_who(plan, i, s.role, s.index)}: {s.where()}" for i, s in stacks],
    )


def how_it_ended(code: int) -> str:
    """``1`` to "exit code 1", ``-9`` to "killed by signal 9 (SIGKILL)", with a likely reason where there is one."""
    if code >= 0:
        return f"exit code {code}"
    reason = "; /dev/shm was full, or another job wrote to the same files in it" if code == -signal.SIGBUS else ""
    return f"killed by signal {-code} ({signal_name(code)}{reason})"
