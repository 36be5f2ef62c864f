"""Logs, events and output of any size: what is read, how much memory it needs, and what waits for a reader."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tutorial_lib.job.display import RunDisplay
from tutorial_lib.launcher.logs import OUTPUT_BYTES, READ_BYTES, THREADS_LEFT, JobFiles, tail, uncaught_exception


@pytest.mark.parametrize(
    ("code", "lines", "cause"),
    [
        (1, ["Traceback ...", "ValueError: a mistake"], "ValueError: a mistake"),
        (1, ["Traceback ...", "torch.cuda.OutOfMemoryError: 2 GB", ""], "torch.cuda.OutOfMemoryError: 2 GB"),
        (-9, ["ValueError: handled"], None),
        (3, ["ValueError: handled"], None),
        (1, ["ValueError: handled", "going on", "bye"], None),
        (1, ["the ValueError: that was no cause"], None),
        (-6, ["KeyError: 3", THREADS_LEFT, ""], "KeyError: 3"),  # as a DGL server dies
        (-6, ["KeyError: handled", "what(): bad_alloc"], None),
    ],
)
def test_only_an_exception_at_the_end_is_a_cause(code, lines, cause):
    """L16. The last line of a log counts only with the exit code of an exception."""
    assert uncaught_exception(lines, code) == cause


MEASURE = """
import resource, sys
from pathlib import Path
from tutorial_lib.launcher.logs import tail
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
lines = tail(Path(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, len(lines), max(map(len, lines)), lines[-1][-12:])
"""


@pytest.mark.parametrize(("end", "count", "last"), [(b"line\n" * 50, 20, "line"), (b"x" * 2000, 1, "... (cut here)")])
def test_the_end_of_a_log_of_a_gigabyte_needs_no_memory(tmp_path, end, count, last):
    log = tmp_path / "server-0.log"
    with log.open("wb") as file:
        file.truncate(1 << 30)  # zeros that need no room on the disk: one line
        file.seek(0, os.SEEK_END)
        file.write(end)
    done = subprocess.run([sys.executable, "-c", MEASURE, str(log)], capture_output=True, text=True, timeout=60)
    kilobytes, lines, longest, shown = done.stdout.split(maxsplit=3)
    assert int(kilobytes) < 20_000
    assert (int(lines), shown.strip()) == (count, last[-12:])
    assert int(longest) < 1100
    assert tail(tmp_path / "none.log") == []


def test_all_events_are_read_once(tmp_path):
    """L23. Lines of other kinds, huge lines and half lines do no harm."""
    path, files, found = tmp_path / "events-0.jsonl", JobFiles(tmp_path), []
    with path.open("wb") as file:
        file.write(b'{"kind": "step"}\n' * 100_000)
        file.write(b'{"kind": "huge", "text": "' + b"h" * 3 * READ_BYTES + b'"}\n')
        file.write(b'{"kind": "failure"}\nno event\n{"kind": "half')
    for _ in range(10):
        found += files.events()
    assert [event["kind"] for event in found] == ["step"] * 100_000 + ["failure"]
    with path.open("ab") as file:
        file.write(b'", "a": 1}\n')
    assert [event["kind"] for event in files.events()] == ["half"]


# --- output of the trainers


def write(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_whole_lines_from_now_on_and_the_rest_at_the_end(tmp_path):
    log = tmp_path / "trainer-1.log"
    log.write_text("of an earlier job\n")
    files = JobFiles(tmp_path)
    assert list(files.output()) == []
    write(log, "one\n\ntwo\n 10%\r 20%\r100%\r\nhal")
    write(tmp_path / "trainer-0.log", "other\n")
    write(tmp_path / "server-0.log", "not shown\n")
    assert list(files.output()) == [
        {"trainer": 0, "lines": ["other"], "skipped": 0},
        {"trainer": 1, "lines": ["one", "", "two", "100%"], "skipped": 0},
    ]
    write(log, "f")
    assert list(files.output(rest=True)) == [{"trainer": 1, "lines": ["half"], "skipped": 0}]


@pytest.mark.parametrize(("count", "width"), [(150, 1), (201, 300), (900_000, 1)])
def test_of_a_burst_the_end_is_shown_and_the_bytes_before_are_counted(tmp_path, count, width):
    """L23. A program that prints faster than a terminal can show holds nobody up."""
    log, files = tmp_path / "trainer-0.log", JobFiles(tmp_path)
    write(log, "".join(f"{k} {'x' * width}\n" for k in range(count)))
    [output] = files.output()
    assert output["skipped"] == max(0, log.stat().st_size - OUTPUT_BYTES)
    assert output["lines"][-1].startswith(f"{count - 1} x")
    assert output["skipped"] + sum(len(line) + 1 for line in output["lines"]) == log.stat().st_size


def test_a_giant_line_is_cut(tmp_path):
    """L23. A line that is longer than what is shown does not stop the output."""
    log, files = tmp_path / "trainer-0.log", JobFiles(tmp_path)
    write(log, "x" * 3_000_000)
    [output] = files.output(rest=True)
    assert output["lines"] == ["x" * 1000 + " ... (cut here)"]


def test_on_a_terminal_machine_and_trainer_stand_in_front_in_a_color():
    screen = io.StringIO()
    display = RunDisplay(Console(file=screen, force_terminal=True, color_system="standard", width=100))
    display.on_event({"kind": "output", "machine": "machine-1", "trainer": 0, "lines": ["a [b]"], "skipped": 1200})
    first, second = screen.getvalue().splitlines()
    assert first.startswith("\x1b[")
    assert first.endswith("... 1,200 bytes are in the log only")
    assert "[machine-1 0] " in second
    assert second.endswith("a [b]")
