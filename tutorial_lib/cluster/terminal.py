"""A command that a person talks to, on an emulated machine: with a terminal of its own, connected to the one here."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import tty

from tutorial_lib.cluster.emulated import EmulatedCluster
from tutorial_lib.cluster.spec import Machine, wait_or_kill

PIECE = 1 << 16


def talk(cluster: EmulatedCluster, machine: Machine, argv: list[str]) -> int:
    """Run a command with our terminal until it ends; its exit code. What is typed reaches it as it is, also Ctrl-C."""
    ours, theirs = pty.openpty()
    command, fds = cluster.command(machine, argv, terminal=True)
    _copy_size(ours)
    before = termios.tcgetattr(0)
    previous = signal.signal(signal.SIGWINCH, lambda *_: _copy_size(ours))
    # The terminal is for its namespace's process to control, so that a shell there can manage jobs; not for this one's.
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, pass_fds=fds, start_new_session=True
    )
    os.close(theirs)
    try:
        tty.setraw(0)
        _pass_on(ours, process)
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, previous)
        os.close(ours)  # a command that is still there gets SIGHUP, as when a window is closed
        wait_or_kill(process, 5)
    code = process.returncode
    return code if code >= 0 else 128 - code


def _pass_on(ours: int, process: subprocess.Popen) -> None:
    """Both ways, until the command ends; what it has left in the background may hold the terminal still."""
    ended = os.pidfd_open(process.pid)
    sources = [0, ours, ended]
    try:
        while True:
            ready = select.select(sources, [], [])[0]
            if ours in ready:
                with contextlib.suppress(OSError):
                    if piece := os.read(ours, PIECE):
                        os.write(1, piece)
                        continue
                return
            if ended in ready:
                return
            if piece := os.read(0, PIECE):
                os.write(ours, piece)
            else:
                sources.remove(0)
    finally:
        os.close(ended)


def _copy_size(ours: int) -> None:
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(sys.stdout.fileno(), termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(ours, termios.TIOCSWINSZ, size)
