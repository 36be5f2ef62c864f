"""The coordinator's side of the connections to the agents, one agent on each machine."""

import collections
import contextlib
import math
import selectors
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tutorial_lib import errors
from tutorial_lib.errors import InputError, JobError, WaitedTooLong, describe_exit_code, retry_until_timeout
from tutorial_lib.launcher import messages as msg
from tutorial_lib.launcher.backends import Backend, wait_or_kill
from tutorial_lib.launcher.environment import package_digest, run_module
from tutorial_lib.launcher.failure import JobFailed
from tutorial_lib.launcher.findings import Findings, verdict
from tutorial_lib.launcher.jobspec import JobSpec
from tutorial_lib.launcher.logs import read_last_lines

START_SECONDS, CHECK_SECONDS, CLEAN_SECONDS, STOP_SECONDS = 60.0, 60.0, 5.0, 5.0  # some nodes must wake up to start
CLOCK_SECONDS = 5.0  # with a larger difference of clocks, logs and events cannot be put in order
REINSTALL = "Install the same requirements.lock and the same tutorial_lib on every machine."
SYNCHRONIZE = "Logs and events need synchronized clocks: sudo timedatectl set-ntp true"
Kind = TypeVar("Kind", bound=msg.Message)


class Agents(contextlib.AbstractContextManager["Agents"]):
    """The agents of a job. Entering starts one on each machine of an entered backend, and leaving stops them.

    Their standard error is stored in ``log_dir/MACHINE/agent.log``. ``say`` prints that a wait takes longer.
    """

    def __init__(self, backend: Backend, log_dir: Path, say: Callable[[str], None] = errors.print_to_stderr) -> None:
        self.backend, self.log_dir, self.say = backend, log_dir, say
        self.processes: list[subprocess.Popen] = []  # on this computer, such as ssh clients
        self.open: set[int] = set()  # machines whose agent will still send messages
        self.clock_offsets: dict[int, float] = {}  # seconds by which a clock is ahead, according to the fastest message
        self._channels: list[msg.Channel] = []
        self._selector = selectors.DefaultSelector()
        self._inbox: collections.deque[tuple[int, msg.Message | None]] = collections.deque()

    def __enter__(self) -> "Agents":
        """Start the agents. An InputError has the message of a client program, such as ssh, that failed."""
        try:
            for index, machine in enumerate(self.backend.machines):
                self._log(index).parent.mkdir(parents=True, exist_ok=True)
                with self._log(index).open("ab") as error_log:
                    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": error_log}
                    agent = self.backend.popen(machine, run_module("tutorial_lib.launcher.agent"), **pipes)
                assert agent.stdin is not None
                assert agent.stdout is not None
                self.processes.append(agent)
                self.open.add(index)
                self._selector.register(agent.stdout.fileno(), selectors.EVENT_READ, index)
                self._channels.append(msg.Channel(agent.stdout.fileno(), agent.stdin.fileno()))
            hellos = self._collect(msg.Hello, "the agents to start", START_SECONDS)
            package = package_digest()
            for machine, hello in zip(self.backend.machines, hellos, strict=True):
                if hello.package != package:
                    message = f"{machine.name}: tutorial_lib differs from the version on this computer"
                    raise InputError(message, REINSTALL)
            self.backend.resolve(hellos)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        with contextlib.suppress(JobError):
            self.stop(STOP_SECONDS, lambda _index, _message: None)

    def _log(self, index: int) -> Path:
        return self.log_dir / self.backend.machines[index].name / "agent.log"

    def _collect(self, kind: type[Kind], goal: str, seconds: float) -> list[Kind]:
        """Return one message of this kind from each agent, in the order of the machines."""
        answers: dict[int, Kind] = {}
        try:
            for seconds_left in retry_until_timeout(goal, seconds, pause=0, say=self.say):
                if len(answers) == len(self.processes):
                    break
                for index, message in self.receive(min(seconds_left, 0.2)):
                    if isinstance(message, msg.Failed):
                        raise self._not_started(index, message.tail[-5:] or [message.cause])
                    if isinstance(message, kind):
                        answers[index] = message
        except WaitedTooLong:
            k = min(set(range(len(self.processes))) - answers.keys())
            raise self._not_started(k, read_last_lines(self._log(k))[-5:], f"no answer within {seconds:g} s") from None
        return [answers[index] for index in sorted(answers)]

    def _not_started(self, index: int, lines: list[str], problem: str = "") -> InputError:
        machine, last_line = self.backend.machines[index], lines[-1] if lines else ""
        remedy = "\n".join([*(lines if problem else lines[:-1]), self.backend.remedy(machine, last_line)]).strip()
        return InputError(f"{self.backend.traits.label.format(machine)}: {problem or last_line}", remedy)

    def prepare(self, spec: JobSpec) -> Findings:
        """Send a job to the agents, and return the results of their checks. ``spec`` has the paths of the machines."""
        for index, channel in enumerate(self._channels):
            channel.put(msg.Prepare(spec, index))
        answers, findings = self._collect(msg.Checked, "the checks of the machines", CHECK_SECONDS), Findings()
        first_machine, expected = spec.machines[0].name, answers[0].versions
        for index, answer in enumerate(answers):
            name, offset, versions = spec.machines[index].name, self.clock_offsets[index], answer.versions
            same = versions == expected and not any(v.startswith("not installed") for v in versions.values())
            detail = ", ".join(map(" ".join, versions.items()))
            if versions != expected:
                detail += f"; {first_machine} has {', '.join(map(' '.join, expected.items()))}"
            clock = f"{offset:+.1f} s compared with the clock of this computer"
            findings += [replace(finding, machine=name) for finding in answer.findings]
            findings.append(verdict(same, "versions", detail, REINSTALL, name))
            findings.append(verdict(abs(offset) <= CLOCK_SECONDS, "clock", clock, SYNCHRONIZE, name))
        return findings

    def send_all(self, message: msg.Message) -> None:
        for channel in self._channels:
            channel.put(message)

    def receive(self, seconds: float) -> Iterator[tuple[int, msg.Message]]:
        """Send queued messages, wait at most ``seconds`` for answers, and yield each with the index of its machine.

        For an agent that ends without ``Done``, yield ``Failed``. The next call yields messages that the caller left.
        """
        for channel in self._channels:
            channel.push()
        for key, _ in self._selector.select(0 if self._inbox else seconds):
            try:
                for message in self._channels[key.data].receive():
                    if isinstance(message, msg.Checked | msg.Heartbeat):
                        offset = message.time - time.time()
                        self.clock_offsets[key.data] = max(offset, self.clock_offsets.get(key.data, -math.inf))
                    if isinstance(message, msg.Message):
                        self._inbox.append((key.data, message))
            except EOFError:
                self._selector.unregister(key.fd)
                self._inbox.append((key.data, None))
        while self._inbox:
            index, message = self._inbox.popleft()
            if message is None and index in self.open:
                self.open.discard(index)
                message = msg.Failed("agent", 0, self._describe_end(index), read_last_lines(self._log(index)))
            if isinstance(message, msg.Done):
                self.open.discard(index)
            if message is not None:
                yield index, message

    def _describe_end(self, index: int) -> str:
        if self.backend.traits.silence_seconds is not None:  # the exit code is that of the client, ssh or srun
            return "the agent was killed, or the connection to it is lost, in which case it stops its processes"
        wait_or_kill(self.processes[index], 2.0)
        exit_text = describe_exit_code(self.processes[index].returncode or 0)
        hint = "; were its emulated machines stopped (machines stop, --ttl)?" if "SIGKILL" in exit_text else ""
        return f"the agent ended unexpectedly ({exit_text}){hint}"

    def stop(self, seconds: float, handle: Callable[[int, msg.Message], None]) -> None:
        """Stop all agents, pass their last messages to ``handle``, and kill the agents that do not end in time."""
        remaining = seconds
        try:
            self.send_all(msg.Command("stop"))
            for remaining in retry_until_timeout("the agents to stop their processes", seconds, pause=0, say=self.say):
                if not self.open:
                    break
                for index, message in self.receive(min(remaining, 0.2)):
                    with contextlib.suppress(JobFailed):  # the first cause is already known
                        handle(index, message)
            self._close(max(0.5, remaining))
        except WaitedTooLong:
            pass
        finally:
            self._close(0)

    def _close(self, seconds: float) -> None:
        """Close the connections, wait for the agents, and kill those that remain. Their processes end with them."""
        self._channels.clear()
        self.open.clear()
        for agent in self.processes:
            for pipe in filter(None, (agent.stdin, agent.stdout)):
                pipe.close()
        _wait_or_kill_all(self.processes, seconds)

    def clean_up(self, indices: set[int], shm_patterns: Sequence[str]) -> None:
        """Remove the shared memory of a job on machines whose agent died, because the kernel ends only processes."""
        command = [*run_module("tutorial_lib.launcher.shm"), *shm_patterns]
        cleaners, pipes = [], dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        for index in sorted(indices):
            with contextlib.suppress(OSError):
                cleaners.append(self.backend.popen(self.backend.machines[index], command, **pipes))
        _wait_or_kill_all(cleaners, CLEAN_SECONDS)


def _wait_or_kill_all(processes: Sequence[subprocess.Popen], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        wait_or_kill(process, max(0.0, deadline - time.monotonic()))
