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

from tutorial_lib.errors import TutorialError, attempts
from tutorial_lib.launcher import messages as msg
from tutorial_lib.launcher import network
from tutorial_lib.launcher.channel import POLL_SECONDS, Channel
from tutorial_lib.launcher.checks import check_machine, find_versions
from tutorial_lib.launcher.environment import count_cpus, job_environment, package_digest, role_environment
from tutorial_lib.launcher.jobspec import JobSpec, Role
from tutorial_lib.launcher.logs import WORKERS, JobFiles, log_name, tail
from tutorial_lib.launcher.processes import FORKSERVER, Forkserver, end_descendants, start
from tutorial_lib.launcher.shm import lock_shm
from tutorial_lib.launcher.watch import FINISH, MachineHealth, collect, disk_trouble, members
from tutorial_lib.launcher.watch import FOLDER as PROCESSES_FOLDER

PR_SET_CHILD_SUBREAPER = 36
HEARTBEAT_SECONDS, FLUSH_SECONDS = 2.0, 3.0
PREPARE_SECONDS, START_SECONDS = 12 * 3600.0, 300.0  # copies to the machines, and the checks of other machines
MOST_WAITING = 8 << 20  # bytes for a coordinator that does not read. Further events stay in files


@dataclass
class Process:
    """A child process. ``pid`` is None before the fork, ``code`` is None before the end, ``peak_rss`` is in bytes."""

    role: str
    index: int
    pid: int | None
    code: int | None = None
    peak_rss: int = 0


class Agent:
    """Runs the processes of a job on machine ``index``.

    ``link`` is the connection to the coordinator, and ``commands`` are messages that have been read from it.
    """

    def __init__(self, spec: JobSpec, index: int, link: Channel, commands: Sequence[msg.Message] = ()) -> None:
        self.spec, self.index, self.link, self.commands = spec, index, link, list(commands)
        self.machine = spec.machines[index]
        self.interface = self.machine.interface or network.interface_of(self.machine.address)
        self.logs = spec.log_folder(index)
        self.logs.mkdir(parents=True, exist_ok=True)
        self.processes: list[Process] = []
        self.roles_to_start = {role.name for role in spec.roles}
        self.roles_to_announce = {role.name for role in spec.roles if role.listens}
        self.stopping = False
        self.forkserver: Forkserver | None = None
        self.others = {m.address: m.name for m in spec.machines if m.address != self.machine.address}
        self.files, self.show_output = JobFiles(self.logs), spec.show_output
        self.sent_before = network.bytes_sent(self.interface)
        self.health, self.peers = MachineHealth(self.logs), network.SilentPeers(self.others)
        self.next_heartbeat = self.last_heard = time.monotonic()

    def run(self) -> None:
        """Run the job. When this method returns, all processes of the job on this machine have ended."""
        shutil.rmtree(self.logs / PROCESSES_FOLDER, ignore_errors=True)  # left by a killed agent
        with lock_shm(self.spec.shm_patterns) as sockets:
            self.sockets = {"TUTORIAL_SOCKETS": str(sockets)}
            try:
                while not self._is_finished():
                    self.link.push()
                    self._read_commands()
                    self._reap()
                    self._forward_events()
                    self._announce_listeners()
                    self._watch_machine()
            finally:
                self._leave_nothing()

    def stop_on_signal(self, *_signal: object) -> None:
        """Handle SIGTERM. Slurm sends two of these signals, and the second one must not interrupt the clean-up."""
        if not self.stopping:
            self.stopping = True
            sys.exit()

    def _leave_nothing(self) -> None:
        self.stopping = True
        self._forward_events(FLUSH_SECONDS * all(process.code is not None for process in self.processes))
        self.show_output = False  # the logs contain the further output, which is about being stopped
        end_descendants(self._reap)
        shutil.rmtree(self.logs / PROCESSES_FOLDER, ignore_errors=True)
        self._forward_events(FLUSH_SECONDS)
        peaks: dict[str, int] = {}
        for process in (p for p in self.processes if p.role != "forkserver"):
            peaks[process.role] = max(peaks.get(process.role, 0), process.peak_rss)
        self._send(msg.Done(self._bytes_sent(), peaks, time.time()))
        self.link.push(FLUSH_SECONDS)

    def _send(self, message: msg.Message) -> None:
        self.link.put(msg.encode(message))

    def _start_role(self, role: Role) -> None:
        common = {**os.environ, **job_environment(self.spec, self.index, self.interface)}
        for k in range(role.count):
            env = role_environment(self.spec, self.index, role, k, count_cpus())
            if role.command is None:
                self._fork(role.name, k, env)
            else:
                self._start(role.name, k, role.command, {**common, **env})
        self.roles_to_start.discard(role.name)
        if self.forkserver is not None and not self.roles_to_start:
            self.forkserver.close()

    def _start(self, role: str, k: int, argv: Sequence[str], env: dict[str, str], fds: Sequence[int] = ()) -> None:
        try:
            pid = start(argv, {**env, **self.sockets}, self.spec.cwd, self.logs / log_name(role, k), fds)
        except OSError as error:
            self._give_up(f"cannot start {argv[0]!r}: {error.strerror}", role, k)
            return
        self.processes.append(Process(role, k, pid))
        self._send(msg.Started(role, k, time.time()))

    def _fork(self, role: str, k: int, env: dict[str, str]) -> None:
        if self.forkserver is None:
            self._start_template()
        if self.forkserver is not None:
            self.forkserver.order(role, k, env, self.logs / log_name(role, k))
            self.processes.append(Process(role, k, None))

    def _start_template(self) -> None:
        """Start the process that imports all packages once and forks the other processes."""
        assert self.spec.template is not None
        try:
            self.forkserver = Forkserver()
        except OSError as error:
            self._give_up(f"cannot start {self.spec.template[0]!r}: {error.strerror}", "forkserver")
            return
        last = role_environment(self.spec, self.index, self.spec.roles[-1], 0, count_cpus())
        with self.forkserver.theirs as theirs:
            env = {**os.environ, **job_environment(self.spec, self.index, self.interface)}
            env |= {FORKSERVER: str(theirs.fileno()), "OMP_NUM_THREADS": last["OMP_NUM_THREADS"]}
            self._start("forkserver", 0, self.spec.template, env, [theirs.fileno()])

    def _give_up(self, note: str, role: str = "agent", k: int = 0) -> None:
        """Report a failure without an exit code, and end the job on this machine."""
        self._report_failure(role, k, 0, note)
        self.stopping = True

    def _report_failure(self, role: str, k: int, code: int, note: str = "") -> None:
        if trouble := disk_trouble(self.logs):  # other problems are its effects
            role, k, note = "agent", 0, trouble
        oom = self.health.out_of_memory(code)
        self._send(msg.Failed(role, k, code, note, oom, tail(self.logs / log_name(role, k))))

    def _is_finished(self) -> bool:
        """Return whether the agent must stop, or all processes have started and have ended with exit code 0."""
        return self.stopping or (not self.roles_to_start and all(p.code == 0 for p in self.processes))

    def _read_commands(self) -> None:
        commands, self.commands = self.commands, []
        for command in commands or receive(self.link, POLL_SECONDS):
            self.last_heard = time.monotonic()
            if isinstance(command, msg.Stop):
                self.stopping = True
            elif isinstance(command, msg.Ping):
                self._send(msg.Pong(command.sent, time.time()))
            elif isinstance(command, msg.StartRole):
                if (role := self.spec.role(command.role)) is not None:
                    self._start_role(role)
            elif isinstance(command, msg.SaveNow):
                with contextlib.suppress(OSError):  # on a full disk, a trainer could not save a checkpoint
                    (self.logs / FINISH).touch()
            elif isinstance(command, msg.DumpStacks):
                self._send(msg.Stacks(collect(self.logs)))

    def _watch_machine(self) -> None:
        """Send a heartbeat every two seconds, and report problems without an exit code."""
        now = time.monotonic()
        if self.spec.silence is not None and now - self.last_heard > self.spec.silence:
            self._give_up(f"heard nothing from the coordinator for {self.spec.silence:g} s")
        if now < self.next_heartbeat:
            return
        self.next_heartbeat = now + HEARTBEAT_SECONDS
        signs = self.health.signs_of_life()
        self._send(msg.Heartbeat(**signs, bytes_sent=self._bytes_sent(), time=time.time()))
        if trouble := disk_trouble(self.logs):
            self._give_up(trouble)
        for member, code in self.health.dead_workers():
            self._report_failure(member.role, member.index, code)
        for address, seconds in self.peers.look().items():
            if seconds > network.SILENCE_SECONDS:
                cause = f"no answer from {self.others[address]} ({address}) for {seconds:.0f} s"
                self._give_up(f"{cause}: it is down, or the network between them is")

    def _reap(self) -> None:
        """Collect exit codes. ``wait4`` also returns the peak memory of a process and of its collected children."""
        ended = []
        with contextlib.suppress(ChildProcessError):
            while (found := os.wait4(-1, os.WNOHANG))[0] != 0:
                ended.append((found[0], os.waitstatus_to_exitcode(found[1]), found[2].ru_maxrss * 1024))
        for role, k, pid in self.forkserver.started() if self.forkserver else ():
            next(p for p in self.processes if (p.role, p.index) == (role, k)).pid = pid
            self._send(msg.Started(role, k, time.time()))
        # A killed sampler may end its trainer before the next check of the machine. Then this call collects both, and
        # the sampler is the cause.
        for pid, code, _ in ended:
            if code < 0 and code != -signal.SIGTERM and not self.stopping:
                for member in (m for m in members(self.logs) if m.pid == pid and m.role in WORKERS):
                    self._report_failure(member.role, member.index, code)
        for pid, code, peak in ended:
            for process in self.processes:
                if process.pid == pid and process.code is None:
                    process.code, process.peak_rss = code, peak
                    self._report_exit(process.role, process.index, code)

    def _report_exit(self, name: str, k: int, code: int) -> None:
        self._forward_events(FLUSH_SECONDS)  # the last event of a rank explains more than its exit code
        self._send(msg.Exited(name, k, code, time.time()))
        if self.stopping:
            return
        if code != 0:
            self._report_failure(name, k, code)
        elif self.roles_to_start:  # services end after the other roles
            role = self.spec.role(name) or self.spec.roles[0]
            waiting = " and ".join(f"{other}s" for other in sorted(self.roles_to_start))
            self._give_up(f"ended before the {waiting}; {role.early_end}".rstrip("; "), name, k)

    def _announce_listeners(self) -> None:
        for role in self.spec.roles:
            ports = {self.machine.port + k for k in range(role.count)}
            if role.name in self.roles_to_announce - self.roles_to_start and ports <= network.listening_ports():
                self.roles_to_announce.discard(role.name)
                self._send(msg.Serving(role.name, time.time()))

    def _bytes_sent(self) -> int:
        return network.bytes_sent(self.interface) - self.sent_before

    def _forward_events(self, seconds: float = 0.0) -> None:
        """Forward the new events and output of the ranks. Wait at most ``seconds`` for a coordinator that is slow."""
        deadline, events = time.monotonic() + seconds, self.files.events()
        while len(self.link.waiting) <= MOST_WAITING or time.monotonic() < deadline:
            if len(self.link.waiting) > MOST_WAITING:
                self.link.push(POLL_SECONDS)
            elif (event := next(events, None)) is not None:
                self._send(msg.Report(event))
            else:
                break
        if self.show_output and len(self.link.waiting) <= MOST_WAITING:
            for lines in self.files.output(rest=self.stopping):
                self._send(msg.Output(**lines))


def receive(link: Channel, seconds: float) -> list[msg.Message]:
    """Return the messages that arrive within this time. The end of the connection is a ``Stop``."""
    try:
        return [message for record in link.take(seconds) if (message := msg.decode(record)) is not None]
    except EOFError:  # the coordinator is gone
        return [msg.Stop()]


def wait_for_command(link: Channel, what: str, seconds: float) -> list[msg.Message]:
    """Return the next messages. The program ends if the first one is a ``Stop``, or after this time."""
    for left in attempts(what, seconds, pause=0, say=lambda _text: None):
        if commands := receive(link, min(left, 1.0)):
            if isinstance(commands[0], msg.Stop):
                sys.exit()
            return commands
    return []


def main() -> None:
    """Run the agent of a machine. Standard input and output are the connection to the coordinator."""
    # This process becomes the parent of orphans, such as the samplers of a killed trainer, and can then stop them.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    link = Channel(0, 1)
    link.put(msg.encode(msg.Hello(package_digest(), os.path.expanduser("~"), network.ipv4_addresses(), time.time())))
    try:
        prepare = wait_for_command(link, "the job from the coordinator", PREPARE_SECONDS)[0]
        assert isinstance(prepare, msg.Prepare)
        spec, index = prepare.spec, prepare.index
        link.put(msg.encode(msg.Checked(check_machine(spec, index), find_versions(spec.same_packages))))
        agent = Agent(spec, index, link, wait_for_command(link, "the start of the job", START_SECONDS))
        signal.signal(signal.SIGTERM, agent.stop_on_signal)
        agent.run()
    except TutorialError as error:
        sys.exit(error.message)
