"""A machine's folder for the sockets over which Python's multiprocessing hands on open files: short, and removed.

It lies in /dev/shm, which an emulated machine takes along when it is switched off. Its agent keeps it locked
(``flock``) while it lives: one without a lock is that of a killed agent.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tutorial_lib.files import lock_now

PREFIX = "dgl-job-"
NOT_LOCKED_YET = f".{PREFIX}"
LONGEST = 107 - len("/listener-12345678")  # bytes in the address of a Unix socket, less what multiprocessing appends
TOO_LONG = (
    "no folder for the samplers' sockets: their path may have 107 bytes, and TMPDIR is too long (and /tmp cannot be "
    "written); set TMPDIR to a shorter one, of at most 70 bytes"
)


def parents() -> list[str]:
    """Where the folder may be made; the first one that can be written and has a short name is taken."""
    return list(dict.fromkeys(["/dev/shm", tempfile.gettempdir(), "/tmp", "/var/tmp"]))


@contextlib.contextmanager
def sockets_folder() -> Iterator[str | None]:
    """Make the folder, and remove it at the end. Yields its path; None where none has a name that is short enough."""
    for parent in parents():
        if len(os.fsencode(parent)) + 1 + len(PREFIX) + 8 > LONGEST:
            continue
        try:
            new = tempfile.mkdtemp(prefix=NOT_LOCKED_YET, dir=parent)
        except OSError:
            continue
        lock = os.open(new, os.O_RDONLY | os.O_DIRECTORY)
        path = os.path.join(parent, os.path.basename(new)[1:])
        try:
            lock_now(lock)  # before it gets its name: nobody must take it for that of a killed agent
            os.rename(new, path)
            yield path
        finally:
            for name in (new, path):
                shutil.rmtree(name, ignore_errors=True)
            os.close(lock)
        return
    yield None


def remove_abandoned() -> None:
    """Remove the folders that killed agents of this user have left."""
    for path in [path for parent in parents() for path in Path(parent).glob(f"{PREFIX}????????")]:
        with contextlib.suppress(OSError):
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if lock_now(folder) and os.fstat(folder).st_uid == os.geteuid():
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(folder)
