"""Run calls that may fail, and print their error messages without the parts that differ between runs."""

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from tutorial_lib.errors import InputError

Rules = tuple[tuple[str, str], ...]
ERRORS: Rules = (
    (r'File "[^"]*/ipykernel_\d+/\d+\.py", line \d+', 'File "a cell"'),
    (r'File "(?:[^"]*/)?([^"/]+/[^"/]+)", line \d+', r'File "\1"'),
    (r"(Current thread|Thread) 0x[0-9a-f]+", r"\1"),
    (r" at 0x[0-9a-f]+", ""),
    (r"The server socket has failed to bind to \[::\].*?\)\. ", ""),  # on computers with IPv6
    (r"(\[[\d.:]+\]|0\.0\.0\.0):\d+", r"\1:PORT"),
)


def plain(text: str, rules: Rules = ERRORS) -> str:
    """Return a message without folders, lines, threads, ports and addresses, which differ between machines or runs."""
    for pattern, words in rules:
        text = re.sub(pattern, words, text)
    return text


def attempt(call: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Print the result of a call, or the message and the remedy of its error."""
    try:
        print("returned", call(*args, **options))
    except Exception as error:
        print(f"{type(error).__name__}: {plain(str(error))}")
        if isinstance(error, InputError):
            print("what to do:", error.remedy)


@contextlib.contextmanager
def stderr_of_children() -> Iterator[list[str]]:
    """Collect the lines that child processes write to standard error, without the colors of Python 3.13."""
    lines: list[str] = []
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            text = file.read().decode(errors="replace")
            lines += re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()
