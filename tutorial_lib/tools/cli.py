"""``python -m tutorial_lib``. Exit codes: 0 done, 1 failed, 2 not started, 130 interrupted.

SIGTERM and SIGHUP (the terminal or the login has ended) stop a command like Ctrl-C, with the exit codes 143 and 129.
Under ``nohup`` a command ignores SIGHUP. A closed output, as in ``... | head -1``, does not stop a job.
"""

import contextlib
import io
import select
import signal
import sys
from collections.abc import Sequence
from errno import EBADF, EDQUOT, EEXIST, EIO, ENOSPC, EPIPE
from types import FrameType

from typing_extensions import Buffer

from tutorial_lib.errors import TutorialError, print_to_stderr, printable
from tutorial_lib.job.folder import continue_command
from tutorial_lib.launcher.failure import JobFailed, describe_interruption
from tutorial_lib.tools import after_job, before_job, jobs, machines, plan, submit  # noqa: F401  each adds its commands
from tutorial_lib.tools.options import run_command


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit. Every expected failure prints a sentence and has an exit code."""
    install_signal_handlers()
    jobs.STARTED_RUNS.clear()
    if sys.stdout is sys.__stdout__:  # a notebook or a test may have replaced the streams
        sys.stdout, sys.stderr = lasting_stream(sys.stdout, 1), lasting_stream(sys.stderr, 2)
    code: object = 0
    try:
        run_command(sys.argv[1:] if arguments is None else arguments)
    except TutorialError as error:
        code = print_failure(error)
    except OSError as error:
        remedy = "Use another path (--out, --root, --script)." if error.errno in (EDQUOT, EEXIST, ENOSPC) else ""
        problem = f"{error.filename or 'operating system'}: {error.strerror or error}"
        code = print_failure(TutorialError(problem, remedy))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        remedy = "Use a smaller graph (--scale), or raise the limit (ulimit -v)."
        code = print_failure(TutorialError("not enough memory", remedy))
    except KeyboardInterrupt:
        code = 130
    except SystemExit as error:
        code = error.code
    if interruption := describe_interruption(code):
        commands = [continue_command(kind, folder) for kind, folder in jobs.STARTED_RUNS.items()]
        print_to_stderr("\n".join([interruption, *(f"to continue: {command}" for command in commands if command)]))
    with contextlib.suppress(AttributeError, ValueError):
        sys.stdout.flush()
        if lost := getattr(getattr(sys.stdout.buffer, "raw", None), "lost", ""):
            print_to_stderr(f"warning: some of the output could not be written: {lost}")
    sys.exit(code)


def print_failure(error: TutorialError) -> int:
    """Print the cause, the remedy, and the log of the process that failed. Return the exit code."""
    print_to_stderr(f"error: {printable(error.message)}")
    for number, line in enumerate(printable(error.remedy).splitlines()):
        print_to_stderr(f"{'            ' if number else 'what to do: '}{line}")
    if isinstance(error, JobFailed):
        print_to_stderr("\n".join([f"log: {error.log}", *(f"  | {printable(line)}" for line in error.tail)]))
    return error.exit_code


class LastingFile(io.FileIO):
    """A file whose writes never fail, because a long job must not end when nobody reads its output any more."""

    lost = ""  # the reason if output was lost on a full disk. It stays empty if a reader or a terminal is gone

    def write(self, data: Buffer, /) -> int:
        try:
            if (written := super().write(data)) is None:  # another program made this pipe non-blocking
                select.select([], [self], [], 1.0)
                written = super().write(data)
            return written or memoryview(data).nbytes
        except OSError as error:
            if error.errno not in (EPIPE, EIO, EBADF):
                self.lost = error.strerror or str(error)
            return memoryview(data).nbytes


def lasting_stream(replaced: object, descriptor: int) -> io.TextIOWrapper:
    """Return a stream that never fails and writes any text. ``replaced`` is None for a descriptor that is closed."""
    by_line = any(getattr(replaced, name, True) for name in ("line_buffering", "write_through"))
    file = io.BufferedWriter(LastingFile(descriptor, "w", closefd=False))
    return io.TextIOWrapper(file, getattr(replaced, "encoding", "utf-8"), "backslashreplace", line_buffering=by_line)


def install_signal_handlers() -> None:
    """Let SIGINT, SIGTERM and SIGHUP unwind this program, unless the parent process has made it ignore them."""

    def handler(signum: int, frame: FrameType | None) -> None:
        # During an import, a signal would be lost, because packages catch exceptions around their imports.
        while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
            frame = frame.f_back
        if frame is not None:
            signal.signal(signal.SIGALRM, lambda _number, later: handler(signum, later))
            signal.setitimer(signal.ITIMER_REAL, 0.05)  # seconds
        elif signum == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            # A second SIGTERM ends the process. The shell and the kernel each send SIGHUP for a closed terminal.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            sys.exit(128 + signum)

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, handler)
