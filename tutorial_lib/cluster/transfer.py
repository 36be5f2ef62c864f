"""Copies files to machines that share no folder with this one, and back: only what differs, every file verified.

    here                                            there: python -m tutorial_lib.cluster.transfer receive FOLDER
    {"path": [size, sha256, mode], ...}  ------->   compares with what is in FOLDER
                                         <-------   ["path", ...]: what it needs
    the bytes of those files             ------->   written beside, verified, renamed
                                         <-------   {"received": count}

    here                                            there: python -m tutorial_lib.cluster.transfer send FOLDER
                                         <-------   ["path", ...]: what there is
    ["path", ...]: what is wanted        ------->   opens and describes these
                                         <-------   {"path": [size, sha256, mode], ...}
    ["path", ...]: what is needed        ------->
                                         <-------   the bytes of those files
    {"received": count, "remove": true}  ------->   removes FOLDER
                                         <-------   {"removed": true}

Any transport of a cluster carries it: it talks over standard input and output, see ``channel``. What fails there is the
last line of its standard error.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from tutorial_lib.cluster.channel import CHUNK, Channel
from tutorial_lib.errors import TutorialError
from tutorial_lib.files import flush

MAX_FILES = 100_000
MAX_OPEN = 200
SKIPPED_FOLDERS = {"__pycache__", "runs", "node_modules"}
PARTNER_SECONDS = 600.0  # the limit of the side that is started; the side that starts it has a shorter one, and ends it
RESULTS = ".tutorial_lib"  # folder below a copy that gets the results; one folder in it for each start

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


def open_all(stack: contextlib.ExitStack, files: Mapping[str, Path]) -> dict[str, Path | BinaryIO]:
    """Open so many files that nobody can take them away; of more, one after the other will be opened."""
    if len(files) > MAX_OPEN:
        return dict(files)
    return {name: stack.enter_context(path.open("rb")) for name, path in files.items()}


@contextlib.contextmanager
def _opened(source: Path | BinaryIO) -> Iterator[BinaryIO]:
    if isinstance(source, Path):
        with source.open("rb") as file:
            yield file
    else:
        source.seek(0)
        yield source


def describe(files: Mapping[str, Path | BinaryIO], moved: Callable[[int], None]) -> dict[str, Entry]:
    """Size, checksum and permissions of each file."""
    table, done = {}, 0
    for name, source in files.items():
        with _opened(source) as file:
            digest, size = hashlib.sha256(), 0
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                size += len(chunk)
                moved(done + size)
            done += size
            table[name] = (size, digest.hexdigest(), stat.S_IMODE(os.fstat(file.fileno()).st_mode))
    return table


def send_files(
    channel: Channel,
    files: Mapping[str, Path | BinaryIO],
    names: Sequence[str],
    table: Mapping[str, Entry],
    moved: Callable[[int, int], None],
) -> None:
    """Exactly as many bytes as were promised, or an error: the other side counts on them."""
    total, done = sum(table[name][0] for name in names), 0
    for name in names:
        channel.doing = name
        with _opened(files[name]) as file:
            left = table[name][0]
            while left:
                chunk = file.read(min(left, CHUNK))
                if not chunk:
                    raise ValueError(f"{file.name} became shorter while it was copied")
                channel.write(chunk)
                left -= len(chunk)
                done += len(chunk)
                moved(done, total)
            if file.read(1):
                raise ValueError(f"{file.name} became longer while it was copied")
    channel.doing = ""


def receive_files(
    channel: Channel,
    table: Mapping[str, Entry],
    folder: Path,
    moved: Callable[[int, int], None],
    *,
    place: Callable[[str], str] = lambda name: name,
    durable: bool = False,
) -> list[str]:
    """The receiving side, here or there, from the table to the last byte."""
    folder = folder.resolve()
    paths = {name: folder / place(name) for name in table}
    for name, path in paths.items():
        if not path.resolve().is_relative_to(folder):
            raise ValueError(f"{name!r} would lie outside of {folder}")
    for parent in {path.parent for path in paths.values()}:
        _remove_abandoned(parent)
    needed = [name for name, entry in table.items() if not _is_there(paths[name], entry, channel)]
    channel.send(needed)
    total, done = sum(table[name][0] for name in needed), 0
    for name in needed:
        channel.doing = name
        try:
            _receive_file(channel, paths[name], table[name], lambda n, done=done: moved(done + n, total), durable)
        except OSError as error:
            if isinstance(error, TimeoutError | ConnectionError):
                raise
            raise OSError(error.errno, error.strerror, str(paths[name])) from None
        done += table[name][0]
    if durable:
        for parent in {paths[name].parent for name in needed}:
            flush(parent)
    channel.doing = ""
    return needed


def _is_there(path: Path, entry: Entry, channel: Channel) -> bool:
    if not path.is_file() or path.stat().st_size != entry[0]:
        return False
    with path.open("rb") as file:
        found = describe({"": file}, lambda _done: channel.alive())
    return found[""][1] == entry[1]


def _receive_file(channel: Channel, path: Path, entry: Entry, moved: Callable[[int], None], durable: bool) -> None:
    """Written beside and renamed: a broken connection leaves the old file or the new one."""
    size, checksum, mode = entry
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, descriptor = _own_temporary(path.parent, mode)
    try:
        digest, done = hashlib.sha256(), 0
        with open(descriptor, "wb") as file:
            while done < size:
                chunk = channel.read(min(size - done, CHUNK))
                digest.update(chunk)
                file.write(chunk)
                done += len(chunk)
                moved(done)
            if digest.hexdigest() != checksum:
                raise ValueError(f"{path} arrived with another checksum; was it changed while it was copied?")
            file.flush()
            if durable:
                os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


TEMPORARY = ".copying-"


def _own_temporary(folder: Path, mode: int) -> tuple[Path, int]:
    """A new file with a name of its own, locked as long as it is open. The kernel takes the umask off its mode."""
    while True:
        path = folder / f"{TEMPORARY}{uuid.uuid4().hex}"
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode & 0o777)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)  # taken for an abandoned one before it was locked


def _remove_abandoned(folder: Path) -> None:
    """Temporary files of ours that nobody holds any more: whoever wrote them was killed."""
    for path in folder.glob(f"{TEMPORARY}*"):
        if re.fullmatch(re.escape(TEMPORARY) + "[0-9a-f]{32}", path.name):
            with contextlib.suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def is_folder_of_a_start(folder: Path) -> bool:
    """Whether a path has the form that ``delivery`` gives to the folder of one start of a job."""
    return folder.parent.name == RESULTS and re.fullmatch(r".*-[0-9a-f]{8}", folder.name) is not None


def _send_folder(channel: Channel, folder: Path) -> None:
    """The sending side that was started on a machine."""
    if not folder.is_dir():
        ancestor = next(parent for parent in folder.parents if parent.is_dir())
        channel.send({"files": None, "ancestor": str(ancestor)})
        return
    files = files_in(folder)
    channel.send({"files": list(files)})
    wanted = channel.receive()
    with contextlib.ExitStack() as stack:
        opened = open_all(stack, {name: files[name] for name in wanted})
        table = describe(opened, lambda _done: channel.alive())
        channel.send(table)
        send_files(channel, opened, channel.receive(), table, lambda _done, _total: None)
    remove = channel.receive()["remove"] and is_folder_of_a_start(folder) and not folder.is_symlink()
    if remove:
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
        if verb == "receive":
            needed = receive_files(channel, channel.receive(), folder, lambda _done, _total: None)
            channel.send({"received": len(needed)})
        else:
            _send_folder(channel, folder)
    except (OSError, ValueError, EOFError, TutorialError) as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
