"""Tests of ``watchdog.py``. The programs below run in processes of their own, some of which the watchdog must end."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import watchdog

START = """
import atexit, sys, threading, time
from watchdog import Watchdog

def wait_for_a_file():
    time.sleep(6)
"""


def run(program, **variables):
    """Run a program. Return its exit code, the text on stderr, and its seconds from the first text to the end."""
    environment = {**os.environ, "PYTHONPATH": str(Path(watchdog.__file__).parent), **variables}
    pipes = {"stderr": subprocess.PIPE, "bufsize": 0, "env": environment}
    with subprocess.Popen([sys.executable, "-c", START + program], **pipes) as process:
        try:
            first, start = process.stderr.readline(), time.monotonic()
            rest = process.communicate(timeout=20)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            rest = process.communicate()[1] + b"the process did not end within 20 s"
        seconds = time.monotonic() - start
    text = (first + rest).decode()
    if "NotImplementedError" in text:  # an empty function
        raise NotImplementedError
    return process.returncode, text, seconds


def test_a_hang_ends_the_process():
    """Call report when the time limit has passed. The exit code is 1."""
    code, text, _ = run("Watchdog(0.3, grace=0.2).start()\nwait_for_a_file()", RANK="3")
    got = code, text.splitlines()[:1], "in wait_for_a_file" in text
    expected = 1, ["watchdog: rank 3 has made no progress for 0.3 s"], True
    assert got == expected


def test_report_has_the_stacks_of_all_threads(monkeypatch):
    """Use all_threads=True. Without the variable RANK, the rank is 0."""
    other = "threading.Thread(target=wait_for_a_file, daemon=True).start()\n"
    program = f"{other}Watchdog(7).report()\nprint('the end', file=sys.stderr)"
    monkeypatch.delenv("RANK", raising=False)
    code, text, _ = run(program)
    got = code, text.splitlines()[:1], "in wait_for_a_file" in text, text.count("the end")
    expected = 0, ["watchdog: rank 0 has made no progress for 7 s"], True, 1
    assert got == expected


def test_feed_keeps_the_process_alive():
    """Each feed starts the time limit again. The program runs longer than the limit, and nothing is printed."""
    program = "dog = Watchdog(1, grace=0)\ndog.start()\nfor _ in range(8):\n    time.sleep(0.2)\n    dog.feed()"
    got, expected = run(program)[:2], (0, "")
    assert got == expected


def test_stop():
    """Return from watch when stopped is set, before and after the report. The program then runs on."""
    program = "dog = Watchdog({}, grace={})\ndog.start()\ntime.sleep({})\ndog.stop()\ntime.sleep(0.8)"
    code, text, _ = run(program.format(0.4, 0.1, 0))
    got, expected = (code, text), (0, "")
    assert got == expected
    code, text, _ = run(program.format(0.2, 0.6, 0.5))
    got, expected = (code, text.count("no progress")), (0, 1)
    assert got == expected


def test_the_process_waits_for_other_reports():
    """Wait for grace seconds between the report and os._exit."""
    code, _, seconds = run("Watchdog(0.2, grace=1.0).start()\nwait_for_a_file()")
    got, expected = (code, 0.8 < seconds < 4), (1, True)
    assert got == expected


def test_a_slow_step_is_no_hang():
    """The program calls feed during the grace time and continues. The next hang is reported, too, and ends it."""
    program = "dog = Watchdog(0.5, grace=1.5)\ndog.start()\ntime.sleep(1)\ndog.feed()\n"
    code, text, _ = run(f"{program}dog.stop()\ntime.sleep(1.5)")
    got, expected = (code, text.count("no progress")), (0, 1)
    assert got == expected
    code, text, _ = run(f"{program}wait_for_a_file()")
    got, expected = (code, text.count("no progress")), (1, 2)
    assert got == expected


def test_exit_handlers_do_not_keep_the_process():
    """The program fails, and its exit handler waits, as DGL's does. Only os._exit ends such a process."""
    program = "atexit.register(wait_for_a_file)\nWatchdog(0.3, grace=0.1).start()\nraise ValueError('no label')"
    code, text, seconds = run(program)
    got, expected = (code, "no label" in text, "no progress" in text, seconds < 4), (1, True, True, True)
    assert got == expected


def test_guard():
    """Replace the three methods of the object. Each of them calls feed, and then the method with its arguments."""
    calls = []

    class Task:
        def read(self, sample):
            calls.append(f"read {sample}")
            return 2 * sample

        def evaluate(self):
            calls.append("evaluate")
            return {"val": 0.5}

        def save(self, epochs):
            calls.append(f"save {epochs}")

        def loss(self, batch):
            return batch

    task, other = Task(), Task()
    watchdog.guard(task, SimpleNamespace(feed=lambda: calls.append("feed")))
    got = task.read(4), task.loss(5), task.evaluate(), task.save(epochs=[1]), other.read(6), calls
    order = ["feed", "read 4", "feed", "evaluate", "feed", "save [1]", "read 6"]
    expected = 8, 5, {"val": 0.5}, None, 12, order
    assert got == expected
