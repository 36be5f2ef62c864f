"""The coordinator's side of the connections: one agent process per machine, lines to it, messages from it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from tutorial_lib.cluster.plan import JobPlan, run_module
from tutorial_lib.cluster.spec import Cluster
from tutorial_lib.errors import WaitedTooLong, attempts, to_stderr

CLEAN_SECONDS = 5.0
PLAN_SECONDS = 30.0
KILLED_SECONDS = 5.0
WRITE_BYTES, MOST_UNREAD = 1 << 16, 1 << 24
Message = dict[str, Any]


class Agents:
    """Starts the agents of a job and talks to them.

    Args:
        cluster: entered; its transport starts the agents.
        plan: with the paths of this computer.
        remote: with the paths of the machines.
        say: takes what is waited for, when that takes longer than two seconds.

    Attributes:
        processes: what the transport started, in the order of the machines.
        inbox: (machine, message) of all agents; None for a message is the end of a connection.
        open: machines whose agent is still expected to speak.
    """

    def __init__(
        self, cluster: Cluster, plan: JobPlan, remote: JobPlan, say: Callable[[str], None] = to_stderr
    ) -> None:
        self.cluster, self.plan, self.remote, self.say = cluster, plan, remote, say
        self.processes: list[subprocess.Popen] = []
        self.inbox: queue.Queue[tuple[int, Message | None]] = queue.Queue()
        self.open: set[int] = set()
        self._errors: list[IO] = []
        self._unread: list[bytearray] = []

    def start(self) -> None:
        """One on each machine; what it prints on standard error goes to its ``agent.log`` here."""
        for index, machine in enumerate(self.plan.machines):
            folder = self.plan.log_folder(index)
            folder.mkdir(parents=True, exist_ok=True)
            errors = (folder / "agent.log").open("ab")
            self._errors.append(errors)
            agent = self.cluster.popen(
                machine,
                [*run_module(sys.executable, "tutorial_lib.cluster.agent"), str(index)],
                cwd=self.remote.cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
            os.set_blocking(agent.stdin.fileno(), False)
            self.processes.append(agent)
            self._unread.append(bytearray())
            self.open.add(index)
            threading.Thread(target=self._listen, args=(index, agent), daemon=True).start()
            self._write(index, self.remote.to_json())
        for _left in attempts("the agents to read the plan", PLAN_SECONDS, pause=0.02, say=self.say):
            self.push()
            if not any(self._unread):
                return

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
        """Queue a line and write what its pipe takes now: an agent that does not read must not hold us up."""
        if len(self._unread[index]) < MOST_UNREAD:
            self._unread[index] += text.encode() + b"\n"
        self.push()

    def push(self) -> None:
        """Write what the agents have not taken yet, as far as they take it now."""
        for agent, unread in zip(self.processes, self._unread, strict=True):
            assert agent.stdin is not None
            try:
                while unread:
                    del unread[: os.write(agent.stdin.fileno(), unread[:WRITE_BYTES])]
            except BlockingIOError:
                continue
            except (OSError, ValueError):  # its listener reports the end of that agent
                unread.clear()

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
        """Have every agent stop, hand on what they still say, and end those that do not answer in time.

        Raises:
            KeyboardInterrupt: while it waited; then they are ended at once.
        """
        try:
            self.tell_all("stop")
            for left in attempts("the agents to stop what they started", seconds, pause=0, say=self.say):
                self.push()
                if not self.open:
                    break
                if (received := self.receive(min(left, 0.2))) is not None:
                    take(*received)
            self._close(max(0.5, left))
        except WaitedTooLong:
            pass
        finally:
            self._close(0)
            for errors in self._errors:
                errors.close()

    def _close(self, seconds: float) -> None:
        """End the connections, wait so long for the agents, and kill the others; the kernel ends what is theirs."""
        deadline = time.monotonic() + seconds
        for agent in self.processes:
            with contextlib.suppress(OSError):
                agent.stdin.close()
        for agent in self.processes:
            try:
                agent.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                agent.kill()
        for agent in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(timeout=KILLED_SECONDS)

    def clean_up(self, indices: set[int]) -> None:
        """On machines whose agent died: remove what it would have removed, the shared memory of its servers.

        The kernel has ended its processes with it, see `namespaces.die_with_parent`; files it does not remove.
        """
        if getattr(self.cluster, "private_shm", False):  # goes away with the machine
            return
        cleaners = []
        for index in sorted(indices) if self.processes else []:
            command = run_module(sys.executable, "tutorial_lib.cluster.shm")
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            with contextlib.suppress(OSError):
                cleaners.append(self.cluster.popen(self.plan.machines[index], command, **pipes))
        deadline = time.monotonic() + CLEAN_SECONDS
        for cleaner in cleaners:
            with contextlib.suppress(subprocess.TimeoutExpired):
                cleaner.wait(timeout=max(0.0, deadline - time.monotonic()))
