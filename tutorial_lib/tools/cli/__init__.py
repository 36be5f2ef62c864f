"""``python -m tutorial_lib`` with its commands. Exit codes: 0 done, 1 failed, 2 wrong arguments, 130 interrupted.

SIGTERM and SIGHUP (the terminal or the login has ended) stop a command like Ctrl-C, with the exit codes 143 and 129.
Under ``nohup`` a command ignores SIGHUP. A closed output, as in ``... | head -1``, does not stop a job.
"""

from __future__ import annotations

import errno
import resource
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from tutorial_lib.errors import InputError, TutorialError
from tutorial_lib.job.display import human_bytes
from tutorial_lib.job.launch import spread_extra_envs
from tutorial_lib.launcher.signals import how_it_was_ended
from tutorial_lib.tools.cli import jobs, machines, planning, preparing, submit  # noqa: F401  each adds its commands
from tutorial_lib.tools.cli.options import run
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
    """Run a command and exit. Every failure prints a sentence and has an exit code.

    Args:
        arguments: the words after ``python -m tutorial_lib``, by default those of this process.
    """
    heed_signals()
    jobs.RUNNING.clear()
    if sys.stdout is sys.__stdout__:  # a notebook or a test may have replaced the streams
        sys.stdout, sys.stderr = lasting_stream(sys.stdout, 1), lasting_stream(sys.stderr, 2)
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["launch"]:
        words = spread_extra_envs(words)
    try:
        check_removed_options(words)
        check_address_space(words)
        run(words)
        sys.exit(0)
    except (TutorialError, UnicodeError, OSError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        failure = explain_exception(error)
        print_failure(failure)
        sys.exit(failure.exit_code)
    except KeyboardInterrupt:
        report_end(130)
        sys.exit(130)
    except SystemExit as end:
        report_end(end.code)
        raise
    finally:
        if lost := lost_output():
            print(f"warning: a part of the output could not be written: {lost}", file=sys.stderr)


def explain_exception(error: Exception) -> TutorialError:
    """Return an exception of Python or the operating system as a sentence with a remedy."""
    if isinstance(error, TutorialError):
        return error
    if isinstance(error, MemoryError | RuntimeError):
        limit = address_space()
        size = f"; this shell allows {human_bytes(limit)} of addresses to a process (ulimit -v)" if limit else ""
        return TutorialError(f"not enough memory{size}", "Use a smaller graph (--scale), or raise the limit.")
    if isinstance(error, UnicodeError):
        text = f"a name that this locale cannot write: {getattr(error, 'object', '')!r}"
        return TutorialError(text, "Set LC_ALL=C.UTF-8, or choose names of plain letters.")
    assert isinstance(error, OSError)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "Free space there, or use another folder (--out, --root)." if full else ""
    return TutorialError(f"{error.filename or 'operating system'}: {error.strerror or error}", remedy)


def report_end(code: object) -> None:
    """Print why a signal ended the command, and the command that continues its run."""
    if how := how_it_was_ended(code):
        print(how, file=sys.stderr)
        if command := jobs.command_to_continue():
            print(f"to continue: {command}", file=sys.stderr)


def check_removed_options(words: Sequence[str]) -> None:
    """Raise an InputError that names the alternative if a command line contains an option of an earlier version."""
    for word in words[1:]:
        commands, alternative = REMOVED_OPTIONS.get(word.partition("=")[0], ((), ""))
        if words[0] in commands:
            raise InputError(f"{word.partition('=')[0]} was removed", alternative)


def address_space() -> int | None:
    """Return the bytes of addresses that this process may have (``ulimit -v``), or None without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def check_address_space(words: Sequence[str]) -> None:
    """Raise an InputError if this process cannot import torch. The C++ code would abort without a message."""
    limit = address_space()
    if limit is not None and limit < LEAST_ADDRESSES and {*words[:1]} & WITH_TORCH and "--help" not in words:
        message = f"this shell allows {human_bytes(limit)} of addresses to a process (ulimit -v {limit >> 10})"
        remedy = "Raise the limit: ulimit -v unlimited. To limit memory, use a control group (systemd-run)."
        raise InputError(f"{message}; torch and DGL need {human_bytes(LEAST_ADDRESSES)}", remedy)


def heed_signals() -> None:
    """Let SIGINT, SIGTERM and SIGHUP unwind this program, unless the parent process has made it ignore them.

    A signal during an import waits for its end, because packages catch exceptions around their imports and the signal
    would be lost.
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
            # A second SIGTERM ends the process at once. A second SIGHUP does not, because the shell and the kernel
            # each send one when a terminal is closed.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)
