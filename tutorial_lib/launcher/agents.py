"""The coordinator's side of the connections to the agents, one agent on each machine."""

from __future__ import annotations

import collections
import contextlib
import selectors
import subprocess
import sys
import time
from collections.abc import Callable

from tutorial_lib.errors import WaitedTooLong, attempts, how_it_ended
from tutorial_lib.launcher.backends import SSH_FAILED, Backend, wait_or_kill
from tutorial_lib.launcher.channel import Channel
from tutorial_lib.launcher.environment import run_module
from tutorial_lib.launcher.jobspec import JobSpec
from tutorial_lib.launcher.messages import Heartbeat, Message, Pong, Prepare, Stop, Traffic, decode, encode

CLEAN_SECONDS = 5.0
# Idle servers, trainers and samplers were measured at 0.2 % of a core each.
BUSY_SECONDS = 0.1  # of computing on one machine between two messages of its agent, 2 s apart
BUSY_BYTES = 20_000  # sent by one machine between two messages
GAP_SECONDS = 5.0


class Agents:
    """Starts the agents of a job on a cluster that has been entered, and exchanges messages with them.

    Args:
        spec, remote: the job with the paths of this computer, and with those of the machines.
        say: prints what the coordinator waits for if a wait takes longer than two seconds.

    Attributes:
        processes: processes of the agents on this computer, such as ssh clients, in the order of the machines.
        open: machines whose agent will still send messages.
    """

    def __init__(self, cluster: Backend, spec: JobSpec, remote: JobSpec, say: Callable[[str], None]) -> None:
        self.cluster, self.spec, self.remote, self.say = cluster, spec, remote, say
        self.processes: list[subprocess.Popen] = []
        self.open: set[int] = set()
        self._links: list[Channel] = []
        self._selector = selectors.DefaultSelector()
        self._inbox: collections.deque[tuple[int, Message | None]] = collections.deque()

    def start(self) -> None:
        """Start one agent on each machine. Its standard error goes to ``agent.log`` on this computer."""
        argv = run_module(sys.executable, "tutorial_lib.launcher.agent")
        for index, machine in enumerate(self.spec.machines):
            folder = self.spec.log_folder(index)
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "agent.log").open("ab") as errors:
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
                agent = self.cluster.popen(machine, argv, cwd=self.remote.cwd, **pipes)
            assert agent.stdin is not None
            assert agent.stdout is not None
            self.processes.append(agent)
            self.open.add(index)
            self._selector.register(agent.stdout.fileno(), selectors.EVENT_READ, index)
            self._links.append(Channel(agent.stdout.fileno(), agent.stdin.fileno()))
            self._links[index].put(encode(Prepare(self.remote, index)))

    def send_all(self, message: Message) -> None:
        """Send a message to every agent."""
        for link in self._links:
            link.put(encode(message))

    def receive(self, seconds: float) -> tuple[int, Message | None] | None:
        """Return a machine and its next message, or None if no message arrives in time.

        The message None means that the connection has ended. This method also sends queued messages.
        """
        for link in self._links:
            link.push()
        if not self._inbox:
            for key, _ in self._selector.select(seconds):
                try:
                    received = [decode(record) for record in self._links[key.data].take()]
                    self._inbox.extend((key.data, message) for message in received if message is not None)
                except EOFError:
                    self._selector.unregister(key.fd)
                    self._inbox.append((key.data, None))
        return self._inbox.popleft() if self._inbox else None

    def has_more(self) -> bool:
        """Return whether ``receive`` would return a message at once."""
        return bool(self._inbox or self._selector.select(0))

    def describe_end(self, index: int) -> str:
        """Return how the agent of a machine ended, although nobody stopped it."""
        try:
            code = self.processes[index].wait(timeout=2)
        except subprocess.TimeoutExpired:
            return "the agent ended unexpectedly"
        if code == SSH_FAILED and self.spec.silence is not None:
            return "it was killed, or the ssh connection to it is lost (then it ends what it started by itself)"
        return f"the agent ended unexpectedly ({how_it_ended(code)})"

    def stop(self, seconds: float, take: Callable[[int, Message | None], None]) -> None:
        """Stop all agents, pass their last messages to ``take``, and kill agents that do not end in time.

        Raises:
            KeyboardInterrupt: the user interrupted the wait. All agents have been killed.
        """
        try:
            self.send_all(Stop())
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
        """Close the connections, wait for the agents, and kill those that remain. Their processes end with them."""
        self._links, deadline = [], time.monotonic() + seconds
        for agent in self.processes:
            for pipe in filter(None, (agent.stdin, agent.stdout)):
                with contextlib.suppress(OSError):
                    pipe.close()
        for agent in self.processes:
            wait_or_kill(agent, max(0.0, deadline - time.monotonic()))

    def clean_up(self, indices: set[int]) -> None:
        """Remove the shared memory of DGL servers on machines whose agent died.

        The kernel has killed the processes of the agent (see ``namespaces.die_with_parent``) but removes no files.
        """
        if self.cluster.traits.private_shm:  # goes away with the machine
            return
        cleaners, pipes = [], dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        for index in sorted(indices) if self.processes else []:
            command = [*run_module(sys.executable, "tutorial_lib.launcher.shm"), *self.spec.shm_patterns]
            with contextlib.suppress(OSError):
                cleaners.append(self.cluster.popen(self.spec.machines[index], command, **pipes))
        deadline = time.monotonic() + CLEAN_SECONDS
        for cleaner in cleaners:
            wait_or_kill(cleaner, max(0.0, deadline - time.monotonic()))


class Progress:
    """Records when the job last made progress, and when each agent last sent a message.

    Events, output, computing and traffic of any process are progress. A rank in an endless loop therefore makes
    progress, and only ``--timeout`` ends such a job.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.moved = self._ticked = clock()
        self.heard: dict[int, float] = {}

    def tick(self) -> None:
        """Call this often. After a gap, the coordinator itself was suspended (Ctrl-Z), and no agent is to blame."""
        gap = self.clock() - self._ticked
        if gap > GAP_SECONDS:
            self.moved += gap
            self.heard = {index: heard + gap for index, heard in self.heard.items()}
        self._ticked = self.clock()

    def note(self, index: int, message: Message) -> None:
        """Record a message of agent ``index``."""
        self.heard[index] = now = self.clock()
        if isinstance(message, (Pong, Traffic)):  # an answer, and bytes that heartbeats report as well
            return
        idle = isinstance(message, Heartbeat) and not (
            message.wrote or message.cpu > BUSY_SECONDS or message.sent > BUSY_BYTES
        )
        if not idle:
            self.moved = now

    def still_for(self) -> float:
        """Return the seconds since the last progress."""
        return self.clock() - self.moved

    def silent_agent(self, limit: float) -> int | None:
        """Return an agent that has sent no message for more than ``limit`` seconds, or None."""
        return next((index for index, heard in self.heard.items() if self.clock() - heard > limit), None)
