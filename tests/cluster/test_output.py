"""What trainers print, as it is passed on: whole lines, of a progress bar the last state, not more than is useful."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from tutorial_lib.cluster import logs
from tutorial_lib.cluster.logs import LINES_PER_SECOND, OutputFiles
from tutorial_lib.job.display import RunDisplay


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The time, as ``OutputFiles`` sees it."""
    now = [1000.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    return now


def write(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_whole_lines_from_now_on_and_the_rest_at_the_end(tmp_path):
    log = tmp_path / "trainer-1.log"
    log.write_text("of an earlier job\n")
    files = OutputFiles(tmp_path)
    assert list(files.new()) == []
    write(log, "one\n\ntwo\n 10%\r 20%\r100%\r\nhal")
    write(tmp_path / "trainer-0.log", "other\n")
    write(tmp_path / "server-0.log", "not shown\n")
    assert list(files.new()) == [
        {"trainer": 0, "lines": ["other"], "skipped": 0},
        {"trainer": 1, "lines": ["one", "", "two", "100%"], "skipped": 0},
    ]
    assert list(files.new()) == []
    write(log, "f")
    assert list(files.new(rest=True)) == [{"trainer": 1, "lines": ["half"], "skipped": 0}]


@pytest.mark.parametrize(
    "last",
    [
        "[13:34:41] /opt/dgl/src/rpc/rpc.cc:301: \nUser pressed Ctrl+C, Exiting\n",
        "terminate called without an active exception\n",
        "LIBXSMM_VERSION: main_stable-1.17-3651 (25693763)\nLIBXSMM_TARGET: spr\nCommand: python x.py\nUptime: 9.6 s\n",
    ],
)
def test_last_words_of_a_process_that_a_signal_ends_are_not_shown(last, tmp_path):
    log, files = tmp_path / "trainer-0.log", OutputFiles(tmp_path)
    write(log, "mine: terminate called without an active exception\n" + last)
    shown = {"trainer": 0, "lines": ["mine: terminate called without an active exception"], "skipped": 0}
    assert list(files.new()) == [shown]
    write(log, "Uptime: 9.7 s\n")
    assert list(files.new(rest=True)) == []
    assert last in log.read_text()


def test_of_a_burst_the_first_and_the_last_lines_are_shown(tmp_path, clock):
    """A million lines at once, then some more each tenth of a second: each is shown or counted, once."""
    log, files = tmp_path / "trainer-0.log", OutputFiles(tmp_path)
    write(log, "".join(f"{k}\n" for k in range(1_000_000)))
    first, last = files.new()
    half = LINES_PER_SECOND // 2
    assert first == {"trainer": 0, "lines": [str(k) for k in range(half)], "skipped": 0}
    assert last["lines"] == [str(k) for k in range(1_000_000 - half, 1_000_000)]
    assert last["skipped"] == 1_000_000 - LINES_PER_SECOND
    shown = skipped = 0
    for second in range(10):
        clock[0] += 0.1
        write(log, "".join(f"{second} {k}\n" for k in range(100)))
        for piece in files.new():
            shown, skipped = shown + len(piece["lines"]), skipped + piece["skipped"]
    assert shown + skipped == 1000
    assert shown == LINES_PER_SECOND
    assert list(files.new()) == []
    clock[0] += 1
    write(log, "x" * 3_000_000)
    ((line,),) = [piece["lines"] for piece in files.new(rest=True)]
    assert line.startswith("x" * 1000)
    assert len(line) < 1100


@pytest.mark.parametrize("lines", [150, 201, 3000, 30_000])
@pytest.mark.parametrize("width", [1, 300, 20_000])
def test_each_line_of_a_burst_is_whole_and_counted_once(tmp_path, clock, lines, width):
    """Short and wide ones, at once and with some room used up; what is shown are lines of the file, in their order."""
    log, files = tmp_path / "trainer-0.log", OutputFiles(tmp_path)
    lines = min(lines, 60_000_000 // width)
    for start in (0, 30, 30 + lines):
        count = 30 if start == 0 else lines
        write(log, "".join(f"{k} {'x' * width}\n" for k in range(start, start + count)))
        next_line, shown = start, 0
        pieces = list(files.new(rest=True))
        for piece in pieces:
            next_line += piece["skipped"]
            for line in piece["lines"]:
                assert line.startswith(f"{next_line} x")
                next_line, shown = next_line + 1, shown + 1
        assert next_line == start + count
        assert shown <= LINES_PER_SECOND
        if width < 1000:
            assert pieces[0]["lines"][0] == f"{start} {'x' * width}"
        clock[0] += 0.3


def test_on_a_terminal_machine_and_trainer_stand_in_front_in_a_colour():
    screen = io.StringIO()
    display = RunDisplay(0, Console(file=screen, force_terminal=True, color_system="standard", width=100))
    display.on_event({"kind": "output", "machine": "machine-1", "trainer": 0, "lines": ["a [b]"], "skipped": 1200})
    first, second = screen.getvalue().splitlines()
    assert first.startswith("\x1b[")
    assert first.endswith("... 1,200 lines are in the log only")
    assert "[machine-1 0] " in second
    assert second.endswith("a [b]")
