"""Atomic writes of files, locks of folders, and the texts of names, sizes and times."""

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from tutorial_lib.errors import InputError, printable, retry_until_timeout

JsonObject = dict[str, Any]
Kind = TypeVar("Kind")
WAIT_SECONDS = 7200.0  # for another process that writes the same files


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def check_file(path: Path, size: int | None, digest: str | None) -> str | None:
    """Return the defect of a file, as the end of a sentence that begins with its path, or None."""
    try:
        if not path.is_file():
            return "is missing"
        if size is not None and (actual := path.stat().st_size) != size:
            return f"has {actual} bytes, expected {size}"
        if digest is not None and sha256_of(path) != digest:
            return "has changed since it was written (checksum)"
    except OSError as error:  # a bad sector
        return f"cannot be read: {error.strerror}"
    return None


def fsync_path(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that replaces ``path`` if the block succeeds. The file is then on the disk."""
    temporary = path.with_name(f".{path.name[:50]}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.errno is not None:
            error.filename = str(path)  # Python does not name the file on a full disk
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    """Write JSON so that readers see the old content or the new."""
    with replace_file(path) as file:
        file.write(json.dumps(value, indent=2).encode() + b"\n")


def open_regular_file(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a plain file. Anything else raises an OSError, because a pipe would block and a device may be endless."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return descriptor


def read_json(path: Path, kind: type[Kind], remedy: str = "") -> Kind:
    """Read a JSON file as the type ``kind`` of pydantic. An InputError reports a missing or damaged file."""
    from pydantic import TypeAdapter, ValidationError  # 0.1 s

    try:
        with open(open_regular_file(path), "rb") as file:
            return TypeAdapter(kind).validate_json(file.read())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", remedy) from None
    except ValidationError as error:
        first_error = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(map(str, first_error["loc"]))
        problem = printable(f"{field}: {first_error['msg']}" if field else first_error["msg"])[:300]
        raise InputError(f"{path} is damaged: {problem}", remedy) from None


def try_lock(handle: int) -> bool | None:
    """Lock an open file or folder. Returns False if another process has the lock, and None if locks do not work."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems have no locks
        return None
    return True


def lock_holder(path: Path) -> str:
    """Return the process that has locked a file or folder, such as ``process 123 (python -m ...)``."""
    status = path.stat()
    inode = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with contextlib.suppress(OSError):
        # 1: FLOCK ADVISORY WRITE 123 08:01:5678 0 EOF
        if match := re.search(rf"FLOCK +\w+ +\w+ +([1-9]\d*) {inode} ", Path("/proc/locks").read_text()):
            command = Path(f"/proc/{match[1]}/cmdline").read_text(errors="replace").replace("\0", " ")
            return f"process {match[1]} ({' '.join(command.split())[:80]})"
    return "another process"


@contextlib.contextmanager
def lock_folder(folder: Path, seconds: float = 1800.0) -> Iterator[bool]:
    """Make and lock a folder, after waiting for another process. Yield False if this file system has no locks."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if (locked := try_lock(handle)) is False:
            holder = lock_holder(folder)
            remedy = "If this process is idle, stop it. Otherwise use another folder."
            for _ in retry_until_timeout(f"{holder}, which is writing to {folder}", seconds, remedy=remedy):
                if (locked := try_lock(handle)) is not False:
                    break
        yield bool(locked)
    finally:
        os.close(handle)


@contextlib.contextmanager
def sibling_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder next to ``target``, and remove the folder afterwards. Other processes wait until then."""
    with lock_folder(target.parent, WAIT_SECONDS) as is_locked:
        folder = target.with_name(f".{target.name}.tmp{'' if is_locked else f'-{secrets.token_hex(4)}'}")
        shutil.rmtree(folder, ignore_errors=True)  # left by a killed process
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def graph_name_of(dataset_name: str) -> str:
    """Return a name for files and for DGL, such as ``amazon_photo`` for ``../x/amazon_photo.npz``."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", Path(dataset_name).name.removesuffix(".npz")) or "graph"


def parse_memory(value: str) -> int:
    """Return the bytes of ``12GB``, ``1.5GiB``, ``800M`` or ``5000``, at least 1."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)\s?(?:([KMGT])(i?))?B?", value.strip(), re.IGNORECASE)
    size = 0
    if match is not None:
        power = " KMGT".index((match[2] or " ").upper())
        size = int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    if size == 0:
        raise InputError(f"{value!r} is not an amount of memory", "Write for example 12GB, 1.5GiB or 800MB.")
    return size


def parse_time_limit(time: str) -> int:
    """Convert a time of Slurm: minutes, hours:minutes:seconds, or days-hours."""
    if match := re.fullmatch(r"(?:(\d+)-(\d+)|(\d+):(\d+):(\d+)|(\d+))", time):
        units = (86400, 3600, 3600, 60, 1, 60)
        return sum(int(number or 0) * unit for number, unit in zip(match.groups(), units, strict=True))
    raise InputError(f"--time {time}: write a time such as 30 (minutes), 4:00:00 or 1-12 (days and hours)")
