"""One process of a machine imports torch and DGL and then forks the servers and trainers, which start faster.

The imports take two seconds of a processor, most of a short job. The forked processes become children of the agent, so
the agent sees how they end, and they end with the agent. Each has its own session, log and variables, but
``/proc/PID/environ`` shows those of the process that forked it.

A fork copies only one thread, and locks in their current state. Therefore, the process that forks has run no parallel
region of OpenMP and has not used CUDA. OpenBLAS and jemalloc start threads when they are imported and handle forks.
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

from tutorial_lib.launcher.backends.namespaces import die_with_parent
from tutorial_lib.launcher.channel import Channel

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
        """Yield role, index and pid of the processes forked since the last call.

        A process starts to work only after its pid can be read here, so the agent knows every pid that ends.
        """
        self._link.push()
        with contextlib.suppress(EOFError, ConnectionError):
            while messages := self._link.take():
                for message in messages:
                    yield message["role"], message["index"], message["pid"]

    def close(self) -> None:
        """Let the program end after the requested processes."""
        self._link.put({"role": None})


def is_forkserver() -> bool:
    """Return whether an agent started this process to fork others."""
    return FORKSERVER in os.environ


def fork_as_told() -> None:
    """Fork a process for each request of the agent and then exit. Return only in the forked processes.

    In a process that is not a forkserver, return at once.
    """
    if not is_forkserver():
        return
    gc.freeze()  # a collection in a child would write to, and so copy, every page that has an object
    agent = os.getppid()
    with socket.socket(fileno=int(os.environ.pop(FORKSERVER))) as end, end.makefile() as orders:
        for order in map(json.loads, orders):
            if order["role"] is None:
                break
            if _fork(end, order):
                _become(order, agent)
                return
    sys.stdout.flush()
    os._exit(0)  # without exit handlers of libraries, which have nothing to clean up


def _fork(end: socket.socket, order: dict[str, Any]) -> bool:
    """Return True in the new process. Its parent exits, so the agent, a subreaper, becomes the parent."""
    ours, theirs = socket.socketpair()
    between = os.fork()
    if between == 0:
        code = 1
        try:
            if os.fork() == 0:
                ours.close()
                with theirs:
                    theirs.sendall(str(os.getpid()).encode())
                    theirs.recv(1)  # until the agent can read the pid
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
    os.setsid()
    die_with_parent()
    if os.getppid() != agent:  # the agent ended before the call
        os._exit(1)
    os.environ.update(order["env"])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # libgomp read the variable when it was loaded
    importlib.import_module("sitecustomize").take_part()  # the hook, as at the start of a process
