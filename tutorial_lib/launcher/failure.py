"""How a job ends: the cause of its failure, and the signals that end a command."""

import contextlib
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tutorial_lib.errors import JobError
from tutorial_lib.launcher.jobspec import JobSpec
from tutorial_lib.launcher.logs import ONE_A_MACHINE, PEER_GONE, WORKERS, log_name
from tutorial_lib.launcher.logs import tail as tail_of
from tutorial_lib.launcher.watch import Stack

# Messages of a process that has lost another one: a peer, the coordinator, or its sampler (EOFError on a pipe). gloo
# and torch's store raise a RuntimeError or a DistError, and DGL a DGLError. A user's ValueError("refused") is a cause.
# An aborted trainer may have lost its server, because DGL's C++ threads end the process before Python can raise.
_CONSEQUENCE = re.compile(
    r": (Connection\w*Error\b|BrokenPipeError\b|EOFError( \(|$)|killed by signal 6 \(SIGABRT\)|no answer from \S+ \("
    rf"|heard nothing from the coordinator|(RuntimeError|[\w.]*(Dist|DGL)\w*Error): .*({PEER_GONE}))"
)


class JobFailed(JobError):
    """The job was started and failed.

    Attributes:
        machine, role, index: the failed process. ``index`` counts the processes of a role on a machine.
        rank: global rank of a failed rank, or None.
        log, tail: the log file of the failed process, and its last lines.
    """

    is_stall = False

    def __init__(
        self, message: str, spec: JobSpec, machine: int, role: str, index: int, tail: list[str] | None = None
    ) -> None:
        super().__init__(message)
        self.machine, self.role, self.index = spec.machines[machine].name, role, index
        self.rank, self.log = spec.rank(role, machine, index), spec.log_folder(machine) / log_name(role, index)
        self.tail = tail_of(self.log) if tail is None else tail

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
    return JobFailed(f"{_name(spec, index, role, k)}: {cause}", spec, index, role, k, tail)


def stall_failure(spec: JobSpec, seconds: float, stacks: Sequence[tuple[int, Stack]], path: Path) -> JobFailed:
    """Return the failure of a job without progress. It names a stopped process, or the call in which each rank waits.

    ``stacks`` are pairs of a machine and the stack of a process. The file ``path`` has all of them.
    """
    texts = {(index, s): f"{_name(spec, index, s.role, s.index)} is {s.where()}" for index, s in stacks}
    shown = [key for key in texts if key[1].state == "T"][:1]
    shown = shown or [key for key in texts if key[1].role == "trainer"] or list(texts)
    where = "; ".join(texts[key] for key in shown) or "no process answered"
    index, stack = shown[0] if shown else (0, Stack("agent", 0, 0))
    message = f"the job has not moved for {seconds:g} s: {where}"
    stalled = JobFailed(message, spec, index, stack.role, stack.index, list(texts.values()))
    stalled.log, stalled.is_stall = path, True
    return stalled


def how_it_was_ended(exit_code: object) -> str:
    """Return a sentence for a command that a person or a signal ended, or an empty text for other exit codes."""
    ended: dict[object, str] = {130: "interrupted", 143: "told to end (SIGTERM)", 129: "told to end (SIGHUP)"}
    return f"{ended[exit_code]}; everything that was started has been stopped" if exit_code in ended else ""


@contextlib.contextmanager
def first_sigterm(act: Callable[[], None]) -> Iterator[None]:
    """Call ``act`` at the first SIGTERM in the block, but not in threads. A second SIGTERM has its effect as before."""
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def handler(*_: object) -> None:
        signal.signal(signal.SIGTERM, before)
        act()

    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
