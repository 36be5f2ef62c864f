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
from dataclasses import asdict
from typing import IO, Any

from tutorial_lib.cluster.channel import Outbox
from tutorial_lib.cluster.plan import JobPlan, run_module
from tutorial_lib.cluster.spec import Cluster, wait_or_kill
from tutorial_lib.errors import WaitedTooLong, attempts, to_stderr

CLEAN_SECONDS = 5.0
PLAN_SECONDS = 30.0
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
        self._boxes: list[Outbox] = []  # an agent that does not read must not hold us up

    def start(self) -> None:
        """One on each machine; what it prints on standard error goes to its ``agent.log`` here."""
        for index, machine in enumerate(self.plan.machines):
            folder = self.plan.log_folder(index)
            folder.mkdir(parents=True, exist_ok=True)
            errors = (folder / "agent.log").open("ab")
            self._errors.append(errors)
            argv = [*run_module(sys.executable, "tutorial_lib.cluster.agent"), str(index)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
            agent = self.cluster.popen(machine, argv, cwd=self.remote.cwd, **pipes)
            self.processes.append(agent)
            self._boxes.append(Outbox(agent.stdin.fileno()))
            self.open.add(index)
            threading.Thread(target=self._listen, args=(index, agent), daemon=True).start()
            self._boxes[index].put(asdict(self.remote))
        for _left in attempts("the agents to read the plan", PLAN_SECONDS, pause=0.02, say=self.say):
            self.push()
            if not any(box.waiting for box in self._boxes):
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

    def push(self) -> None:
        """Write what the agents have not taken yet, as far as they take it now."""
        for box in self._boxes:
            box.flush()

    def tell_all(self, command: str) -> None:
        """``{"do": command}`` to every agent."""
        for box in self._boxes:
            box.put({"do": command})

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
        self._boxes, deadline = [], time.monotonic() + seconds
        for agent in self.processes:
            with contextlib.suppress(OSError):
                agent.stdin.close()
        for agent in self.processes:
            wait_or_kill(agent, max(0.0, deadline - time.monotonic()))

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
