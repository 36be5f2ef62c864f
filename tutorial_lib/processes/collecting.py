"""The parent's ear: take what the ranks report, notice the first failure, and say it in the best words there are."""

from __future__ import annotations

import contextlib
import math
import pickle
import selectors
import time
from collections.abc import Callable

from tutorial_lib.processes.child import EXIT, READY, VALUE, frames_in
from tutorial_lib.processes.failures import RankFailed, RanksTimedOut, RemoteTraceback, describe_exit
from tutorial_lib.processes.stacks import ask_for_stacks
from tutorial_lib.processes.starting import Started, read_all

SETTLE = 0.3  # seconds after the first failure in which a more telling one may arrive
# What gloo says in a rank whose peer has died: an effect, not the cause.
PEER_GONE = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Connection refused")


def wait(ranks: list[Started], deadline: float) -> None:
    """Until all have reported, one has failed (and others had a moment to report too), or time is up."""
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            selector.register(rank.channel, selectors.EVENT_READ, rank)
        settled = math.inf
        while time.monotonic() < min(deadline, settled):
            for key, _events in selector.select(0.05):
                if not receive(key.data):
                    selector.unregister(key.fileobj)
            if all(rank.report is not None or rank.poll() is not None for rank in ranks):
                break
            if settled == math.inf and any(failed(rank) for rank in ranks):
                settled = time.monotonic() + SETTLE
    for rank in ranks:
        receive(rank)


def receive(rank: Started) -> bool:
    """Take what a rank has sent. False: it will send no more."""
    try:
        while chunk := rank.channel.recv(1 << 20):
            rank.buffer += chunk
    except BlockingIOError:
        chunk = b"more"
    except OSError:
        chunk = b""
    for kind, body in frames_in(rank.buffer):
        if kind == READY:
            rank.ready = True
        else:
            rank.report = (kind, body)
    return chunk != b""


def failed(rank: Started) -> bool:
    """It has reported a failure, or has ended without a report."""
    return rank.report[0] != VALUE if rank.report is not None else rank.poll() is not None


def failure_of(ranks: list[Started], timeout: float, remedy: Callable[[], str]) -> BaseException | None:
    """The error to raise: the most telling failure, else the time limit, else None."""
    bad = [rank for rank in ranks if failed(rank)]
    if bad:
        return error_of(min(bad, key=how_indirect), remedy())
    late = [rank for rank in ranks if rank.report is None]
    if not late:
        return None
    stacks = ask_for_stacks(late)
    return RanksTimedOut([rank.rank for rank in late], len(ranks), timeout, stacks, remedy())


def how_indirect(rank: Started) -> int:
    """0 for a death, 1 for an exception or sys.exit, 2 for the complaint that another rank has gone."""
    if rank.report is None:
        return 0
    kind, body = rank.report
    return 2 if kind != EXIT and any(text in pickle.loads(body)[0] for text in PEER_GONE) else 1


def error_of(rank: Started, remedy: str) -> BaseException:
    """What to raise for a failed rank."""
    code = rank.poll()
    output = read_all(rank.output)
    if rank.report is None:
        assert code is not None
        before = "" if code < 0 else " before it returned a result"
        return RankFailed(rank.rank, describe_exit(code) + before, code, output, remedy)
    kind, body = rank.report
    if kind == EXIT:
        value = pickle.loads(body)
        return RankFailed(rank.rank, f"called sys.exit({value!r})", value if isinstance(value, int) else 1, output)
    name, text, pickled = pickle.loads(body)
    cause = RemoteTraceback(f"rank {rank.rank}:\n{text}")
    error: BaseException = RankFailed(rank.rank, f"raised {name}", code, output, remedy)
    if pickled is not None:
        with contextlib.suppress(Exception):
            error = pickle.loads(pickled)
    error.__cause__ = cause
    return error
