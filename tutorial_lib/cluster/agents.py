"""The coordinator's side of the connections: one agent process per machine, lines to it, messages from it."""

from __future__ import annotations

import collections
import contextlib
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from tutorial_lib.cluster.channel import Channel
from tutorial_lib.cluster.plan import JobPlan, run_module
from tutorial_lib.cluster.spec import Cluster, wait_or_kill
from tutorial_lib.errors import WaitedTooLong, attempts

CLEAN_SECONDS = 5.0
Message = dict[str, Any]
# Idle servers, trainers and samplers were measured at 0.2 % of a core each.
BUSY_SECONDS = 0.1  # of computing on one machine between two messages of its agent, 2 s apart
BUSY_BYTES = 20_000  # sent by one machine between two messages
GAP_SECONDS = 5.0


class Agents:
    """Starts the agents of a job, on a cluster that has been entered, and talks to them.

    Args:
        plan, remote: with the paths of this computer, and with those of the machines.
        say: takes what is waited for, when that takes longer than two seconds.

    Attributes:
        processes: what the cluster started, in the order of the machines.
        open: machines whose agent is still expected to speak.
    """

    def __init__(self, cluster: Cluster, plan: JobPlan, remote: JobPlan, say: Callable[[str], None]) -> None:
        self.cluster, self.plan, self.remote, self.say = cluster, plan, remote, say
        self.processes: list[subprocess.Popen] = []
        self.open: set[int] = set()
        self._links: list[Channel] = []
        self._selector = selectors.DefaultSelector()
        self._inbox: collections.deque[tuple[int, Message | None]] = collections.deque()

    def start(self) -> None:
        """One on each machine; what it prints on standard error goes to its ``agent.log`` here."""
        argv = run_module(sys.executable, "tutorial_lib.cluster.agent")
        for index, machine in enumerate(self.plan.machines):
            folder = self.plan.log_folder(index)
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "agent.log").open("ab") as errors:
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
                agent = self.cluster.popen(machine, [*argv, str(index)], cwd=self.remote.cwd, **pipes)
            assert agent.stdin is not None
            assert agent.stdout is not None
            self.processes.append(agent)
            self.open.add(index)
            self._selector.register(agent.stdout.fileno(), selectors.EVENT_READ, index)
            self._links.append(Channel(agent.stdout.fileno(), agent.stdin.fileno()))
            self._links[index].put({"plan": self.remote.to_json()})

    def tell_all(self, command: str, **fields: Any) -> None:
        """``{"do": command, ...}`` to every agent."""
        for link in self._links:
            link.put({"do": command, **fields})

    def receive(self, seconds: float) -> tuple[int, Message | None] | None:
        """(machine, its next message), or None when there is none within so many seconds.

        None for a message is the end of the connection. What the agents have not taken yet is written meanwhile.
        """
        for link in self._links:
            link.push()
        if not self._inbox:
            for key, _ in self._selector.select(seconds):
                try:
                    found = [message for message in self._links[key.data].take() if "type" in message]
                    self._inbox.extend((key.data, message) for message in found)
                except EOFError:
                    self._selector.unregister(key.fd)
                    self._inbox.append((key.data, None))
        return self._inbox.popleft() if self._inbox else None

    def has_more(self) -> bool:
        """Whether something has come that ``receive`` has not returned yet."""
        return bool(self._inbox or self._selector.select(0))

    def stop(self, seconds: float, take: Callable[[int, Message | None], None]) -> None:
        """Have every agent stop, hand on what they still say, and end those that do not answer in time.

        Raises:
            KeyboardInterrupt: while it waited; then they are ended at once.
        """
        try:
            self.tell_all("stop")
            for left in attempts("the agents to stop what they started", seconds, pause=0, say=self.say):
                if not self.open:
                    break
                if (received := self.receive(min(left, 0.2))) is not None:
                    take(*received)
            self._close(max(0.5, left))
        except WaitedTooLong:
            pass
        finally:
            self._close(0)

    def _close(self, seconds: float) -> None:
        """End the connections, wait so long for the agents, and kill the others; the kernel ends what is theirs."""
        self._links, deadline = [], time.monotonic() + seconds
        for agent in self.processes:
            for pipe in filter(None, (agent.stdin, agent.stdout)):
                with contextlib.suppress(OSError):
                    pipe.close()
        for agent in self.processes:
            wait_or_kill(agent, max(0.0, deadline - time.monotonic()))

    def clean_up(self, indices: set[int]) -> None:
        """On machines whose agent died: remove what it would have removed, the shared memory of its servers.

        The kernel has ended its processes with it, see `namespaces.die_with_parent`; files it does not remove.
        """
        if getattr(self.cluster, "private_shm", False):  # goes away with the machine
            return
        cleaners, pipes = [], dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        for index in sorted(indices) if self.processes else []:
            command = run_module(sys.executable, "tutorial_lib.cluster.shm")
            with contextlib.suppress(OSError):
                cleaners.append(self.cluster.popen(self.plan.machines[index], command, **pipes))
        deadline = time.monotonic() + CLEAN_SECONDS
        for cleaner in cleaners:
            wait_or_kill(cleaner, max(0.0, deadline - time.monotonic()))


class Progress:
    """When the job last moved, and when each agent was last heard: an event of a trainer, a line in a log, computing or
    traffic anywhere is a move. A rank that spins in an endless loop counts as moving: only ``--timeout`` ends that.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.moved = self._ticked = clock()
        self.heard: dict[int, float] = {}

    def tick(self) -> None:
        """Call it often. After a gap it was we who did not look (Ctrl-Z), not they who were silent."""
        gap = self.clock() - self._ticked
        if gap > GAP_SECONDS:
            self.moved += gap
            self.heard = {index: heard + gap for index, heard in self.heard.items()}
        self._ticked = self.clock()

    def note(self, index: int, message: Message) -> None:
        """Take any message of agent ``index``."""
        self.heard[index] = now = self.clock()
        if message["type"] in ("clock", "traffic"):  # an answer to us, and what `alive` tells as well
            return
        busy = message["type"] != "alive" or message["wrote"] > 0
        if busy or message["cpu"] > BUSY_SECONDS or message["sent"] > BUSY_BYTES:
            self.moved = now

    def still_for(self) -> float:
        """Seconds since anything moved."""
        return self.clock() - self.moved

    def silent_agent(self, limit: float) -> int | None:
        """An agent that has not been heard for longer than ``limit`` seconds."""
        return next((index for index, heard in self.heard.items() if self.clock() - heard > limit), None)
