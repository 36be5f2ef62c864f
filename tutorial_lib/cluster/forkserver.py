"""One process of a machine imports torch and DGL, and forks the machine's servers and trainers, which then need not.

    agent  <== JSON lines over a pair of sockets ==>  the program of the trainers, which has imported what it needs
      |                                                    |
      `-- server 0, 1, ..., trainer 0, 1, ...  <-- forked -'

The imports take two seconds of a processor, most of a short job. A new process is handed on to the agent, as if that
had started it: the agent learns how it ends, and it ends with the agent. It has a session, a log and variables of its
own; only ``/proc/PID/environ`` shows those of the process that forked it.

A fork copies one thread of a process, and locks as they are. So the process that forks does nothing else: it has run no
parallel region of OpenMP and has not touched CUDA. Of the threads that libraries start when they are imported,
OpenBLAS's and jemalloc's, both know what a fork is.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tutorial_lib.cluster.channel import Channel
from tutorial_lib.cluster.namespaces import die_with_parent

FORKSERVER = "TUTORIAL_FORKSERVER"


class Forkserver:
    """The agent's end. The program inherits ``theirs``, a socket with the number that the variable FORKSERVER says, and
    calls ``fork_as_told`` when it has imported what its processes need.
    """

    def __init__(self) -> None:
        self._socket, self.theirs = socket.socketpair()
        self._link = Channel(self._socket.fileno(), self._socket.fileno())

    def order(self, role: str, index: int, env: dict[str, str], log: Path) -> None:
        """Have a process forked, as soon as the imports are done; ``env`` is what it has besides the others' variables.

        Does not wait. Where the other end is gone, that was the end of a child, which the agent sees as such.
        """
        self._link.put({"role": role, "index": index, "env": env, "log": str(log)})

    def started(self) -> Iterator[tuple[str, int, int]]:
        """Role, index and pid of the processes that were forked since the last call.

        No process does anything before it can be found here: whose end is known, of that also the number is.
        """
        self._link.push()
        with contextlib.suppress(EOFError, ConnectionError):
            while messages := self._link.take():
                for message in messages:
                    yield message["role"], message["index"], message["pid"]

    def close(self) -> None:
        """No more orders: the process ends when it has done those that it has."""
        self._link.put({"role": None})


def is_forkserver() -> bool:
    """Whether an agent has started this process to fork others."""
    return FORKSERVER in os.environ


def fork_as_told() -> None:
    """In the program: fork for each order, and end. Returns in each of the new processes, with its log and variables.

    In a process that is no forkserver it returns at once.
    """
    if not is_forkserver():
        return
    gc.freeze()  # a collection in a child would write to, and so copy, every page that has an object
    agent = os.getppid()
    with socket.socket(fileno=int(os.environ.pop(FORKSERVER))) as end, end.makefile() as orders:
        for order in map(json.loads, orders):
            if order["role"] is None:
                break
            if _forked(end, order):
                _become(order, agent)
                return
    sys.stdout.flush()
    os._exit(0)  # without what libraries do at exit: there is nothing to leave


def _forked(end: socket.socket, order: dict[str, Any]) -> bool:
    """True in the new process. The one in between ends, which makes the agent, a "subreaper", the parent."""
    ours, theirs = socket.socketpair()
    between = os.fork()
    if between == 0:
        code = 1
        try:
            if os.fork() == 0:
                ours.close()
                with theirs:
                    theirs.sendall(str(os.getpid()).encode())
                    theirs.recv(1)  # until the agent can know of us
                return True
            code = 0
        except OSError as error:
            print(f"cannot fork {order['role']} {order['index']}: {error.strerror}", flush=True)
        os._exit(code)
    theirs.close()
    _, status = os.waitpid(between, 0)
    if status:
        os._exit(1)
    with ours:
        pid = int(ours.recv(32))
        end.sendall(json.dumps({"role": order["role"], "index": order["index"], "pid": pid}).encode() + b"\n")
    return False


def _become(order: dict[str, Any], agent: int) -> None:
    """The process that was ordered."""
    os.setsid()
    die_with_parent()
    if os.getppid() != agent:  # it ended before we asked
        os._exit(1)
    os.environ.update(order["env"])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # libgomp read the variable when it was loaded
    importlib.import_module("sitecustomize").take_part()  # of `hook`: as at the start of a server or a trainer
