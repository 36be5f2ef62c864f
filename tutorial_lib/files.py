"""Small helpers for files: checksums, atomic JSON, locks, and catching what C++ libraries print."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tutorial_lib.errors import InputError, attempts, printable

# For another process that makes the same files: enough for the largest graph here, and it ends the same day.
CACHE_SECONDS = 1800.0
LARGEST_JSON = 1 << 28  # bytes


def find_program(name: str) -> str | None:
    """Return the path of a program, or None if this computer does not have it.

    The PATH of an ordinary user often lacks the folders of servers such as sshd. Therefore, for each folder ``X/bin``
    of PATH, ``X/sbin`` is searched as well.
    """
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    beside = [f"{folder.removesuffix('bin')}sbin" for folder in folders if folder.endswith("/bin")]
    return shutil.which(name, path=os.pathsep.join([*folders, *beside]))


def sha256_of(path: Path, at_work: Callable[[], None] = lambda: None) -> str:
    """SHA-256 of a file's content, in hexadecimal; ``at_work`` is called at least once for each MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            at_work()
    return digest.hexdigest()


def check_file(
    path: Path, size: int | None, digest: str | None, at_work: Callable[[], None] = lambda: None
) -> str | None:
    """What is wrong with a file, as the rest of a sentence that begins with its path; None: nothing.

    Args:
        size: in bytes; None: any.
        digest: SHA-256 in hexadecimal; None: the content is not read.
        at_work: as of ``sha256_of``.
    """
    try:
        if not path.is_file():
            return "is missing"
        if size is not None and (found := path.stat().st_size) != size:
            return f"has {found} bytes, expected {size}"
        if digest is not None and sha256_of(path, at_work) != digest:
            return "has other content than when it was written (checksum)"
    except (TimeoutError, ConnectionError):  # of ``at_work``
        raise
    except OSError as error:  # a bad sector
        return f"cannot be read: {error.strerror}"
    return None


def flush(path: Path) -> None:
    """A file, or the names in a folder, are on the disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o666, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` when the block ends well: readers see the old content or the new.

    It is locked while it is open, which tells it from those of killed processes (``remove_abandoned``). The umask is
    taken off its mode. ``durable``: on the disk then. An OSError of the disk names ``path``: of a full one, Python does
    not say which file.
    """
    try:
        while True:
            temporary = path.with_name(f".{path.name[:50]}.{os.getpid()}-{secrets.token_hex(4)}")
            descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode)
            if lock_now(descriptor) is not False and os.fstat(descriptor).st_nlink:
                break
            os.close(descriptor)  # taken for an abandoned one before it was locked
        try:
            with open(descriptor, "w+b") as file:
                yield file
                file.flush()
                if durable:
                    os.fsync(file.fileno())
                temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except (TimeoutError, ConnectionError):  # of the block
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def remove_abandoned(folder: Path) -> None:
    """Remove what ``replacing`` made in a folder for a process that was killed."""
    for path in folder.glob(".*"):
        if re.fullmatch(r"\..+\.\d+-[0-9a-f]{8}", path.name):
            with contextlib.suppress(OSError), path.open("rb") as file:
                if lock_now(file.fileno()):
                    path.unlink()


def open_plain(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a plain file. Raises an OSError for everything else: a pipe would block, a device may have no end."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return descriptor


def read_json(path: Path, kind: Any, remedy: str = "") -> Any:
    """Read a JSON file that anybody may have written.

    Args:
        kind: the type that the content must have, as pydantic understands it.

    Raises:
        InputError: the file cannot be read, or its content has another type. FileNotFoundError: there is no such file.
    """
    from pydantic import TypeAdapter, ValidationError  # 0.1 s

    try:
        with open(open_plain(path), "rb") as file:
            content = file.read(LARGEST_JSON + 1)
        if len(content) > LARGEST_JSON:
            raise OSError(errno.EFBIG, f"larger than {LARGEST_JSON >> 20} MiB")
        return TypeAdapter(kind).validate_json(content)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", remedy) from None
    except ValidationError as error:
        raise InputError(f"{path} is damaged: {what_is_wrong(error)}", remedy) from None


def what_is_wrong(error: Any) -> str:
    """Return the first problem of pydantic's ValidationError, with its place in the file."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))
    return printable(f"{place}: {first['msg']}" if place else first["msg"])[:300]


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old content or the new, never a part of it."""
    with replacing(path) as file:
        file.write(json.dumps(value, indent=2).encode() + b"\n")


def new_folder(parent: Path, prefix: str) -> Path:
    """A new folder whose name nobody else has; unlike ``mkdtemp``, with the rights that the user's umask gives."""
    folder = parent / f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"
    folder.mkdir()
    return folder


def remove_new_folders(parent: Path, prefix: str) -> None:
    """Remove what ``new_folder`` made for a process that was killed; only while nobody else can be making one."""
    for folder in parent.iterdir():
        if re.fullmatch(re.escape(prefix) + r"\d+-[0-9a-f]{8}(-damaged)?", folder.name):
            shutil.rmtree(folder, ignore_errors=True)


def lock_now(handle: int) -> bool | None:
    """Lock an open file or folder against other processes until it is closed; False where another one has it.

    None where that is not possible: some network file systems have no locks.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def lock_holder(handle: int) -> str:
    """``process 123 (python -m ...)``: who has locked an open file, as far as the kernel tells."""
    about = os.fstat(handle)
    place = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()  # 1: FLOCK ADVISORY WRITE 123 08:01:5678 0 EOF
            if fields[1] == "FLOCK" and fields[5] == place and int(fields[4]) > 0:
                command = Path(f"/proc/{fields[4]}/cmdline").read_bytes().decode(errors="replace")
                words = " ".join(command.replace("\0", " ").split())
                return f"process {fields[4]} ({words[:80]})"
    return "another process"


@contextlib.contextmanager
def open_folder(folder: Path) -> Iterator[int]:
    """A descriptor of a folder, to lock it; made where there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def alone_in(folder: Path, seconds: float = CACHE_SECONDS) -> Iterator[bool]:
    """Lock a folder, which is made where there is none, against others that do the same; wait for them.

    Yields:
        Whether it is locked: False in a folder that cannot be written, or on a file system without locks.

    Raises:
        WaitedTooLong: the folder and the process that has it are named.
    """
    with contextlib.ExitStack() as stack:
        handle = locked = None
        with contextlib.suppress(OSError):
            handle = stack.enter_context(open_folder(folder))
            locked = lock_now(handle)
        if handle is not None and locked is False:
            holder = lock_holder(handle)
            remedy = f"If {holder} does nothing any more, end it; or use another folder."
            for _ in attempts(f"{holder}, which is writing to {folder}", seconds, remedy=remedy):
                if (locked := lock_now(handle)) is not False:
                    break
        yield bool(locked)


def wait_until_written(sizes: Callable[[], list[int]], seconds: float) -> None:
    """Until others have written files: none is empty, and the ``sizes`` in bytes grow no more; or the time is up."""
    end = time.monotonic() + seconds
    before: list[int] = []
    while time.monotonic() < end:
        time.sleep(0.1)
        now = sizes()
        if all(now) and now == before:
            return
        before = now


@contextlib.contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Send standard output and error to a file, also what C++ code writes to the file descriptors."""
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(path.open("a"))
        for number in (1, 2):
            saved = os.dup(number)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, number)
            os.dup2(log.fileno(), number)
        # Under Jupyter and pytest, Python's own streams do not end at descriptors 1 and 2.
        stack.enter_context(contextlib.redirect_stdout(log))
        stack.enter_context(contextlib.redirect_stderr(log))
        yield


def graph_name_of(dataset_name: str) -> str:
    """A name that is fit for files and for DGL: ``../x/amazon_photo.npz`` gives ``amazon_photo``."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", Path(dataset_name).name.removesuffix(".npz")) or "graph"
