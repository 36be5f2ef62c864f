"""Copies files to machines that share no folder with this one, and back: only what differs, every file verified.

    here                                            there: python -m tutorial_lib.cluster.transfer receive FOLDER
    {"path": [size, sha256, mode], ...}  ------->   compares with what is in FOLDER
                                         <-------   ["path", ...]: what it needs
    the bytes of those files             ------->   written beside, verified, renamed
                                         <-------   {"received": count}

``send FOLDER`` is the same with the parts exchanged. Any transport of a cluster carries it: it talks over standard
input and output.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tutorial_lib.cluster.spec import Cluster, Machine
from tutorial_lib.errors import JobError, TutorialError
from tutorial_lib.files import sha256_of

CHUNK = 1 << 20
MAX_FILES = 100_000
SKIPPED_FOLDERS = {"__pycache__", "runs", "node_modules"}

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


def describe(files: Mapping[str, Path]) -> dict[str, Entry]:
    """Size, checksum and permissions of each file."""
    table = {}
    for name, path in files.items():
        status = path.stat()
        table[name] = (status.st_size, sha256_of(path), stat.S_IMODE(status.st_mode))
    return table


def deliver(cluster: Cluster, machine: Machine, files: Mapping[str, Path], folder: str, seconds: float) -> int:
    """Copy files into a folder of a machine; returns how many it did not have yet.

    Args:
        files: name below ``folder`` -> local path.
        seconds: limit for the machine to do each step.

    Raises:
        JobError: naming the machine, and what went wrong there.
    """
    with _partner(cluster, machine, "receive", folder, seconds) as (write, read):
        write.write(json.dumps(describe(files)).encode() + b"\n")
        write.flush()
        needed = _answer(read)
        for name in needed:
            _write_file(write, files[name])
        write.flush()
        if _answer(read) != {"received": len(needed)}:
            raise JobError(f"copying to {machine.name}: it did not confirm the files")
        return len(needed)


def fetch(cluster: Cluster, machine: Machine, folder: str, target: Path, seconds: float) -> int:
    """Copy a folder of a machine here, hidden files left out; returns the number of files."""
    with _partner(cluster, machine, "send", folder, seconds) as (write, read):
        return len(_receive(read, write, target))


@contextlib.contextmanager
def _partner(
    cluster: Cluster, machine: Machine, verb: str, folder: str, seconds: float
) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    process = cluster.popen(
        machine,
        [sys.executable, "-m", "tutorial_lib.cluster.transfer", verb, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        yield process.stdin, process.stdout
        process.stdin.close()
        process.wait(timeout=seconds)
    except (OSError, ValueError, EOFError, subprocess.TimeoutExpired) as error:
        process.kill()
        said = process.stderr.read().decode(errors="replace").strip().splitlines()
        raise JobError(f"copying files ({verb}) on {machine.name}: {said[-1] if said else error}") from None
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError):
                stream.close()


def _answer(stream: IO[bytes]) -> Any:
    line = stream.readline()
    if not line:
        raise EOFError("it ended early")
    return json.loads(line)


def _write_file(stream: IO[bytes], path: Path) -> None:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            stream.write(chunk)


def _receive(read: IO[bytes], write: IO[bytes], folder: Path) -> Sequence[str]:
    """The receiving side of the protocol, here or there."""
    table: dict[str, Entry] = _answer(read)
    folder = folder.resolve()
    for name in table:
        if not (folder / name).resolve().is_relative_to(folder):
            raise ValueError(f"{name!r} would lie outside of {folder}")
    needed = [name for name, entry in table.items() if not _is_there(folder / name, entry)]
    write.write(json.dumps(needed).encode() + b"\n")
    write.flush()
    for name in needed:
        _receive_file(read, folder / name, table[name], name)
    write.write(json.dumps({"received": len(needed)}).encode() + b"\n")
    write.flush()
    return needed


def _is_there(path: Path, entry: Entry) -> bool:
    return path.is_file() and path.stat().st_size == entry[0] and sha256_of(path) == entry[1]


def _receive_file(read: IO[bytes], path: Path, entry: Entry, name: str) -> None:
    """Written beside and renamed: a broken connection leaves the old file or the new one."""
    size, checksum, mode = entry
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            while size:
                chunk = read.read(min(size, CHUNK))
                if not chunk:
                    raise EOFError(f"the connection ended within {name}")
                file.write(chunk)
                size -= len(chunk)
        if sha256_of(temporary) != checksum:
            raise ValueError(f"{name} arrived with another checksum; was it changed meanwhile?")
        temporary.chmod(mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def main() -> None:
    """``python -m tutorial_lib.cluster.transfer receive|send FOLDER``, with the other side at stdin and stdout."""
    verb, folder = sys.argv[1], Path(sys.argv[2])
    read, write = sys.stdin.buffer, sys.stdout.buffer
    try:
        if verb == "receive":
            _receive(read, write, folder)
        else:
            files = files_in(folder)
            write.write(json.dumps(describe(files)).encode() + b"\n")
            write.flush()
            for name in _answer(read):
                _write_file(write, files[name])
            write.flush()
            _answer(read)
    except (OSError, ValueError, EOFError, TutorialError) as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
