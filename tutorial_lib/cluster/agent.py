"""One process per machine: starts the machine's DGL servers and trainers, watches them, stops them.

    coordinator  <== JSON lines over stdin/stdout ==>  agent  --+-- DGL server 0, 1, ...
                                                                `-- trainer 0, 1, ... -- samplers

Trainers of a user's script stand under a torchrun; those of the package's own program are forked, see `forkserver`.
The agent stops everything that it started when standard input ends, for whatever reason. It imports nothing heavy.

Coordinator to agent: the plan first, then ``{"do": ...}`` with ``trainers``, ``stacks`` (tell where every process
stands), ``finish`` (have the trainers save in the middle of an epoch), ``stop``, and now and then ``clock``.
Agent to coordinator: ``serving`` (all servers listen), ``event`` (a line some trainer wrote; a process is ``started``),
``alive`` (every two seconds), ``traffic``, ``clock``, ``exited`` (a process ended; all its events have been sent),
``trained`` (all trainers have ended well), ``stacks``, ``failed``, and last ``done`` with what the machine used.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tutorial_lib.cluster import network
from tutorial_lib.cluster.channel import POLL_SECONDS, Channel
from tutorial_lib.cluster.children import end_descendants, start
from tutorial_lib.cluster.forkserver import FORKSERVER, Forkserver
from tutorial_lib.cluster.logs import WORKERS, EventFiles, OutputFiles, log_name, tail, who_failed
from tutorial_lib.cluster.members import FINISH, MachineHealth, collect, disk_trouble, members
from tutorial_lib.cluster.members import FOLDER as PROCESSES_FOLDER
from tutorial_lib.cluster.plan import (
    TORCHRUN_FOLDER,
    JobPlan,
    cpus_here,
    server_env,
    server_role,
    torchrun_argv,
    trainer_env,
    trainer_role,
)
from tutorial_lib.cluster.shm import SHM, graph_name_in, job_marker, remove_segments, sockets_of

PR_SET_CHILD_SUBREAPER = 36
ALIVE_SECONDS, FLUSH_SECONDS, PLAN_SECONDS = 2.0, 3.0, 60.0
MOST_WAITING = 8 << 20  # bytes for a coordinator that does not read; then events stay in their files


@dataclass
class Process:
    """A child. ``pid`` is None until it is forked, ``code`` while it runs, negative: a signal; ``peak_rss``, bytes."""

    role: str
    index: int
    pid: int | None
    code: int | None = None
    peak_rss: int = 0


class Agent:
    """Runs the share of machine ``index`` in a job; ``link`` leads to the coordinator."""

    def __init__(self, plan: JobPlan, index: int, link: Channel) -> None:
        self.plan, self.index, self.link = plan, index, link
        self.machine = plan.machines[index]
        self.interface = self.machine.interface or network.interface_of(self.machine.address)
        self.logs = plan.log_folder(index)
        self.logs.mkdir(parents=True, exist_ok=True)
        self.processes: list[Process] = []
        self.stopping = self.serving = self.training = False
        self.forkserver: Forkserver | None = None
        self.shm_before = set(os.listdir(SHM))
        self.others = {m.address: m.name for m in plan.machines if m.address != self.machine.address}
        self.events, self.sent_last = EventFiles(self.logs), 0
        self.sent = network.SentBytes(self.interface)
        self.output = OutputFiles(self.logs) if plan.show_output else None
        self.health, self.peers = MachineHealth(self.logs), network.SilentPeers(self.others)
        self.next_word = self.last_heard = time.monotonic()

    def run(self) -> None:
        """Do the job; returns when everything this machine started is gone."""
        shutil.rmtree(self.logs / PROCESSES_FOLDER, ignore_errors=True)  # of a job whose agent was killed
        with job_marker(graph_name_in(self.plan.part_config), self.shm_before) as marker:
            self.sockets = {"TUTORIAL_SOCKETS": str(sockets_of(marker))}
            try:
                self._start_servers()
                while not self._finished():
                    self.link.push()
                    self._read_commands()
                    self._reap()
                    self._forward_events()
                    self._announce()
                    self._look_around()
            finally:
                self._leave_nothing()

    def told_to_end(self, *_signal: object) -> None:
        """On SIGTERM. Slurm sends it twice: the second must not break off the clearing up."""
        if not self.stopping:
            self.stopping = True
            sys.exit()

    def _leave_nothing(self) -> None:
        self.stopping = True
        self._forward_events(FLUSH_SECONDS * all(process.code is not None for process in self.processes))
        self.output = None  # the processes are ended now: what they print because of that is in their logs
        end_descendants(self._reap)
        remove_segments(self.shm_before, self.plan.part_config)
        for name in (TORCHRUN_FOLDER, PROCESSES_FOLDER):
            shutil.rmtree(self.logs / name, ignore_errors=True)
        self._forward_events(FLUSH_SECONDS)
        peaks: dict[str, int] = {}  # of the largest process of each kind; torchrun's figure covers its trainers
        for process in (p for p in self.processes if p.role != "forkserver"):
            role = "trainer" if process.role == "torchrun" else process.role
            peaks[role] = max(peaks.get(role, 0), process.peak_rss)
        self.sent.report(self.link.put)
        self.link.put({"type": "done", "bytes_sent": self.sent.count, "peak_rss": peaks})
        self.link.push(FLUSH_SECONDS)

    def _tell_started(self, role: str, k: int) -> None:
        self.link.put({"type": "event", "event": {"kind": "started", "time": time.time(), "role": role, "index": k}})

    def _start(self, role: str, k: int, argv: Sequence[str], env: dict[str, str], fds: Sequence[int] = ()) -> None:
        try:
            pid = start(argv, {**env, **self.sockets}, self.plan.cwd, self.logs / log_name(role, k), fds)
            self.processes.append(Process(role, k, pid))
            self._tell_started(role, k)
        except OSError as error:
            self._give_up(f"cannot start {argv[0]!r}: {error.strerror}", role, k)

    def _fork(self, role: str, k: int, env: dict[str, str]) -> None:
        if self.forkserver is None:
            try:
                self.forkserver = Forkserver()
            except OSError as error:
                self._give_up(f"cannot start {self.plan.command[0]!r}: {error.strerror}", "forkserver")
                return
            with self.forkserver.theirs as theirs:
                of_all = {**self._trainer_env(), FORKSERVER: str(theirs.fileno())}
                self._start("forkserver", 0, self.plan.command, of_all, [theirs.fileno()])
        self.forkserver.order(role, k, env, self.logs / log_name(role, k))
        self.processes.append(Process(role, k, None))

    def _start_servers(self) -> None:
        for k in range(self.plan.servers):
            if self.plan.forks:
                self._fork("server", k, server_role(self.plan, self.index, k, cpus_here()))
            else:
                env = server_env(self.plan, self.index, k, self.interface, cpus_here())
                self._start("server", k, self.plan.command, env)

    def _trainer_env(self) -> dict[str, str]:
        return trainer_env(self.plan, self.index, self.interface, cpus_here())

    def _start_trainers(self) -> None:
        self.training = True
        if self.forkserver is None:
            self._start("torchrun", 0, torchrun_argv(self.plan, self.index), self._trainer_env())
            return
        for k in range(self.plan.trainers):
            self._fork("trainer", k, trainer_role(self.plan, self.index, k))
        self.forkserver.close()

    def _give_up(self, note: str, role: str = "agent", k: int = 0) -> None:
        """Report something that no exit code tells, and end this machine's share of the job."""
        self._report_failure(role, k, 0, note)
        self.stopping = True

    def _report_failure(self, role: str, k: int, code: int, note: str = "") -> None:
        if trouble := disk_trouble(self.logs):  # whatever else was said is its effect
            role, k, note = "agent", 0, trouble
        oom = self.health.out_of_memory(code)
        message = {"type": "failed", "role": role, "index": k, "code": code, "note": note, "out_of_memory": oom}
        self.link.put({**message, "tail": tail(self.logs / log_name(role, k))})

    def _finished(self) -> bool:
        """Told to stop, or trainers and servers have all ended well."""
        return self.stopping or (self.training and all(p.code == 0 for p in self.processes))

    def _read_commands(self) -> None:
        try:
            messages = self.link.take(POLL_SECONDS)
        except EOFError:  # the coordinator is gone
            messages = [{"do": "stop"}]
        for message in messages:
            self.last_heard, command = time.monotonic(), message["do"]
            if command == "stop":
                self.stopping = True
            elif command == "clock":
                self.link.put({"type": "clock", "asked": message["asked"], "time": time.time()})
            elif command == "trainers":
                self._start_trainers()
            elif command == "finish":
                with contextlib.suppress(OSError):  # a full disk: nothing could be saved
                    (self.logs / FINISH).touch()
            elif command == "stacks":
                self.link.put({"type": "stacks", "stacks": [asdict(stack) for stack in collect(self.logs)]})

    def _look_around(self) -> None:
        """Several times a second, what is soon gone; every two seconds, that we are here, and what no code tells."""
        now = time.monotonic()
        if self.plan.silence is not None and now - self.last_heard > self.plan.silence:
            self._give_up(f"heard nothing from the coordinator for {self.plan.silence:g} s")
        for message in self.health.early_ends() if self.training and self.forkserver is None else ():
            self.link.put(message)
        if now < self.next_word:
            return
        self.next_word = now + ALIVE_SECONDS
        self.health.look_at_memory()
        self.sent.report(self.link.put)
        before, self.sent_last = self.sent_last, self.sent.count
        self.link.put({"type": "alive", **self.health.signs_of_life(), "sent": self.sent_last - before})
        if trouble := disk_trouble(self.logs):
            self._give_up(trouble)
        for member, code in self.health.dead_workers():
            self._report_failure(member.role, member.index, code)
        for address, seconds in self.peers.look().items():
            if seconds > network.SILENCE_SECONDS:
                what = f"no answer from {self.others[address]} ({address}) for {seconds:.0f} s"
                self._give_up(f"{what}: it is down, or the network between them is")

    def _reap(self) -> None:
        """Note who ended; wait4 tells the peak memory of a process and of the children it waited for."""
        ended = []
        with contextlib.suppress(ChildProcessError):
            while (found := os.wait4(-1, os.WNOHANG))[0] != 0:
                ended.append((found[0], os.waitstatus_to_exitcode(found[1]), found[2].ru_maxrss * 1024))
        for role, k, pid in self.forkserver.started() if self.forkserver else ():
            next(p for p in self.processes if (p.role, p.index) == (role, k)).pid = pid
            self._tell_started(role, k)
        # A killed sampler may take its trainer along before anybody has looked; then both come to us: it is the cause.
        for pid, code, _ in ended:
            if code < 0 and code != -signal.SIGTERM and not self.stopping:
                for member in (m for m in members(self.logs) if m.pid == pid and m.role in WORKERS):
                    self._report_failure(member.role, member.index, code)
        for pid, code, peak in ended:
            for process in self.processes:
                if process.pid == pid and process.code is None:
                    process.code, process.peak_rss = code, peak
                    self._report_exit(process.role, process.index, code)

    def _report_exit(self, role: str, k: int, code: int) -> None:
        self._forward_events(FLUSH_SECONDS)  # what a trainer said of its end is better than what we can see of it
        self.link.put({"type": "exited", "time": time.time(), "role": role, "index": k, "code": code})
        if code != 0 and not self.stopping:
            self._report_failure(*who_failed(self.logs, code) if role == "torchrun" else (role, k, code))
        elif not self.training and not self.stopping:  # servers end well after the trainers have
            self._give_up("ended before the trainers; did the command reach dgl.distributed.initialize?", role, k)
        elif self.training and all(p.code == 0 for p in self.processes if p.role in ("torchrun", "trainer")):
            self.link.put({"type": "trained"})  # again for a server's end, which changes nothing

    def _announce(self) -> None:
        ports = {self.machine.port + k for k in range(self.plan.servers)}
        if not self.serving and ports <= network.listening_ports():
            self.serving = True
            self.link.put({"type": "serving", "time": time.time()})

    def _forward_events(self, seconds: float = 0.0) -> None:
        """A piece of what the trainers have written; with a time, as many pieces as there are."""
        deadline = time.monotonic() + seconds
        while True:
            if full := len(self.link.waiting) > MOST_WAITING:
                self.link.push(min(seconds, POLL_SECONDS))
            else:
                for event in self.events.new():
                    self.link.put({"type": "event", "event": event})
                for piece in self.output.new(rest=self.stopping) if self.output else ():
                    self.link.put({"type": "output", **piece})
            if not (full or self.events.more) or time.monotonic() >= deadline:
                return


def main() -> None:
    """``python -m tutorial_lib.cluster.agent INDEX``, with the plan as the first line of standard input."""
    # Orphans (the samplers of a killed trainer) become our children, so that we can end them.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    link, plan, deadline = Channel(0, 1), None, time.monotonic() + PLAN_SECONDS
    while plan is None:
        if time.monotonic() > deadline:
            sys.exit(f"waited {PLAN_SECONDS:g} s for the plan from the coordinator")
        try:
            received = link.take(1.0)
        except EOFError:  # the coordinator is gone
            return
        plan = next((JobPlan.from_json(message["plan"]) for message in received if "plan" in message), None)
    agent = Agent(plan, int(sys.argv[1]), link)
    signal.signal(signal.SIGTERM, agent.told_to_end)
    agent.run()


if __name__ == "__main__":
    main()
