"""A machine's folder for the sockets over which Python's multiprocessing hands on open files: short, and removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "dgl-job-"
FRESH_SECONDS = 60.0
LONGEST = 107 - len("/listener-12345678")  # bytes in the address of a Unix socket, less what multiprocessing appends
TOO_LONG = (
    "no folder for the samplers' sockets: their path may have 107 bytes, and TMPDIR is too long (and /tmp cannot be "
    "written); set TMPDIR to a shorter one, of at most 70 bytes"
)


@contextlib.contextmanager
def sockets_folder() -> Iterator[str | None]:
    """Make the folder, and remove it at the end, with those that killed agents of this user have left beside it.

    It is locked while its agent lives, however that ends.

    Returns:
        Its path; None where no temporary folder has a name that is short enough.
    """
    for parent in dict.fromkeys([tempfile.gettempdir(), "/tmp", "/var/tmp"]):
        if len(os.fsencode(parent)) + 1 + len(PREFIX) + 8 > LONGEST:
            continue
        try:
            path = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
        except OSError:
            continue
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_abandoned(Path(parent))
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)
        return
    yield None


def _remove_abandoned(parent: Path) -> None:
    for path in parent.glob(f"{PREFIX}????????"):
        with contextlib.suppress(OSError):
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                state = os.fstat(folder)  # a fresh one may not be locked yet
                if state.st_uid == os.geteuid() and time.time() - state.st_mtime > FRESH_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(folder)
