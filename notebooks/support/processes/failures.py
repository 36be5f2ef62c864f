"""The errors that ``spawn`` and ``fork`` raise if they cannot raise the exception of a rank."""

import contextlib
import pickle
import re
import signal as signals
from typing import Any

from tutorial_lib.errors import JobError

TAIL_LINES = 10
_OWN = re.compile(r'File ".*/support/processes/(child|forking)\.py"')
_STDLIB_THREAD = re.compile(r'File ".*/threading\.py"')


class RankTraceback(Exception):
    """The traceback of an exception in a rank, used as its cause in the parent."""


class RankFailed(JobError):
    """A rank ended without a result, or with an exception that cannot be unpickled in the parent.

    Attributes:
        rank: the rank that failed first.
        exit_code: exit code, or minus the number of the signal that ended the rank, or None if it was still running.
        signal: name of the signal, or None.
        output: last lines of its output.
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
    """Ranks did not return in time.

    Attributes:
        ranks: numbers of these ranks.
        stacks: for each rank, the Python stacks of all threads at the time limit, innermost call first.
    """

    def __init__(self, stacks: dict[int, str], world_size: int, seconds: float, remedy: str) -> None:
        names = ", ".join(f"rank {rank}" for rank in stacks)
        message = f"{len(stacks)} of {world_size} ranks did not return within {seconds:g} s: {names}"
        details = [f"stack of rank {rank}:\n{stack}" for rank, stack in stacks.items()]
        super().__init__("\n".join([message, *details]), remedy)
        self.ranks = list(stacks)
        self.stacks = stacks


def signal_name(exit_code: int | None) -> str | None:
    """Return the name of the signal that ended a process, such as SIGKILL for -9, or None for other exit codes."""
    if exit_code is None or exit_code >= 0:
        return None
    known = {number.value: number.name for number in signals.Signals}
    return known.get(-exit_code, f"signal {-exit_code}")


def failure_of(rank: int, code: int, report: tuple[Any, ...], output: str, remedy: str) -> BaseException:
    """Return the error for a rank with this exit code and this report (see ``child.call_function``)."""
    what = f"was ended by {signal_name(code)}" if code < 0 else f"ended with exit code {code}"
    if code == -signals.SIGKILL:
        what = "was killed by SIGKILL (sent by a program, or by the kernel because memory ran out, see dmesg)"
    if not report:
        return RankFailed(rank, what if code < 0 else f"{what} before it returned a result", code, output, remedy)
    kind, content, *more = report
    if kind == "value":
        return RankFailed(rank, f"returned its result, then {what}", code, output)
    if kind == "exit":
        return RankFailed(rank, f"called sys.exit({content!r})", content if isinstance(content, int) else 1, output)
    text, pickled = more
    error: BaseException = RankFailed(rank, f"raised {content}", code, output, remedy)
    if pickled is not None:
        with contextlib.suppress(Exception):
            error = pickle.loads(pickled)
    error.__cause__ = RankTraceback(f'\n"""\nrank {rank}:\n{text}"""')
    return error


def users_frames(text: str) -> str:
    """Return stacks without our frames and without the frames that a forked rank has copied from its parent."""
    threads = []
    for block in text.strip().split("\n\n") if text else ():
        heading, *frames = block.splitlines()
        outside = next((number for number, frame in enumerate(frames) if _OWN.search(frame)), len(frames))
        if any(not _STDLIB_THREAD.search(frame) for frame in frames[:outside]):
            threads.append("\n".join(f"  {line}" for line in [heading, *frames[:outside]]))
    return "\n".join(threads)
