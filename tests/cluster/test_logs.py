"""Logs and events of any size: what is read of them, what it costs, and what waits when nobody listens."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tutorial_lib.cluster.agent import MOST_WAITING, Agent
from tutorial_lib.cluster.channel import Channel
from tutorial_lib.cluster.failure import exit_failure, failure
from tutorial_lib.cluster.logs import THREADS_LEFT, EventFiles, tail
from tutorial_lib.cluster.messages import Failed
from tutorial_lib.cluster.plan import JobPlan
from tutorial_lib.cluster.spec import Machine


@pytest.fixture
def plan(tmp_path) -> JobPlan:
    machines = [Machine("a", "10.0.0.1"), Machine("b", "10.0.0.2")]
    return JobPlan(machines, ["x"], "p", "i", str(tmp_path), ".", 1, trainers=2).to_spec()


def cause_of(plan: JobPlan, code: int, lines: list[str]) -> str:
    message = Failed("server", 0, code, "", out_of_memory=False, tail=lines)
    return str(exit_failure(plan, 0, message)).removeprefix("server 0 on a: ")


@pytest.mark.parametrize(
    ("code", "lines", "words"),
    [
        (1, ["Traceback ...", "ValueError: a mistake"], "ValueError: a mistake (exit code 1)"),
        (1, ["Traceback ...", "torch.cuda.OutOfMemoryError: 2 GB", ""], "torch.cuda.OutOfMemoryError: 2 GB"),
        (-9, ["ValueError: handled"], "killed by signal 9 (SIGKILL)"),
        (3, ["ValueError: handled"], "exit code 3"),
        (1, ["ValueError: handled", "going on", "bye"], "exit code 1"),
        (1, ["the ValueError: that was no cause"], "exit code 1"),
        (-6, ["KeyError: 3", THREADS_LEFT, ""], "KeyError: 3 (killed by signal 6 (SIGABRT))"),  # as a DGL server dies
        (-6, ["KeyError: handled", "what(): bad_alloc"], "killed by signal 6 (SIGABRT)"),
    ],
)
def test_only_an_exception_at_the_end_is_a_cause(plan, code, lines, words):
    cause = cause_of(plan, code, lines)
    assert cause == words or (words.startswith("torch") and cause.startswith(words)), cause


MEASURE = """
import resource, sys
from pathlib import Path
from tutorial_lib.cluster.logs import tail
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
lines = tail(Path(sys.argv[1]))
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(grown, len(lines), max(map(len, lines), default=0))
"""


@pytest.mark.parametrize("newlines", [True, False])
def test_a_log_of_a_gigabyte_costs_no_memory(tmp_path, newlines):
    log = tmp_path / "trainer-0.log"
    with log.open("wb") as file:
        file.truncate(1 << 30)  # zeros that take no room on the disk: one line
        file.seek(0, os.SEEK_END)
        file.write(b"".join(b"line %d\n" % k for k in range(50)) if newlines else b"x" * 2000)
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", MEASURE, str(log)], capture_output=True, text=True, timeout=60)
    kilobytes, lines, longest = done.stdout.split()
    assert int(kilobytes) < 20_000
    assert int(lines) == (20 if newlines else 1)
    assert int(longest) < 1100
    assert time.monotonic() - start < 5


def test_the_report_cuts_long_lines_and_says_so(plan, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "server-0.log").write_text("y" * 300_000 + "\nlast\n")
    long, last = failure(plan, 0, "server", 0, "cause").tail
    assert last == "last"
    assert long.startswith("yyy")
    assert long.endswith("... (cut here)")
    assert len(long) < 1100


def test_events_are_read_in_pieces_and_all_of_them_once(tmp_path):
    path = tmp_path / "events-0.jsonl"
    line = json.dumps({"kind": "step", "text": "t" * 180}).encode() + b"\n"
    with path.open("wb") as file:
        file.write(line * 10_000)
        file.write(b'{"kind": "huge", "text": "' + b"h" * 3_000_000 + b'"}\n')
        file.write(b'{"kind": "failure"}\nno event\n{"kind": "half')
    files, found, calls = EventFiles(tmp_path), [], 0
    while calls < 100 and not (found and found[-1]["kind"] == "failure"):
        piece = list(files.new())
        assert len(piece) < 5000, "read in one piece"
        found += piece
        calls += 1
        assert files.more or found[-1]["kind"] == "failure"
    assert [event["kind"] for event in found] == ["step"] * 10_000 + ["failure"]
    with path.open("ab") as file:
        file.write(b'", "a": 1}\n')
    assert [event["kind"] for event in files.new()] == ["half"]


def test_while_nobody_reads_events_stay_in_their_files(tmp_path):
    """What waits is bounded; nothing is lost, and what matters comes in its order once somebody reads again."""
    reading, writing = os.pipe()
    machine = Machine("a", "127.0.0.1", interface="lo")
    agent = Agent(JobPlan([machine], ["x"], "p", "i", str(tmp_path), ".", 1).to_spec(), 0, Channel(reading, writing))
    text = "t" * 180
    with (tmp_path / "a" / "events-0.jsonl").open("w") as file:
        for number in range(60_000):  # some seconds of a busy job: 13 MB
            file.write(json.dumps({"kind": "step", "number": number, "text": text}) + "\n")
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(200):
        agent._forward_events()
        agent.link.put({"type": "alive"})
    assert MOST_WAITING < len(agent.link.waiting) < MOST_WAITING + (2 << 20)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 3 * MOST_WAITING / 1024
    found: list[dict] = []
    while len(found) < 60_200:
        assert time.monotonic() - start < 20
        agent._forward_events()
        agent.link.push()
        found += agent.link.take(0.1)  # from the other end of its own pipe
    assert [line["event"]["number"] for line in found if line["type"] == "Report"] == list(range(60_000))
    os.close(reading)
    os.close(writing)


def test_tail_of_what_is_not_there(tmp_path):
    assert tail(Path(tmp_path / "none.log")) == []
