"""The few Linux calls that Python 3.10 lacks, and the program that runs a command on an emulated machine.

Each failure is an ``OSError`` whose text names the step that the kernel refused.

``python -I -S namespaces.py PLAN`` (JSON) uses the standard library only, so that the program starts in some
milliseconds. The program enters the namespaces of the open files in the plan, forks (a PID namespace takes effect for
children only), and waits. The kernel kills the command when this program dies. The program passes SIGTERM, SIGINT and
SIGHUP on. On a terminal, the command gets the foreground, so that a shell can manage jobs.
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
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
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
    """Enter the namespace of an open file. 0 for ``kind`` accepts every kind of namespace."""
    _check(_libc.setns(fd, kind), step)


def mount(source: str, target: str, kind: str, flags: int, options: str, step: str) -> None:
    """mount(2)."""
    words = (source.encode(), target.encode(), kind.encode())
    _check(_libc.mount(*words, ctypes.c_ulong(flags), options.encode()), step)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that forked it ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def new_user_namespace(inner_uid: int = 0, inner_gid: int = 0) -> None:
    """Enter a new user namespace in which the calling user has these IDs. Needs no privilege."""
    uid, gid = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER, "create a user namespace")
    for name, text in [("setgroups", "deny"), ("uid_map", f"{inner_uid} {uid} 1"), ("gid_map", f"{inner_gid} {gid} 1")]:
        try:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        except OSError as error:
            raise OSError(error.errno, f"write /proc/self/{name}: {error.strerror}") from None


def private_mounts_with_proc() -> None:
    """Detach this process's mounts from the host's and show its own PID namespace under /proc."""
    mount("none", "/", "", MS_REC | MS_PRIVATE, "", "make mounts private")
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV, "", "mount /proc")


def _has_foreground() -> bool:
    """Return whether standard input is the terminal of this process and its group is in the foreground."""
    with contextlib.suppress(OSError):
        return os.tcgetpgrp(0) == os.getpgrp()
    return False


def _to_foreground(group: int) -> None:
    """Give the terminal to a process group. This call works from the background, too."""
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # the terminal has been closed
        os.tcsetpgrp(0, group)
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)


def _wait(pid: int, on_terminal: bool) -> int:
    """Wait for the command, and stop and continue with it. Returns its exit code."""
    while os.WIFSTOPPED(status := os.waitpid(pid, os.WUNTRACED if on_terminal else 0)[1]):
        _to_foreground(os.getpgrp())
        os.kill(os.getpid(), signal.SIGSTOP)  # Ctrl-Z: the caller's shell continues us with fg or bg
        if _has_foreground():
            _to_foreground(pid)
        os.killpg(pid, signal.SIGCONT)
    if on_terminal:
        _to_foreground(os.getpgrp())
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    """Enter the machine, run the command of the plan, and end as the command ends."""
    plan = json.loads(sys.argv[1])
    try:
        for fd in plan["fds"]:
            setns(fd, 0, "cannot enter the emulated machine")
            os.close(fd)
        os.chdir(plan["cwd"])  # entering a mount namespace moved us to its root
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
    if plan["cpus"]:  # machines of an address file have none
        os.sched_setaffinity(0, plan["cpus"])
    on_terminal = _has_foreground()
    try:
        pid = os.fork()
    except OSError:  # the kernel reports ENOMEM if the PID namespace has lost its first process
        sys.exit("the emulated machine has been switched off")
    if pid == 0:
        die_with_parent()
        if plan["ids"]:
            new_user_namespace(*plan["ids"])
        if on_terminal:
            os.setpgid(0, 0)  # dash needs a process group that its PID namespace has a number for
            _to_foreground(os.getpgrp())
        try:
            os.execvp(plan["argv"][0], [*plan["argv"], *sys.argv[2:]])
        except OSError as error:
            print(f"cannot start {plan['argv'][0]!r}: {error.strerror}", file=sys.stderr)
            os._exit(127)
    # Only the command may hold our pipes open: their end must mean that the command ended.
    os.closerange(0 if not on_terminal else 1, 3)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: os.kill(pid, received))
    code = _wait(pid, on_terminal)
    if code < 0:  # end by the same signal
        if -code not in (signal.SIGKILL, signal.SIGSTOP):  # these have no handler to reset
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
