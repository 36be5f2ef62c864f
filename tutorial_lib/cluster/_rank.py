"""Between torchrun and a trainer: its own log file, and an end with torchrun's end. Then it becomes the command.

Runs as ``python -I -S _rank.py COMMAND...`` under torchrun, which says LOCAL_RANK.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    os.environ["TUTORIAL_TRAINER_PID"] = str(os.getpid())  # the command keeps our process id; see hook/sitecustomize.py
    path = os.path.join(os.environ["TUTORIAL_LOG_DIR"], f"trainer-{os.environ['LOCAL_RANK']}.log")
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        sys.stderr.write(f"cannot start {sys.argv[1]!r}: {error.strerror}\n")
        os._exit(127)
