"""Logs, events and output of any size, and the memory that reading them needs."""

import os
import tracemalloc
from pathlib import Path

import pytest

from tutorial_lib.job.display import RunDisplay
from tutorial_lib.launcher import logs


@pytest.mark.parametrize(
    ("code", "lines", "cause"),
    [
        (1, ["Traceback ...", "torch.cuda.OutOfMemoryError: 2 GB", ""], "torch.cuda.OutOfMemoryError: 2 GB"),
        (3, ["ValueError: handled"], None),
        (1, ["ValueError: handled", "going on", "bye"], None),
        (-6, ["KeyError: 3", logs.THREADS_LEFT, ""], "KeyError: 3"),  # as a DGL server dies
        (-6, ["KeyError: handled", "what(): bad_alloc"], None),
    ],
)
def test_exception_at_end_of_log_is_the_cause(code, lines, cause):
    """L16. The last line of a log counts only with the exit code of an exception."""
    assert logs.uncaught_exception(lines, code) == cause


@pytest.mark.parametrize(("end", "count", "last"), [(b"line\n" * 50, 20, "line"), (b"x" * 2000, 1, "... (cut here)")])
def test_tail_of_huge_log_needs_little_memory(tmp_path, end, count, last):
    log = tmp_path / "server-0.log"
    with log.open("wb") as file:
        file.truncate(1 << 30)  # zeros that need no room on the disk: one line
        file.seek(0, os.SEEK_END)
        file.write(end)
    tracemalloc.start()
    lines = logs.read_last_lines(log)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
    assert (len(lines), lines[-1].endswith(last), max(map(len, lines)) < 1100) == (count, True, True)


def test_all_events_are_read_once(tmp_path):
    """L23. Lines of other kinds, huge lines and half lines do no harm."""
    path, files, found = tmp_path / "events-0.jsonl", logs.JobFiles(tmp_path), []
    with path.open("wb") as file:
        file.write(b'{"kind": "step"}\n' * 100_000)
        file.write(b'{"kind": "huge", "text": "' + b"h" * 3 * logs.READ_BYTES + b'"}\n')
        file.write(b'{"kind": "failure"}\nno event\n{"kind": "half')
    for _ in range(10):
        found += files.events()
    assert [event["kind"] for event in found] == ["step"] * 100_000 + ["failure"]
    with path.open("ab") as file:
        file.write(b'", "a": 1}\n')
    assert [event["kind"] for event in files.events()] == ["half"]


def write(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_follower_returns_complete_lines_and_rest_at_end(tmp_path):
    log = tmp_path / "trainer-1.log"
    log.write_text("of an earlier job\n")
    files = logs.JobFiles(tmp_path)
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


@pytest.mark.parametrize(("count", "width"), [(150, 1), (900_000, 1)])
def test_burst_of_output_is_shortened_to_its_end(tmp_path, count, width):
    """L23. A program that prints faster than a terminal can show holds nobody up."""
    log, files = tmp_path / "trainer-0.log", logs.JobFiles(tmp_path)
    write(log, "".join(f"{k} {'x' * width}\n" for k in range(count)))
    [output] = files.output()
    assert output["skipped"] == max(0, log.stat().st_size - logs.OUTPUT_BYTES)
    assert output["lines"][-1].startswith(f"{count - 1} x")
    assert output["skipped"] + sum(len(line) + 1 for line in output["lines"]) == log.stat().st_size
    write(log, "x" * 3_000_000)  # a line that is longer than what is shown
    assert [output["lines"] for output in files.output(rest=True)] == [["x" * 1000 + " ... (cut here)"]]


def test_output_lines_begin_with_machine_and_trainer(capsys):
    event = {"kind": "output", "machine": "machine-1", "trainer": 0, "lines": ["a [b]"], "skipped": 1200}
    RunDisplay().on_event(event)
    assert capsys.readouterr().out == "[machine-1 0] ... 1,200 bytes omitted, see the log\n[machine-1 0] a [b]\n"
