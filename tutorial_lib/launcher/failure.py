"""How a job ends: the cause of its failure, and the signals that end a command."""

import contextlib
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tutorial_lib.errors import JobError
from tutorial_lib.launcher.jobspec import JobSpec
from tutorial_lib.launcher.logs import ONE_A_MACHINE, PEER_GONE, WORKERS, log_name, read_last_lines
from tutorial_lib.launcher.watch import ProcessStack

# Messages of a process that has lost its connection to a peer, the coordinator or its sampler (EOFError). gloo
# and torch's store raise a RuntimeError or a DistError, and DGL a DGLError. A user's ValueError("refused") is a cause.
# An aborted trainer may have lost its server, because DGL's C++ threads end the process before Python can raise.
_CONSEQUENCE = re.compile(
    r": (Connection\w*Error\b|BrokenPipeError\b|EOFError( \(|$)|killed by signal 6 \(SIGABRT\)|no answer from \S+ \("
    rf"|heard nothing from the coordinator|(RuntimeError|[\w.]*(Dist|DGL)\w*Error): .*({PEER_GONE}))"
)


class JobFailed(JobError):
    """The job failed because of a process on ``machine``. ``tail`` is the end of its ``log``."""

    is_stall = False

    def __init__(
        self, spec: JobSpec, machine_index: int, role: str, local_index: int, cause: str, tail: list[str] | None = None
    ) -> None:
        super().__init__(f"{_name_process(spec, machine_index, role, local_index)}: {cause}")
        self.machine = spec.machines[machine_index].name
        self.role = role
        self.rank = spec.rank(role, machine_index, local_index)
        self.log = spec.log_folder(machine_index) / log_name(role, local_index)
        self.tail = read_last_lines(self.log) if tail is None else tail

    @property
    def is_consequence(self) -> bool:
        """Whether the process failed only because another process ended first."""
        return bool(_CONSEQUENCE.search(self.message))


def _name_process(spec: JobSpec, machine_index: int, role: str, local_index: int) -> str:
    """Return the name of a process in messages, such as ``trainer 1 (rank 3) on machine-1``."""
    rank = spec.rank("trainer" if role in WORKERS else role, machine_index, local_index)
    number = "" if role in ONE_A_MACHINE else f" of trainer {local_index}" if role in WORKERS else f" {local_index}"
    return f"{role}{number}{'' if rank is None else f' (rank {rank})'} on {spec.machines[machine_index].name}"


def stall_failure(spec: JobSpec, seconds: float, stacks: Mapping[int, Sequence[ProcessStack]]) -> JobFailed:
    """Write the stacks of each machine into the log folder, and return the failure of a job without progress."""
    sentences = {}
    for machine_index in sorted(stacks):
        for stack in stacks[machine_index]:
            name = _name_process(spec, machine_index, stack.role, stack.local_index)
            sentences[machine_index, stack] = f"{name} {stack.where()}"
    # The message names a stopped process, or else the call in which each rank waits.
    stopped = [key for key in sentences if key[1].state == "T"]
    shown = stopped[:1] or [key for key in sentences if key[1].role == "trainer"] or list(sentences)
    machine_index, stack = shown[0] if shown else (0, ProcessStack("agent", 0, 0))
    failure = JobFailed(spec, machine_index, stack.role, stack.local_index, "", list(sentences.values()))
    waits = "; ".join(sentences[key] for key in shown) or "no process answered"
    JobError.__init__(failure, f"the job has made no progress for {seconds:g} s: {waits}")  # replaces the message
    failure.log = Path(spec.log_dir) / "stacks.txt"
    failure.is_stall = True
    with contextlib.suppress(OSError):  # a full disk must not hide the failure
        names = [machine.name for machine in spec.machines]
        lines = [f"=== {names[k]}, {s.role} {s.local_index}, pid {s.pid}: {s.where()}\n{s.text}" for k, s in sentences]
        failure.log.write_text("\n".join(lines))
    return failure


def describe_interruption(exit_code: object) -> str:
    """Return a sentence for a command that a person or a signal ended, or an empty string for other exit codes."""
    ended: dict[object, str] = {130: "interrupted", 143: "terminated by SIGTERM", 129: "terminated by SIGHUP"}
    return f"{ended[exit_code]}; all started processes have been stopped" if exit_code in ended else ""


@contextlib.contextmanager
def on_first_sigterm(callback: Callable[[], None]) -> Iterator[None]:
    """Call ``callback`` at the first SIGTERM in the block, but not in threads. A second SIGTERM acts as before."""
    previous = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield
        return

    def handler(*_: object) -> None:
        signal.signal(signal.SIGTERM, previous)
        callback()

    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
