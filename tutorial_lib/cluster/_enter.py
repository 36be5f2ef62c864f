"""Run a command inside an emulated machine: ``python -I -S _enter.py PLAN``, PLAN as JSON.

Uses the standard library only, so that it starts in some milliseconds. It enters the namespaces whose
open files it inherited, forks (a pid namespace takes effect for children only), and waits; the command
gets SIGKILL when this process dies, and SIGTERM and SIGINT are passed on.
"""

import ctypes
import json
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    plan = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    for fd in plan["fds"]:
        if libc.setns(fd, 0) != 0:
            sys.exit(f"cannot enter the emulated machine: {os.strerror(ctypes.get_errno())}")
        os.close(fd)
    os.chdir(plan["cwd"])  # entering a mount namespace moved us to its root
    if plan["cpus"]:
        os.sched_setaffinity(0, plan["cpus"])
    try:
        pid = os.fork()
    except OSError:  # what the kernel says (ENOMEM) when the pid namespace has lost its first process
        sys.exit("the emulated machine has been switched off")
    if pid == 0:
        libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
        try:
            os.execvp(plan["argv"][0], plan["argv"])
        except OSError as error:
            print(f"cannot start {plan['argv'][0]!r}: {error.strerror}", file=sys.stderr)
            os._exit(127)
    # Nobody but the command may hold our pipes open: their end must mean that the command ended.
    os.closerange(0, 3)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: os.kill(pid, received))
    status = os.waitpid(pid, 0)[1]
    code = os.waitstatus_to_exitcode(status)
    if code < 0:  # end by the same signal, so that the caller sees what happened
        if -code not in (signal.SIGKILL, signal.SIGSTOP):  # these have no handler to reset
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
