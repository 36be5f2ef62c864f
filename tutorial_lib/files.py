"""Small helpers for files: checksums, atomic JSON, and catching what C++ libraries print."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old content or the new, never a part of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w") as file:
        json.dump(value, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


@contextlib.contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Send standard output and error to a file, also what C++ code writes to the file descriptors."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(1), os.dup(2)]
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        # Under Jupyter and pytest, Python's own streams do not end at descriptors 1 and 2.
        with path.open("a") as text, contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            yield
    finally:
        for number, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, number)
            os.close(copy)
        os.close(log)


def graph_name_of(dataset_name: str) -> str:
    """A name that is fit for files and for DGL: ``../x/amazon_photo.npz`` gives ``amazon_photo``."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", Path(dataset_name).name.removesuffix(".npz")) or "graph"
