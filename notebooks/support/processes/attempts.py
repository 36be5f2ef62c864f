"""Collect what child processes write to standard error."""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator


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
