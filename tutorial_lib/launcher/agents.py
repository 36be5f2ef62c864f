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

START_SECONDS = 60.0  # some nodes must wake up to start
CLOCK_SECONDS = 5.0  # with a larger difference of clocks, logs and events cannot be put in order
REINSTALL = "Install the same requirements.lock and the same tutorial_lib on every machine."
SYNCHRONIZE = "Logs and events need synchronized clocks: sudo timedatectl set-ntp true"
Kind = TypeVar("Kind", bound=msg.Message)


class Agents(contextlib.AbstractContextManager["Agents"]):
    """The agents of a job. Entering starts one on each machine of an entered backend, and leaving stops them."""

    def __init__(self, backend: Backend, log_dir: Path, log: errors.Log = errors.print_to_stderr) -> None:
        self.backend = backend
        self.log = log  # prints that a wait takes longer
        self.logs = [log_dir / machine.name / "agent.log" for machine in backend.machines]  # their standard error
        self.processes: list[subprocess.Popen] = []  # on this computer, such as ssh clients
        self.connected: set[int] = set()  # machines whose agent will still send messages
        self.clock_offsets: dict[int, float] = {}  # seconds by which a clock is ahead, according to the fastest message
        self._channels: list[msg.Channel] = []
        self._selector = selectors.DefaultSelector()
        self._inbox: collections.deque[tuple[int, msg.Message | None]] = collections.deque()

    def __enter__(self) -> "Agents":
        """Start the agents. An InputError has the message of a client program, such as ssh, that failed."""
        with contextlib.ExitStack() as stack:
            stack.push(self)  # an error below stops the agents
            for machine_index, (machine, log) in enumerate(zip(self.backend.machines, self.logs, strict=True)):
                log.parent.mkdir(parents=True, exist_ok=True)
                with log.open("ab") as error_log:
                    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": error_log}
                    agent = self.backend.popen(machine, run_module("tutorial_lib.launcher.agent"), **pipes)
                self.processes.append(agent)
                stdin, stdout = (pipe.fileno() for pipe in (agent.stdin, agent.stdout) if pipe is not None)
                self.connected.add(machine_index)
                self._selector.register(stdout, selectors.EVENT_READ, machine_index)
                self._channels.append(msg.Channel(stdout, stdin))
            hellos = self._collect(msg.Hello, "the agents to start", START_SECONDS)
            digest = package_digest()
            if differing := [k for k, hello in enumerate(hellos) if hello.package != digest]:
                name = self.backend.machines[differing[0]].name
                raise InputError(f"{name}: tutorial_lib differs from the version on this computer", REINSTALL)
            self.backend.resolve(hellos)
            stack.pop_all()
        return self

    def __exit__(self, *_exc: object) -> None:
        with contextlib.suppress(JobError):
            self.stop(5.0, lambda _index, _message: None)

    def _collect(self, kind: type[Kind], goal: str, seconds: float) -> list[Kind]:
        """Return one message of this kind from each agent, in the order of the machines."""
        answers: dict[int, Kind] = {}
        try:
            for seconds_left in retry_until_timeout(goal, seconds, pause=0, log=self.log):
                if len(answers) == len(self.processes):
                    break
                for machine_index, message in self.receive(min(seconds_left, 0.2)):
                    if isinstance(message, msg.Failed):
                        raise self._not_started(machine_index, message.tail[-5:] or [message.cause])
                    if isinstance(message, kind):
                        answers[machine_index] = message
        except WaitedTooLong:
            machine_index = min(set(range(len(self.processes))) - answers.keys())
            lines = read_last_lines(self.logs[machine_index])[-5:]
            raise self._not_started(machine_index, lines, f"no answer within {seconds:g} s") from None
        return [answers[machine_index] for machine_index in sorted(answers)]

    def _not_started(self, machine_index: int, lines: list[str], problem: str = "") -> InputError:
        machine = self.backend.machines[machine_index]
        last_line = lines[-1] if lines else ""
        remedy = "\n".join([*(lines if problem else lines[:-1]), self.backend.remedy(machine, last_line)]).strip()
        return InputError(f"{self.backend.traits.label.format(machine)}: {problem or last_line}", remedy)

    def prepare(self, spec: JobSpec) -> Findings:
        """Send a job to the agents, and return the results of their checks. ``spec`` has the paths of the machines."""
        for machine_index, channel in enumerate(self._channels):
            channel.put(msg.Prepare(spec, machine_index))
        answers = self._collect(msg.Checked, "the checks of the machines", 60.0)
        expected = answers[0].versions
        findings = Findings()
        for machine_index, (machine, answer) in enumerate(zip(spec.machines, answers, strict=True)):
            offset = self.clock_offsets[machine_index]
            same = answer.versions == expected and not any(v.startswith("not installed") for v in expected.values())
            detail = ", ".join(map(" ".join, answer.versions.items()))
            if answer.versions != expected:
                detail += f"; {spec.machines[0].name} has {', '.join(map(' '.join, expected.items()))}"
            clock = f"{offset:+.1f} s compared with the clock of this computer"
            findings += [replace(finding, machine=machine.name) for finding in answer.findings]
            findings.append(verdict(same, "versions", detail, REINSTALL, machine.name))
            findings.append(verdict(abs(offset) <= CLOCK_SECONDS, "clock", clock, SYNCHRONIZE, machine.name))
        return findings

    def send_all(self, message: msg.Message) -> None:
        for channel in self._channels:
            channel.put(message)

    def receive(self, seconds: float) -> Iterator[tuple[int, msg.Message]]:
        """Send queued messages, wait at most ``seconds`` for answers, and yield each with the number of its machine.

        If an agent ends without ``Done``, yield ``Failed`` for it. Messages that the caller does not take stay queued.
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
            machine_index, message = self._inbox.popleft()
            if message is None and machine_index in self.connected:
                self.connected.discard(machine_index)
                cause = self._describe_end(machine_index)
                message = msg.Failed("agent", 0, cause, read_last_lines(self.logs[machine_index]))
            if isinstance(message, msg.Done):
                self.connected.discard(machine_index)
            if message is not None:
                yield machine_index, message

    def _describe_end(self, machine_index: int) -> str:
        if self.backend.traits.silence_seconds is not None:  # the exit code is that of the client, ssh or srun
            return "the agent was killed, or the connection to it is lost, in which case it stops its processes"
        wait_or_kill(self.processes[machine_index], 2.0)
        exit_text = describe_exit_code(self.processes[machine_index].returncode or 0)
        hint = self.backend.traits.killed_hint if "SIGKILL" in exit_text else ""
        return f"the agent ended unexpectedly ({exit_text}); {hint}".rstrip("; ")

    def stop(self, seconds: float, handle: Callable[[int, msg.Message], None]) -> None:
        """Stop all agents, pass their last messages to ``handle``, and kill the agents that do not end in time."""
        remaining = seconds
        with contextlib.suppress(WaitedTooLong), contextlib.ExitStack() as stack:
            stack.callback(self._close, 0)  # kill the agents that remain, whatever happens
            self.send_all(msg.Command("stop"))
            for remaining in retry_until_timeout("the agents to stop their processes", seconds, pause=0, log=self.log):
                if not self.connected:
                    break
                for machine_index, message in self.receive(min(remaining, 0.2)):
                    with contextlib.suppress(JobFailed):  # the first cause is already known
                        handle(machine_index, message)
            self._close(max(0.5, remaining))

    def _close(self, seconds: float) -> None:
        """Close the connections, wait for the agents, and kill those that remain. Their processes end with them."""
        self._channels.clear()
        self.connected.clear()
        for agent in self.processes:
            for pipe in filter(None, (agent.stdin, agent.stdout)):
                pipe.close()
        _wait_or_kill_all(self.processes, seconds)

    def clean_up(self, machine_indices: set[int], shm_patterns: Sequence[str]) -> None:
        """Remove the shared memory of a job on machines whose agent died, because the kernel ends only processes."""
        command = [*run_module("tutorial_lib.launcher.shm"), *shm_patterns]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        cleaners = []
        for machine_index in sorted(machine_indices):
            with contextlib.suppress(OSError):
                cleaners.append(self.backend.popen(self.backend.machines[machine_index], command, **pipes))
        _wait_or_kill_all(cleaners, 5.0)


def _wait_or_kill_all(processes: Sequence[subprocess.Popen], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        wait_or_kill(process, max(0.0, deadline - time.monotonic()))
