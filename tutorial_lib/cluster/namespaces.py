"""The few Linux calls that Python 3.10 lacks: unshare, setns, mount, prctl.

Each failure is an ``OSError`` whose text says which step the kernel refused.

As a program, ``python -I -S namespaces.py PLAN [WORD...]`` (JSON) runs a command inside an emulated machine, with the
words as its last arguments. It uses the standard library only, so that it starts in some milliseconds. It enters the
namespaces whose open files it inherited, forks (a pid namespace takes effect for children only), and waits; the command
gets SIGKILL when this process dies, and SIGTERM, SIGINT and SIGHUP are passed on. On a terminal, the command gets the
foreground, so that a shell can manage jobs.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG = 1


def _check(result: int, step: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{step}: {os.strerror(code)}")


def unshare(flags: int, step: str) -> None:
    """Leave the namespaces named by ``flags`` for new ones."""
    _check(_libc.unshare(flags), step)


def setns(fd: int, kind: int, step: str) -> None:
    """Enter the namespace of an open file; with 0 for ``kind``, of whichever kind it is."""
    _check(_libc.setns(fd, kind), step)


def mount(source: str, target: str, kind: str, flags: int, options: str, step: str) -> None:
    """mount(2)."""
    words = (source.encode(), target.encode(), kind.encode())
    _check(_libc.mount(*words, ctypes.c_ulong(flags), options.encode()), step)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that forked it ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def new_user_namespace(inner_uid: int = 0, inner_gid: int = 0) -> None:
    """In which the calling user is root, or has other numbers; needs no privilege where the host allows it."""
    uid, gid = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER, "create a user namespace")
    for name, text in [("setgroups", "deny"), ("uid_map", f"{inner_uid} {uid} 1"), ("gid_map", f"{inner_gid} {gid} 1")]:
        try:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        except OSError as error:
            raise OSError(error.errno, f"write /proc/self/{name}: {error.strerror}") from None


def private_mounts_with_proc() -> None:
    """Detach this process's mounts from the host's and show its own pid namespace under /proc."""
    mount("none", "/", "", MS_REC | MS_PRIVATE, "", "make mounts private")
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV, "", "mount /proc")


def in_foreground(fd: int) -> bool:
    """Return whether a file is the controlling terminal of this process, and its group is in the foreground."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False


def to_foreground(terminal: int, group: int) -> None:
    """Give the terminal to a process group. This call works from the background, too."""
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # the terminal has been closed
        os.tcsetpgrp(terminal, group)
    signal.signal(signal.SIGTTOU, before)


def main() -> None:
    """Enter the machine and become the command of the plan, as far as its caller can tell."""
    plan = json.loads(sys.argv[1])
    try:
        for fd in plan["fds"]:
            setns(fd, 0, "cannot enter the emulated machine")
            os.close(fd)
    except OSError as error:
        sys.exit(error.strerror)
    os.chdir(plan["cwd"])  # entering a mount namespace moved us to its root
    if plan["cpus"]:
        os.sched_setaffinity(0, plan["cpus"])
    terminal = os.dup(0) if in_foreground(0) else -1
    try:
        pid = os.fork()
    except OSError:  # what the kernel says (ENOMEM) when the pid namespace has lost its first process
        sys.exit("the emulated machine has been switched off")
    if pid == 0:
        die_with_parent()
        if plan.get("ids"):
            new_user_namespace(*plan["ids"])
        if terminal >= 0:
            os.close(terminal)
            os.setpgid(0, 0)  # dash needs a process group that its pid namespace has a number for
            to_foreground(0, os.getpgrp())
        try:
            os.execvp(plan["argv"][0], [*plan["argv"], *sys.argv[2:]])
        except OSError as error:
            print(f"cannot start {plan['argv'][0]!r}: {error.strerror}", file=sys.stderr)
            os._exit(127)
    # Nobody but the command may hold our pipes open: their end must mean that the command ended.
    os.closerange(0, 3)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: os.kill(pid, received))
    while os.WIFSTOPPED(status := os.waitpid(pid, os.WUNTRACED if terminal >= 0 else 0)[1]):
        to_foreground(terminal, os.getpgrp())
        os.kill(os.getpid(), signal.SIGSTOP)  # Ctrl-Z: the caller's shell continues us with fg or bg
        if in_foreground(terminal):
            to_foreground(terminal, pid)
        os.killpg(pid, signal.SIGCONT)
    if terminal >= 0:
        to_foreground(terminal, os.getpgrp())
    code = os.waitstatus_to_exitcode(status)
    if code < 0:  # end by the same signal, so that the caller sees what happened
        if -code not in (signal.SIGKILL, signal.SIGSTOP):  # these have no handler to reset
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
