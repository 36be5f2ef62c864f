"""The Linux calls that Python 3.10 lacks, and the program that runs a command on an emulated machine.

Each failure is an ``OSError`` whose text names the step that the kernel refused. The program imports the standard
library only, so it starts in a few milliseconds.
"""

import ctypes
import json
import os
import signal
import sys

_libc = ctypes.CDLL(None, use_errno=True)

# In the order in which a process enters them: a user namespace first, because it gives the right to enter the others.
NAMESPACES = {"user": 1 << 28, "mnt": 1 << 17, "net": 1 << 30, "uts": 1 << 26, "ipc": 1 << 27, "pid": 1 << 29}
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
PR_SET_PDEATHSIG = 1


def _check(result: int, step: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{step}: {os.strerror(code)}")


def unshare(*kinds: str) -> None:
    _check(_libc.unshare(sum(NAMESPACES[kind] for kind in kinds)), f"create {' and '.join(kinds)} namespaces")


def enter_and_close(fd: int) -> None:
    _check(_libc.setns(fd, 0), "enter a namespace")
    os.close(fd)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode())
    _check(_libc.mount(*words, ctypes.c_ulong(flags), options.encode()), f"mount {target}")


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that forked it ends."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def new_user_namespace(inner_uid: int = 0, inner_gid: int = 0) -> None:
    """Enter a new user namespace in which the calling user has these IDs. Needs no privilege."""
    uid, gid = os.getuid(), os.getgid()
    unshare("user")
    for name, text in [("setgroups", "deny"), ("uid_map", f"{inner_uid} {uid} 1"), ("gid_map", f"{inner_gid} {gid} 1")]:
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def private_mounts_with_proc() -> None:
    """Detach this process's mounts from the host's and show its own PID namespace under /proc."""
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV)


def enter(pid: int, *kinds: str) -> None:
    """Enter namespaces of a process, by default all, except those that this process is in."""
    paths = [(f"/proc/{pid}/ns/{kind}", f"/proc/self/ns/{kind}") for kind in kinds or NAMESPACES]
    try:
        opened = [os.open(theirs, os.O_RDONLY) for theirs, ours in paths if not os.path.samefile(theirs, ours)]
    except FileNotFoundError:
        opened = []
    if not opened:  # the process is gone, and perhaps an ordinary process has its ID by now
        sys.exit("the emulated machine has been switched off")
    for fd in opened:
        enter_and_close(fd)


def main() -> None:
    """Enter a machine, run a command, and end as it ends. The kernel kills the command when this program dies."""
    request = json.loads(sys.argv[1])
    command = sys.argv[2:]
    enter(request["pid"])
    child = os.fork()  # a PID namespace takes effect for children only
    if child == 0:
        try:
            die_with_parent()
            os.chdir(request["cwd"])  # entering a mount namespace moved us to its root
            if request["cpus"]:  # machines of an address file have none
                os.sched_setaffinity(0, request["cpus"])
            if request["ids"]:
                new_user_namespace(*request["ids"])
            os.execvp(command[0], command)
        except OSError as error:
            print(f"cannot start {command[0]!r} in {request['cwd']}: {error.strerror}", file=sys.stderr)
            os._exit(127)
    os.closerange(0, 3)  # only the command may hold our pipes open: their end must mean that the command ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches the command directly
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: os.kill(child, received))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:  # end by the same signal
        if code != -signal.SIGKILL:  # it has no handler to reset
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
