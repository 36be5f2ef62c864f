"""``python -m tutorial_lib``: every command. Exit codes: 0 done, 1 failed, 2 wrong arguments, 130 interrupted."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from tutorial_lib.cli import fetching, finale, launching, preparing, training  # noqa: F401  each adds its commands
from tutorial_lib.cli.app import app
from tutorial_lib.display import print_failure
from tutorial_lib.errors import TutorialError

INTERRUPTED, TERMINATED = 130, 128 + signal.SIGTERM


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; every failure ends in a sentence and an exit code.

    Args:
        arguments: what stands behind ``python -m tutorial_lib``; None for those of this process.
    """
    signal.signal(signal.SIGTERM, _end_on_sigterm)
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] == ["launch"]:
        from tutorial_lib.launching import spread_extra_envs

        arguments = spread_extra_envs(arguments)
    try:
        app(arguments)
    except TutorialError as error:
        print_failure(error)
        sys.exit(error.exit_code)
    except OSError as error:
        print_failure(TutorialError(f"{error.filename or 'operating system'}: {error.strerror or error}"))
        sys.exit(1)
    except SystemExit as end:
        if end.code in (INTERRUPTED, TERMINATED):
            how = "interrupted" if end.code == INTERRUPTED else "told to end (SIGTERM)"
            print(f"{how}; everything that was started has been stopped", file=sys.stderr)
        raise


def _end_on_sigterm(*_args: object) -> None:
    """Unwind like Ctrl-C, so that every machine is stopped; a second signal ends at once."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(TERMINATED)
