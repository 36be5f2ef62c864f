"""One process of a machine imports torch and DGL and then forks the servers and trainers, which start faster.

The imports take two seconds of a processor, most of a short job. The forked processes become children of the agent.
``/proc/PID/environ`` shows the variables of the process that forked them.

A fork copies only one thread, and locks in their current state. Therefore, the process that forks has run no parallel
region of OpenMP and has not used CUDA. OpenBLAS and jemalloc start threads when they are imported and handle forks.
"""

import contextlib
import gc
import importlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tutorial_lib.launcher.messages import Channel
from tutorial_lib.launcher.processes import die_with

FORKSERVER = "TUTORIAL_FORKSERVER"


class Forkserver:
    """The agent's end of the connection. The program inherits the socket ``theirs`` and calls ``fork_as_told``."""

    def __init__(self) -> None:
        self._socket, self.theirs = socket.socketpair()
        self._link = Channel(self._socket.fileno(), self._socket.fileno())

    def order(self, role: str, index: int, env: dict[str, str], log: Path) -> None:
        """Request a process with additional variables, without waiting. The agent notices if the program is gone."""
        self._link.put({"role": role, "index": index, "env": env, "log": str(log)})

    def started(self) -> Iterator[tuple[str, int, int]]:
        """Yield role, index and PID of the processes forked since the last call.

        A process sends its PID before it starts to work, so the agent can read the PID of every process that ends.
        """
        self._link.push()
        with contextlib.suppress(EOFError, ConnectionError):
            for message in self._link.take():
                yield message["role"], message["index"], message["pid"]

    def close(self) -> None:
        """Let the program end after the requested processes."""
        self._link.put(None)


def is_forkserver() -> bool:
    """Return whether an agent started this process to fork others."""
    return FORKSERVER in os.environ


def fork_as_told() -> None:
    """In a forkserver, fork a process for each request of the agent and exit. Return only in the other processes."""
    if not is_forkserver():
        return
    gc.freeze()  # a collection in a child would write to, and so copy, every page that has an object
    agent = os.getppid()
    with socket.socket(fileno=int(os.environ.pop(FORKSERVER))) as end, end.makefile() as orders:
        for order in iter(lambda: json.loads(orders.readline() or "null"), None):
            if _fork():
                _become(order, agent, end)
                return
    sys.stdout.flush()
    os._exit(0)  # without exit handlers of libraries, which have nothing to clean up


def _fork() -> bool:
    """Return True in the new process. Its parent has ended, so the agent, a subreaper, is its parent."""
    if (between := os.fork()) != 0:
        if os.waitpid(between, 0)[1] != 0:
            os._exit(1)
        return False
    between = os.getpid()
    try:
        if os.fork() != 0:
            os._exit(0)
    except OSError as error:
        print(f"cannot fork: {error.strerror}", flush=True)
        os._exit(1)
    while os.getppid() == between:
        time.sleep(0.001)
    return True


def _become(order: dict[str, Any], agent: int, end: socket.socket) -> None:
    os.setsid()
    die_with(agent)
    end.sendall(json.dumps({"role": order["role"], "index": order["index"], "pid": os.getpid()}).encode() + b"\n")
    os.environ.update(order["env"])
    with open(order["log"], "ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # libgomp read the variable when it was loaded
    importlib.import_module("sitecustomize").take_part()  # the hook, as at the start of a process
