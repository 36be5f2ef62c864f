"""``python -m tutorial_lib``: every command. Exit codes: 0 done, 1 failed, 2 wrong arguments, 130 interrupted.

SIGTERM and SIGHUP (the terminal or the login is gone) end a command like Ctrl-C, with 143 and 129; under ``nohup`` the
second is ignored. A closed output, as in ``... | head -1``, ends nothing: the job goes on without it.
"""

from __future__ import annotations

import errno
import resource
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from tutorial_lib.errors import InputError, TutorialError, how_it_was_ended
from tutorial_lib.job.display import human_bytes
from tutorial_lib.job.launch import spread_extra_envs
from tutorial_lib.tools.cli import jobs, machines, planning, preparing, submit  # noqa: F401  each adds its commands
from tutorial_lib.tools.cli.options import app
from tutorial_lib.tools.terminal import lasting_stream, lost_output, print_failure

RETRY_SECONDS = 0.05
LEAST_ADDRESSES = 15 << 28  # the imports of torch 2.2.1 and DGL take 3.55 GB, most of it never touched
REMOVED_OPTIONS = {  # by name: the commands that had the option, and the remedy
    "--max-memory": (
        ("partition", "train", "finale"),
        "Omit it. --method kaminpar writes one part at a time. With more --parts it needs less memory.",
    ),
    "--sampler": (
        ("train",),
        "Each node now samples its neighbors independently. A larger --cache or smaller --fanouts pull fewer rows.",
    ),
    "--batch-dependency": (("train",), "Batches are independent. A larger --cache pulls fewer rows."),
    "--trace": (("train",), "Omit it. Every run records its timeline. The command trace RUN writes it to a file."),
    "--calibrate": (("plan",), "plan measures nothing. Measure a short run instead: train --epochs 2."),
    "--no-calibrate": (("plan",), "Omit it. plan measures nothing."),
    "--slurm": (
        ("machines",),
        "python -m support.sandbox 2, in the folder notebooks, starts machines with a Slurm on them.",
    ),
    "--layers": (("plan",), "The model has one layer for each hop. Give --fanouts, such as 15,10,5."),
}
WITH_TORCH = {"doctor", "data", "partition", "plan", "train", "finale", "launch"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; every failure ends in a sentence and an exit code.

    Args:
        arguments: what stands behind ``python -m tutorial_lib``; None for those of this process.
    """
    heed_signals()
    jobs.RUNNING.clear()
    if sys.stdout is sys.__stdout__:  # not where a notebook or a test has put its own
        sys.stdout, sys.stderr = lasting_stream(sys.stdout, 1), lasting_stream(sys.stderr, 2)
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] == ["launch"]:
        arguments = spread_extra_envs(arguments)
    try:
        check_removed_options(arguments)
        check_address_space(arguments)
        app(arguments)
    except (TutorialError, UnicodeError, OSError, MemoryError, RuntimeError) as error:
        if isinstance(error, (MemoryError, RuntimeError)):
            if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
                raise
            limit = address_space()
            size = f"; this shell allows {human_bytes(limit)} of addresses to a process (ulimit -v)" if limit else ""
            error = TutorialError(f"not enough memory{size}", "Use a smaller graph (--scale), or raise the limit.")
        elif isinstance(error, UnicodeError):
            text = f"a name that this locale cannot write: {getattr(error, 'object', '')!r}"
            error = TutorialError(text, "Set LC_ALL=C.UTF-8, or choose names of plain letters.")
        elif isinstance(error, OSError):
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "Free space there, or use another folder (--out, --root)." if full else ""
            error = TutorialError(f"{error.filename or 'operating system'}: {error.strerror or error}", remedy)
        print_failure(error)
        sys.exit(error.exit_code)
    except SystemExit as end:
        if how := how_it_was_ended(end.code):
            print(how, file=sys.stderr)
            if command := jobs.command_to_continue():
                print(f"to continue: {command}", file=sys.stderr)
        raise
    finally:
        if lost := lost_output():
            print(f"warning: a part of the output could not be written: {lost}", file=sys.stderr)


def check_removed_options(arguments: Sequence[str]) -> None:
    """Raise an InputError that names the alternative if a command line contains an option of an earlier version."""
    for word in arguments[1:]:
        commands, alternative = REMOVED_OPTIONS.get(word.partition("=")[0], ((), ""))
        if arguments[0] in commands:
            raise InputError(f"{word.partition('=')[0]} was removed", alternative)


def address_space() -> int | None:
    """Bytes of addresses that this process may have (``ulimit -v``); None without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def check_address_space(arguments: Sequence[str]) -> None:
    """Raise an InputError where torch could not even be imported: C++ would abort this process without a sentence."""
    limit = address_space()
    if limit is not None and limit < LEAST_ADDRESSES and {*arguments[:1]} & WITH_TORCH and "--help" not in arguments:
        message = f"this shell allows {human_bytes(limit)} of addresses to a process (ulimit -v {limit >> 10})"
        remedy = "Raise the limit: ulimit -v unlimited. To limit memory, use a control group (systemd-run)."
        raise InputError(f"{message}; torch and DGL need {human_bytes(LEAST_ADDRESSES)}", remedy)


def heed_signals() -> None:
    """Have SIGINT, SIGTERM and SIGHUP unwind this program, unless whoever started it has them ignored.

    Not in the middle of an import: packages catch whatever is raised there and go on, and the signal would be lost.
    """

    def handler(number: int, frame: FrameType | None) -> None:
        while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
            frame = frame.f_back
        if frame is not None:
            signal.signal(signal.SIGALRM, lambda _number, later: handler(number, later))
            signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            # A second SIGTERM ends at once. A second SIGHUP does not: of a terminal that is closed, the shell and the
            # kernel each send one.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)
