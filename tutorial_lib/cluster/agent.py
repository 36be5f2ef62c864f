"""One process per machine: starts the machine's DGL servers and torchrun, watches them, stops them.

    coordinator  <== JSON lines over stdin/stdout ==>  agent  --+-- DGL server 0, 1, ...
                                                                `-- torchrun -- trainer 0, 1, ... -- samplers

The agent lives as long as its connection: when standard input ends, for whatever reason, it stops everything
that it started. It imports nothing heavy, so that it is there at once.

Coordinator to agent: the plan first, then ``{"do": ...}`` with ``trainers``, ``stacks`` (tell where every process
stands), ``stop``, and over ssh now and then ``ping``.
Agent to coordinator: ``serving`` (all servers listen), ``event`` (a line some trainer wrote), ``alive`` (every two
seconds), ``exited`` (a process ended), ``stacks``, ``trainers_done``, ``failed``, and last ``done`` with what the
machine used.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tutorial_lib.cluster.channel import POLL_SECONDS, outbox, send
from tutorial_lib.cluster.children import Process, end_descendants, peak_rss, who_failed
from tutorial_lib.cluster.health import MachineHealth, disk_trouble
from tutorial_lib.cluster.logs import EventFiles, tail
from tutorial_lib.cluster.members import FOLDER as PROCESSES_FOLDER
from tutorial_lib.cluster.members import collect, members
from tutorial_lib.cluster.namespaces import die_with_parent
from tutorial_lib.cluster.network import bytes_sent, interface_of, listening_ports
from tutorial_lib.cluster.plan import TORCHRUN_FOLDER, JobPlan, server_env, torchrun_argv, trainer_env
from tutorial_lib.cluster.shm import SHM, graph_name_in, job_marker, remove_segments
from tutorial_lib.cluster.sockets import TOO_LONG, sockets_folder
from tutorial_lib.cluster.traffic import Traffic

PR_SET_CHILD_SUBREAPER = 36
ALIVE_SECONDS = 2.0
FLUSH_SECONDS = 3.0
PLAN_SECONDS = 60.0
SERVER_LEAD_SECONDS = 120.0  # how long before torchrun a server may end; a script may work on without DGL


@dataclass
class Agent:
    """Runs one machine's share of a job; see the module docstring for its messages."""

    plan: JobPlan
    index: int
    processes: list[Process] = field(default_factory=list)
    stopping: bool = False
    announced_serving: bool = False
    announced_trainers: bool = False
    _inbox: bytes = b""

    def __post_init__(self) -> None:
        self.machine = self.plan.machines[self.index]
        self.interface = self.machine.interface or interface_of(self.machine.address)
        self.logs = self.plan.log_folder(self.index)
        self.logs.mkdir(parents=True, exist_ok=True)
        self.sent_before = self.sent_last = bytes_sent(self.interface)
        self.shm_before = set(os.listdir(SHM))
        others = [m.address for m in self.plan.machines if m != self.machine]
        self.events = EventFiles(self.logs)
        self.health = MachineHealth(self.logs, others)
        self.traffic = Traffic(others)
        self.next_look = self.last_word = time.monotonic()

    def run(self) -> None:
        """Do the job; returns when everything this machine started is gone."""
        shutil.rmtree(self.logs / PROCESSES_FOLDER, ignore_errors=True)  # of a job whose agent was killed
        with sockets_folder() as sockets:
            self.sockets = {} if sockets is None else {"TUTORIAL_SOCKETS": sockets}
            if sockets is None and self.plan.samplers:
                self._give_up(TOO_LONG)
            try:
                self._work()
            finally:
                self._leave_nothing()

    def _work(self) -> None:
        for k in range(0 if self.stopping else self.plan.servers):
            self._start("server", k, self.plan.command, server_env(self.plan, self.index, k, self.interface))
        while not self._finished():
            outbox.flush()
            self._read_commands()
            self._reap()
            self._check_servers()
            self._forward_events()
            self._announce()
            self.traffic.look()
            self.health.look_at_memory()
            self._look_around()

    def _leave_nothing(self) -> None:
        self.stopping = True
        end_descendants(self._reap)
        remove_segments(self.shm_before, self.plan.part_config)
        for name in (TORCHRUN_FOLDER, PROCESSES_FOLDER):
            shutil.rmtree(self.logs / name, ignore_errors=True)
        self._forward_events(FLUSH_SECONDS)
        names = {machine.address: machine.name for machine in self.plan.machines}
        received = {names[address]: count for address, count in self.traffic.received().items()}
        sent = bytes_sent(self.interface) - self.sent_before
        send({"type": "done", "bytes_sent": sent, "received": received, "peak_rss": peak_rss(self.processes)})
        outbox.flush(seconds=FLUSH_SECONDS)

    def _start(self, role: str, k: int, argv: Sequence[str], env: dict[str, str]) -> None:
        log = self.logs / (f"{role}.log" if role == "torchrun" else f"{role}-{k}.log")
        try:
            with log.open("ab") as file:
                popen = subprocess.Popen(
                    list(argv),
                    cwd=self.plan.cwd,
                    env={**env, **self.sockets},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=die_with_parent,  # the agent has one thread, so this is safe
                )
        except OSError as error:
            note = f"cannot start {argv[0]!r}: {error.strerror}"
            self._fail(role, k, disk_trouble(self.logs, thorough=True) or note, log)
        else:
            self.processes.append(Process(role, k, popen, log))

    def _fail(self, role: str, k: int, note: str, log: Path) -> None:
        """Report something that no exit code tells, and end this machine's share of the job."""
        self._report_failure(role, k, 0, log, note)
        self.stopping = True

    def _give_up(self, note: str) -> None:
        self._fail("agent", 0, note, self.logs / "agent.log")

    def _report_failure(self, role: str, k: int, code: int | None, log: Path, note: str = "") -> None:
        if not note and (trouble := disk_trouble(self.logs, thorough=True)):  # whatever else was said is its effect
            role, k, note = "agent", 0, trouble
        oom = self.health.out_of_memory(role, k, code)
        message = {"type": "failed", "role": role, "index": k, "code": code, "log": log.name, "tail": tail(log)}
        send({**message, "note": note, "out_of_memory": oom})

    def _finished(self) -> bool:
        """Told to stop, or trainers and servers have all ended well."""
        return self.stopping or (self._torchrun() is not None and all(p.code == 0 for p in self.processes))

    def _torchrun(self) -> Process | None:
        return next((p for p in self.processes if p.role == "torchrun"), None)

    def _read_commands(self) -> None:
        if not select.select([0], [], [], POLL_SECONDS)[0]:
            return
        chunk = os.read(0, 65536)
        if not chunk:  # the coordinator is gone
            self.stopping = True
        self._inbox += chunk
        self.last_word = time.monotonic()
        *lines, self._inbox = self._inbox.split(b"\n")
        for line in lines:
            self._obey(json.loads(line)["do"])

    def _obey(self, command: str) -> None:
        if command == "stop":
            self.stopping = True
        elif command == "trainers":
            cpus = len(os.sched_getaffinity(0))
            argv = torchrun_argv(self.plan, self.index)
            self._start("torchrun", 0, argv, trainer_env(self.plan, self.index, self.interface, cpus))
        elif command == "stacks":
            send({"type": "stacks", "stacks": [asdict(stack) for stack in collect(self.logs)]})

    def _look_around(self) -> None:
        """Every two seconds: tell that we are here, and what no exit code tells."""
        now = time.monotonic()
        if self.plan.silence is not None and now - self.last_word > self.plan.silence:
            self._give_up(f"heard nothing from the coordinator for {self.plan.silence:g} s")
        if now < self.next_look:
            return
        self.next_look = now + ALIVE_SECONDS
        sent = bytes_sent(self.interface)
        send({"type": "alive", **self.health.signs_of_life(), "sent": sent - self.sent_last})
        self.sent_last = sent
        if trouble := disk_trouble(self.logs):
            self._give_up(trouble)
        for member, code in self.health.dead_workers():
            self._report_failure(member.role, member.index, code, self.logs / f"trainer-{member.index}.log")
        for address, seconds in self.health.lost_peers().items():
            name = next(m.name for m in self.plan.machines if m.address == address)
            self._give_up(
                f"no answer from {name} ({address}) for {seconds:.0f} s: it is down, or the network between them is"
            )

    def _reap(self) -> None:
        """Note who ended; wait4 tells the peak memory of a process and of the children it waited for."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            self._report_orphan(pid, code)
            for process in self.processes:
                if process.popen.pid == pid:
                    process.code = process.popen.returncode = code
                    process.peak_rss = usage.ru_maxrss * 1024
                    process.ended = time.monotonic()
                    self._report_exit(process)

    def _report_orphan(self, pid: int, code: int) -> None:
        """A killed sampler may take its trainer along before anybody has looked; then it comes to us."""
        if code >= 0 or code == -signal.SIGTERM or self.stopping:
            return
        for member in members(self.logs):
            if member.pid == pid and member.role in ("sampler", "worker"):
                self._report_failure(member.role, member.index, code, self.logs / f"trainer-{member.index}.log")

    def _report_exit(self, process: Process) -> None:
        self._forward_events(FLUSH_SECONDS)  # what a trainer said of its end is better than what we can see of it
        send({"type": "exited", "role": process.role, "index": process.index, "code": process.code})
        if process.code == 0 or self.stopping:
            return
        role, k, code, log = process.role, process.index, process.code, process.log
        if role == "torchrun":
            role, k, code, log = who_failed(process)
        self._report_failure(role, k, code, log)

    def _check_servers(self) -> None:
        """Servers end well when the trainers have; one that ends well before them leaves them waiting for ever."""
        torchrun = self._torchrun()
        if torchrun and torchrun.code is not None:
            return
        for p in self.processes:
            too_early = not torchrun or time.monotonic() - p.ended > SERVER_LEAD_SECONDS
            if p.role == "server" and p.code == 0 and too_early and not self.stopping:
                note = "ended before the trainers; did the command reach dgl.distributed.initialize?"
                self._fail("server", p.index, note, p.log)

    def _announce(self) -> None:
        if not self.announced_serving:
            ports = {self.machine.port + k for k in range(self.plan.servers)}
            if ports <= listening_ports():
                self.announced_serving = True
                send({"type": "serving"})
        if not self.announced_trainers and (torchrun := self._torchrun()) and torchrun.code == 0:
            self.announced_trainers = True
            self._forward_events(FLUSH_SECONDS)
            send({"type": "trainers_done"})

    def _forward_events(self, seconds: float = 0.0) -> None:
        """A piece of what the trainers have written; with a time, as many pieces as there are."""
        deadline = time.monotonic() + seconds
        while True:
            for event in self.events.new():
                send({"type": "event", "event": event})
            if not self.events.more or time.monotonic() >= deadline:
                return


def _first_line() -> bytes:
    """Of standard input, and not a byte more; empty when the coordinator has gone."""
    first = b""
    while not first.endswith(b"\n"):
        if not select.select([0], [], [], PLAN_SECONDS)[0]:
            sys.exit(f"waited {PLAN_SECONDS:g} s for the plan from the coordinator")
        byte = os.read(0, 1)
        if not byte:
            return b""
        first += byte
    return first


def main() -> None:
    """``python -m tutorial_lib.cluster.agent INDEX``, with the plan as the first line of standard input."""
    # Orphans (the samplers of a killed trainer) become our children, so that we can end them.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    first = _first_line()
    if not first:
        return
    agent = Agent(JobPlan.from_json(first.decode()), int(sys.argv[1]))
    with job_marker(graph_name_in(agent.plan.part_config), agent.shm_before):
        agent.run()


if __name__ == "__main__":
    main()
