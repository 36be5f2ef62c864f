"""The coordinator gives a job to the agents, handles their messages, finds the first failure, and ends the job.

    agents check their machines -> roles start, each when the one before it is ready -> ranks exit -> services exit

Each arrow is a wait with a limit. The first failure anywhere ends the wait and stops every machine.

Events, besides those of the ranks (``trainer.events``). Without ``machine``, the ``time`` is that of this computer:

    stage      stage: checks, servers, trainers (one for each role), leaving
    started    machine, role, index: an agent has started or forked a process
    serving    machine, role: all servers of the machine listen
    exited     machine, role, index, code (-9 for signal 9), after all other events of the process
    output     machine, trainer, lines, skipped: lines that a rank printed, after ``skipped`` omitted bytes
    traffic    machine, bytes_sent: through its network interface so far
    clock      machine, offset: seconds that its clock is ahead of the one here
    warning    text. Events of the kind ``copied`` have a text, too, see ``job.remote_files``
"""

import contextlib
import math
import signal
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from tutorial_lib.errors import JobError, WaitedTooLong
from tutorial_lib.files import JsonObject
from tutorial_lib.launcher import messages as msg
from tutorial_lib.launcher.agents import Agents
from tutorial_lib.launcher.failure import JobFailed, describe_interruption, on_first_sigterm, stall_failure
from tutorial_lib.launcher.findings import PreflightFailed
from tutorial_lib.launcher.jobspec import JobSpec, Limits
from tutorial_lib.launcher.watch import ProcessStack

Event = JsonObject
OnEvent = Callable[[Event], None]
Milestone = tuple[str | int, ...]  # progress of a machine: DONE, or an event's kind and its MILESTONE_FIELDS
MILESTONE_FIELDS = {"serving": ("role",), "exited": ("role", "index", "code"), "left": ("local_rank",)}
DONE: Milestone = ("done",)
FAILURE_FILE = "failure.txt"  # in the folder of the logs, for `explain`
STACKS_SECONDS = 8.0


@dataclass
class MachineUse:
    bytes_sent: int = 0
    peak_rss: dict[str, int] = field(default_factory=dict)  # resident memory of the largest process of each role


@dataclass(eq=False)
class Coordinator:
    """Runs one job on agents that have been started, and calls ``on_event`` in this thread for each event."""

    agents: Agents
    spec: JobSpec
    on_event: OnEvent = lambda _event: None
    limits: Limits = field(default_factory=Limits)
    remote: JobSpec | None = None  # the job with the paths of the machines, if they differ from those of this computer

    def __post_init__(self) -> None:
        self.usage = {machine.name: MachineUse() for machine in self.spec.machines}
        self.events: list[Event] = []
        self._milestones: list[set[Milestone]] = [set() for _ in self.spec.machines]
        self._rank_exits = [("exited", r.name, k, 0) for r in self.spec.roles if not r.service for k in range(r.count)]
        self._stacks: dict[int, list[ProcessStack]] = {}
        self._offsets: dict[int, float] = {}
        self._last_progress = self._last_check = time.monotonic()  # last sign of life, last check
        self._last_messages = [self._last_progress] * len(self.spec.machines)  # when each agent sent a message
        self._last_ping = 0.0
        self._save_deadline = math.inf
        self._has_unsaved_steps = False

    def run_job(self) -> dict[str, MachineUse]:
        """Run the job to its end and return the resources that each machine used. All errors end it everywhere."""
        self.check_machines()
        try:
            for role in self.spec.roles:
                if role.after is not None:
                    goal = f"the {role.after}s to load their parts and listen"
                    self._wait_for([("serving", role.after)], self.limits.serving, goal)
                self.agents.send_all(msg.StartRole(role.name))
                self._event("stage", stage=f"{role.name}s")
            self._wait_for_ranks()
            self._event("stage", stage="leaving")
            if not self._handle_until(lambda: not self._missing([DONE]), self.limits.leaving):
                self._warn(f"the servers had not ended {self.limits.leaving:g} s after the trainers and were stopped")
        except JobFailed as first_failure:
            cause = self._find_cause(first_failure)
            self._write_failure(f"error: {cause.message}\nlog: {cause.log}\n")
            raise cause from None
        except (KeyboardInterrupt, SystemExit) as error:
            self._write_failure(f"{describe_interruption(error.code if isinstance(error, SystemExit) else 130)}\n")
            raise
        finally:
            try:
                self.agents.stop(self.limits.stopping, self._handle)
            finally:
                self.agents.clean_up(self._missing([DONE]), self.spec.shm_patterns)
        return self.usage

    def _write_failure(self, text: str) -> None:
        with contextlib.suppress(OSError):  # on a full disk, the user still sees the message on the screen
            Path(self.spec.log_dir, FAILURE_FILE).write_text(text)

    def check_machines(self) -> None:
        """Check the machines. A PreflightFailed reports what would make the job fail."""
        self._event("stage", stage="checks")
        if (findings := self.agents.prepare(self.remote or self.spec)).failed:
            raise PreflightFailed(findings)
        for finding in (one for one in findings if one.remedy):  # allowed, but the user should know it
            self._warn(f"{finding.sentence}. {finding.remedy}")

    def _missing(self, milestones: Collection[Milestone]) -> set[int]:
        """Return the machines that have not reached all of these milestones."""
        return {index for index, reported in enumerate(self._milestones) if not reported.issuperset(milestones)}

    def _wait_for_ranks(self) -> None:
        """Wait until all ranks have exited with code 0. After the first SIGTERM, they get a few seconds to save."""

        def request_final_checkpoint() -> None:
            kinds = (e["kind"] for e in reversed(self.events) if e["kind"] in ("step", "checkpoint", "evaluating"))
            self._has_unsaved_steps = next(kinds, None) == "step"
            self._save_deadline = time.monotonic() + (self.limits.saving if self._has_unsaved_steps else 0.0)
            self._last_ping = 0.0  # the command to save takes the place of the next ping

        try:
            with on_first_sigterm(request_final_checkpoint) if self.limits.saving else contextlib.nullcontext():
                self._wait_for(self._rank_exits, self.limits.job, "the trainers to finish")
        except JobError as error:
            if self._save_deadline == math.inf:
                raise
            if self._has_unsaved_steps:
                self._warn(f"no checkpoint in the middle of the epoch: {error.message}")
        stopped = self._save_deadline < math.inf and not any(event["kind"] == "evaluation" for event in self.events)
        self._save_deadline = math.inf
        if stopped:  # a DGL server hangs if a signal arrives while it exits
            with contextlib.suppress(JobError):
                self._handle_until(lambda: not self._missing([DONE]), 0.0 if self._missing(self._rank_exits) else 5.0)
            sys.exit(128 + signal.SIGTERM)

    def _find_cause(self, failure: JobFailed) -> JobFailed:
        """Return the cause of a lost connection or of a stall if it becomes known, or else the first failure."""
        deadline = time.monotonic() + self.limits.cause
        while failure.is_consequence and time.monotonic() < deadline:
            try:
                self._handle_until(lambda: False, deadline - time.monotonic())
            except JobFailed as other:
                failure = failure if other.is_consequence else other
        if (failure.is_consequence or failure.is_stall) and self._missing(self._rank_exits):
            for machine_index, reported in enumerate(self._milestones):
                for _, role, local_index, _ in [rank_exit for rank_exit in self._rank_exits if rank_exit in reported]:
                    if ("left", local_index) not in reported:  # a rank of train reports when it ends in order
                        cause = f"ended with exit code 0 while other ranks were running; {failure.message}"
                        return JobFailed(self.spec, machine_index, role, local_index, cause)
        return failure

    def _event(self, kind: str, **fields: object) -> None:
        self.on_event({"kind": kind, **fields, "time": time.time()})

    def _warn(self, text: str) -> None:
        with contextlib.suppress(JobError):  # ``on_event`` ends the job by raising an error, and will raise it again
            self._event("warning", text=text)

    def _wait_for(self, milestones: Collection[Milestone], seconds: float | None, goal: str) -> None:
        """Handle messages until all machines have reached these milestones."""

        def all_reported() -> bool:
            missing = self._missing(milestones)
            if ended := missing - self.agents.connected:
                raise JobFailed(self.spec, min(ended), "agent", 0, f"the agent ended while the job waited for {goal}")
            if missing:
                self._check_progress()
            return not missing

        if not self._handle_until(all_reported, math.inf if seconds is None else seconds):
            missing = sorted(self._missing(milestones))
            names = ", ".join(self.spec.machines[index].name for index in missing)
            raise JobFailed(self.spec, missing[0], "agent", 0, f"waited {seconds:g} s for {goal} on {names}")

    def _handle_until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Handle messages until ``done`` returns true. Return whether this happened within the time."""
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > self._save_deadline:
                raise WaitedTooLong(f"the ranks did not save within {self.limits.saving:g} s")
            if time.monotonic() >= deadline:
                return False
            for machine_index, message in self.agents.receive(min(deadline - time.monotonic(), 0.2)):
                self._handle(machine_index, message)
        return True

    def _check_progress(self) -> None:
        """Send a ping every 5 s, and raise a JobFailed if an agent is silent or no process of the job does anything."""
        now = time.monotonic()
        if now - self._last_check > 5.0:  # this process was suspended (Ctrl-Z), and messages may be unread
            self._last_progress = now
            self._last_messages = [now] * len(self._last_messages)
        self._last_check = now
        if now - self._last_ping > 5.0:
            self._last_ping = now
            self.agents.send_all(msg.Command("save" if self._save_deadline < math.inf else "ping"))
        self._blame_silent_agents(self.limits.silence)
        if self.limits.stall is not None and now - self._last_progress > self.limits.stall:
            self.agents.send_all(msg.Command("stacks"))
            # A failure that arrives only now is the cause of the stall, and so is an agent that does not answer.
            if not self._handle_until(lambda: self.agents.connected <= set(self._stacks), STACKS_SECONDS):
                self._blame_silent_agents(STACKS_SECONDS)
            raise stall_failure(self.spec, self.limits.stall, self._stacks)

    def _blame_silent_agents(self, limit: float) -> None:
        for machine_index in sorted(self.agents.connected):
            if time.monotonic() - self._last_messages[machine_index] > limit:
                cause = f"sent no message for {limit:g} s: the machine, its agent or the network is down or frozen"
                raise JobFailed(self.spec, machine_index, "agent", 0, cause)

    def _handle(self, machine_index: int, message: msg.Message) -> None:
        machine = self.spec.machines[machine_index].name
        self._last_messages[machine_index] = time.monotonic()
        if not isinstance(message, msg.Heartbeat) or message.busy:
            self._last_progress = self._last_messages[machine_index]
        if isinstance(message, msg.Report):
            self._handle_event({"machine": machine, **message.event}, machine_index)
        elif isinstance(message, msg.Failed):
            raise JobFailed(self.spec, machine_index, message.role, message.local_index, message.cause, message.tail)
        elif isinstance(message, msg.Stacks):
            self._stacks[machine_index] = message.stacks
        elif isinstance(message, msg.Done):
            self._milestones[machine_index].add(DONE)
            self.usage[machine].peak_rss = message.peak_rss
        elif isinstance(message, msg.Heartbeat):
            if (offset := self.agents.clock_offsets[machine_index]) != self._offsets.get(machine_index):
                self._offsets[machine_index] = offset
                self._event("clock", machine=machine, offset=offset)
            if (sent := message.bytes_sent) != self.usage[machine].bytes_sent:
                self.usage[machine].bytes_sent = sent
                self.on_event({"kind": "traffic", "machine": machine, "bytes_sent": sent, "time": message.time})

    def _handle_event(self, event: Event, machine_index: int) -> None:
        kind = event["kind"]
        if kind != "output":
            self.events.append(event)
        self.on_event(event)
        if kind in MILESTONE_FIELDS:
            self._milestones[machine_index].add((kind, *(event[name] for name in MILESTONE_FIELDS[kind])))
        if kind == "failure":
            role = event.get("role", "trainer")
            cause = f"{event['exception']}: {event['message']}" if event["message"] else event["exception"]
            raise JobFailed(self.spec, machine_index, role, event["local_rank"], cause, event["traceback"])
