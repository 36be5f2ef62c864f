"""A file from the web: whole, checked, and with its name only then."""

from __future__ import annotations

import os
import secrets
import time
import urllib.request
import zipfile
import zlib
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from tqdm import tqdm

from tutorial_lib.errors import InputError, to_stderr
from tutorial_lib.files import sha256_of

WAIT_SECONDS = 7200.0  # for another process that downloads the same: 1.4 GB at 2 Mbit/s
SILENT_SECONDS = 60.0
LEAST_BYTES = 1 << 16  # in so many seconds; a slower server is taken for one that hangs


def fetch(url: str, target: Path, steps: str, sha256: str | None = None) -> None:
    """Download; ``target`` appears when it is complete and checked. Two at once do not meet: each has its own file.

    Args:
        target: a ``.zip`` is checked by its own checksums where there is no other.
        steps: what to do where it fails.
        sha256: of the whole file, where it is published.

    Raises:
        InputError: it failed, and left no file; or nothing vouches for what plain HTTP brings.
    """
    part = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        with urllib.request.urlopen(url, timeout=SILENT_SECONDS) as response:
            if urlsplit(response.geturl()).scheme == "http":  # also where https has led there
                if sha256 is None and target.suffix != ".zip":
                    raise OSError("it came over plain HTTP, and nothing tells whether it is what was published")
                to_stderr(f"{url} is plain HTTP: only the checksums {'' if sha256 else 'in the archive '}vouch for it")
            target.parent.mkdir(parents=True, exist_ok=True)
            size = int(response.headers.get("Content-Length") or 0)
            _copy(response, part, size, target.name)
        _check(part, size, sha256, is_zip=target.suffix == ".zip")
        os.replace(part, target)
    except (OSError, ValueError, HTTPException) as error:
        raise InputError(f"download of {url} failed: {error}", steps) from error
    finally:
        part.unlink(missing_ok=True)


def _copy(response: object, part: Path, size: int, name: str) -> None:
    since, received = time.monotonic(), 0
    with part.open("xb") as out, tqdm(total=size or None, unit="B", unit_scale=True, desc=name) as bar:
        while chunk := response.read1(1 << 20):
            bar.update(out.write(chunk))
            received += len(chunk)
            if (seconds := time.monotonic() - since) >= SILENT_SECONDS:
                if received < LEAST_BYTES:
                    raise OSError(f"only {received} bytes came in {seconds:.0f} s")
                since, received = time.monotonic(), 0
        out.flush()
        os.fsync(out.fileno())


def _check(path: Path, size: int, sha256: str | None, *, is_zip: bool) -> None:
    """Raise an OSError unless the file is whole."""
    found = path.stat().st_size
    if 0 < size != found:
        raise OSError(f"the connection ended after {found} of {size} bytes")
    if sha256 is not None:
        if sha256_of(path) != sha256:
            raise OSError("its SHA-256 is not the published one")
    elif is_zip:
        try:
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            raise OSError(f"what came is no whole zip: {error}") from None
        if damaged is not None:
            raise OSError(f"what came is no whole zip: {damaged} is damaged (checksum)")
