"""Decisions of the coordinator and the agents about messages and processes, without a job."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from tutorial_lib.job.dgl import DglJob
from tutorial_lib.launcher import agent, coordinator, network, processes, watch
from tutorial_lib.launcher.agent import MAX_QUEUED_BYTES, Agent, Process
from tutorial_lib.launcher.coordinator import Coordinator
from tutorial_lib.launcher.failure import JobFailed
from tutorial_lib.launcher.findings import Findings
from tutorial_lib.launcher.jobspec import Limits, Machine
from tutorial_lib.launcher.messages import Command, Done, Failed, Heartbeat, Message, Report, Stacks, StartRole

IDLE, BUSY, STEP = Heartbeat(False, 0, 0.0), Heartbeat(True, 0, 0.0), Report({"kind": "step"})


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """A fake clock of the coordinator and an agent."""
    now = [1000.0]
    fake = SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0])
    monkeypatch.setattr(coordinator, "time", fake)
    monkeypatch.setattr(agent, "time", fake)
    return now


def advance(clock: list[float], seconds: float) -> None:
    clock[0] += seconds


@pytest.fixture
def fail(clock, tmp_path) -> Callable[..., str]:
    """``fail(*periods, stall=60)`` returns the failure of a job on machines a and b, which ends after these periods.

    A period ``(count, seconds, messages)`` repeats a pause and then the messages of agents 0 and 1.
    """
    machines = [Machine("a", "10.0.0.1"), Machine("b", "10.0.0.2")]
    spec = DglJob(machines, ["x"], "p", "i", str(tmp_path), ".", 1, trainers=2).to_spec()

    def run_job(*periods: tuple[int, float, dict[int, Message]], stall: float = 60) -> str:
        remaining = [(seconds, messages) for count, seconds, messages in periods for _ in range(count)]

        def receive(_seconds: float) -> list[tuple[int, Message]]:
            seconds, messages = remaining.pop(0)
            advance(clock, seconds)
            return list(messages.items())

        fakes = {"prepare": lambda _spec: Findings(), "receive": receive, "connected": {0, 1}, "clock_offsets": [0, 0]}
        agents = SimpleNamespace(**fakes, **dict.fromkeys(["send_all", "stop", "clean_up"], lambda *_: None))
        with pytest.raises(JobFailed) as failure:
            Coordinator(agents, spec, limits=Limits(stall=stall, silence=30, serving=1e6)).run_job()  # type: ignore
        assert remaining == []
        return str(failure.value)

    return run_job


def test_silent_agent_and_stall_are_failures(fail):
    """L18. After Ctrl-Z and fg, the coordinator reads the messages of the last minutes before it reports a failure."""
    progress = [(100, 1, {0: message, 1: message}) for message in (BUSY, STEP)]
    suspended, idle = (1, 600, {0: IDLE, 1: IDLE}), (61, 1, {0: IDLE, 1: IDLE})
    failure = fail(*progress, suspended, idle, (1, 1, {0: Stacks([]), 1: Stacks([])}))
    assert failure == "the job has made no progress for 60 s: no process answered"
    assert fail(progress[0], (1, 600, {}), (31, 1, {})).startswith("agent on a: sent no message for 30 s")


def test_silent_agent_is_cause_of_stall(fail):
    """L18. The time limit of a stall can be shorter than that of silence, and the silent machine is the cause."""
    assert fail((7, 1, {}), (8, 1, {0: IDLE}), stall=6).startswith("agent on b: sent no message for 8 s")


class FakeChannel:
    """A fake connection of an agent, whose loop receives commands, or calls a function, at the start of each turn."""

    def __init__(self) -> None:
        self.steps: list[list[Message] | Callable[[], object]] = []
        self.turns: list[list[Message]] = [[]]  # messages of the agent before the first turn and in each turn
        self.waiting = bytearray()

    def receive(self, _seconds: float) -> list[Message]:
        self.turns.append([])
        step = self.steps.pop(0) if self.steps else [Command("stop")]
        return step if isinstance(step, list) else step() or []

    def put(self, message: Message) -> None:
        self.turns[-1].append(message)

    def push(self, _seconds: float = 0.0) -> None:
        pass


@pytest.fixture
def quiet_agent(tmp_path, clock, monkeypatch) -> Agent:
    """An agent without processes, which locks nothing and kills no processes of other tests."""
    monkeypatch.setattr(agent, "lock_shm", lambda _patterns: contextlib.nullcontext(tmp_path))
    monkeypatch.setattr(agent, "end_descendants", lambda reap: reap())
    machine = Machine("here", "127.0.0.1")
    return Agent(DglJob([machine], ["true"], "none.json", "", str(tmp_path), ".", 1).to_spec(), 0, FakeChannel(), [])


def run_job(quiet_agent: Agent, *steps: list[Message] | Callable[[], object]) -> list[list[Message]]:
    """Run a job with these steps and then the command to stop, and return the messages of each turn."""
    quiet_agent.channel.steps = list(steps)
    quiet_agent.run_job()
    return quiet_agent.channel.turns[1:]


def failures(turns: list[list[Message]]) -> list[list[tuple[str, int, str]]]:
    """Return role, index and cause of the failures in each turn."""
    return [[(m.role, m.local_index, m.cause) for m in turn if isinstance(m, Failed)] for turn in turns]


def test_a_killed_sampler_is_reported(quiet_agent, monkeypatch):
    """L10. The agent adopts a killed sampler before its trainer ends, and reports the sampler as the cause."""
    members = (("sampler", 3, 77), ("sampler", 1, 78), ("trainer", 0, 79), ("trainer", 1, 80))
    monkeypatch.setattr(watch, "registered_processes", lambda _logs: [watch.ProcessStack(*each) for each in members])
    quiet_agent.processes.append(Process("trainer", 0, 79))
    ended: list[tuple[int, int]] = []  # PIDs and statuses
    usage = SimpleNamespace(ru_maxrss=1)
    monkeypatch.setattr(os, "wait4", lambda *_: (*ended.pop(0), usage) if ended else (0, 0, None))
    killed, together = (77, signal.SIGKILL), [(79, 1 << 8), (77, signal.SIGKILL)]
    exits = [[killed], [(78, signal.SIGTERM)], [(80, signal.SIGKILL)], [(81, signal.SIGKILL)], together]
    steps = [partial(ended.extend, each) for each in exits]
    turns = run_job(quiet_agent, *steps, lambda: ended.append(killed) or [Command("stop")])
    sampler = ("sampler", 3, "killed by signal 9 (SIGKILL)")
    assert failures(turns) == [[sampler], [], [], [], [sampler, ("trainer", 0, "exit code 1")], []]


def test_agent_runs_its_roles_until_stop(quiet_agent, monkeypatch):
    """L22. Servers are ready when their ports listen. The ports are read from the kernel."""
    port, looks = quiet_agent.machine.port, iter([set(), {quiet_agent.machine.port + 1}])
    monkeypatch.setattr(network, "listening_ports", lambda: next(looks, {port}))
    monkeypatch.setattr(agent, "end_descendants", processes.end_descendants)
    roles = [replace(role, command=["sleep", "100"]) for role in quiet_agent.spec.roles]
    quiet_agent.spec = replace(quiet_agent.spec, roles=roles)
    finish = quiet_agent.logs / "finish"
    monkeypatch.setattr(watch, "SAVE_REQUEST_FILE", finish.name)
    turns = run_job(quiet_agent, [StartRole("server")], [Command("save"), StartRole("trainer")], [])
    assert finish.exists()
    assert [(p.role, p.code) for p in quiet_agent.processes] == [("server", -15), ("trainer", -15)]
    kinds = [m.event["kind"] if isinstance(m, Report) else type(m).__name__ for turn in turns for m in turn]
    assert sorted({*kinds}) == ["Done", "Heartbeat", "exited", "serving", "started"]
    assert (kinds.count("started"), kinds.count("exited"), kinds[-1]) == (2, 2, "Done")


def test_agent_stops_without_coordinator(quiet_agent, clock):
    """L26. The agent stops its processes by itself."""
    quiet_agent.spec = replace(quiet_agent.spec, silence=5.0)
    turns = run_job(quiet_agent, *(partial(advance, clock, seconds) for seconds in (4.0, 0.9, 0.2)))
    assert failures(turns) == [[], [], [("agent", 0, "heard nothing from the coordinator for 5 s")]]


def test_second_sigterm_does_not_interrupt_the_cleanup(quiet_agent, monkeypatch):
    """L1. Slurm sends SIGTERM twice, and a killed server leaves the files of GraphBolt in /dev/shm."""
    monkeypatch.setattr(agent, "end_descendants", lambda _reap: signal.raise_signal(signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, quiet_agent.stop_on_signal)
    try:
        with pytest.raises(SystemExit):
            run_job(quiet_agent, partial(signal.raise_signal, signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert isinstance(quiet_agent.channel.turns[-1][-1], Done)


def test_heartbeat_reports_computing_writing_and_sending(quiet_agent, clock, monkeypatch):
    """A heartbeat reports the bytes sent since the agent started, and the work since the last heartbeat."""
    signs, sent = {}, [10**9]
    quiet_agent.sent_before = 10**9
    monkeypatch.setattr(quiet_agent.health, "signs_of_life", lambda: signs)
    monkeypatch.setattr(network, "bytes_sent", lambda _interface: sent[0])

    def work(cpu: float, wrote: int, more: int) -> None:
        signs.update(cpu=cpu, wrote=wrote)
        sent[0] += more
        advance(clock, 0.6)

    works = [partial(work, *each) for each in ((0.05, 0, 500), (1.5, 0, 0), (0, 1, 0), (0, 0, 10**6))]
    turns = run_job(quiet_agent, *(step for each in works for step in (each, partial(advance, clock, 1.5))))
    found = [[(m.busy, m.bytes_sent, round(m.time, 1)) for m in turn] for turn in turns[:-1]]
    expected = [(False, 500, 1000.6), (True, 500, 1002.7), (True, 500, 1004.8), (True, 1_000_500, 1006.9)]
    assert found == [turn for beat in expected for turn in ([beat], [])]


def test_events_stay_in_files_if_coordinator_does_not_read(quiet_agent):
    """L23. The memory for waiting messages is bounded."""
    (quiet_agent.logs / "events-0.jsonl").write_text('{"kind": "joined"}\n')
    sizes = (MAX_QUEUED_BYTES + 1, MAX_QUEUED_BYTES)
    turns = run_job(quiet_agent, *(partial(setattr, quiet_agent.channel, "waiting", bytearray(n)) for n in sizes))
    assert [Report({"kind": "joined"}) in turn for turn in turns] == [False, True, False]


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
