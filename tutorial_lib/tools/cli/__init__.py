"""``python -m tutorial_lib`` with its commands. Exit codes: 0 done, 1 failed, 2 wrong arguments, 130 interrupted.

SIGTERM and SIGHUP (the terminal or the login has ended) stop a command like Ctrl-C, with the exit codes 143 and 129.
Under ``nohup`` a command ignores SIGHUP. A closed output, as in ``... | head -1``, does not stop a job.
"""

import errno
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from tutorial_lib.errors import TutorialError
from tutorial_lib.launcher.failure import how_it_was_ended
from tutorial_lib.tools.cli import jobs, machines, preparing, submit  # noqa: F401  each adds its commands
from tutorial_lib.tools.cli.options import run
from tutorial_lib.tools.terminal import lasting_stream, print_failure, warn_of_lost_output

RETRY_SECONDS = 0.05


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit. Every failure prints a sentence and has an exit code."""
    heed_signals()
    jobs.RUNNING.clear()
    if sys.stdout is sys.__stdout__:  # a notebook or a test may have replaced the streams
        sys.stdout, sys.stderr = lasting_stream(sys.stdout, 1), lasting_stream(sys.stderr, 2)
    words = list(sys.argv[1:] if arguments is None else arguments)
    code: object = 0
    try:
        run(words)
    except (TutorialError, UnicodeError, OSError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        failure = explain_exception(error)
        print_failure(failure)
        code = failure.exit_code
    except KeyboardInterrupt:
        code = 130
    except SystemExit as end:
        code = end.code
    if how := how_it_was_ended(code):
        print("\n".join([how, *jobs.commands_to_continue()]), file=sys.stderr)
    warn_of_lost_output()
    sys.exit(code)


def explain_exception(error: Exception) -> TutorialError:
    """Return an exception of Python or the operating system as a sentence with a remedy."""
    if isinstance(error, TutorialError):
        return error
    if isinstance(error, UnicodeError):
        text = f"a name that this locale cannot write: {getattr(error, 'object', '')!r}"
        return TutorialError(text, "Set LC_ALL=C.UTF-8, or choose names of plain letters.")
    if isinstance(error, OSError):
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "Free space there, or use another folder (--out, --root)." if full else ""
        return TutorialError(f"{error.filename or 'operating system'}: {error.strerror or error}", remedy)
    return TutorialError("not enough memory", "Use a smaller graph (--scale), or raise the limit (ulimit -v).")


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
