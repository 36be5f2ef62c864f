"""Signals to the command itself, as a user, a scheduler or the kernel sends them."""

import os
import signal
import subprocess
import sys
import time

import pytest
from commands import heed_ctrl_c, wait_for_event
from fault_support import CLEAN_EXIT_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("nothing_left")]
EMULATED, LOCAL = ["--emulate", "2"], ["--machines", "1"]


@pytest.mark.parametrize(
    ("machines", "sent", "code"),
    [
        (EMULATED, signal.SIGINT, 130),
        (LOCAL, signal.SIGTERM, 143),
        (EMULATED, signal.SIGHUP, 129),
        (LOCAL, signal.SIGKILL, -9),
    ],
)
def test_signals_to_the_command_end_everything(machines, sent, code, emulation, data_root, tmp_path, saw):
    arguments = ["train", *machines, "--scale", "0.005", "--epochs", "10000", "--root", str(data_root)]
    command = subprocess.Popen(
        [sys.executable, "-m", "tutorial_lib", *arguments, "--out", str(tmp_path / "run")],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        preexec_fn=heed_ctrl_c,
    )
    try:
        wait_for_event(tmp_path / "run", "epoch", command)
        start = time.monotonic()
        if sent == signal.SIGINT:
            os.killpg(command.pid, sent)  # as a terminal does: every process of the foreground group gets it
        else:
            command.send_signal(sent)
        errors = command.communicate(timeout=60)[1]
    finally:
        command.kill()
    assert command.returncode == code
    seconds = time.monotonic() - start
    assert seconds < CLEAN_EXIT_SECONDS
    lines = errors.partition("\nto continue: ")[0].splitlines()
    last = (lines or ["nothing: the command itself was killed"])[-1]
    saw(f"{sent.name} to the command, {' '.join(machines)}", last, seconds)
    if sent == signal.SIGHUP:
        assert last == "told to end (SIGHUP); everything that was started has been stopped"
    if sent == signal.SIGINT:
        assert last == "interrupted; everything that was started has been stopped"
