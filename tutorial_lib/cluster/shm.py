"""The files that DGL's servers keep in /dev/shm: whose they are, and removing those of a job that has ended.

Seen with DGL 2.1.0 for a graph named G: ``G``, ``G_node_inner_node`` and the like, ``GG_0_csc_indptr`` and the like,
for GraphBolt locks like ``dgl.graphbolt.G_data.lock`` and, for each feature F, ``node~_N~F-kvdata-``. The last carry no
name of graph or job: two jobs on one /dev/shm overwrite each other's. Other names (``torch_*``, ``psm_*``) are others'.

So an agent leaves a **marker** beside them, ``tutorial_lib-job-PID-*.json``, and keeps it locked (``flock``) while
it lives. The kernel drops the lock when the agent ends, however it ends. Thus a marker without a lock means a dead
job, also when its process number is in use again, or counts in the process list of another container. Beside it lies
a folder for the sockets over which the samplers hand on open files: its name is short, and it goes with the marker.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

SHM = Path("/dev/shm")
MARKER = "tutorial_lib-job-"
_LARGEST_MARKER = 1 << 20  # bytes; it lists the names that were in /dev/shm before the job
_NO_MARKER = (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError)
_FEATURE = r".+-kvdata-"
_OF_GRAPH = (
    r"{0}_node_(?:inner_node|_ID|meta|node_map)|{0}_edge_(?:inner_edge|_ID|_TYPE|edge_map)"
    r"|{1}_\d+_(?:csc|csr|coo)_(?:indptr|indices|data|row|col)|dgl\.graphbolt\.{0}_(?:meta)?data(?:\.lock)?"
)
_SEGMENT = re.compile(f"{_FEATURE}|" + _OF_GRAPH.format(".+", r"(.+)\1"))


def dgl_segments() -> list[str]:
    """Names of the files in /dev/shm that look like a DGL server's."""
    return sorted(name for name in os.listdir(SHM) if _SEGMENT.fullmatch(name))


def graph_name_in(part_config: str | Path) -> str | None:
    """``graph_name`` of a partition description; None where there is no such file or it does not say."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        name = json.loads(Path(part_config).read_text())["graph_name"]
        return name if isinstance(name, str) and name else None
    return None


def _belongs(name: str, graph_name: str | None) -> bool:
    """Whether a server of a job on this graph would write a file of this name."""
    if graph_name is None:
        return re.fullmatch(_FEATURE, name) is not None
    of_graph = _OF_GRAPH.format(re.escape(graph_name), re.escape(graph_name * 2))
    return re.fullmatch(f"{re.escape(graph_name)}|{_FEATURE}|{of_graph}", name) is not None


def remove_segments(before: set[str], part_config: str) -> None:
    """Remove what the servers of a job left: files that were not there before it and belong to this user.

    Servers unlink their files when they end well; killed ones do not.
    """
    graph_name = graph_name_in(part_config)
    _unlink_own(name for name in set(os.listdir(SHM)) - before if _belongs(name, graph_name))


def _unlink_own(names: Iterable[str]) -> list[str]:
    """Unlink those files of /dev/shm that belong to this user; returns their names."""
    removed = []
    for name in names:
        with contextlib.suppress(OSError):
            if (SHM / name).lstat().st_uid == os.geteuid():
                (SHM / name).unlink()
                removed.append(name)
    return sorted(removed)


def sockets_of(marker: Path) -> Path:
    """The folder beside a marker; a socket's path may have 107 bytes."""
    return marker.with_name(f"dgl-job-{marker.stem.removeprefix(MARKER)}")


@contextlib.contextmanager
def job_marker(graph_name: str | None, before: set[str]) -> Iterator[Path]:
    """While the block runs, /dev/shm says that this process has a job there; the marker is removed after it.

    Args:
        graph_name: as in the partition description; see ``graph_name_in``.
        before: names of the files that were in /dev/shm before the job; they are never taken for the job's.

    Raises:
        OSError: /dev/shm is full.
    """
    content = {"pid": os.getpid(), "graph_name": graph_name, "before": sorted(before)}
    # Locked before it gets its name: nobody must ever see a marker of a living job that is not locked.
    number, temporary = tempfile.mkstemp(prefix=f".{MARKER}", dir=SHM)
    path = SHM / f"{MARKER}{os.getpid()}-{temporary.rsplit('-', 1)[1]}.json"
    with open(number, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody else can have it: it is new, and private yet
            json.dump(content, file)
            file.flush()
            os.fchmod(number, 0o644)  # other users may look, too
            os.rename(temporary, path)
            sockets_of(path).mkdir(mode=0o700)
            yield path
        finally:
            shutil.rmtree(sockets_of(path), ignore_errors=True)
            for name in (Path(temporary), path):
                name.unlink(missing_ok=True)


@dataclass(frozen=True)
class MarkedJob:
    """A job with a marker: its process, and the files in /dev/shm that are its own now.

    Of a dead job, some process may have files with names as its own ``in_use``: one that is about to end, or one of a
    later job that left no marker.
    """

    marker: str
    pid: int
    files: tuple[str, ...]
    in_use: tuple[str, ...] = ()


@dataclass(frozen=True)
class Leftovers:
    """What lies in /dev/shm.

    Attributes:
        dead: jobs of this user that have ended and left files.
        live: jobs that run.
        foreign: files that look like a DGL server's and belong to neither.
        users: for those of them that a process has in use, the number of that process.
    """

    dead: list[MarkedJob] = field(default_factory=list)
    live: list[MarkedJob] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    users: dict[str, int] = field(default_factory=dict)


def leftovers() -> Leftovers:
    """Tell apart the files of dead jobs of ours, of jobs that run, and those nobody here knows.

    A file that some process has mapped is never a dead job's, whatever its name: a later job that left no
    marker (DGL's own launch tool) may have made it.
    """
    names = set(os.listdir(SHM))
    live, ended = [], []
    for marker in sorted(name for name in names if name.startswith(MARKER)):
        with contextlib.suppress(*_NO_MARKER), _opened_marker(marker) as file:
            content = json.loads(file.read(_LARGEST_MARKER))
            others = set(map(str, content["before"]))
            files = tuple(sorted(name for name in names - others if _belongs(name, content["graph_name"])))
            job = MarkedJob(marker, int(content["pid"]), files)
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                live.append(job)
            else:
                if os.fstat(file.fileno()).st_uid == os.geteuid():
                    ended.append(job)
    taken = {name for job in live for name in job.files}
    suspects = {*dgl_segments(), *(name for job in ended for name in job.files)} - taken
    users = processes_using(suspects)
    dead = []
    for job in ended:
        free = tuple(n for n in job.files if n not in taken and n not in users)
        dead.append(replace(job, files=free, in_use=tuple(n for n in job.files if n in users)))
    foreign = suspects - {name for job in dead for name in job.files}
    return Leftovers(dead, live, sorted(foreign), {n: pid for n, pid in users.items() if n in foreign})


@contextlib.contextmanager
def _opened_marker(name: str) -> Iterator[IO[bytes]]:
    """A marker, opened for reading. Any user may make a file of that name: a FIFO, a link, or one without an end."""
    number = os.open(SHM / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(number, "rb") as file:
        about = os.fstat(number)
        if not stat.S_ISREG(about.st_mode) or about.st_size > _LARGEST_MARKER:
            raise OSError("not a marker of ours")
        yield file


def processes_using(names: Iterable[str]) -> dict[str, int]:
    """Which of these files of /dev/shm a process has mapped, and its number; only processes that we may look at.

    Compared by device and inode: another machine's /dev/shm has files of the same name.
    """
    wanted = {}
    for name in names:
        with contextlib.suppress(OSError):
            about = (SHM / name).lstat()
            wanted[f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x} {about.st_ino}"] = name
    found: dict[str, int] = {}
    if not wanted:
        return found
    for pid in sorted(int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as maps:
            for line in maps:
                if "/dev/shm/" in line:
                    fields = line.split(maxsplit=5)
                    name = wanted.get(f"{fields[3]} {fields[4]}")
                    if name is not None:
                        found.setdefault(name, pid)
    return found


def clean_leftovers() -> list[str]:
    """Remove what dead jobs of this user left in /dev/shm; returns the names of the files.

    A marker goes with the last file; while a process uses one, both are kept for the next time.
    """
    removed: list[str] = []
    for job in leftovers().dead:
        with contextlib.suppress(OSError), _opened_marker(job.marker) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have cleaned up, and started a job, since we looked: then the marker is gone.
            if os.fstat(file.fileno()).st_nlink:
                removed += _unlink_own(job.files)
                if not job.in_use:
                    shutil.rmtree(sockets_of(SHM / job.marker), ignore_errors=True)
                    _unlink_own([job.marker])
    return sorted(removed)


def main() -> None:
    """``python -m tutorial_lib.cluster.shm``: clean up after an agent that could not; waits for its processes to go."""
    for _ in range(20):
        clean_leftovers()
        if not leftovers().users:
            return
        time.sleep(0.2)


if __name__ == "__main__":
    main()
