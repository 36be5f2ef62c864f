"""Copies files to machines that share no folder with this one, and back: only what differs, every file verified.

    sends, here or there                       receives
    {"path": [size, sha256, mode], ...} --->   compares with what is in its folder
                                        <---   ["path", ...]: what it needs
    the bytes of those files            --->   written beside, verified, renamed
                                        <---   {"received": count}

``python -m tutorial_lib.cluster.transfer receive|send FOLDER`` is the side that is started on a machine. Before it
sends, it names what there is and is told what is wanted; afterwards it is told whether to remove the folder:

    here                                       there
                                        <---   {"files": ["path", ...]}
    ["path", ...]                       --->   opens these, and sends as above
    {"remove": true}                    --->   removes FOLDER
                                        <---   {"removed": true}

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
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from tutorial_lib.cluster.channel import CHUNK, Channel
from tutorial_lib.errors import TutorialError
from tutorial_lib.files import flush, lock_now

MAX_FILES = 100_000
MAX_OPEN = 200
SKIPPED_FOLDERS = {"__pycache__", "runs", "node_modules"}
PARTNER_SECONDS = 600.0  # the limit of the side that is started; the side that starts it has a shorter one, and ends it
RESULTS = ".tutorial_lib"  # folder below a copy that gets the results; one folder in it for each start
TEMPORARY = ".copying-"

Entry = tuple[int, str, int]  # bytes, SHA-256, permission bits


def files_in(folder: Path, skip: Callable[[Path], bool] = lambda _path: False) -> dict[str, Path]:
    """Relative name -> path of the plain files below a folder, without hidden ones, caches and ``runs``.

    Raises:
        TutorialError: more than 100,000 files; that is not a project folder.
    """
    found: dict[str, Path] = {}
    for top, folders, names in os.walk(folder):
        folders[:] = [n for n in sorted(folders) if not n.startswith(".") and n not in SKIPPED_FOLDERS]
        for name in sorted(names):
            path = Path(top) / name
            if not name.startswith(".") and path.is_file() and not skip(path):
                found[str(path.relative_to(folder))] = path
        if len(found) > MAX_FILES:
            raise TutorialError(f"{folder} has more than {MAX_FILES:,} files", "Copy a smaller --workspace.")
    return found


def _checksum(channel: Channel, path: Path, before: int = 0) -> tuple[int, str]:
    """Size and SHA-256 of a file; ``before``: bytes of others that were read already."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
            channel.alive()
            channel.watch.moved(before + size)
    return size, digest.hexdigest()


def send_files(channel: Channel, files: Mapping[str, Path]) -> int:
    """The sending side; returns how many files the other one did not have yet.

    They are opened all at once, so that one that is replaced or removed meanwhile still comes whole; of more than 200,
    one after the other is.
    """
    with contextlib.ExitStack() as stack:
        if len(files) <= MAX_OPEN:
            opened = {name: stack.enter_context(path.open("rb")) for name, path in files.items()}
            files = {name: Path(f"/proc/self/fd/{file.fileno()}") for name, file in opened.items()}
        table: dict[str, Entry] = {}
        done = 0
        for name, path in files.items():
            size, checksum = _checksum(channel, path, done)
            table[name] = size, checksum, stat.S_IMODE(path.stat().st_mode)
            done += size
        channel.send(table)
        needed = channel.receive()
        total, done = sum(table[name][0] for name in needed), 0
        for name in needed:
            channel.where = f" ({name})"
            with files[name].open("rb") as file:
                left = table[name][0]
                while left:  # exactly as many bytes as were promised, or an error: the other side counts on them
                    if not (chunk := file.read(min(left, CHUNK))):
                        raise ValueError(f"{name} became shorter while it was copied")
                    channel.write(chunk)
                    left -= len(chunk)
                    done += len(chunk)
                    channel.watch.moved(done, total)
                if file.read(1):
                    raise ValueError(f"{name} became longer while it was copied")
    channel.where = ""
    if channel.receive() != {"received": len(needed)}:
        raise ValueError("it did not confirm the files")
    return len(needed)


def receive_files(
    channel: Channel, folder: Path, *, place: Callable[[str], str] = lambda name: name, durable: bool = False
) -> tuple[dict[str, Entry], list[str]]:
    """The receiving side, here or there.

    Args:
        place: the name below ``folder`` that a file gets.
        durable: on the disk when this returns.

    Returns:
        Size, checksum and mode of all files, and the names of those that were not here yet.
    """
    table = channel.receive()
    folder = folder.resolve()
    paths = {name: folder / place(name) for name in table}
    for name, path in paths.items():
        if not path.resolve().is_relative_to(folder):
            raise ValueError(f"{name!r} would lie outside of {folder}")
    for parent in {path.parent for path in paths.values()}:
        _remove_abandoned(parent)
    needed = [
        name
        for name, path in paths.items()
        if not path.is_file()
        or path.stat().st_size != table[name][0]
        or _checksum(channel, path) != tuple(table[name][:2])
    ]
    channel.send(needed)
    total, done = sum(table[name][0] for name in needed), 0
    for name in needed:
        channel.where = f" ({name})"
        try:
            _receive_file(channel, paths[name], table[name], done, total, durable)
        except (TimeoutError, ConnectionError):
            raise
        except OSError as error:  # of a full disk, Python does not say which file
            raise OSError(error.errno, error.strerror, str(paths[name])) from None
        done += table[name][0]
    if durable:
        for parent in {paths[name].parent for name in needed}:
            flush(parent)
    channel.where = ""
    channel.send({"received": len(needed)})
    return table, needed


def _receive_file(channel: Channel, path: Path, entry: Entry, done: int, total: int, durable: bool) -> None:
    """Written beside and renamed: a broken connection leaves the old file or the new one."""
    left, checksum, mode = entry
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, descriptor = _own_temporary(path.parent, mode)
    try:
        digest = hashlib.sha256()
        with open(descriptor, "wb") as file:
            while left:
                chunk = channel.read(min(left, CHUNK))
                digest.update(chunk)
                file.write(chunk)
                left -= len(chunk)
                done += len(chunk)
                channel.watch.moved(done, total)
            if digest.hexdigest() != checksum:
                raise ValueError(f"{path} arrived with another checksum; was it changed while it was copied?")
            file.flush()
            if durable:
                os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _own_temporary(folder: Path, mode: int) -> tuple[Path, int]:
    """A new file with a name of its own, locked as long as it is open. The kernel takes the umask off its mode."""
    while True:
        path = folder / f"{TEMPORARY}{uuid.uuid4().hex}"
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode & 0o777)
        if lock_now(descriptor) is not False and os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)  # taken for an abandoned one before it was locked


def _remove_abandoned(folder: Path) -> None:
    """Temporary files of ours that nobody holds any more: whoever wrote them was killed."""
    for path in folder.glob(f"{TEMPORARY}{'[0-9a-f]' * 32}"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            if lock_now(file.fileno()):
                path.unlink()


def _send_folder(channel: Channel, folder: Path) -> None:
    """What ``copying.fetch`` asks for, on a machine."""
    if not folder.is_dir():
        ancestor = next(parent for parent in folder.parents if parent.is_dir())
        channel.send({"files": None, "ancestor": str(ancestor)})
        return
    files = files_in(folder)
    channel.send({"files": list(files)})
    send_files(channel, {name: files[name] for name in channel.receive()})
    # Only a folder of the form that ``delivery`` gives to that of one start of a job.
    ours = folder.parent.name == RESULTS and re.fullmatch(r".*-[0-9a-f]{8}", folder.name) and not folder.is_symlink()
    if remove := bool(channel.receive()["remove"] and ours):
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another start has its folder there
            folder.parent.rmdir()
    channel.send({"removed": remove and not folder.exists()})


def main() -> None:
    """``python -m tutorial_lib.cluster.transfer receive|send FOLDER``, with the other side at stdin and stdout."""
    verb, folder = sys.argv[1], Path(sys.argv[2])
    channel = Channel(sys.stdin.fileno(), sys.stdout.fileno(), PARTNER_SECONDS)
    try:
        channel.mark_start()
        (receive_files if verb == "receive" else _send_folder)(channel, folder)
    except (OSError, ValueError, EOFError, TutorialError) as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
