"""The files of a job in /dev/shm: a lock for the job that uses them, and clean-up after killed jobs.

DGL's names of such files contain no name of a job, so two jobs on one /dev/shm would overwrite each other's files. An
agent therefore keeps a file ``tutorial_lib-job-UID`` locked (``flock``). The kernel releases the lock when the agent
ends for whatever reason. A file without a lock thus belongs to a dead job, also if another process has the PID of its
agent. The job owns the files that are not older than its lock file.

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
from typing import BinaryIO

from tutorial_lib.errors import InputError
from tutorial_lib.files import lock_holder, lock_now, open_plain

SHM = Path("/dev/shm")
LOCKS = "tutorial_lib-job-*"


def job_files(patterns: Sequence[str]) -> list[str]:
    """Return the names of the files of jobs in /dev/shm."""
    names = set(os.listdir(SHM))
    matches = [match for name in names for pattern in patterns if (match := re.fullmatch(pattern, name))]
    groups = {group for match in matches for group in match.groups()}
    return sorted({match[0] for match in matches} | (names & groups))


def _open(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    return open(open_plain(path, flags | os.O_NOFOLLOW), "rb")


def running_jobs() -> list[str]:
    """Return each ``process 77`` that locks /dev/shm for a job. Links and pipes with such a name are skipped."""
    running = []
    for path in SHM.glob(LOCKS):
        with contextlib.suppress(OSError), _open(path) as file:
            if lock_now(file.fileno()) is False:
                running.append(lock_holder(path).split(" (")[0])
    return running


@contextlib.contextmanager
def lock_shm(patterns: Sequence[str]) -> Iterator[Path]:
    """Lock /dev/shm for a job of this process, and remove the files of the job at the end.

    Yields a folder for the sockets of the samplers. Its path is short, as that of a socket has at most 107 bytes. If
    another job is running, an InputError is raised.
    """
    if running := running_jobs():
        raise InputError(f"another job ({running[0]}) uses /dev/shm of this machine")
    clean_leftovers(patterns)
    lock = SHM / LOCKS.replace("*", str(os.geteuid()))
    with _open(lock, os.O_CREAT) as file:
        if not lock_now(file.fileno()) or not lock.exists():
            raise InputError("another job has just started on this machine")
        lock.chmod(0o644)  # other users test the lock, too
        os.utime(lock)
        try:
            yield Path(tempfile.mkdtemp(prefix="dgl-job-", dir=SHM))
        finally:
            _remove_job(lock, patterns)


def clean_leftovers(patterns: Sequence[str], seconds: float = 0.0) -> list[str]:
    """Remove the files of a killed job of this user, except those in use, and return their names.

    Processes of a killed job may still be ending, so this function waits at most ``seconds`` for them.
    """
    removed, deadline = [], time.monotonic() + seconds
    for lock in [] if running_jobs() else SHM.glob(LOCKS):  # the files of a running job can have the same names
        with contextlib.suppress(OSError), _open(lock) as file:
            if os.fstat(file.fileno()).st_uid == os.geteuid() and lock_now(file.fileno()):
                removed += _remove_job(lock, patterns)
                while lock.exists() and time.monotonic() < deadline:
                    time.sleep(0.1)
                    removed += _remove_job(lock, patterns)
    return removed


def _remove_job(lock: Path, patterns: Sequence[str]) -> list[str]:
    """Remove the files of a job, and its lock unless some are in use. Return the names of the removed files."""
    since, removed, used = lock.stat().st_mtime, [], False
    for path in (SHM / name for name in job_files(patterns)):
        with contextlib.suppress(OSError):
            info = path.lstat()
            if info.st_uid == os.geteuid() and info.st_ctime >= since:
                if _is_in_use(path):
                    used = True
                else:
                    path.unlink()
                    removed.append(path.name)
    if not used:
        for folder in SHM.glob("dgl-job-*"):
            shutil.rmtree(folder, ignore_errors=True)
        lock.unlink(missing_ok=True)
    return removed


def _is_in_use(path: Path) -> bool:
    """Return whether a process has a file open or mapped. If so, the kernel refuses a lease (see ``fcntl(2)``)."""
    with _open(path) as file:
        # A process that opens the file waits until we close it. The kernel sends a signal, which must not end us.
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError:
            return True
        return False


def main() -> None:
    """Clean up after an agent was killed, see ``Agents.clean_up``. The arguments are the patterns of the job."""
    clean_leftovers(sys.argv[1:], seconds=4.0)
