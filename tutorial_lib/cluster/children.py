"""The processes that an agent starts: each ends with it, and it can end them all."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from tutorial_lib.cluster.channel import POLL_SECONDS
from tutorial_lib.cluster.namespaces import die_with_parent

TERM_SECONDS = 3.0
_started: list[subprocess.Popen] = []  # kept: one that is dropped takes its child's exit code, if there is one, along


def start(argv: Sequence[str], env: dict[str, str], cwd: str, log: Path, fds: Sequence[int] = ()) -> int:
    """Start a program in a session of its own, its output appended to ``log``; returns its number.

    It keeps the file descriptors ``fds``. Its end is for ``os.wait4``.

    Raises:
        OSError: it cannot be started.
    """
    with log.open("ab") as output:
        child = subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=fds,
            start_new_session=True,
            preexec_fn=die_with_parent,  # an agent has one thread, so this is safe
        )
    _started.append(child)
    return child.pid


def end_descendants(reap: Callable[[], object]) -> None:
    """Terminate, wait, kill: all descendants of this process, also orphans; ``reap`` collects those that ended."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + TERM_SECONDS
        # Listed anew each time: a process may be forked after the others were told to end.
        while (left := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
            for process in left:
                with contextlib.suppress(psutil.Error):  # it has ended, or is another user's (setuid)
                    process.send_signal(number)
            time.sleep(POLL_SECONDS)
            reap()
    reap()
