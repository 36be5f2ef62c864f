"""The coordinator's side of the connections to the agents, one agent on each machine."""

import collections
import contextlib
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tutorial_lib.errors import InputError, JobError, WaitedTooLong, attempts, how_it_ended, to_stderr
from tutorial_lib.launcher.backends import Backend, wait_or_kill
from tutorial_lib.launcher.channel import Channel
from tutorial_lib.launcher.environment import package_digest, run_module
from tutorial_lib.launcher.findings import FAIL, OK, Finding, Findings, verdict
from tutorial_lib.launcher.jobspec import JobSpec
from tutorial_lib.launcher.logs import tail
from tutorial_lib.launcher.messages import Checked, Heartbeat, Hello, Message, Pong, Prepare, Stop, decode, encode

CHECK_SECONDS, CLEAN_SECONDS, STOP_SECONDS = 60.0, 5.0, 5.0
CLOCK_SECONDS = 5.0  # with a larger difference of clocks, logs and events cannot be put in order
# Idle servers, trainers and samplers were measured at 0.2 % of a core each.
BUSY_SECONDS = 0.1  # of computing on one machine between two heartbeats, 2 s apart
BUSY_BYTES = 20_000  # sent by one machine between two heartbeats
GAP_SECONDS = 5.0
Kind = TypeVar("Kind", bound=Message)


class Agents(contextlib.AbstractContextManager["Agents"]):
    """The agents of a job. Entering starts one on each machine, and leaving stops them.

    Args:
        backend: machines that have been entered. The first messages of the agents complete it.
        log_dir: folder on this computer that gets ``MACHINE/agent.log``, the standard error of each agent.
        say: prints a line if a wait takes longer than two seconds.

    Attributes:
        processes: processes of the agents on this computer, such as ssh clients, in the order of the machines.
        open: machines whose agent will still send messages.
        spec: the job with the paths of the machines, after ``prepare``.
    """

    def __init__(self, backend: Backend, log_dir: Path, say: Callable[[str], None] = to_stderr) -> None:
        self.backend, self.log_dir, self.say = backend, log_dir, say
        self.processes: list[subprocess.Popen] = []
        self.open: set[int] = set()
        self.spec: JobSpec | None = None
        self._links: list[Channel] = []
        self._ahead: dict[int, float] = {}  # seconds by which the clock of a machine is ahead
        self._selector = selectors.DefaultSelector()
        self._inbox: collections.deque[tuple[int, Message | None]] = collections.deque()

    def __enter__(self) -> "Agents":
        """Start the agents.

        Raises:
            InputError: an agent did not start. The message is that of its client program, such as ssh.
        """
        try:
            for index, machine in enumerate(self.backend.machines):
                folder = self.log_dir / machine.name
                folder.mkdir(parents=True, exist_ok=True)
                with (folder / "agent.log").open("ab") as errors:
                    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
                    agent = self.backend.popen(machine, run_module("tutorial_lib.launcher.agent"), **pipes)
                assert agent.stdin is not None
                assert agent.stdout is not None
                self.processes.append(agent)
                self.open.add(index)
                self._selector.register(agent.stdout.fileno(), selectors.EVENT_READ, index)
                self._links.append(Channel(agent.stdout.fileno(), agent.stdin.fileno()))
            hellos = self._collect(Hello, "the agents to start", self.backend.traits.answer_seconds)
            package = package_digest()
            for machine, hello in zip(self.backend.machines, hellos, strict=True):
                if hello.package != package:
                    message = f"{machine.name}: its tutorial_lib differs from the one on this computer"
                    raise InputError(message, "Install the same requirements.lock and tutorial_lib on every machine.")
            self.backend.resolve(hellos)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        with contextlib.suppress(JobError):
            self.stop(STOP_SECONDS, lambda _index, _message: None)

    def _collect(self, kind: type[Kind], what: str, seconds: float) -> list[Kind]:
        """Return one message of this kind from each agent, in the order of the machines."""
        found: dict[int, Kind] = {}
        try:
            for left in attempts(what, seconds, pause=0, say=self.say):
                if len(found) == len(self.processes):
                    break
                if (received := self.receive(min(left, 0.2))) is None:
                    continue
                index, message = received
                if message is None:
                    raise self._not_started(index)
                if isinstance(message, Hello):
                    self._ahead[index] = message.time - time.time()
                if isinstance(message, kind):
                    found[index] = message
        except WaitedTooLong:
            index = min(set(range(len(self.processes))) - found.keys())
            machine = self.backend.machines[index]
            place = self.backend.traits.place.format(machine)
            raise InputError(f"{place}: no answer within {seconds:g} s", self.backend.remedy(machine, "")) from None
        return [found[index] for index in sorted(found)]

    def _not_started(self, index: int) -> InputError:
        machine = self.backend.machines[index]
        self.open.discard(index)
        lines = tail(self.log_dir / machine.name / "agent.log")[-5:] or [self.describe_end(index)]
        remedy = self.backend.remedy(machine, lines[-1])
        place = self.backend.traits.place.format(machine)
        return InputError(f"{place}: {lines[-1]}", "\n".join([*lines[:-1], *remedy.splitlines()]))

    def prepare(self, spec: JobSpec) -> Findings:
        """Send a job to the agents, and return the results of their checks. ``spec`` has the paths of the machines."""
        self.spec = spec
        for index, link in enumerate(self._links):
            link.put(encode(Prepare(spec, index)))
        answers = self._collect(Checked, "the machines to check themselves", CHECK_SECONDS)
        findings, versions = Findings(), {}
        for machine, answer in zip(spec.machines, answers, strict=True):
            findings += [replace(finding, machine=machine.name) for finding in answer.findings]
            versions[machine.name] = answer.versions
        for index, ahead in sorted(self._ahead.items()):
            remedy = "Logs and events could not be put in order. Synchronize: sudo timedatectl set-ntp true"
            good, detail = abs(ahead) <= CLOCK_SECONDS, f"{ahead:+.1f} s compared with the clock of this computer"
            findings.append(verdict(good, "clock", detail, remedy, spec.machines[index].name))
        return Findings([*findings, *version_findings(versions)])

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
        if self.backend.traits.silence_seconds is not None:  # the exit code is that of ssh or srun
            return "it was killed, or the connection to it is lost (then it ends what it started by itself)"
        return f"the agent ended unexpectedly ({how_it_ended(code)})"

    def stop(self, seconds: float, take: Callable[[int, Message | None], None]) -> None:
        """Stop all agents, pass their last messages to ``take``, and kill agents that do not end in time.

        Raises:
            KeyboardInterrupt: the user interrupted the wait. All agents have been killed.
        """
        left = seconds
        try:
            self.send_all(Stop())
            for left in attempts("the agents to stop what they started", seconds, pause=0, say=self.say):
                if not self.open:
                    break
                if (received := self.receive(min(left, 0.2))) is not None:
                    index, message = received
                    take(index, message)
                    if message is None:
                        self.open.discard(index)
            self._close(max(0.5, left))
        except WaitedTooLong:
            pass
        finally:
            self._close(0)

    def _close(self, seconds: float) -> None:
        """Close the connections, wait for the agents, and kill those that remain. Their processes end with them."""
        self._links, deadline = [], time.monotonic() + seconds
        self.open.clear()
        for agent in self.processes:
            for pipe in filter(None, (agent.stdin, agent.stdout)):
                with contextlib.suppress(OSError):
                    pipe.close()
        for agent in self.processes:
            wait_or_kill(agent, max(0.0, deadline - time.monotonic()))

    def clean_up(self, indices: set[int]) -> None:
        """Remove the shared memory of a job on machines whose agent died.

        The kernel has killed the processes of the agent (see ``namespaces.die_with_parent``) but removes no files.
        """
        if self.spec is None:
            return
        command = [*run_module("tutorial_lib.launcher.shm"), *self.spec.shm_patterns]
        cleaners, pipes = [], dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        for index in sorted(indices):
            with contextlib.suppress(OSError):
                cleaners.append(self.backend.popen(self.spec.machines[index], command, **pipes))
        deadline = time.monotonic() + CLEAN_SECONDS
        for cleaner in cleaners:
            wait_or_kill(cleaner, max(0.0, deadline - time.monotonic()))


def version_findings(versions: Mapping[str, Mapping[str, str]]) -> list[Finding]:
    """Compare the versions of all machines, by name, with those of the first one."""
    (first, wanted), *others = versions.items()
    remedy = "Install the same requirements.lock and the same tutorial_lib on every machine."
    missing = [(first, key, version) for key, version in wanted.items() if version.startswith("not installed")]
    other = [(name, key, version) for name, found in others for key, version in found.items() if version != wanted[key]]
    findings = [Finding("versions", FAIL, f"{key} is {version}", remedy, name) for name, key, version in missing]
    findings += [
        Finding("versions", FAIL, f"{key} is {version}, {first} has {wanted[key]}", remedy, name)
        for name, key, version in other
    ]
    same = ", ".join(f"{key} {version}" for key, version in wanted.items())
    return findings or [Finding("versions", OK, f"{same} on {len(versions)} machines")]


class Progress:
    """Records when the job last made progress, and when each agent last sent a message.

    Events, output, computing and traffic of any process are progress. A rank in an endless loop therefore makes
    progress, and only ``--timeout`` ends such a job.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.moved = self._ticked = clock()
        self.heard: dict[int, float] = {}
        self._sent: dict[int, int] = {}

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
        if isinstance(message, Heartbeat):
            sent = message.bytes_sent - self._sent.get(index, 0)
            self._sent[index] = message.bytes_sent
            busy = message.wrote or message.cpu > BUSY_SECONDS or sent > BUSY_BYTES
        else:
            busy = not isinstance(message, Pong)
        if busy:
            self.moved = now

    def still_for(self) -> float:
        """Return the seconds since the last progress."""
        return self.clock() - self.moved

    def silent_agent(self, limit: float) -> int | None:
        """Return an agent that has sent no message for more than ``limit`` seconds, or None."""
        return next((index for index, heard in self.heard.items() if self.clock() - heard > limit), None)
