"""The files of DGL's servers in /dev/shm: a lock for the job that uses them, and clean-up after killed jobs.

DGL 2.1.0 makes for a graph named G the files ``G``, ``G_node_inner_node``, ``GG_0_csc_indptr`` and others, locks like
``dgl.graphbolt.G_data.lock``, and for each feature F ``node~_N~F-kvdata-``, which contains no name of a graph or job.
Two jobs on one /dev/shm would overwrite each other's files.

An agent therefore keeps a file ``tutorial_lib-job-PID-*`` locked (``flock``). The kernel releases the lock when the
agent ends for whatever reason. A file without a lock thus belongs to a dead job, also if another process has its PID,
or if the PID was that of another container. DGL's files that are not older than the lock file belong to its job.
"""

from __future__ import annotations

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

from tutorial_lib.errors import InputError
from tutorial_lib.files import lock_now, open_plain

SHM = Path("/dev/shm")
LOCK = "tutorial_lib-job-"


def find_segments(patterns: Sequence[str]) -> list[str]:
    """Return the names of the files in /dev/shm that match one of the regular expressions.

    A group in a pattern is the name of another such file.
    """
    names = set(os.listdir(SHM))
    matches = [match for name in names for pattern in patterns if (match := re.fullmatch(pattern, name))]
    groups = {group for match in matches for group in match.groups() if group}
    return sorted({match[0] for match in matches} | (names & groups))


def _lock_files() -> Iterator[tuple[int, int, Path]]:
    """Yield PID, open descriptor and path of each lock file. Links and pipes of such a name are skipped."""
    for path in SHM.glob(f"{LOCK}*"):
        if match := re.fullmatch(rf"{LOCK}(\d+)-\w+", path.name):
            with contextlib.suppress(OSError), open(open_plain(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                yield int(match[1]), file.fileno(), path


def running_jobs() -> list[int]:
    """Return the PIDs of the processes that lock /dev/shm for a job."""
    running = []
    for pid, descriptor, _ in _lock_files():
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            running.append(pid)
    return running


@contextlib.contextmanager
def lock_shm(patterns: Sequence[str]) -> Iterator[Path]:
    """Lock /dev/shm for a job of this process, and remove the files of the job at the end.

    Yields:
        A folder for the sockets of the samplers. The path of a socket has at most 107 bytes, so this one is short.

    Raises:
        InputError: another job is running. OSError: /dev/shm is full.
    """
    if running := running_jobs():
        raise InputError(f"another job (process {running[0]}) uses /dev/shm of this machine")
    # The file is locked before it gets its name, because a file without a lock belongs to a dead job.
    descriptor, temporary = tempfile.mkstemp(prefix=f".{LOCK}{os.getpid()}-", dir=SHM)
    lock = SHM / Path(temporary).name.removeprefix(".")
    try:
        os.fchmod(descriptor, 0o644)  # other users test the lock, too
        lock_now(descriptor)
        os.rename(temporary, lock)
        _sockets_of(lock).mkdir(mode=0o700)
        yield _sockets_of(lock)
    finally:
        _remove_job(descriptor, lock, patterns)
        os.close(descriptor)


def clean_leftovers(patterns: Sequence[str], seconds: float = 0.0) -> list[str]:
    """Remove the files of killed jobs of this user, except those in use, and return their names.

    Args:
        seconds: time limit to wait for processes of a killed job, which may still be ending.
    """
    removed, deadline = [], time.monotonic() + seconds
    while True:
        waiting = False
        for _, descriptor, lock in [] if running_jobs() else _lock_files():  # files of jobs can have the same names
            own = os.fstat(descriptor).st_uid == os.geteuid()
            if own and lock_now(descriptor) and os.fstat(descriptor).st_nlink:  # else another process has cleaned up
                removed += _remove_job(descriptor, lock, patterns)
                waiting = waiting or lock.exists()
        if not waiting or time.monotonic() >= deadline:
            return removed
        time.sleep(0.1)


def _remove_job(descriptor: int, lock: Path, patterns: Sequence[str]) -> list[str]:
    """Remove the files of a job, and its lock unless some are in use. Return the names of the removed files."""
    since, removed, used = os.fstat(descriptor).st_mtime, [], False
    for path in (SHM / name for name in find_segments(patterns)):
        with contextlib.suppress(OSError):
            info = path.lstat()
            if info.st_uid != os.geteuid() or info.st_ctime < since:
                continue
            if _is_in_use(path):
                used = True
            else:
                path.unlink()
                removed.append(path.name)
    if not used:
        shutil.rmtree(_sockets_of(lock), ignore_errors=True)
        lock.unlink(missing_ok=True)
    return removed


def _is_in_use(path: Path) -> bool:
    """Return whether a process has a file open or mapped. If so, the kernel refuses a lease (see ``fcntl(2)``)."""
    with open(open_plain(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        # A process that opens the file waits until we close it. The kernel sends a signal, which must not end us.
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError:
            return True
        return False


def _sockets_of(lock: Path) -> Path:
    return lock.with_name(lock.name.replace(LOCK, "dgl-job-"))


def main() -> None:
    """Remove the files of a job whose agent was killed. The arguments are its patterns, see ``Agents.clean_up``."""
    clean_leftovers(sys.argv[1:], seconds=4.0)
