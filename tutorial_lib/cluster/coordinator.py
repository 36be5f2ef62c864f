"""The coordinator: one agent per machine, their messages, the first failure, and a clean end.

    every machine is checked -> agents start -> every machine serves
        -> trainers start -> trainers done -> servers leave -> done

Each arrow is a wait with a limit. The first failure anywhere ends the wait and stops every machine.

Events, besides those of the trainers (``trainer.events``). Without ``machine``, the ``time`` is by the clock here:

    stage      stage: checks, servers, trainers, leaving
    started    machine, role, index: an agent has started, or forked, a process
    serving    machine: all its servers have their parts and listen
    exited     machine, role, index, code
    traffic    machine, bytes_sent: so far, through its network card
    clock      machine, offset (seconds that its clock is ahead of the one here), error (at most), exchanges
    warning    text
"""

from __future__ import annotations

import contextlib
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tutorial_lib.cluster.agents import Agents, Progress
from tutorial_lib.cluster.failure import JobFailed, exit_failure, failure, left_early, machines_gone, stall_failure
from tutorial_lib.cluster.findings import OK
from tutorial_lib.cluster.plan import JobPlan, Limits
from tutorial_lib.cluster.preflight import require
from tutorial_lib.cluster.spec import SSH_FAILED, Cluster
from tutorial_lib.cluster.watch import Stack, report
from tutorial_lib.errors import JobError, first_sigterm, how_it_ended, how_it_was_ended

Event = dict[str, Any]
FAILURE_FILE = "failure.txt"  # in the folder of the logs, for `explain`
CLOCK_SECONDS, FIRST_CLOCK_SECONDS, FIRST_CLOCKS = 5.0, 0.5, 10  # between two looks at the clocks of the machines
STACKS_SECONDS = 8.0


@dataclass
class MachineUse:
    """The bytes that a machine sent through its network card, and the largest resident memory by kind of process."""

    bytes_sent: int = 0
    peak_rss: dict[str, int] = field(default_factory=dict)


class Coordinator:
    """Runs one job on a cluster that has been entered.

    Args:
        on_event: called in this thread for each event of a trainer and each stage of the job.
        remote: the plan with the paths of the machines, where they are not those of this computer.
        preflight: have every machine checked before anything is started.
        allow_public: accept addresses that anybody may reach.
    """

    def __init__(
        self,
        cluster: Cluster,
        plan: JobPlan,
        on_event: Callable[[Event], None] = lambda _event: None,
        limits: Limits | None = None,
        remote: JobPlan | None = None,
        preflight: bool = True,
        allow_public: bool = False,
    ) -> None:
        self.cluster, self.plan, self.on_event, self.limits = cluster, plan, on_event, limits or Limits()
        self._remote, self._preflight, self._allow_public = remote or plan, preflight, allow_public
        self.agents = Agents(cluster, plan, self._remote, self._warn)
        self.use = {machine.name: MachineUse() for machine in plan.machines}
        self.events: list[Event] = []
        self._said, self._stacks = dict[str, set[int]](), dict[int, list[Stack]]()
        self._clocks, self._asked, self._last_asked = dict[str, Event](), 0, 0.0  # the best comparison so far
        self._finish_by, self._finish_asked, self._unsaved = math.inf, False, False

    def run(self) -> dict[str, MachineUse]:
        """Run the job to its end and return what each machine used.

        Raises:
            PreflightFailed: what would have made the job fail; nothing has been started.
            JobFailed: with the first cause. KeyboardInterrupt, SystemExit: after everything has been stopped.
        """
        if self._preflight:
            self._event("stage", stage="checks")
            for finding in require(self.cluster, self._remote, allow_public=self._allow_public):
                if finding.status == OK and finding.remedy:  # allowed, and to be known
                    self._event("warning", text=f"{finding.sentence}. {finding.remedy}")
        self._progress = Progress()
        try:
            self.agents.start()
            self._event("stage", stage="servers")
            self._wait_for("serving", self.limits.serving, "the DGL servers to load their parts and listen")
            self._event("stage", stage="trainers")
            self.agents.tell_all("trainers")
            self._wait_for_trainers()
            self._event("stage", stage="leaving")
            if not self._wait_for("done", self.limits.leaving, "the servers to leave", fatal=False):
                self._warn(f"the servers had not left {self.limits.leaving:g} s after the trainers; they were stopped")
        except JobFailed as failure:
            cause = self._first_cause(failure)
            cause = left_early(self.plan, cause, self.events) if self._missing("trained") else cause
            if why := getattr(self.cluster, "why_gone", lambda: None)():
                cause = machines_gone(cause, why)
            with contextlib.suppress(OSError):  # on a full disk, the report on the screen is what there is
                Path(self.plan.log_dir, FAILURE_FILE).write_text(f"error: {cause.message}\nlog: {cause.log}\n")
            raise cause from None
        except (KeyboardInterrupt, SystemExit) as end:
            with contextlib.suppress(OSError):
                code = end.code if isinstance(end, SystemExit) else 130
                Path(self.plan.log_dir, FAILURE_FILE).write_text(f"{how_it_was_ended(code)}\n")
            raise
        finally:
            try:
                self.agents.stop(self.limits.stopping, self._take_quietly)
            finally:
                self.agents.clean_up(self._missing("done"))
        return self.use

    def _wait_for_trainers(self) -> None:
        """Until all have ended well. On the first SIGTERM they get some seconds to save, then the job ends.

        Raises:
            SystemExit: as without those seconds, also where they were not enough, or a trainer failed in them.
        """

        def finish() -> None:
            found = (e["kind"] for e in reversed(self.events) if e["kind"] in ("step", "checkpoint", "evaluating"))
            self._unsaved = next(found, None) == "step"
            self._finish_by = time.monotonic() + self.limits.finishing * self._unsaved

        try:
            with first_sigterm(finish) if self.limits.finishing else contextlib.nullcontext():
                self._wait_for("trained", self.limits.job, "the trainers to finish")
        except JobFailed as failed:
            if self._finish_by == math.inf:
                raise
            self._warn(f"no checkpoint of this moment: {failed.message}")
        if self._finish_by < math.inf and not any(event["kind"] == "evaluation" for event in self.events):
            sys.exit(128 + signal.SIGTERM)
        self._finish_by = math.inf  # all was done in time

    def _first_cause(self, first: JobFailed) -> JobFailed:
        """A lost connection is what others see of a death; wait a little for the one who died to be reported."""
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
        with contextlib.suppress(JobError):  # of a reporter that ends the job by raising: it will do so again
            self._event("warning", text=text)

    def _missing(self, kind: str) -> set[int]:
        """Machines that have not sent a message of this kind yet."""
        return set(range(len(self.plan.machines))) - self._said.get(kind, set())

    def _wait_for(self, kind: str, seconds: float | None, what: str, *, fatal: bool = True) -> bool:
        """Take messages until every machine has sent ``kind``; some may have done so during an earlier wait."""

        def all_have() -> bool:
            missing = self._missing(kind)
            if ended := missing - self.agents.open:
                raise failure(self.plan, min(ended), "agent", 0, f"the agent ended; waited for {what}")
            if missing:
                self._look_for_a_stall()
            return not missing

        if (in_time := self._take_until(all_have, math.inf if seconds is None else seconds)) or not fatal:
            return in_time
        missing = sorted(self._missing(kind))
        names = ", ".join(self.plan.machines[k].name for k in missing)
        raise failure(self.plan, missing[0], "agent", 0, f"waited {seconds:g} s for {what} on {names}")

    def _take_until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Take messages until ``done``; whether it was so within the time."""
        deadline = time.monotonic() + seconds
        while True:
            if self._finish_by < math.inf and not self._finish_asked:
                self._finish_asked = True
                self.agents.tell_all("finish")
            if time.monotonic() > self._finish_by:
                if self._unsaved:
                    self._warn(
                        f"no checkpoint of this moment: the ranks had not saved {self.limits.finishing:g} s later"
                    )
                sys.exit(128 + signal.SIGTERM)
            if done():
                return True
            if (left := deadline - time.monotonic()) <= 0:
                return False
            if (received := self.agents.receive(min(left, 0.2))) is not None:
                self._take(*received)

    def _look_for_a_stall(self) -> None:
        now = time.monotonic()
        self._progress.tick()
        if now - self._last_asked > (FIRST_CLOCK_SECONDS if self._asked < FIRST_CLOCKS else CLOCK_SECONDS):
            self._asked, self._last_asked = self._asked + 1, now
            self.agents.tell_all("clock", asked=time.time())
        if self.agents.has_more():  # what has come and is not read yet may say otherwise
            return
        silent = self._progress.silent_agent(self.limits.silence)
        if silent is not None and silent in self.agents.open:
            cause = f"no word from it for {self.limits.silence:g} s: the machine, or the way to it, is down or frozen"
            raise failure(self.plan, silent, "agent", 0, cause)
        if self.limits.stall is not None and self._progress.still_for() > self.limits.stall:
            raise self._stalled(self.limits.stall)

    def _stalled(self, seconds: float) -> JobFailed:
        """Ask all machines where their processes stand, and write it down."""
        self._stacks.clear()
        self.agents.tell_all("stacks")
        # A failure that is told only now is the cause of the stall.
        self._take_until(lambda: self.agents.open <= set(self._stacks), STACKS_SECONDS)
        found = [(index, stack) for index in sorted(self._stacks) for stack in self._stacks[index]]
        path = Path(self.plan.log_dir) / "stacks.txt"
        with contextlib.suppress(OSError):  # a full disk must not hide what the first line says
            path.write_text(report([(self.plan.machines[index].name, stack) for index, stack in found]))
        return stall_failure(self.plan, seconds, found, path)

    def _take_quietly(self, index: int, message: dict[str, Any] | None) -> None:
        with contextlib.suppress(JobFailed):  # the first cause is already on its way
            self._take(index, message)

    def _take(self, index: int, message: dict[str, Any] | None) -> None:
        machine = self.plan.machines[index].name
        if message is None:
            if index in self.agents.open:
                self.agents.open.discard(index)
                raise failure(self.plan, index, "agent", 0, self._how_the_agent_ended(index))
            return
        self._progress.note(index, message)
        kind = message.pop("type")
        self._said.setdefault(kind, set()).add(index)
        if kind == "event":
            self._take_event(index, {"machine": machine, **message["event"]})
        elif kind in ("exited", "serving"):
            self._take_event(index, {"machine": machine, "kind": kind, "time": time.time(), **message})
        elif kind == "clock":
            self._compare_clocks(machine, message["asked"], message["time"])
        elif kind == "failed":
            raise exit_failure(self.plan, index, message)
        elif kind in ("traffic", "output"):  # not kept: the run folder has them
            self.on_event({"kind": kind, "machine": machine, **message})
        elif kind == "stacks":
            self._stacks[index] = [Stack(**fields) for fields in message["stacks"]]
        elif kind == "done":
            self.agents.open.discard(index)
            self.use[machine] = MachineUse(**message)

    def _compare_clocks(self, machine: str, asked: float, there: float) -> None:
        """Take an answer to ``clock``: as NTP has it, the shortest way there and back bounds the error by its half."""
        error = max(0.0, time.time() - asked) / 2
        if machine not in self._clocks or error < self._clocks[machine]["error"]:
            self._clocks[machine] = {"offset": there - asked - error, "error": error, "exchanges": self._asked}
            self._event("clock", machine=machine, **self._clocks[machine])

    def _how_the_agent_ended(self, index: int) -> str:
        try:
            code = self.agents.processes[index].wait(timeout=2)
        except subprocess.TimeoutExpired:
            return "the agent ended unexpectedly"
        if code == SSH_FAILED and self.plan.silence is not None:
            return "it was killed, or the ssh connection to it is lost (then it ends what it started by itself)"
        return f"the agent ended unexpectedly ({how_it_ended(code)})"

    def _take_event(self, index: int, event: Event) -> None:
        self.events.append(event)
        self.on_event(event)
        if event["kind"] == "failure":
            role, k = event.get("role", "trainer"), event["local_rank"]
            cause = f"{event['exception']}: {event['message']}" if event["message"] else event["exception"]
            raise failure(self.plan, index, role, k, cause, event["traceback"])
