"""Copies files to machines that share no folder with this one, and back: only what differs, every file verified.

    sends, here or there                       receives
    {"path": [size, sha256, mode], ...} --->   compares with what is in its folder
                                        <---   ["path", ...]: what it needs
    the bytes of those files            --->   written beside, verified, renamed
                                        <---   {"received": count}

``deliver`` and ``fetch`` start the other side, ``python -m tutorial_lib.cluster.transfer receive|send FOLDER``, on a
machine. Before that one sends, it names what there is and is told what is wanted; afterwards, whether its folder goes:

    here                                       there
                                        <---   ["path", ...]: what there is
    ["path", ...]                       --->   opens these, and sends as above
    {"remove": true}                    --->   removes FOLDER
                                        <---   {"removed": true}: it is not there now

Any transport of a cluster carries it: it talks over standard input and output, see ``channel``. What fails there is the
last line of its standard error.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tutorial_lib.cluster.channel import CHUNK, Channel, Watch
from tutorial_lib.cluster.spec import Cluster, Machine, wait_or_kill
from tutorial_lib.errors import JobError, TutorialError, how_it_ended
from tutorial_lib.files import check_file, flush, replacing

MAX_FILES = 100_000
MAX_OPEN = 200
SKIPPED_FOLDERS = {"__pycache__", "runs", "node_modules"}
PARTNER_SECONDS = 600.0  # the limit of the side that is started; the side that starts it has a shorter one, and ends it
RESULTS = ".tutorial_lib"  # folder below a copy that gets the results; one folder in it for each start

Table = dict[str, tuple[int, str, int]]  # by name: bytes, SHA-256, permission bits


def files_in(folder: Path, skip: Callable[[Path], bool] = lambda _path: False) -> dict[str, Path]:
    """Relative name -> path of the plain files below a folder, without hidden ones, caches and ``runs``.

    Raises:
        TutorialError: more than 100,000 files; that is not a project folder.
    """
    found: dict[str, Path] = {}
    for top, folders, names in os.walk(folder):
        folders[:] = [n for n in sorted(folders) if not n.startswith(".") and n not in SKIPPED_FOLDERS]
        for path in [Path(top, name) for name in sorted(names) if not name.startswith(".")]:
            if path.is_file() and not skip(path):
                found[str(path.relative_to(folder))] = path
        if len(found) > MAX_FILES:
            raise TutorialError(f"{folder} has more than {MAX_FILES:,} files", "Copy a smaller --workspace.")
    return found


def _checksum(path: Path, channel: Channel) -> str:
    """Return the SHA-256 of a file, and tell the other side meanwhile that this side works."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            channel.at_work()
    return digest.hexdigest()


def _send_files(channel: Channel, files: Mapping[str, Path]) -> int:
    """The sending side; returns how many files the other one did not have yet.

    They are opened all at once, so that one that is replaced or removed meanwhile still comes whole; of more than 200,
    one after the other is.
    """
    with contextlib.ExitStack() as stack:
        if len(files) <= MAX_OPEN:
            opened = {name: stack.enter_context(path.open("rb")) for name, path in files.items()}
            files = {name: Path(f"/proc/self/fd/{file.fileno()}") for name, file in opened.items()}
        table: Table = {}
        for name, path in files.items():
            about = path.stat()
            table[name] = about.st_size, _checksum(path, channel), stat.S_IMODE(about.st_mode)
        channel.send(table)
        needed = channel.receive()
        total, done = sum(table[name][0] for name in needed), 0
        for name in needed:
            channel.where = f" ({name})"
            with files[name].open("rb") as file:
                for left in range(table[name][0], 0, -CHUNK):  # the other side counts on as many bytes as promised
                    chunk = file.read(min(left, CHUNK))
                    if len(chunk) < min(left, CHUNK):
                        raise ValueError(f"{name} became shorter while it was copied")
                    channel.write(chunk)
                    done += len(chunk)
                    channel.watch.moved(done, total)
                if file.read(1):
                    raise ValueError(f"{name} became longer while it was copied")
    channel.where = ""
    if channel.receive() != {"received": len(needed)}:
        raise ValueError("it did not confirm the files")
    return len(needed)


def _receive_files(
    channel: Channel, folder: Path, place: Callable[[str], str] = lambda name: name, *, durable: bool = False
) -> tuple[Table, list[str]]:
    """The receiving side: what there is, and the names of what was not here yet; ``durable``: on the disk now.

    A broken connection leaves the old file or the new one.
    """
    table: Table = channel.receive()
    folder = folder.resolve()
    paths = {name: folder / place(name) for name in table}
    for name, path in paths.items():
        if not path.resolve().is_relative_to(folder):
            raise ValueError(f"{name!r} would lie outside of {folder}")
    needed = []
    for name, path in paths.items():
        if check_file(path, table[name][0], None) or _checksum(path, channel) != table[name][1]:
            needed.append(name)
    channel.send(needed)
    total, done = sum(table[name][0] for name in needed), 0
    for name in needed:
        channel.where = f" ({name})"
        (left, checksum, mode), path, digest = table[name], paths[name], hashlib.sha256()
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, mode & 0o777, durable=durable) as file:
            while left:
                chunk = channel.read(min(left, CHUNK))
                digest.update(chunk)
                file.write(chunk)
                left -= len(chunk)
                done += len(chunk)
                channel.watch.moved(done, total)
            if digest.hexdigest() != checksum:
                raise ValueError(f"{path} arrived with another checksum; was it changed while it was copied?")
    if durable:
        for parent in {paths[name].parent for name in needed}:
            flush(parent)
    channel.where = ""
    channel.send({"received": len(needed)})
    return table, needed


class Fetched(NamedTuple):
    """What came from a machine: all that was wanted, names of what was copied now, whether the folder is gone there."""

    table: Table
    needed: list[str]
    removed: bool


def deliver(
    cluster: Cluster, machine: Machine, files: Mapping[str, Path], folder: str, seconds: float, watch: Watch
) -> int:
    """Copy files into a folder of a machine; returns how many it did not have yet.

    Args:
        files: name below ``folder`` -> local path.
        seconds: limit without a byte that moves, or any other sign of work there.

    Raises:
        JobError: naming the machine, the file, and what went wrong.
    """
    with _partner(cluster, machine, "receive", folder, seconds, watch) as channel:
        return _send_files(channel, files)


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
    watch: Watch,
) -> Fetched:
    """Copy files of a folder of a machine here, hidden ones left out; on the disk when this returns.

    Args:
        wanted: which names.
        place: the name below ``target`` that a file gets here.
        remove: have the folder there removed when everything is here; only one that a job of ours has made is.
        seconds: as of ``deliver``, with the same errors.
    """
    with _partner(cluster, machine, "send", folder, seconds, watch) as channel:
        channel.send([name for name in channel.receive() if wanted(name)])
        table, needed = _receive_files(channel, target, place, durable=True)
        channel.send({"remove": remove})
        return Fetched(table, needed, channel.receive()["removed"])


@contextlib.contextmanager
def _partner(
    cluster: Cluster, machine: Machine, verb: str, folder: str, seconds: float, watch: Watch
) -> Iterator[Channel]:
    """The other side of a copy; what goes wrong in the block is a JobError that names the machine."""
    what = watch.what = f"copying {'to' if verb == 'receive' else 'from'} {machine.name}"
    argv = [sys.executable, "-m", "tutorial_lib.cluster.transfer", verb, folder]
    with tempfile.TemporaryFile() as errors:  # a pipe that nobody reads could fill up and stop it
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
        process = cluster.popen(machine, argv, **pipes, bufsize=0)
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
        ended = f"it ended early ({how_it_ended(process.wait(timeout=5))})"
    except subprocess.TimeoutExpired:
        return "it ended early"
    errors.seek(0)
    return [ended, *errors.read().decode(errors="replace").strip().splitlines()][-1]


def _send_folder(channel: Channel, folder: Path) -> None:
    """What ``fetch`` asks for, on a machine; ``delivery`` has put FOLDER two below the one that the user named."""
    if not folder.parents[1].is_dir():
        raise TutorialError(f"there is no {folder.parents[1]}; is its disk mounted?")
    files = files_in(folder)
    channel.send(list(files))
    _send_files(channel, {name: files[name] for name in channel.receive()})
    ours = folder.parent.name == RESULTS and re.fullmatch(r".*-[0-9a-f]{8}", folder.name) and not folder.is_symlink()
    if channel.receive()["remove"] and ours:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another start has its folder there
            folder.parent.rmdir()
    channel.send({"removed": not folder.exists()})


def main() -> None:
    """``python -m tutorial_lib.cluster.transfer receive|send FOLDER``, with the other side at stdin and stdout."""
    verb, folder = sys.argv[1], Path(sys.argv[2])
    channel = Channel(sys.stdin.fileno(), sys.stdout.fileno(), PARTNER_SECONDS)
    try:
        channel.mark_start()
        (_receive_files if verb == "receive" else _send_folder)(channel, folder)
    except TutorialError as error:
        sys.exit(error.message)
    except (OSError, ValueError, EOFError) as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
