"""An archive from the web: whole, checked, and with its name only then."""

from __future__ import annotations

import time
import urllib.request
import zipfile
import zlib
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tqdm import tqdm

from tutorial_lib.errors import InputError, to_stderr
from tutorial_lib.files import replacing

WAIT_SECONDS = 7200.0  # for another process that downloads the same: 1.4 GB at 2 Mbit/s
SILENT_SECONDS = 60.0
LEAST_BYTES = 1 << 16  # in so many seconds; a slower server is taken for one that hangs


def _received(response: Any) -> bytes:
    """What has come; an error of the network is none of the file, which ``replacing`` would take it for."""
    try:
        return response.read1(1 << 20)
    except OSError as error:
        raise ValueError(str(error)) from error


def fetch(url: str, target: Path, steps: str) -> None:
    """Download a zip; ``target`` appears when it is complete and checked. Of two at once each has its own file.

    Args:
        steps: what to do where it fails.

    Raises:
        InputError: it failed, and left no file.
    """
    try:
        with urllib.request.urlopen(url, timeout=SILENT_SECONDS) as response:
            if urlsplit(response.geturl()).scheme == "http":  # also where https has led there
                to_stderr(f"{url} is plain HTTP: only the checksums in the archive vouch for it")
            target.parent.mkdir(parents=True, exist_ok=True)
            size = int(response.headers.get("Content-Length") or 0)
            since, received = time.monotonic(), 0
            with replacing(target) as out:
                with tqdm(total=size or None, unit="B", unit_scale=True, desc=target.name) as bar:
                    while chunk := _received(response):
                        bar.update(out.write(chunk))
                        received += len(chunk)
                        if (seconds := time.monotonic() - since) >= SILENT_SECONDS:
                            if received < LEAST_BYTES:
                                raise ValueError(f"only {received} bytes came in {seconds:.0f} s")
                            since, received = time.monotonic(), 0
                if 0 < size != out.tell():
                    raise ValueError(f"the connection ended after {out.tell()} of {size} bytes")
                with zipfile.ZipFile(out) as archive:
                    if damaged := archive.testzip():
                        raise ValueError(f"what came is no whole zip: {damaged} is damaged (checksum)")
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise InputError(f"download of {url} failed: what came is no whole zip: {error}", steps) from error
    except (OSError, ValueError, HTTPException) as error:
        raise InputError(f"download of {url} failed: {error}", steps) from error
