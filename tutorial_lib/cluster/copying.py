"""The side of a copy that starts it: ``deliver`` files to a machine, ``fetch`` them from it; see ``transfer``."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from tutorial_lib.cluster.channel import Channel, Watch
from tutorial_lib.cluster.spec import Cluster, Machine, wait_or_kill
from tutorial_lib.cluster.transfer import Entry, receive_files, send_files
from tutorial_lib.errors import JobError, TutorialError, how_it_ended

AT_ONCE = 8
T = TypeVar("T")


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

    @property
    def checksums(self) -> dict[str, str]:
        """SHA-256 by name."""
        return {name: entry[1] for name, entry in (self.table or {}).items()}


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
    with _partner(cluster, machine, "receive", folder, seconds, watch or Watch()) as channel:
        return send_files(channel, files)


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

    Args:
        wanted: which names.
        place: the name below ``target`` that a file gets here.
        remove: have the folder there removed when everything is here; only one that a job of ours has made is.

    Raises:
        JobError: naming the machine, the file, and what went wrong.
    """
    with _partner(cluster, machine, "send", folder, seconds, watch or Watch()) as channel:
        answer = channel.receive()
        if answer["files"] is None:
            return Fetched(ancestor=answer["ancestor"])
        channel.send([name for name in answer["files"] if wanted(name)])
        table, needed = receive_files(channel, target, place=place, durable=True)
        channel.send({"remove": remove})
        removed = channel.receive()["removed"]
        return Fetched(table, len(needed), sum(table[name][0] for name in needed), removed)


@contextlib.contextmanager
def _partner(
    cluster: Cluster, machine: Machine, verb: str, folder: str, seconds: float, watch: Watch
) -> Iterator[Channel]:
    what = watch.what = f"copying {'to' if verb == 'receive' else 'from'} {machine.name}"
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
        channel = Channel(process.stdout.fileno(), process.stdin.fileno(), seconds, watch)
        patience = 0.0
        try:
            channel.find_start()
            yield channel
            patience = seconds
        except TimeoutError:
            raise JobError(f"{what}: nothing moved for {seconds:g} s{channel.where}") from None
        except (EOFError, ConnectionError):
            raise JobError(f"{what}: {_last_words(process, errors)}{channel.where}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            patience = 2.0  # the other side removes its half-written file
            raise JobError(f"{what}: on this computer: {error}") from None
        finally:
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    stream.close()
            wait_or_kill(process, patience)


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
        say: takes lines about how far it is, of one thread at a time.
    """
    end, lock = threading.Event(), threading.Lock()

    def one(machine: Machine) -> T | TutorialError:
        try:
            return work(machine, Watch(tell, lambda: end.is_set() or stopped()))
        except TutorialError as error:
            return error

    def tell(text: str) -> None:
        with lock:
            say(text)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            return dict(zip([machine.name for machine in machines], pool.map(one, machines), strict=True))
        finally:  # Ctrl-C: the copies end within a moment
            end.set()
