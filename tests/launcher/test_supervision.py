"""What the coordinator and the agents conclude from what they see, without a job."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fault_support import DUMP

from tutorial_lib.job.dgl import JobPlan
from tutorial_lib.launcher import network, processes
from tutorial_lib.launcher.agent import HEARTBEAT_SECONDS, MOST_WAITING, Agent, Process
from tutorial_lib.launcher.agents import Progress
from tutorial_lib.launcher.failure import exit_failure, stall_failure
from tutorial_lib.launcher.jobspec import Machine
from tutorial_lib.launcher.messages import (
    DumpStacks,
    Failed,
    Heartbeat,
    Message,
    Pong,
    Report,
    SaveNow,
    StartRole,
    Stop,
    encode,
)
from tutorial_lib.launcher.watch import Stack


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def alive(**values) -> Heartbeat:
    return Heartbeat(**{"cpu": 0.0, "wrote": 0, "bytes_sent": 0, "time": 0.0, **values})


def test_what_counts_as_progress():
    clock = Clock()
    progress = Progress(clock)
    for message, still in [
        (alive(), 10),
        (alive(cpu=0.05, bytes_sent=500), 20),  # idle processes do that
        (alive(cpu=1.5), 0),
        (alive(wrote=1), 0),
        (alive(bytes_sent=1_000_000), 0),
        (Report({}), 0),
        (alive(), 10),
        (Pong(0.0, 0.0), 20),
    ]:
        clock.now += 10
        progress.note(0, message)
        assert progress.still_for() == still, message


def test_an_agent_that_is_silent():
    clock = Clock()
    progress = Progress(clock)
    progress.note(0, alive())
    clock.now += 20
    progress.note(1, alive())
    clock.now += 15
    assert progress.silent_agent(30) == 0
    assert progress.silent_agent(40) is None


def test_a_suspended_coordinator_blames_nobody():
    """L18. After Ctrl-Z and fg, the messages of the last minutes are still unread."""
    clock = Clock()
    progress = Progress(clock)
    progress.note(0, alive())
    clock.now += 1
    progress.tick()
    clock.now += 600
    progress.tick()
    assert progress.still_for() == 1
    assert progress.silent_agent(30) is None


@pytest.fixture
def plan(tmp_path) -> JobPlan:
    machines = [Machine("a", "10.0.0.1"), Machine("b", "10.0.0.2")]
    return JobPlan(machines, ["x"], "p", "i", str(tmp_path), ".", 1, trainers=2).to_spec()


def test_a_stall_names_who_is_stopped_else_where_everybody_waits(plan, tmp_path):
    waiting = [(0, Stack("trainer", 1, 7, "S", DUMP)), (1, Stack("server", 0, 9, "S", ""))]
    failure = stall_failure(plan, 60, waiting, tmp_path / "stacks.txt")
    assert str(failure).startswith("the job has not moved for 60 s: trainer 1 (rank 1) on a is in all_reduce")
    failure = stall_failure(plan, 60, [*waiting, (1, Stack("server", 0, 9, "T", ""))], tmp_path / "stacks.txt")
    assert "server 0 on b is stopped by a signal" in str(failure)
    assert (failure.machine, failure.role, failure.rank) == ("b", "server", None)
    assert "no process answered" in str(stall_failure(plan, 60, [], tmp_path / "stacks.txt"))


def test_a_killed_process_names_the_memory_when_the_kernel_ended_something(plan):
    failure = exit_failure(plan, 1, Failed("trainer", 1, -9, "", out_of_memory=True, tail=["x"]))
    assert str(failure).startswith("trainer 1 (rank 3) on b: killed by signal 9 (SIGKILL); the kernel ended a process")


def note_member(folder: Path, pid: int, role: str, index: int) -> None:
    """What the hook would write for a process."""
    (folder / ".processes").mkdir(exist_ok=True)
    (folder / ".processes" / f"{role}-{index}-{pid}").touch()


class Line:
    """The agent's end of its connection: the commands that the coordinator sends, and the messages that it gets."""

    def __init__(self, *commands: Message | list[Message]) -> None:
        self.commands, self.heard, self.waiting = list(commands), [], bytearray()

    def take(self, _seconds: float) -> list[dict]:
        """Return all commands at once, or one list of them at a time."""
        now = self.commands.pop(0) if self.commands and isinstance(self.commands[0], list) else self.commands
        return [{"type": "noise"}, *map(encode, now)]

    def put(self, message: dict) -> None:
        self.heard.append(message)

    def push(self, _seconds: float = 0.0) -> None:
        pass


@pytest.fixture
def quiet_agent(tmp_path) -> Agent:
    """One that has started nothing."""
    machine = Machine("here", "127.0.0.1", interface="lo")
    return Agent(JobPlan([machine], ["true"], "none.json", "", str(tmp_path), ".", 1).to_spec(), 0, Line())


def test_an_agent_answers_the_question_for_stacks_alone(quiet_agent):
    quiet_agent.link.commands = [DumpStacks()]
    quiet_agent._read_commands()
    assert quiet_agent.link.heard == [{"type": "Stacks", "stacks": []}]
    assert not quiet_agent.stopping


def test_a_killed_sampler_whose_trainer_is_gone_is_told(quiet_agent, monkeypatch):
    """An orphan comes to the agent, which has heard of several processes."""
    for role, index, pid in (("sampler", 3, 77), ("sampler", 1, 78), ("trainer", 0, 79)):
        note_member(quiet_agent.logs, pid, role, index)

    def told(pid: int, status: int) -> list[tuple[str, int, int]]:
        ended = [(pid, status, SimpleNamespace(ru_maxrss=1)), (0, 0, None)]
        monkeypatch.setattr("tutorial_lib.launcher.agent.os.wait4", lambda *_: ended.pop(0))
        quiet_agent.link.heard.clear()
        quiet_agent._reap()
        return [(message["role"], message["index"], message["code"]) for message in quiet_agent.link.heard]

    assert told(77, signal.SIGKILL) == [("sampler", 3, -signal.SIGKILL)]
    assert told(78, signal.SIGTERM) == told(79, signal.SIGKILL) == told(80, signal.SIGKILL) == []
    quiet_agent.stopping = True
    assert told(77, signal.SIGKILL) == []


def test_a_killed_sampler_is_told_before_the_trainer_that_it_takes_along(quiet_agent, monkeypatch):
    """L10. The sampler is the cause."""
    note_member(quiet_agent.logs, 77, "sampler", 0)
    quiet_agent.processes.append(Process("trainer", 0, 79))
    usage = SimpleNamespace(ru_maxrss=1)
    ended = [(79, 1 << 8, usage), (77, signal.SIGKILL, usage), (0, 0, None)]
    monkeypatch.setattr("tutorial_lib.launcher.agent.os.wait4", lambda *_: ended.pop(0))
    quiet_agent._reap()
    failures = [message for message in quiet_agent.link.heard if message["type"] == "Failed"]
    assert [(message["role"], message["code"]) for message in failures] == [("sampler", -9), ("trainer", 1)]


def test_servers_are_ready_when_their_ports_listen(quiet_agent, monkeypatch):
    """L22. The ports are read from the kernel."""
    port = quiet_agent.machine.port
    quiet_agent.roles_to_start.discard("server")
    for listening, count in [(set(), 0), ({port + 1}, 0), ({port}, 1), ({port}, 0)]:
        monkeypatch.setattr(network, "listening_ports", lambda listening=listening: listening)
        quiet_agent.link.heard.clear()
        quiet_agent._announce_listeners()
        assert [message["role"] for message in quiet_agent.link.heard] == ["server"] * count


def test_an_agent_runs_its_share_until_it_is_told_to_stop(quiet_agent, monkeypatch):
    monkeypatch.setattr(network, "listening_ports", lambda: {quiet_agent.machine.port})
    roles = [replace(role, command=["sleep", "100"]) for role in quiet_agent.spec.roles]
    quiet_agent.spec = replace(quiet_agent.spec, roles=roles)
    quiet_agent.link.commands = [[StartRole("server")], [SaveNow(), StartRole("trainer")], [], [Stop()]]
    finish = quiet_agent.logs / "finish"
    monkeypatch.setattr("tutorial_lib.launcher.agent.FINISH", finish.name)
    quiet_agent.run()
    assert finish.exists()
    assert [(p.role, p.code) for p in quiet_agent.processes] == [("server", -15), ("trainer", -15)]
    kinds = [message["type"] for message in quiet_agent.link.heard if message["type"] != "Heartbeat"]
    assert sorted(kinds) == ["Done", "Exited", "Exited", "Serving", "Started", "Started"]


@pytest.mark.parametrize(
    ("waiting", "codes", "finished"),
    [([], [0, 0], True), ([], [0, None], False), ([], [0, 1], False), (["trainer"], [0, 0], False)],
)
def test_a_machine_is_finished_when_all_processes_have_ended_well(quiet_agent, waiting, codes, finished):
    quiet_agent.roles_to_start = set(waiting)
    quiet_agent.processes = [Process("server", k, 77 + k, code) for k, code in enumerate(codes)]
    assert quiet_agent._is_finished() is finished


def test_an_agent_ends_what_hears_nothing_of_its_coordinator(quiet_agent, monkeypatch):
    """L26. The agent stops its processes by itself."""
    clock, said = [1000.0], []
    quiet_agent.spec = replace(quiet_agent.spec, silence=5.0)
    quiet_agent.last_heard = clock[0]
    monkeypatch.setattr("tutorial_lib.launcher.agent.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(quiet_agent, "_give_up", said.append)
    for seconds in (4.0, 0.9, 0.2):
        clock[0] += seconds
        assert said == []
        quiet_agent._watch_machine()
    assert said == ["heard nothing from the coordinator for 5 s"]


def test_a_second_sigterm_does_not_break_off_the_clearing_up(quiet_agent, monkeypatch):
    """L1. Slurm sends SIGTERM twice, and a killed server leaves the files of GraphBolt in /dev/shm."""
    monkeypatch.setattr(
        "tutorial_lib.launcher.agent.end_descendants", lambda _reap: signal.raise_signal(signal.SIGTERM)
    )
    before = signal.signal(signal.SIGTERM, quiet_agent.stop_on_signal)
    try:
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
        quiet_agent._leave_nothing()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert quiet_agent.link.heard[-1]["type"] == "Done"


def test_an_agent_without_a_plan_says_what_it_waited_for():
    code = "from tutorial_lib.launcher import agent; agent.PREPARE_SECONDS = 0.3; agent.main()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as waiting:
        assert waiting.wait(30) == 1
        assert waiting.stderr.read() == "waited 0.3 s for the job from the coordinator\n"


def test_bytes_are_told_with_each_word(quiet_agent, monkeypatch):
    clock, tells = [quiet_agent.next_heartbeat], []
    monkeypatch.setattr("tutorial_lib.launcher.agent.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(network, "bytes_sent", lambda _interface: tells.append(1) or 0)
    seen = []
    for seconds in (0.0, 0.1, 0.25, HEARTBEAT_SECONDS):
        clock[0] += seconds
        quiet_agent._watch_machine()
        seen.append(len(tells))
    assert seen == [1, 1, 1, 2]


def test_events_wait_in_their_files_for_a_coordinator_that_does_not_read(quiet_agent):
    """L23. The memory for waiting messages is bounded."""
    (quiet_agent.logs / "events-0.jsonl").write_text('{"kind": "joined"}\n')
    quiet_agent.link.waiting = bytearray(MOST_WAITING + 1)
    quiet_agent._forward_events()
    assert quiet_agent.link.heard == []
    quiet_agent.link.waiting = bytearray(MOST_WAITING)
    quiet_agent._forward_events()
    assert quiet_agent.link.heard == [{"type": "Report", "event": {"kind": "joined"}}]


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
def test_a_child_of_another_user_does_not_save_the_others():
    """L7. Descendants of other users are skipped."""
    done = subprocess.run([sys.executable, "-c", DESCENDANTS], capture_output=True, text=True, timeout=30)
    pid, code = done.stdout.split() or ["0", done.stderr]
    os.kill(int(pid), signal.SIGKILL)
    assert code == str(-signal.SIGTERM)


def test_who_has_ended_when_told_to_is_not_waited_for():
    """It stays a child until it is reaped."""
    code = "import subprocess\nfrom tutorial_lib.launcher import processes\nprocesses.TERM_SECONDS = 100\n"
    code += "processes.end_descendants(subprocess.Popen(['sleep', '100']).poll)"
    subprocess.run([sys.executable, "-c", code], timeout=30, check=True)


def test_a_program_that_ends_at_once_keeps_its_exit_code(monkeypatch, tmp_path):
    """L8. A dropped Popen object would collect the exit code, and the agent would wait for it forever."""

    class SlowPopen(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    monkeypatch.setattr(subprocess, "Popen", SlowPopen)
    pid = processes.start(["false"], dict(os.environ), str(tmp_path), tmp_path / "log")
    processes.start(["true"], dict(os.environ), str(tmp_path), tmp_path / "log")  # as the next server
    assert os.waitstatus_to_exitcode(os.wait4(pid, 0)[1]) == 1
