"""The files of a job in /dev/shm: a lock for the job that uses them, and clean-up after killed jobs.

DGL's names of such files contain no name of a job, so two jobs on one /dev/shm would overwrite each other's files. An
agent therefore keeps the folder /dev/shm locked (``flock``). The kernel releases the lock when the agent ends for
whatever reason. A folder ``dgl-job-XXXX`` shows when the job began, and the job owns the files that are not older.

``patterns`` are regular expressions of names. The text of a group in a pattern is the name of another file.
"""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tutorial_lib.errors import WaitedTooLong
from tutorial_lib.files import lock_folder, open_regular_file

SHM = Path("/dev/shm")
PREFIX = "dgl-job-"
LOCK_SECONDS = 0.5  # a check of another user holds the lock for a moment


def job_files(patterns: Sequence[str]) -> list[str]:
    names = set(os.listdir(SHM))
    matches = list(filter(None, (re.fullmatch(pattern, name) for name in names for pattern in patterns)))
    groups = {group for match in matches for group in match.groups()}
    return sorted({match[0] for match in matches} | (names & groups))


@contextlib.contextmanager
def lock_shm(patterns: Sequence[str]) -> Iterator[Path]:
    """Lock /dev/shm for a job of this process, yield a folder for sockets, and finally remove the files of the job."""
    with lock_folder(SHM, LOCK_SECONDS):
        _remove(patterns)
        sockets = Path(tempfile.mkdtemp(prefix=PREFIX, dir=SHM), "sockets")  # a socket's path has at most 107 bytes
        sockets.mkdir()
        try:
            yield sockets
        finally:
            _remove(patterns)


def clean_leftovers(patterns: Sequence[str], seconds: float = 0.0) -> list[str]:
    """Remove the files of killed jobs, after waiting at most ``seconds`` for their last processes. Return the names."""
    removed = []
    deadline = time.monotonic() + seconds
    with lock_folder(SHM, LOCK_SECONDS):
        while True:
            removed += _remove(patterns)
            if not _job_folders() or time.monotonic() >= deadline:
                return removed
            time.sleep(0.1)


def _job_folders() -> list[Path]:
    folders = [path for path in SHM.glob(f"{PREFIX}*") if path.is_dir() and not path.is_symlink()]
    return [path for path in folders if path.stat().st_uid == os.geteuid()]


def _remove(patterns: Sequence[str]) -> list[str]:
    """Remove the files of jobs, and their folders unless some files are in use. Return the names of removed files."""
    folders = _job_folders()
    removed = []
    start_time = min((folder.stat().st_mtime for folder in folders), default=float("inf"))
    for path in (SHM / name for name in job_files(patterns)):
        with contextlib.suppress(OSError), open(open_regular_file(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid == os.geteuid() and status.st_ctime >= start_time:
                # While we have a lease, a process that opens the file waits. The signal to us must not end us.
                fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
                try:
                    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
                except OSError:  # another process has the file open or mapped, see fcntl(2)
                    folders = []
                    continue
                path.unlink()
                removed.append(path.name)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return removed


def main() -> None:
    """Clean up after an agent was killed, see ``Agents.clean_up``. The arguments are the patterns of the job."""
    with contextlib.suppress(WaitedTooLong):
        clean_leftovers(sys.argv[1:], seconds=4.0)
