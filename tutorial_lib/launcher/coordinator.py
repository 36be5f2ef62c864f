"""The coordinator gives a job to the agents, handles their messages, finds the first failure, and ends the job.

    agents check their machines -> roles start, each when the one before it is ready -> ranks exit -> services exit

Each arrow is a wait with a limit. The first failure anywhere ends the wait and stops every machine.

Events, besides those of the ranks (``trainer.events``). Without ``machine``, the ``time`` is that of this computer:

    stage      stage: checks, servers, trainers (one for each role), leaving
    started    machine, role, index: an agent has started or forked a process
    serving    machine, role: all servers of the machine listen
    exited     machine, role, index, code
    traffic    machine, bytes_sent: through its network interface so far
    clock      machine, offset (seconds that its clock is ahead of the one here), error (at most), exchanges
    warning    text
"""

import contextlib
import math
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tutorial_lib.errors import JobError, WaitedTooLong
from tutorial_lib.launcher import messages as msg
from tutorial_lib.launcher.agents import Agents, Progress
from tutorial_lib.launcher.failure import JobFailed, exit_failure, failure, left_early, machines_gone, stall_failure
from tutorial_lib.launcher.findings import PreflightFailed
from tutorial_lib.launcher.jobspec import JobSpec, Limits
from tutorial_lib.launcher.signals import first_sigterm, how_it_was_ended
from tutorial_lib.launcher.watch import Stack, report

Event = dict[str, Any]
FAILURE_FILE = "failure.txt"  # in the folder of the logs, for `explain`
CLOCK_SECONDS, FIRST_CLOCK_SECONDS, FIRST_CLOCKS = 5.0, 0.5, 10  # between two pings
STACKS_SECONDS = 8.0


@dataclass
class MachineUse:
    """Bytes that a machine sent, and the peak resident memory of the largest process of each role."""

    bytes_sent: int = 0
    peak_rss: dict[str, int] = field(default_factory=dict)


class Coordinator:
    """Runs one job. ``run`` also stops the agents.

    Args:
        agents: agents that have been started.
        on_event: called in this thread for each event of a rank and each stage of the job.
        remote: the job with the paths of the machines, if they differ from those of this computer.
    """

    def __init__(
        self,
        agents: Agents,
        spec: JobSpec,
        on_event: Callable[[Event], None] = lambda _event: None,
        limits: Limits | None = None,
        remote: JobSpec | None = None,
    ) -> None:
        self.agents, self.spec, self.on_event, self.limits = agents, spec, on_event, limits or Limits()
        self.remote = remote or spec
        self.use = {machine.name: MachineUse() for machine in spec.machines}
        self.events: list[Event] = []
        self._ready, self._done = dict[str, set[int]](), set[int]()
        self._ended: dict[int, set[tuple[str, int]]] = {index: set() for index in range(len(spec.machines))}
        self._stacks = dict[int, list[Stack]]()
        self._clocks, self._pings, self._last_ping = dict[str, Event](), 0, 0.0  # the best comparison so far
        self._finish_by, self._finish_asked, self._unsaved = math.inf, False, False

    def run(self) -> dict[str, MachineUse]:
        """Run the job to its end and return the resources that each machine used.

        Raises:
            PreflightFailed: the job would have failed, and no process of it has been started.
            JobFailed: the job failed, with the first cause.
            KeyboardInterrupt, SystemExit: after everything has been stopped.
        """
        self.check()
        self._progress = Progress()
        try:
            for role in self.spec.roles:
                if role.after is not None:
                    wait = f"the {role.after}s to load their parts and listen"
                    ready = self._ready.setdefault(role.after, set())
                    self._wait_for(lambda ready=ready: set(self._ended) - ready, self.limits.serving, wait)
                self.agents.send_all(msg.StartRole(role.name))
                self._event("stage", stage=f"{role.name}s")
            self._wait_for_ranks()
            self._event("stage", stage="leaving")
            if not self._wait_for(self._not_done, self.limits.leaving, "the servers to leave", fatal=False):
                self._warn(f"the servers had not left {self.limits.leaving:g} s after the trainers; they were stopped")
        except JobFailed as failure:
            cause = self._first_cause(failure)
            cause = left_early(self.spec, cause, self.events) if self._with_ranks() else cause
            if why := self.agents.backend.explain_end():
                cause = machines_gone(cause, why)
            self._write_failure(f"error: {cause.message}\nlog: {cause.log}\n")
            raise cause from None
        except (KeyboardInterrupt, SystemExit) as end:
            self._write_failure(f"{how_it_was_ended(end.code if isinstance(end, SystemExit) else 130)}\n")
            raise
        finally:
            try:
                self.agents.stop(self.limits.stopping, self._take_quietly)
            finally:
                self.agents.clean_up(self._not_done())
        return self.use

    def _write_failure(self, text: str) -> None:
        with contextlib.suppress(OSError):  # on a full disk, the user still sees the message on the screen
            Path(self.spec.log_dir, FAILURE_FILE).write_text(text)

    def check(self) -> None:
        """Check the machines. A PreflightFailed reports what would make the job fail."""
        self._event("stage", stage="checks")
        findings = self.agents.prepare(self.remote)
        if findings.failed:
            raise PreflightFailed(findings)
        for finding in findings:
            if finding.remedy:  # allowed, but the user should know it
                self._warn(f"{finding.sentence}. {finding.remedy}")

    def _not_done(self) -> set[int]:
        """Return the machines whose agent has not finished."""
        return set(self._ended) - self._done

    def _with_ranks(self) -> set[int]:
        """Return the machines on which a process has not ended well, services not counted."""
        wanted = {(role.name, k) for role in self.spec.roles if not role.service for k in range(role.count)}
        return {index for index, ended in self._ended.items() if wanted - ended}

    def _wait_for_ranks(self) -> None:
        """Wait until all ranks have ended well. After the first SIGTERM they get some seconds to save.

        Raises:
            SystemExit: the ranks have saved, or could not save in time.
        """

        def finish() -> None:
            found = (e["kind"] for e in reversed(self.events) if e["kind"] in ("step", "checkpoint", "evaluating"))
            self._unsaved = next(found, None) == "step"
            self._finish_by = time.monotonic() + self.limits.finishing * self._unsaved

        try:
            with first_sigterm(finish) if self.limits.finishing else contextlib.nullcontext():
                self._wait_for(self._with_ranks, self.limits.job, "the trainers to finish")
        except JobError as failed:
            if self._finish_by == math.inf:
                raise
            if self._unsaved:
                self._warn(f"no checkpoint of this moment: {failed.message}")
        if self._finish_by < math.inf and not any(event["kind"] == "evaluation" for event in self.events):
            sys.exit(128 + signal.SIGTERM)
        self._finish_by = math.inf  # all was done in time

    def _first_cause(self, first: JobFailed) -> JobFailed:
        """Return the cause of a lost connection, if it is reported within a few seconds, or the first failure."""
        deadline = time.monotonic() + self.limits.cause
        while first.is_consequence and (left := deadline - time.monotonic()) > 0:
            try:
                self._take_until(lambda: False, left)
            except JobFailed as other:
                first = first if other.is_consequence else other
        return first

    def _event(self, kind: str, **fields: Any) -> None:
        self.on_event({"kind": kind, **fields, "time": time.time()})

    def _warn(self, text: str) -> None:
        with contextlib.suppress(JobError):  # a reporter ends the job by raising an error, and will raise it again
            self._event("warning", text=text)

    def _wait_for(
        self, missing_machines: Callable[[], set[int]], seconds: float | None, what: str, *, fatal: bool = True
    ) -> bool:
        """Take messages until no machine is missing. Return whether this happened within the time."""

        def all_there() -> bool:
            missing = missing_machines()
            if ended := missing - self.agents.open:
                raise failure(self.spec, min(ended), "agent", 0, f"the agent ended; waited for {what}")
            if missing:
                self._check_progress()
            return not missing

        if (in_time := self._take_until(all_there, math.inf if seconds is None else seconds)) or not fatal:
            return in_time
        missing = sorted(missing_machines())
        names = ", ".join(self.spec.machines[k].name for k in missing)
        raise failure(self.spec, missing[0], "agent", 0, f"waited {seconds:g} s for {what} on {names}")

    def _take_until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Take messages until ``done`` returns true. Return whether this happened within the time."""
        deadline = time.monotonic() + seconds
        while True:
            if self._finish_by < math.inf and not self._finish_asked:
                self._finish_asked = True
                self.agents.send_all(msg.SaveNow())
            if time.monotonic() > self._finish_by:
                raise WaitedTooLong(f"the ranks had not saved {self.limits.finishing:g} s later")
            if done():
                return True
            if (left := deadline - time.monotonic()) <= 0:
                return False
            if (received := self.agents.receive(min(left, 0.2))) is not None:
                self._take(*received)

    def _check_progress(self) -> None:
        now = time.monotonic()
        self._progress.tick()
        if now - self._last_ping > (FIRST_CLOCK_SECONDS if self._pings < FIRST_CLOCKS else CLOCK_SECONDS):
            self._pings, self._last_ping = self._pings + 1, now
            self.agents.send_all(msg.Ping(time.time()))
        if self.agents.has_more():  # an unread message may show progress
            return
        silent = self._progress.silent_agent(self.limits.silence)
        if silent is not None and silent in self.agents.open:
            cause = f"no word from it for {self.limits.silence:g} s: the machine, or the way to it, is down or frozen"
            raise failure(self.spec, silent, "agent", 0, cause)
        if self.limits.stall is not None and self._progress.still_for() > self.limits.stall:
            raise self._stalled(self.limits.stall)

    def _stalled(self, seconds: float) -> JobFailed:
        """Write the stacks of all processes into the log folder, and return the failure of the job."""
        self._stacks.clear()
        self.agents.send_all(msg.DumpStacks())
        # A failure that arrives only now is the cause of the stall.
        self._take_until(lambda: self.agents.open <= set(self._stacks), STACKS_SECONDS)
        found = [(index, stack) for index in sorted(self._stacks) for stack in self._stacks[index]]
        path = Path(self.spec.log_dir) / "stacks.txt"
        with contextlib.suppress(OSError):  # a full disk must not hide the failure
            path.write_text(report([(self.spec.machines[index].name, stack) for index, stack in found]))
        return stall_failure(self.spec, seconds, found, path)

    def _take_quietly(self, index: int, message: msg.Message | None) -> None:
        with contextlib.suppress(JobFailed):  # the first cause is already known
            self._take(index, message)

    def _take(self, index: int, message: msg.Message | None) -> None:
        machine = self.spec.machines[index].name
        if message is None:
            if index in self.agents.open:
                self.agents.open.discard(index)
                raise failure(self.spec, index, "agent", 0, self.agents.describe_end(index))
            return
        self._progress.note(index, message)
        if isinstance(message, msg.Report):
            self._take_event({"machine": machine, **message.event}, index)
        elif isinstance(message, (msg.Started, msg.Serving, msg.Exited)):
            if isinstance(message, msg.Serving):
                self._ready.setdefault(message.role, set()).add(index)
            if isinstance(message, msg.Exited) and message.code == 0:
                self._ended[index].add((message.role, message.index))
            self._take_event({"machine": machine, "kind": type(message).__name__.lower(), **asdict(message)}, index)
        elif isinstance(message, msg.Pong):
            self._compare_clocks(machine, message.sent, message.time)
        elif isinstance(message, msg.Failed):
            raise exit_failure(self.spec, index, message)
        elif isinstance(message, msg.Heartbeat):
            self._report_traffic(machine, message.bytes_sent, message.time)
        elif isinstance(message, msg.Output):
            self.on_event({"kind": "output", "machine": machine, **asdict(message)})
        elif isinstance(message, msg.Stacks):
            self._stacks[index] = message.stacks
        elif isinstance(message, msg.Done):
            self.agents.open.discard(index)
            self._done.add(index)
            self._report_traffic(machine, message.bytes_sent, message.time)
            self.use[machine] = MachineUse(message.bytes_sent, message.peak_rss)

    def _report_traffic(self, machine: str, sent: int, when: float) -> None:
        """Report the bytes that a machine has sent so far, unless they are the same as before."""
        if sent != self.use[machine].bytes_sent:
            self.use[machine].bytes_sent = sent
            self.on_event({"kind": "traffic", "machine": machine, "bytes_sent": sent, "time": when})

    def _compare_clocks(self, machine: str, sent: float, there: float) -> None:
        """Take the answer to a ping. As in NTP, the error is at most half of the shortest round trip."""
        error = max(0.0, time.time() - sent) / 2
        if machine not in self._clocks or error < self._clocks[machine]["error"]:
            self._clocks[machine] = {"offset": there - sent - error, "error": error, "exchanges": self._pings}
            self._event("clock", machine=machine, **self._clocks[machine])

    def _take_event(self, event: Event, index: int) -> None:
        self.events.append(event)
        self.on_event(event)
        if event["kind"] == "failure":
            role, k = event.get("role", "trainer"), event["local_rank"]
            cause = f"{event['exception']}: {event['message']}" if event["message"] else event["exception"]
            raise failure(self.spec, index, role, k, cause, event["traceback"])
