"""Run a worker of pytest-xdist with a separate process list, network, /dev/shm and temporary folder.

    python tests/programs/alone.py COMMAND...

Tests search the whole host for remains of a job, and jobs of DGL share names in /dev/shm. Two tests can therefore run
at once only on separate hosts. The program waits for all descendants and exits with the exit code of the command.
"""

import contextlib
import os
import sys
import tempfile
from pathlib import Path

from pyroute2 import IPRoute

sys.path.insert(0, str(Path(__file__).parents[2]))
from tutorial_lib.launcher.backends import namespaces as ns


def make_namespaces() -> None:
    """Create the namespaces as root. If this is not allowed, create them in a new user namespace."""
    kinds = ("mnt", "net", "ipc", "pid")
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            return ns.unshare(*kinds)
    ns.new_user_namespace()
    return ns.unshare(*kinds)


def become(user: int, group: int) -> None:
    """Change from root of a user namespace to the user who made it, because tests must not run as root."""
    ns.new_user_namespace(user, group)


def first_process(command: list[str], user: int, group: int) -> int:
    """Start the command and reap every process whose parent has gone, until the command ends."""
    ns.die_with_parent()
    ns.private_mounts_with_proc()
    ns.mount("tmpfs", "/dev/shm", "tmpfs", ns.MS_NOSUID | ns.MS_NODEV, "mode=1777")
    with IPRoute() as ip:
        ip.link("set", index=ip.link_lookup(ifname="lo")[0], state="up")
    child = os.fork()
    if child == 0:
        if user != os.geteuid():
            become(user, group)
        os.execvp(command[0], command)
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def main(command: list[str]) -> int:
    user, group = os.geteuid(), os.getegid()
    make_namespaces()
    with tempfile.TemporaryDirectory(prefix="worker-") as folder:
        os.environ["TMPDIR"] = folder
        os.chmod(folder, 0o1777)  # as that of every user
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = first_process(command, user, group)
            finally:
                os._exit(code & 255)
        os.close(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
