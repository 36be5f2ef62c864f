"""How a failed rank is told: the errors that ``spawn`` and ``fork`` raise when they cannot raise the rank's own."""

from __future__ import annotations

from tutorial_lib.errors import JobError, signal_name

TAIL_LINES = 10
# What gloo, the trainers' store or a pipe says in a process whose peer has died: an effect, not the cause. A pattern.
PEER_GONE = r"Connection (reset|closed|refused)|[Rr]eset by peer|[Cc]losed by peer|[Cc]onnection refused|Broken pipe"


class RankFailed(JobError):
    """A rank ended without a result, or with an exception that cannot be rebuilt in the parent.

    Attributes:
        rank: the rank that failed first.
        exit_code: its exit code; negative: minus the number of the signal that ended it; None: it was still running.
        signal: name of that signal, or None.
        output: the last lines that it wrote.
    """

    def __init__(self, rank: int, what: str, exit_code: int | None, output: str, remedy: str = "") -> None:
        tail = output.splitlines()[-TAIL_LINES:]
        shown = "\n".join(["", "last lines of its output:", *(f"  | {line}" for line in tail)]) if tail else ""
        super().__init__(f"rank {rank} {what}{shown}", remedy)
        self.rank = rank
        self.exit_code = exit_code
        self.signal = signal_name(exit_code)
        self.output = "\n".join(tail)


class RanksTimedOut(JobError):
    """Ranks that did not return in time.

    Attributes:
        ranks: which.
        stacks: Python stack of every thread of each of them when the time was up, innermost call first.
    """

    def __init__(self, ranks: list[int], world_size: int, seconds: float, stacks: dict[int, str], remedy: str) -> None:
        names = ", ".join(f"rank {rank}" for rank in ranks)
        message = f"{len(ranks)} of {world_size} ranks did not return within {seconds:g} s: {names}"
        details = [f"rank {rank} was here:\n{stacks[rank]}" for rank in ranks]
        super().__init__("\n".join([message, *details]), remedy)
        self.ranks = ranks
        self.stacks = stacks


def describe_exit(exit_code: int) -> str:
    """What an exit code means, for a message that starts with the rank's name."""
    name = signal_name(exit_code)
    if name == "SIGKILL":
        return "was killed by SIGKILL (by someone, or by the kernel when memory ran out: see dmesg)"
    return f"was ended by {name}" if name else f"ended with exit code {exit_code}"
