"""Lesson 12: the command of the finale as a process that can be broken off, and its options."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tutorial_lib.errors import InputError

PR_SET_PDEATHSIG = 1
POLL_SECONDS, END_SECONDS = 0.05, 60.0


def run_command(words: Sequence[str], stop_at: Callable[[], bool] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``python -m tutorial_lib WORDS`` to its end, or press Ctrl-C as soon as ``stop_at()`` is true.

    Raises:
        RuntimeError: it ended before that.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "tutorial_lib", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Jupyter asks programs for colours; in the output of a pipe they would be signs between the words.
        env={name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "CLICOLOR_FORCE")},
        start_new_session=True,
        preexec_fn=_heed_ctrl_c_and_end_with_parent,
    )
    try:
        if stop_at is not None:
            while not stop_at():
                if process.poll() is not None:
                    raise RuntimeError(f"the command ended too early:\n{process.communicate()[1]}")
                time.sleep(POLL_SECONDS)
            os.killpg(process.pid, signal.SIGINT)  # a terminal, too, sends it to all processes of the command
        out, errors = process.communicate()
    finally:
        if process.poll() is None:  # this notebook was interrupted
            process.terminate()
            try:
                process.communicate(timeout=END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


_libc = ctypes.CDLL(None)


def _heed_ctrl_c_and_end_with_parent() -> None:
    """In the child, before the command: a killed kernel takes the command with it, and that its machines."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """What the finale understands by a command line, without running it.

    Args:
        words: those behind ``python -m tutorial_lib``.

    Raises:
        InputError: the command line would refuse them.
    """
    import typer.main

    from tutorial_lib.tools.cli import app
    from tutorial_lib.tools.cli.options import Given, check_machines

    if list(words[:1]) != ["finale"]:
        raise InputError(f"the command is {' '.join(words[:1]) or 'missing'}, not finale")
    finale = typer.main.get_command(app).commands["finale"]  # type: ignore[attr-defined]
    wrong_usage: Any = typer.BadParameter.__bases__[0]  # of click, or of the copy of click that typer carries
    try:
        options = finale.make_context("finale", list(words[1:])).params
    except typer.Exit:
        raise InputError("it would show its help and end") from None
    except wrong_usage as error:
        raise InputError(error.format_message()) from None
    check_machines(Given(**options))
    return options
