"""The coordinator's side of the connections: one agent process per machine, lines to it, messages from it."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from tutorial_lib.cluster.job import JobPlan
from tutorial_lib.cluster.spec import Cluster

CLEAN_SECONDS = 5.0
Message = dict[str, Any]


class Agents:
    """Starts the agents of a job and talks to them.

    Args:
        cluster: entered; its transport starts the agents.
        plan: with the paths of this computer.
        remote: with the paths of the machines.

    Attributes:
        processes: what the transport started, in the order of the machines.
        inbox: (machine, message) of all agents; None for a message is the end of a connection.
        open: machines whose agent is still expected to speak.
    """

    def __init__(self, cluster: Cluster, plan: JobPlan, remote: JobPlan) -> None:
        self.cluster, self.plan, self.remote = cluster, plan, remote
        self.processes: list[subprocess.Popen] = []
        self.inbox: queue.Queue[tuple[int, Message | None]] = queue.Queue()
        self.open: set[int] = set()
        self._errors: list[IO] = []

    def start(self) -> None:
        """One on each machine; what it prints on standard error goes to its ``agent.log`` here."""
        for index, machine in enumerate(self.plan.machines):
            folder = self.plan.log_folder(index)
            folder.mkdir(parents=True, exist_ok=True)
            errors = (folder / "agent.log").open("ab")
            self._errors.append(errors)
            agent = self.cluster.popen(
                machine,
                [sys.executable, "-m", "tutorial_lib.cluster.agent", str(index)],
                cwd=self.remote.cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
            self.processes.append(agent)
            self.open.add(index)
            threading.Thread(target=self._listen, args=(index, agent), daemon=True).start()
            self._write(index, self.remote.to_json())

    def _listen(self, index: int, agent: subprocess.Popen) -> None:
        assert agent.stdout is not None
        try:
            for line in agent.stdout:
                with contextlib.suppress(ValueError):  # an agent that is killed may leave half a line
                    message = json.loads(line)
                    if isinstance(message, dict) and "type" in message:  # a ~/.bashrc may print anything
                        self.inbox.put((index, message))
        finally:
            self.inbox.put((index, None))

    def _write(self, index: int, text: str) -> None:
        stdin = self.processes[index].stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # its listener reports the end of that agent
            stdin.write(text.encode() + b"\n")
            stdin.flush()

    def tell_all(self, command: str) -> None:
        """``{"do": command}`` to every agent."""
        for index in range(len(self.processes)):
            self._write(index, json.dumps({"do": command}))

    def receive(self, seconds: float) -> tuple[int, Message | None] | None:
        """The next message, or None when there is none within so many seconds."""
        try:
            return self.inbox.get(timeout=seconds)
        except queue.Empty:
            return None

    def exit_code(self, index: int) -> int | None:
        """How an agent whose connection is gone has ended; None when it has not."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.processes[index].wait(timeout=2)
        return None

    def stop(self, seconds: float, take: Callable[[int, Message | None], None]) -> None:
        """Have every agent stop, hand on what they still say, and end those that do not answer in time."""
        self.tell_all("stop")
        deadline = time.monotonic() + seconds
        while self.open and time.monotonic() < deadline:
            if (received := self.receive(0.2)) is not None:
                take(*received)
        for agent in self.processes:
            if agent.stdin is not None:
                with contextlib.suppress(OSError):
                    agent.stdin.close()
            try:
                agent.wait(timeout=max(0.5, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
        for errors in self._errors:
            errors.close()

    def clean_up(self, indices: set[int]) -> None:
        """On machines whose agent died: remove what it would have removed, the shared memory of its servers.

        The kernel has ended its processes with it, see `namespaces.die_with_parent`; files it does not remove.
        """
        if getattr(self.cluster, "private_shm", False):  # goes away with the machine
            return
        for index in sorted(indices) if self.processes else []:
            with contextlib.suppress(subprocess.TimeoutExpired, OSError):
                command = [sys.executable, "-m", "tutorial_lib.cluster.shm"]
                pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
                self.cluster.popen(self.plan.machines[index], command, **pipes).wait(timeout=CLEAN_SECONDS)
