"""The agent of a machine, which starts, watches and stops the processes of a job on this machine.

    coordinator  <== messages over stdin and stdout ==>  agent  --+-- server 0, 1, ...
                                                                  `-- trainer 0, 1, ... -- samplers

The agent stops all of these processes when its standard input ends, for whatever reason. It imports no large packages.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tutorial_lib.errors import TutorialError, describe_exit_code, retry_until_timeout
from tutorial_lib.launcher import messages as msg
from tutorial_lib.launcher import network, watch
from tutorial_lib.launcher.checks import check_machine, find_versions
from tutorial_lib.launcher.environment import count_cpus, job_environment, package_digest, role_environment
from tutorial_lib.launcher.jobspec import JobSpec, Role
from tutorial_lib.launcher.logs import WORKERS, JobFiles, log_name, read_last_lines, uncaught_exception
from tutorial_lib.launcher.processes import FORKSERVER, Forkserver, end_descendants, start_process
from tutorial_lib.launcher.shm import lock_shm

PR_SET_CHILD_SUBREAPER = 36
FLUSH_SECONDS = 3.0
BUSY_SECONDS = 0.1  # CPU time of all processes between two heartbeats. An idle process was measured at 0.2 % of a core
BUSY_BYTES = 20_000  # bytes that the machine sent between two heartbeats
MAX_QUEUED_BYTES = 8 << 20  # bytes queued for a coordinator that does not read. Further events stay in files


@dataclass
class Process:
    role: str
    local_index: int
    pid: int | None = None  # None before the fork
    code: int | None = None  # None before the end
    peak_rss: int = 0  # bytes


class Agent:
    """Runs the processes of a job on one machine. ``commands`` have been read from ``channel`` already."""

    def __init__(self, spec: JobSpec, machine_index: int, channel: msg.Channel, commands: list[msg.Message]) -> None:
        self.spec = spec
        self.machine_index = machine_index
        self.channel = channel
        self.commands = commands
        self.machine = spec.machines[machine_index]
        self.logs = spec.log_folder(machine_index)
        self.logs.mkdir(parents=True, exist_ok=True)
        self.interface = network.find_interface(self.machine.address)
        self.env: dict[str, str] = {}  # variables of every process
        self.processes: list[Process] = []
        self.roles_to_start = {role.name for role in spec.roles}
        self.loading = set[str]()  # roles that have been started and do not listen yet
        self.stopping = False
        self.forkserver: Forkserver | None = None
        self.files = JobFiles(self.logs)
        self.show_output = spec.show_output
        self.health = watch.MachineHealth(self.logs)
        self.peer_names = {m.address: m.name for m in spec.machines if m.address != self.machine.address}
        self.peers = network.SilentPeers(self.peer_names)
        self.sent_before = network.bytes_sent(self.interface)
        self.sent = 0
        self.next_heartbeat = self.last_heard = time.monotonic()

    def run_job(self) -> None:
        """Run the job. When this method returns, all processes of the job on this machine have ended."""
        shutil.rmtree(self.logs / watch.FOLDER, ignore_errors=True)  # left by a killed agent
        with lock_shm(self.spec.shm_patterns) as sockets:
            self.env = {**os.environ, **job_environment(self.spec, self.machine_index, self.interface)}
            self.env["TUTORIAL_SOCKETS"] = str(sockets)
            try:
                while not self.stopping and (self.roles_to_start or any(p.code != 0 for p in self.processes)):
                    self.channel.push()
                    self._read_commands()
                    self._reap()
                    self._forward_events()
                    self._announce_listeners()
                    self._watch_machine()
            finally:
                self._stop_and_clean_up()

    def stop_on_signal(self, *_signal: object) -> None:
        """Handle SIGTERM. Slurm sends two of these signals, and the second one must not interrupt the clean-up."""
        if not self.stopping:
            self.stopping = True
            sys.exit()

    def _stop_and_clean_up(self) -> None:
        self.stopping = True
        self._forward_events(flush=True)
        self.show_output = False  # the logs contain the further output, which is about being stopped
        end_descendants(self._reap)
        shutil.rmtree(self.logs / watch.FOLDER, ignore_errors=True)
        self._forward_events(flush=True)
        self._send_heartbeat()
        roles = sorted({process.role for process in self.processes} - {"forkserver"})
        self.channel.put(msg.Done({role: max(p.peak_rss for p in self.processes if p.role == role) for role in roles}))
        self.channel.push(FLUSH_SECONDS)

    def _report(self, kind: str, **fields: object) -> None:
        self.channel.put(msg.Report({"kind": kind, **fields, "time": time.time()}))

    def _start_role(self, role: Role) -> None:
        if role.command is None and self.forkserver is None:
            self.forkserver = self._start_forkserver()
        for local_index in range(role.count):
            env = role_environment(self.spec, self.machine_index, role, local_index, count_cpus())
            if role.command is not None:
                self._start(role.name, local_index, role.command, env)
            elif self.forkserver is not None:
                log = self.logs / log_name(role.name, local_index)
                self.forkserver.request_process(role.name, local_index, env, log)
                self.processes.append(Process(role.name, local_index))
        self.roles_to_start.discard(role.name)
        if role.listens:
            self.loading.add(role.name)
        if self.forkserver is not None and not self.roles_to_start:
            self.forkserver.close()

    def _start(self, role: str, local_index: int, argv: Sequence[str], env: dict[str, str], *fds: int) -> None:
        try:
            pid = start_process(argv, {**self.env, **env}, self.spec.cwd, self.logs / log_name(role, local_index), fds)
        except OSError as error:
            self._fail(role, local_index, cause=f"cannot start {argv[0]!r}: {error.strerror}")
            return
        self.processes.append(Process(role, local_index, pid))
        self._report("started", role=role, index=local_index)

    def _start_forkserver(self) -> Forkserver:
        """Start the process that imports all packages once and forks the other processes."""
        forkserver = Forkserver()
        last_role_env = role_environment(self.spec, self.machine_index, self.spec.roles[-1], 0, count_cpus())
        with forkserver.child_socket as inherited:
            env = {FORKSERVER: str(inherited.fileno()), "OMP_NUM_THREADS": last_role_env["OMP_NUM_THREADS"]}
            self._start("forkserver", 0, self.spec.forkserver_command or [], env, inherited.fileno())
        return forkserver

    def _fail(self, role: str, local_index: int, code: int = 0, cause: str = "") -> None:
        """Report a failure. Without a cause, the exit code of the process and the end of its log describe it."""
        if disk_problem := watch.find_disk_problem(self.logs):  # other problems are its effects
            role, local_index, cause = "agent", 0, disk_problem
        lines = read_last_lines(self.logs / log_name(role, local_index))
        if not cause:
            cause = describe_exit_code(code)
            if self.health.out_of_memory(code):
                cause += "; at that time the kernel killed a process because memory ran out"
            exception = None if role in WORKERS else uncaught_exception(lines, code)
            if exception is not None:  # more useful than the exit code
                cause = f"{exception} ({cause})"
        self.channel.put(msg.Failed(role, local_index, cause, lines))

    def _read_commands(self) -> None:
        commands, self.commands = self.commands, []
        try:
            commands = commands or self.channel.receive(msg.POLL_SECONDS)
        except EOFError:  # the coordinator is gone
            self.stopping = True
        for command in commands:
            self.last_heard = time.monotonic()
            if isinstance(command, msg.StartRole):
                self._start_role(self.spec.role(command.role))
            elif command == msg.Command("stop"):
                self.stopping = True
            elif command == msg.Command("save"):
                with contextlib.suppress(OSError):  # on a full disk, a trainer could not save a checkpoint
                    (self.logs / watch.SAVE_REQUEST_FILE).touch()
            elif command == msg.Command("stacks"):
                self.channel.put(msg.Stacks(watch.collect_stacks(self.logs)))

    def _watch_machine(self) -> None:
        """Send a heartbeat every two seconds, and report problems without an exit code."""
        now = time.monotonic()
        if self.spec.silence is not None and now - self.last_heard > self.spec.silence:
            self._fail("agent", 0, cause=f"heard nothing from the coordinator for {self.spec.silence:g} s")
            self.stopping = True
        if now < self.next_heartbeat:
            return
        self.next_heartbeat = now + 2.0
        self._send_heartbeat()
        if disk_problem := watch.find_disk_problem(self.logs):
            self._fail("agent", 0, cause=disk_problem)
        for worker, code in self.health.dead_workers():
            self._fail(worker.role, worker.local_index, code)
        for address, seconds in self.peers.silent_seconds().items():
            if seconds > network.SILENCE_SECONDS:
                cause = f"no answer from {self.peer_names[address]} ({address}) for {seconds:.0f} s"
                self._fail("agent", 0, cause=f"{cause}. That machine or the network to it is down")

    def _send_heartbeat(self) -> None:
        signs = self.health.signs_of_life()
        last_sent = self.sent
        self.sent = network.bytes_sent(self.interface) - self.sent_before
        busy = signs["wrote"] != 0 or signs["cpu"] > BUSY_SECONDS or self.sent - last_sent > BUSY_BYTES
        self.channel.put(msg.Heartbeat(busy, self.sent, time.time()))

    def _reap(self) -> None:
        """Report the processes that have been forked or have ended since the last call."""
        exits = _collect_exits()
        for role, local_index, pid in self.forkserver.started() if self.forkserver else ():
            next(p for p in self.processes if (p.role, p.local_index) == (role, local_index)).pid = pid
            self._report("started", role=role, index=local_index)
        # A killed sampler may end its trainer before the next check of the machine. Then the sampler is the cause.
        if exits and not self.stopping:
            for registered in watch.registered_processes(self.logs):
                code, _ = exits.get(registered.pid, (0, 0))
                if registered.role in WORKERS and code < 0 and code != -signal.SIGTERM:
                    self._fail(registered.role, registered.local_index, code)
        for process in self.processes:
            if process.pid in exits and process.code is None:
                process.code, process.peak_rss = exits[process.pid]
                self._report_exit(process.role, process.local_index, process.code)

    def _report_exit(self, role: str, local_index: int, code: int) -> None:
        self._forward_events(flush=True)  # the last event of a rank explains more than its exit code
        self._report("exited", role=role, index=local_index, code=code)
        if code != 0 and not self.stopping:
            self._fail(role, local_index, code)
        elif self.roles_to_start and not self.stopping:  # services end after the other roles
            unstarted = " and ".join(f"{other}s" for other in sorted(self.roles_to_start))
            cause = f"ended before the {unstarted}; {self.spec.roles[0].early_end}".rstrip("; ")
            self._fail(role, local_index, cause=cause)

    def _announce_listeners(self) -> None:
        for role in [self.spec.role(name) for name in self.loading]:
            if {self.machine.port + k for k in range(role.count)} <= network.listening_ports():
                self.loading.remove(role.name)
                self._report("serving", role=role.name)

    def _forward_events(self, *, flush: bool = False) -> None:
        """Forward new events and output of the ranks. Without ``flush``, pause while the coordinator does not read."""
        while (flush or len(self.channel.waiting) <= MAX_QUEUED_BYTES) and (events := self.files.events()):
            for event in events:
                self.channel.put(msg.Report(event))
        if self.show_output and (flush or len(self.channel.waiting) <= MAX_QUEUED_BYTES):
            for output in self.files.output(rest=self.stopping):
                self._report("output", **output)


def _collect_exits() -> dict[int, tuple[int, int]]:
    """Return exit code and peak memory of ended children by PID. A process that they waited for counts in the peak."""
    exits = {}
    with contextlib.suppress(ChildProcessError):
        pid, status, usage = os.wait4(-1, os.WNOHANG)
        while pid != 0:
            exits[pid] = (os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024)
            pid, status, usage = os.wait4(-1, os.WNOHANG)
    return exits


def wait_for_command(channel: msg.Channel, goal: str, seconds: float) -> list[msg.Message]:
    for seconds_left in retry_until_timeout(goal, seconds, pause=0, log=lambda _text: None):
        if commands := channel.receive(min(seconds_left, 1.0)):
            return sys.exit() if commands[0] == msg.Command("stop") else commands
    return []


def main() -> None:
    """Run the agent of a machine. Standard input and output are the connection to the coordinator."""
    # This process becomes the parent of orphans, such as the samplers of a killed trainer, and can then stop them.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, True)
    channel = msg.Channel(0, 1)
    channel.put(msg.Hello(package_digest(), os.path.expanduser("~"), network.ipv4_addresses()))
    try:
        prepare = wait_for_command(channel, "the job from the coordinator", 12 * 3600.0)[0]  # data is copied before
        assert isinstance(prepare, msg.Prepare)
        findings = check_machine(prepare.spec, prepare.machine_index)
        versions = find_versions(prepare.spec.same_packages)
        channel.put(msg.Checked(findings, versions, time.time()))
        commands = wait_for_command(channel, "the start of the job", 300.0)  # other machines are checked
        agent = Agent(prepare.spec, prepare.machine_index, channel, commands)
        signal.signal(signal.SIGTERM, agent.stop_on_signal)
        agent.run_job()
    except EOFError:  # the coordinator is gone
        pass
    except TutorialError as error:
        channel.put(msg.Failed("agent", 0, error.message, []))
        channel.push(FLUSH_SECONDS)
        sys.exit(error.message)
