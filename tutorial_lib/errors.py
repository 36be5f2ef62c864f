"""Errors that carry a cause and a remedy, and know their exit code.

A mistake of the user's never shows as a traceback: the command line prints
``error: <message>`` and, where there is one, ``what to do: <remedy>``.
"""

from __future__ import annotations


class TutorialError(Exception):
    """Something went wrong that we can explain.

    Args:
        message: one line that says what is wrong and where.
        remedy: what the user can do about it; may span lines, may be empty.
    """

    exit_code = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


class InputError(TutorialError):
    """A wrong argument, file or data set: found before any process was started (exit code 2)."""

    exit_code = 2


class JobError(TutorialError):
    """A job that was started and failed (exit code 1)."""

    exit_code = 1
