"""The few Linux calls that Python 3.10 lacks: unshare, setns, mount, prctl.

Each failure is an ``OSError`` whose text says which step the kernel refused.
"""

from __future__ import annotations

import ctypes
import os
import signal

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG = 1


def _check(result: int, step: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{step}: {os.strerror(code)}")


def unshare(flags: int, step: str) -> None:
    """Leave the namespaces named by ``flags`` for new ones."""
    _check(_libc.unshare(flags), step)


def setns(fd: int, step: str) -> None:
    """Enter the namespace behind an open ``/proc/PID/ns/...`` file."""
    _check(_libc.setns(fd, 0), step)


def mount(source: str, target: str, kind: str, flags: int, options: str, step: str) -> None:
    """mount(2)."""
    _check(
        _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()),
        step,
    )


def die_with_parent(sig: int = signal.SIGKILL) -> None:
    """Ask the kernel to send ``sig`` to this process when the thread that forked it ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(sig), 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def become_namespace_root() -> None:
    """New user namespace in which the calling user is root; needs no privilege where the host allows it."""
    uid, gid = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER, "create a user namespace")
    for name, text in [("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")]:
        try:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        except OSError as error:
            raise OSError(error.errno, f"write /proc/self/{name}: {error.strerror}") from None


def private_mounts_with_proc() -> None:
    """Detach this process's mounts from the host's and show its own pid namespace under /proc."""
    mount("none", "/", "", MS_REC | MS_PRIVATE, "", "make mounts private")
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV, "", "mount /proc")
