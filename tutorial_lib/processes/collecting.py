"""The parent's view of the ranks: what they report, where they are, the first failure in the best words, their end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import re
import signal
import time
from multiprocessing import connection
from multiprocessing.pool import RemoteTraceback
from multiprocessing.process import BaseProcess
from typing import Any

from tutorial_lib.processes.child import EXIT, VALUE, Ends
from tutorial_lib.processes.failures import RankFailed, RanksTimedOut, describe_exit
from tutorial_lib.processes.passing import SharedFile

SETTLE = 0.3  # seconds after the first failure in which a more telling one may arrive
GRACE = 2.0  # seconds between SIGTERM and SIGKILL
LEAVE = 30.0  # seconds for the end of a rank that has returned
PATIENCE = 2.0  # seconds for a stack to be written
# What gloo says in a rank whose peer has died: an effect, not the cause.
PEER_GONE = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Connection refused")
OWN = re.compile(r'File ".*/tutorial_lib/processes/(child|openmp)\.py"')
STDLIB_THREAD = re.compile(r'File ".*/threading\.py"')

# Ends of pipes and sockets that only the parent may hold. Any process that it forks closes its copies: a life line
# with a second holder would not end when the parent dies.
PARENT_ENDS: set[Any] = set()


def _close_parent_ends() -> None:
    for end in PARENT_ENDS:
        with contextlib.suppress(OSError):
            end.close()
    PARENT_ENDS.clear()


os.register_at_fork(after_in_child=_close_parent_ends)


class Rank:
    """One rank: its process, our ends of its pipes, and its files.

    Attributes:
        ends: the rank's own.
        report: kind and pickle, once it is there.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.channel, channel = multiprocessing.Pipe()
        lifeline, self.lifeline = multiprocessing.Pipe(duplex=False)
        PARENT_ENDS.update((self.channel, self.lifeline))
        self.ends = Ends(channel, lifeline, SharedFile(), SharedFile(), SharedFile())
        self.process: BaseProcess | None = None
        self.report: bytes | None = None

    def poll(self) -> int | None:
        """The exit code; None while the process runs. A process that was not started has none left to wait for."""
        return 0 if self.process is None else self.process.exitcode

    def listen(self) -> None:
        """Take the report, if the rank has told that it is there."""
        with contextlib.suppress(OSError, EOFError):
            if self.channel.poll():
                self.channel.recv_bytes()
                self.report = self.ends.report.read()

    @property
    def failed(self) -> bool:
        """It has reported a failure, or has ended without a report."""
        return self.report[:1] != VALUE if self.report is not None else self.poll() is not None

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the rank and to all processes that it started."""
        if self.process is None or self.process.pid is None:
            return
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, number)
        if self.poll() is None:
            with contextlib.suppress(OSError):
                os.kill(self.process.pid, number)

    def close_rank_ends(self) -> None:
        """Ours of its copies, once it has them."""
        self.ends.channel.close()
        self.ends.lifeline.close()

    def close(self) -> None:
        """Close everything; the kernel kills what still holds a life line."""
        self.close_rank_ends()
        for end in (self.channel, self.lifeline):
            PARENT_ENDS.discard(end)
            end.close()
        for file in (self.ends.output, self.ends.stacks, self.ends.report):
            file.file.close()
        if self.process is not None:
            with contextlib.suppress(ValueError):  # it still runs: only if even SIGKILL did not end it in time
                self.process.close()


def wait(ranks: list[Rank], deadline: float) -> None:
    """Until all have reported, one has failed (and others had a moment to report too), or time is up."""
    settled = deadline
    while time.monotonic() < min(deadline, settled):
        waiting = [rank for rank in ranks if rank.report is None and rank.poll() is None]
        if not waiting:
            break
        connection.wait([thing for rank in waiting for thing in (rank.channel, rank.process.sentinel)], 0.05)
        for rank in waiting:
            rank.listen()
        if settled == deadline and any(rank.failed for rank in ranks):
            settled = time.monotonic() + SETTLE
    for rank in ranks:
        rank.listen()


def failure_of(ranks: list[Rank], timeout: float, remedy: str) -> BaseException | None:
    """The error to raise: the most telling failure, else the time limit, else None."""
    if bad := [rank for rank in ranks if rank.failed]:
        return error_of(min(bad, key=how_indirect), remedy)
    late = [rank for rank in ranks if rank.report is None]
    return timed_out(late, len(ranks), timeout, remedy) if late else None


def how_indirect(rank: Rank) -> int:
    """0 for a death, 1 for an exception or sys.exit, 2 for the complaint that another rank has gone."""
    if rank.report is None:
        return 0
    if rank.report[:1] == EXIT:
        return 1
    return 2 if any(text in pickle.loads(rank.report[1:])[0] for text in PEER_GONE) else 1


def error_of(rank: Rank, remedy: str) -> BaseException:
    """What to raise for a failed rank."""
    code, output = rank.poll(), rank.ends.output.text()
    if rank.report is None:
        assert code is not None
        before = "" if code < 0 else " before it returned a result"
        return RankFailed(rank.rank, describe_exit(code) + before, code, output, remedy)
    told = pickle.loads(rank.report[1:])
    if rank.report[:1] == EXIT:
        return RankFailed(rank.rank, f"called sys.exit({told!r})", told if isinstance(told, int) else 1, output)
    name, text, pickled = told
    error: BaseException = RankFailed(rank.rank, f"raised {name}", code, output, remedy)
    if pickled is not None:
        with contextlib.suppress(Exception):
            error = pickle.loads(pickled)
    error.__cause__ = RemoteTraceback(f'\n"""\nrank {rank.rank}:\n{text}"""')
    return error


def timed_out(late: list[Rank], world_size: int, seconds: float, remedy: str) -> RanksTimedOut:
    """The error for ranks that still run; they are asked where they are."""
    return RanksTimedOut([rank.rank for rank in late], world_size, seconds, ask_for_stacks(late), remedy)


def ask_for_stacks(ranks: list[Rank]) -> dict[int, str]:
    """Stacks of ranks that still run, innermost call first; of a rank that is not that far, a word why not.

    ``faulthandler`` writes them at the C level, so also out of a stuck call. A rank that has not come to ask for that
    dies of the signal, a moment before it would be ended anyway.
    """
    asked = [rank for rank in ranks if rank.poll() is None]
    for rank in asked:
        with contextlib.suppress(OSError):
            os.kill(rank.process.pid, signal.SIGUSR1)
    end = time.monotonic() + PATIENCE
    texts: list[str] = []
    while time.monotonic() < end:
        time.sleep(0.1)
        before, texts = texts, [rank.ends.stacks.text() for rank in asked]
        if all(texts) and texts == before:
            break
    none = "  (it had not started Python code of ours yet)"
    return {rank.rank: shorten(rank.ends.stacks.text()) or none for rank in ranks}


def shorten(text: str) -> str:
    """Drop what lies outside the user's function: our frames and, in a forked rank, those of the parent's program."""
    threads = []
    for block in text.strip().split("\n\n"):
        heading, *frames = block.splitlines()
        outside = next((number for number, frame in enumerate(frames) if OWN.search(frame)), len(frames))
        kept = frames[:outside]
        if any(not STDLIB_THREAD.search(frame) for frame in kept):
            threads.append("\n".join([f"  {heading}", *(f"  {frame}" for frame in kept)]))
    return "\n".join(threads)


def dismiss(ranks: list[Rank]) -> BaseException | None:
    """All have returned: let them go, and look how they end."""
    for rank in ranks:
        with contextlib.suppress(OSError):
            rank.channel.send_bytes(b"go")
    if late := wait_for_exit(ranks, LEAVE):
        return timed_out(late, len(ranks), LEAVE, "They have returned, but not ended.")
    for rank in ranks:
        if code := rank.poll():
            what = f"returned its result, then {describe_exit(code)}"
            return RankFailed(rank.rank, what, code, rank.ends.output.text())
    return None


def wait_for_exit(ranks: list[Rank], seconds: float) -> list[Rank]:
    """Those that still run after so many seconds."""
    limit = time.monotonic() + seconds
    while (late := [rank for rank in ranks if rank.poll() is None]) and time.monotonic() < limit:
        connection.wait([rank.process.sentinel for rank in late], 0.05)
    return late


def stop(ranks: list[Rank]) -> None:
    """End what still runs, first politely; then what the ranks have started and left."""
    late = [rank for rank in ranks if rank.poll() is None]
    for rank in late:
        rank.signal_group(signal.SIGTERM)
    wait_for_exit(late, GRACE)
    for rank in ranks:
        rank.signal_group(signal.SIGKILL)
    wait_for_exit(late, GRACE)
