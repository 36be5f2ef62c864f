"""Decisions of the coordinator and the agents about messages and processes, without a job."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fault_support import register_process

from tutorial_lib.job.dgl import DglJob
from tutorial_lib.launcher import agent, coordinator, network, processes, watch
from tutorial_lib.launcher.agent import MAX_QUEUED_BYTES, Agent, Process
from tutorial_lib.launcher.coordinator import Coordinator
from tutorial_lib.launcher.failure import JobFailed
from tutorial_lib.launcher.jobspec import JobSpec, Limits, Machine
from tutorial_lib.launcher.messages import Command, Failed, Heartbeat, Message, Report, StartRole


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """A fake clock of the coordinator and an agent."""
    now = [1000.0]
    fake = SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0])
    monkeypatch.setattr(coordinator, "time", fake)
    monkeypatch.setattr(agent, "time", fake)
    return now


@pytest.fixture
def spec(tmp_path) -> JobSpec:
    machines = [Machine("a", "10.0.0.1"), Machine("b", "10.0.0.2")]
    return DglJob(machines, ["x"], "p", "i", str(tmp_path), ".", 1, trainers=2).to_spec()


@pytest.fixture
def watcher(spec, clock) -> Coordinator:
    """A coordinator with two agents that receive its messages."""
    agents = SimpleNamespace(connected={0, 1}, clock_offsets=[0, 0], send_all=lambda _: None, receive=lambda _s: ())
    return Coordinator(agents, spec, limits=Limits(stall=60, silence=30))  # type: ignore


def checks(watcher: Coordinator, clock: list[float], seconds: int, *messages: Message) -> str:
    """Let seconds pass in which both agents send these messages every second, and return the failure."""
    try:
        for _ in range(seconds):
            clock[0] += 1
            for index in (0, 1):
                for message in messages:
                    watcher._handle(index, message)
            watcher._check_progress()
    except JobFailed as failure:
        return str(failure)
    return ""


def test_silent_agent_and_stall_are_failures(watcher, clock):
    """L18. After Ctrl-Z and fg, the messages of the last minutes are still unread, and nobody is blamed."""
    watcher._stacks = {0: [], 1: []}
    idle, busy = Heartbeat(False, 0, 0.0), Heartbeat(True, 0, 0.0)
    for message in (busy, Report({"kind": "step"})):
        assert checks(watcher, clock, 100, message) == ""
    clock[0] += 600
    assert checks(watcher, clock, 60, idle) == ""
    assert checks(watcher, clock, 2, idle) == "the job has made no progress for 60 s: no process answered"
    assert checks(watcher, clock, 1, busy) == ""
    assert checks(watcher, clock, 29) == ""
    assert checks(watcher, clock, 2).startswith("agent on a: sent no message for 30 s")


def test_silent_agent_is_cause_of_stall(watcher, clock):
    """L18. The time limit of a stall can be shorter than that of silence, and the silent machine is the cause."""
    watcher.limits = Limits(stall=6, silence=30)
    watcher._stacks = {0: []}

    def receive(_seconds: float) -> list[tuple[int, Message]]:
        clock[0] += 1
        return [(0, Heartbeat(False, 0, 0.0))]

    watcher.agents.receive = receive
    assert checks(watcher, clock, 10).startswith("agent on b: sent no message for 8 s")


class Line:
    """A fake connection of an agent, with the commands and messages of both directions."""

    def __init__(self) -> None:
        self.commands, self.heard, self.waiting = list[list[Message]](), [], bytearray()

    def receive(self, _seconds: float) -> list:
        return self.commands.pop(0) if self.commands else []

    def put(self, message: Message) -> None:
        self.heard.append(message)

    def push(self, _seconds: float = 0.0) -> None:
        pass


@pytest.fixture
def quiet_agent(tmp_path) -> Agent:
    """An agent without processes."""
    machine = Machine("here", "127.0.0.1")
    return Agent(DglJob([machine], ["true"], "none.json", "", str(tmp_path), ".", 1).to_spec(), 0, Line(), [])


def failures(heard: list[Message]) -> list[tuple[str, int, str]]:
    """Remove the failures from messages, and return their role, index and cause."""
    found = [(m.role, m.local_index, m.cause) for m in heard if isinstance(m, Failed)]
    heard.clear()
    return found


def reap(quiet_agent: Agent, monkeypatch, *ended: tuple[int, int]) -> list[tuple[str, int, str]]:
    """Let processes end with these PIDs and statuses, and return the reported failures."""
    results = [*((pid, status, SimpleNamespace(ru_maxrss=1)) for pid, status in ended), (0, 0, None)]
    monkeypatch.setattr(agent.os, "wait4", lambda *_: results.pop(0))
    quiet_agent._reap()
    return failures(quiet_agent.channel.heard)


def test_a_killed_sampler_is_reported(quiet_agent, monkeypatch):
    """L10. An orphan comes to the agent, before the trainer that it takes along: the sampler is the cause."""
    for role, index, pid in (("sampler", 3, 77), ("sampler", 1, 78), ("trainer", 0, 79)):
        register_process(quiet_agent.logs, pid, role, index)
    killed = "killed by signal 9 (SIGKILL)"
    assert reap(quiet_agent, monkeypatch, (77, signal.SIGKILL)) == [("sampler", 3, killed)]
    for ended in [(78, signal.SIGTERM), (79, signal.SIGKILL), (80, signal.SIGKILL)]:
        assert reap(quiet_agent, monkeypatch, ended) == []
    quiet_agent.processes.append(Process("trainer", 0, 79))
    found = reap(quiet_agent, monkeypatch, (79, 1 << 8), (77, signal.SIGKILL))
    assert found == [("sampler", 3, killed), ("trainer", 0, "exit code 1")]
    quiet_agent.stopping = True
    assert reap(quiet_agent, monkeypatch, (77, signal.SIGKILL)) == []


def test_agent_runs_its_roles_until_stop(quiet_agent, monkeypatch):
    """L22. Servers are ready when their ports listen. The ports are read from the kernel."""
    port, looks = quiet_agent.machine.port, iter([set(), {quiet_agent.machine.port + 1}])
    monkeypatch.setattr(network, "listening_ports", lambda: next(looks, {port}))
    roles = [replace(role, command=["sleep", "100"]) for role in quiet_agent.spec.roles]
    quiet_agent.spec = replace(quiet_agent.spec, roles=roles)
    quiet_agent.channel.commands = [
        [StartRole("server")],
        [Command("save"), StartRole("trainer")],
        [],
        [Command("stop")],
    ]
    finish = quiet_agent.logs / "finish"
    monkeypatch.setattr(watch, "SAVE_REQUEST_FILE", finish.name)
    quiet_agent.run_job()
    assert finish.exists()
    assert [(p.role, p.code) for p in quiet_agent.processes] == [("server", -15), ("trainer", -15)]
    kinds = [m.event["kind"] if isinstance(m, Report) else type(m).__name__ for m in quiet_agent.channel.heard]
    assert sorted({*kinds}) == ["Done", "Heartbeat", "exited", "serving", "started"]
    assert (kinds.count("started"), kinds.count("exited"), kinds[-1]) == (2, 2, "Done")


def test_agent_stops_without_coordinator(quiet_agent, clock):
    """L26. The agent stops its processes by itself."""
    quiet_agent.spec = replace(quiet_agent.spec, silence=5.0)
    quiet_agent.last_heard = clock[0]
    for seconds in (4.0, 0.9, 0.2):
        clock[0] += seconds
        assert failures(quiet_agent.channel.heard) == []
        assert not quiet_agent.stopping
        quiet_agent._watch_machine()
    assert failures(quiet_agent.channel.heard) == [("agent", 0, "heard nothing from the coordinator for 5 s")]
    assert quiet_agent.stopping


def test_second_sigterm_does_not_interrupt_the_cleanup(quiet_agent, monkeypatch):
    """L1. Slurm sends SIGTERM twice, and a killed server leaves the files of GraphBolt in /dev/shm."""
    monkeypatch.setattr(agent, "end_descendants", lambda _reap: signal.raise_signal(signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, quiet_agent.stop_on_signal)
    try:
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
        quiet_agent._stop_and_clean_up()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert type(quiet_agent.channel.heard[-1]).__name__ == "Done"


def test_heartbeat_reports_computing_writing_and_sending(quiet_agent, clock, monkeypatch):
    """The bytes sent since the start of the agent, and the work between two heartbeats, two seconds apart."""
    quiet_agent.next_heartbeat, signs, sent = clock[0], {"cpu": 0.0, "wrote": 0}, [10**9]
    quiet_agent.sent_before = 10**9
    monkeypatch.setattr(quiet_agent.health, "signs_of_life", lambda: signs)
    monkeypatch.setattr(network, "bytes_sent", lambda _interface: sent[0])
    for cpu, wrote, more, busy in [(0.05, 0, 500, False), (1.5, 0, 0, True), (0, 1, 0, True), (0, 0, 10**6, True)]:
        signs |= {"cpu": cpu, "wrote": wrote}
        sent[0] += more
        quiet_agent._watch_machine()
        clock[0] += 1.5
        quiet_agent._watch_machine()
        clock[0] += 0.6
        assert quiet_agent.channel.heard == [Heartbeat(busy, sent[0] - 10**9, clock[0] - 2.1)]
        quiet_agent.channel.heard.clear()


def test_events_stay_in_files_if_coordinator_does_not_read(quiet_agent):
    """L23. The memory for waiting messages is bounded."""
    (quiet_agent.logs / "events-0.jsonl").write_text('{"kind": "joined"}\n')
    quiet_agent.channel.waiting = bytearray(MAX_QUEUED_BYTES + 1)
    quiet_agent._forward_events()
    assert quiet_agent.channel.heard == []
    quiet_agent.channel.waiting = bytearray(MAX_QUEUED_BYTES)
    quiet_agent._forward_events()
    assert quiet_agent.channel.heard == [Report({"kind": "joined"})]


DESCENDANTS = """
import os, subprocess, sys
from tutorial_lib.launcher.processes import end_descendants
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
first = subprocess.Popen(["sleep", "100"], **quiet)
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
second = subprocess.Popen(["sleep", "100"], **quiet)
end_descendants(second.poll)
print(first.pid, second.poll())
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="makes a process of another user")
def test_descendants_of_other_users_are_skipped():
    """L7. Descendants of other users are skipped."""
    done = subprocess.run([sys.executable, "-c", DESCENDANTS], capture_output=True, text=True, timeout=30)
    pid, code = done.stdout.split() or ["0", done.stderr]
    os.kill(int(pid), signal.SIGKILL)
    assert code == str(-signal.SIGTERM)


def test_exit_code_of_short_program_is_kept(monkeypatch, tmp_path):
    """L8. A dropped Popen object would collect the exit code, and the agent would wait for it forever."""

    class SlowPopen(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    monkeypatch.setattr(subprocess, "Popen", SlowPopen)
    pid = processes.start_process(["false"], dict(os.environ), str(tmp_path), tmp_path / "log")
    processes.start_process(["true"], dict(os.environ), str(tmp_path), tmp_path / "log")  # as the next server
    assert os.waitstatus_to_exitcode(os.wait4(pid, 0)[1]) == 1
