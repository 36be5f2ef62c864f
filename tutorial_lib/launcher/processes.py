"""Start and stop the processes of an agent. The kernel kills them when the agent ends."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from tutorial_lib.launcher.backends.namespaces import die_with_parent
from tutorial_lib.launcher.messages import POLL_SECONDS

TERM_SECONDS = 3.0
_started: list[subprocess.Popen] = []  # a dropped Popen would collect the exit code of its child


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, or exit if the parent has ended already."""
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)


def start(argv: Sequence[str], env: dict[str, str], cwd: str, log: Path, fds: Sequence[int] = ()) -> int:
    """Start a program in a new session and return its PID. The program appends its output to ``log``.

    The program keeps the file descriptors ``fds``. The caller collects its exit code with ``os.wait4``.
    """
    agent = os.getpid()
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
            preexec_fn=lambda: die_with(agent),  # an agent has one thread, so this is safe
        )
    _started.append(child)
    return child.pid


def end_descendants(reap: Callable[[], object]) -> None:
    """Terminate all descendants of this process, including orphans. After three seconds, kill the remaining ones.

    ``reap`` collects the exit codes of ended processes.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + TERM_SECONDS
        # List the processes again, because a process may fork after the others got the signal.
        while (left := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
            for process in left:
                with contextlib.suppress(psutil.Error):  # the process has ended or belongs to another user (setuid)
                    process.send_signal(number)
            time.sleep(POLL_SECONDS)
            reap()
    reap()
