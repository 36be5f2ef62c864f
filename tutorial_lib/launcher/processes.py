"""Start, fork and stop the processes of an agent. The kernel kills them when the agent ends.

A job can have a forkserver, a process of each machine that imports torch and DGL and then forks the servers and
trainers, which become children of the agent. The imports take two seconds of a processor, most of a short job. A fork
copies one thread only, and locks in their current state. Therefore, the forkserver has run no parallel region of OpenMP
and has not used CUDA. OpenBLAS and jemalloc start threads when they are imported, and handle forks.
"""

import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from tutorial_lib.files import JsonObject
from tutorial_lib.launcher.backends.namespaces import die_with_parent
from tutorial_lib.launcher.messages import POLL_SECONDS, Channel

FORKSERVER = "TUTORIAL_FORKSERVER"  # set in the forkserver
_started: list[subprocess.Popen] = []  # a dropped Popen would collect the exit code of its child


def _die_with(parent_pid: int) -> None:
    """Let the kernel kill this process when its parent ends, or exit if the parent has ended already."""
    die_with_parent()
    if os.getppid() != parent_pid:
        os._exit(1)


def start_process(argv: Sequence[str], env: dict[str, str], cwd: str, log: Path, fds: Sequence[int] = ()) -> int:
    """Start a program that appends its output to ``log``, and return its PID for ``os.wait4``."""
    agent_pid = os.getpid()  # preexec_fn is safe, because the agent has one thread
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    # In a large job, a process has more sockets than the usual limit allows, and samplers send tensors as open files.
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    with log.open("ab") as output:
        streams: JsonObject = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        options: JsonObject = {"start_new_session": True, "preexec_fn": lambda: _die_with(agent_pid)}
        child = subprocess.Popen(argv, cwd=cwd, env=env, pass_fds=fds, **streams, **options)
    _started.append(child)
    return child.pid


def end_descendants(reap: Callable[[], object]) -> None:
    """Terminate all descendants of this process, also orphans and later forks. After three seconds, kill the rest."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 3.0
        while (remaining := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
            for process in remaining:
                with contextlib.suppress(psutil.Error):  # the process has ended or belongs to another user (setuid)
                    process.send_signal(signum)
            time.sleep(POLL_SECONDS)
            reap()
    reap()


class Forkserver:
    """The agent's side of the connection. The process inherits ``child_socket`` and calls ``fork_on_request``."""

    def __init__(self) -> None:
        self._socket, self.child_socket = socket.socketpair()
        self._channel = Channel(self._socket.fileno(), self._socket.fileno())

    def request_process(self, role: str, local_index: int, env: dict[str, str], log: Path) -> None:
        """Request a process with additional variables, without waiting. The agent notices if the forkserver is gone."""
        self._channel.put({"role": role, "local_index": local_index, "env": env, "log": str(log)})

    def started(self) -> Iterator[tuple[str, int, int]]:
        """Yield role, local index and PID of the processes forked since the last call. They send their PID first."""
        self._channel.push()
        with contextlib.suppress(EOFError, ConnectionError):
            for message in self._channel.receive():
                yield message["role"], message["local_index"], message["pid"]

    def close(self) -> None:
        """Let the forkserver end after the requested processes."""
        self._channel.put(None)


def fork_on_request() -> None:
    """In a forkserver, fork a process for each request of the agent and exit. Return only in the other processes."""
    if FORKSERVER not in os.environ:
        return
    gc.freeze()  # a collection in a child would write to, and so copy, every page that has an object
    agent_pid = os.getppid()
    with socket.socket(fileno=int(os.environ.pop(FORKSERVER))) as connection, connection.makefile() as requests:
        while (request := json.loads(requests.readline() or "null")) is not None:
            if not _fork_twice(agent_pid):
                continue
            connection.sendall(json.dumps({**request, "env": None, "pid": os.getpid()}).encode() + b"\n")
            os.environ.update(request["env"])
            with contextlib.suppress(OSError):
                Path("/proc/self/comm").write_text(f"{request['role']}-{request['local_index']}")  # for ps and top
            with open(request["log"], "ab") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            if "torch" in sys.modules:  # libgomp read the variable when it was loaded
                sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
            importlib.import_module("sitecustomize").join_job()  # the hook, as at the start of a process
            return
    sys.stdout.flush()
    os._exit(0)  # without exit handlers of libraries, which have nothing to clean up


def _fork_twice(agent_pid: int) -> bool:
    """Fork twice. Return True in the new process, whose parent is now the agent (a subreaper), and False in the old."""
    try:
        if (middle_pid := os.fork()) != 0:
            if os.waitpid(middle_pid, 0)[1] != 0:
                os._exit(1)
            return False
        middle_pid = os.getpid()
        if os.fork() != 0:
            os._exit(0)
    except OSError as error:
        print(f"cannot fork: {error.strerror}", flush=True)
        os._exit(1)
    while os.getppid() == middle_pid:
        time.sleep(0.001)
    os.setsid()
    _die_with(agent_pid)
    return True
