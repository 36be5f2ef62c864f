"""Closed terminals, pipes, logins and outputs, and a locale that has only ASCII letters."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import wait_for_event, wait_until

TRAIN = ["train", "--single-process", "--scale", "0.005", "--hidden-size", "8", "--fanouts", "2,2"]


def command(root: Path, out: Path, epochs: int = 2) -> list[str]:
    return [sys.executable, "-m", "tutorial_lib", *TRAIN, f"--epochs={epochs}", f"--root={root}", f"--out={out}"]


def check_whole(out: Path) -> None:
    """Check that the run has a result and that ``events.jsonl`` contains only events."""
    assert len(json.loads((out / "result.json").read_text())["epochs"]) == 2
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert [event["epoch"] for event in events if event["kind"] == "epoch"] == [0, 1]


@pytest.mark.whole_run
@pytest.mark.parametrize(
    ("shell", "warning"),
    [
        ('"$@" | head -1; exit "${PIPESTATUS[0]}"', ""),
        ('exec "$@" <&- >&- 2>&-', ""),
        ('exec "$@" >/dev/full', "warning: some of the output could not be written: No space left on device\n"),
    ],
)
def test_unwritable_output_does_not_end_the_run(shell, warning, small_dataset, data_root, tmp_path):
    """L5. The reader is gone, descriptors 0 to 2 are closed (events.jsonl must not reuse one), or the disk is full."""
    words = ["bash", "-c", shell, "bash", *command(data_root, tmp_path / "run")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith(warning)
    assert not re.search("Traceback|BrokenPipe", done.stderr)
    check_whole(tmp_path / "run")


@pytest.mark.whole_run
@pytest.mark.parametrize("ignored", [False, True])
def test_end_of_login_session(ignored, small_dataset, data_root, tmp_path):
    """L3. One or two SIGHUP end a run with a sentence and an exit code. Under nohup, SIGHUP is ignored."""
    run = subprocess.Popen(
        command(data_root, tmp_path / "run", epochs=100_000),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL),
    )
    try:
        before = wait_for_event(tmp_path / "run", "epoch", run)
        run.send_signal(signal.SIGHUP)
        run.send_signal(signal.SIGHUP)
        if ignored:
            wait_for_event(tmp_path / "run", "epoch", run, before + 2)
            run.send_signal(signal.SIGTERM)
        errors = run.communicate(timeout=30)[1]
    finally:
        run.kill()
    name = "SIGTERM" if ignored else "SIGHUP"
    assert run.returncode == (143 if ignored else 129)
    assert f"terminated by {name}; all started processes have been stopped\n" in errors
    assert "Traceback" not in errors


SWALLOWS = """
import pathlib, time
pathlib.Path("importing").touch()
for _ in range(20):
    try:
        time.sleep(0.1)
    except BaseException:
        pass
"""
IMPORTS = """
from tutorial_lib.tools.cli import install_signal_handlers
install_signal_handlers()
import swallows
import time
time.sleep(30)
"""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_signal_during_import_is_not_lost(sent, code, tmp_path):
    """L3. Large packages have an `except:` around some of their imports."""
    (tmp_path / "swallows.py").write_text(SWALLOWS)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    program = subprocess.Popen(
        [sys.executable, "-c", IMPORTS],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a suite in the background ignores it
    )
    wait_until((tmp_path / "importing").exists, "the import", command=program)
    program.send_signal(sent)
    assert program.wait(timeout=20) == code
