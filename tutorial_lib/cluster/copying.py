"""The side of a copy that starts it: ``deliver`` files to a machine, ``fetch`` them from it; see ``transfer``."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeVar

from tutorial_lib.cluster.channel import Channel, Stopped
from tutorial_lib.cluster.failure import how_it_ended
from tutorial_lib.cluster.spec import Cluster, Machine
from tutorial_lib.cluster.transfer import Entry, describe, open_all, receive_files, send_files
from tutorial_lib.errors import JobError, TutorialError

NOTICE_SECONDS, NOTICE_EVERY = 2.0, 10.0
AT_ONCE = 8
T = TypeVar("T")


@dataclass
class Watch:
    """What a caller may know of a copy under way, and how it ends one.

    Attributes:
        say: takes a line about how far it is, when it takes longer than 2 s, and every 10 s from then on.
        stopped: asked several times a second; True ends the copy.
    """

    say: Callable[[str], None] = lambda _text: None
    stopped: Callable[[], bool] = lambda: False
    _start: float = field(default_factory=time.monotonic)
    _said: float = 0.0

    def moved(self, what: str, done: int, total: int | None = None) -> None:
        """So many bytes of so many, if that is known, are done."""
        if self.stopped():
            raise Stopped
        self._now_and_then(f"{what}: {done / 1e6:.1f} {'' if total is None else f'of {total / 1e6:.1f} '}MB so far")

    def waits(self, what: str, seconds: float) -> bool:
        """Nothing moves at the moment; whether the caller wants no more of it."""
        self._now_and_then(f"{what}: waiting for the machine (at most {seconds:g} s without a byte)")
        return self.stopped()

    def _now_and_then(self, text: str) -> None:
        now = time.monotonic()
        if now - self._start > NOTICE_SECONDS and now - self._said > NOTICE_EVERY:
            self._said = now
            self.say(text)


@dataclass
class Fetched:
    """What came from a machine.

    Attributes:
        table: size, checksum and mode of all wanted files, also of those that were here already; None: the folder does
            not exist there.
        count, size: files that were copied now, and their bytes.
        removed: whether the folder there is gone now.
        ancestor: where the folder does not exist, the deepest folder above it that does.
    """

    table: dict[str, Entry] | None = None
    count: int = 0
    size: int = 0
    removed: bool = False
    ancestor: str = ""


def deliver(
    cluster: Cluster,
    machine: Machine,
    files: Mapping[str, Path],
    folder: str,
    seconds: float,
    watch: Watch | None = None,
) -> int:
    """Copy files into a folder of a machine; returns how many it did not have yet.

    Args:
        files: name below ``folder`` -> local path.
        seconds: limit without a byte that moves, or any other sign of work there.

    Raises:
        JobError: naming the machine, the file, and what went wrong.
    """
    watch, what = watch or Watch(), f"copying to {machine.name}"
    with _errors_of(what), contextlib.ExitStack() as stack:
        opened = open_all(stack, files)
        table = describe(opened, lambda done: watch.moved(f"{what}: checksums", done))
    with _partner(cluster, machine, "receive", folder, seconds, what, watch) as channel:
        channel.send(table)
        needed = channel.receive()
        with contextlib.ExitStack() as stack:
            opened = open_all(stack, {name: files[name] for name in needed})
            send_files(channel, opened, needed, table, lambda done, total: watch.moved(what, done, total))
        if channel.receive() != {"received": len(needed)}:
            raise ValueError("it did not confirm the files")
        return len(needed)


def fetch(
    cluster: Cluster,
    machine: Machine,
    folder: str,
    target: Path,
    seconds: float,
    *,
    wanted: Callable[[str], bool] = lambda _name: True,
    place: Callable[[str], str] = lambda name: name,
    remove: bool = False,
    watch: Watch | None = None,
) -> Fetched:
    """Copy files of a folder of a machine here, hidden ones left out; on the disk when this returns.

    The files are opened there all at once, so that one that is replaced or removed meanwhile still comes whole.

    Args:
        wanted: which names.
        place: the name below ``target`` that a file gets here.
        remove: have the folder there removed when everything is here; only one that a job of ours has made is.

    Raises:
        JobError: naming the machine, the file, and what went wrong.
    """
    watch, what = watch or Watch(), f"copying from {machine.name}"
    with _partner(cluster, machine, "send", folder, seconds, what, watch) as channel:
        answer = channel.receive()
        if answer["files"] is None:
            return Fetched(ancestor=answer["ancestor"])
        channel.send([name for name in answer["files"] if wanted(name)])
        table: dict[str, Entry] = channel.receive()
        moved = lambda done, total: watch.moved(what, done, total)  # noqa: E731
        needed = receive_files(channel, table, target, moved, place=place, durable=True)
        channel.send({"received": len(needed), "remove": remove})
        removed = channel.receive()["removed"]
        return Fetched(table, len(needed), sum(table[name][0] for name in needed), removed)


@contextlib.contextmanager
def _errors_of(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, EOFError) as error:
        raise JobError(f"{what}: {error}") from None


@contextlib.contextmanager
def _partner(
    cluster: Cluster, machine: Machine, verb: str, folder: str, seconds: float, what: str, watch: Watch
) -> Iterator[Channel]:
    with tempfile.TemporaryFile() as errors:  # a pipe that nobody reads could fill up and stop it
        process = cluster.popen(
            machine,
            [sys.executable, "-m", "tutorial_lib.cluster.transfer", verb, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        channel = Channel(process.stdout.fileno(), process.stdin.fileno(), seconds, lambda: watch.waits(what, seconds))
        try:
            channel.find_start()
            yield channel
            process.stdin.close()
            process.wait(timeout=seconds)
        except (TimeoutError, subprocess.TimeoutExpired):
            raise JobError(f"{what}: nothing moved for {seconds:g} s{channel.where()}") from None
        except (EOFError, BrokenPipeError, ConnectionError):
            raise JobError(f"{what}: {_last_words(process, errors)}{channel.where()}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=2)  # the other side removes its half-written file
            raise JobError(f"{what}: on this computer: {error}") from None
        finally:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs in the kernel cannot be killed
                process.wait(timeout=5)
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    stream.close()


def _last_words(process: subprocess.Popen, errors: BinaryIO) -> str:
    """Why the other side has ended."""
    try:
        code = process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        return "it ended early"
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"it ended early ({how_it_ended(code)})"


def on_all(
    machines: Sequence[Machine],
    work: Callable[[Machine, Watch], T],
    say: Callable[[str], None] = lambda _text: None,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, T | TutorialError]:
    """Copy to or from several machines at once; by name, what came of it or the error.

    Args:
        say: takes lines about how far it is; called in this thread.
    """
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    end = threading.Event()

    def one(machine: Machine) -> T | TutorialError:
        try:
            return work(machine, Watch(lines.put, lambda: end.is_set() or stopped()))
        except TutorialError as error:
            return error

    with ThreadPoolExecutor(AT_ONCE) as pool:
        pending = futures = [pool.submit(one, machine) for machine in machines]
        try:
            while pending:
                pending = wait(pending, timeout=0.2).not_done
                while not lines.empty():
                    say(lines.get())
        finally:  # Ctrl-C: the copies end within a moment
            end.set()
            pool.shutdown(wait=False, cancel_futures=True)
    return {machine.name: future.result() for machine, future in zip(machines, futures, strict=True)}
