"""Download a zip file."""

from __future__ import annotations

import contextlib
import sys
import zipfile
from pathlib import Path

from tutorial_lib.data.cache import temporary_beside
from tutorial_lib.errors import InputError


def download_zip(url: str, target: Path, remedy: str) -> None:
    """Download a zip file and check it. ``target`` appears when it is complete. An existing ``target`` is kept.

    Raises:
        InputError: the download failed.
    """
    from dgl.data.utils import download

    with temporary_beside(target) as folder:
        if target.exists():  # another process was faster
            return
        try:
            with contextlib.redirect_stdout(sys.stderr):
                download(url, path=str(folder / target.name), retries=1)
            with zipfile.ZipFile(folder / target.name) as archive:
                if damaged := archive.testzip():
                    raise zipfile.BadZipFile(f"{damaged} is damaged")
            (folder / target.name).rename(target)
        except Exception as error:  # requests, zipfile and zlib each have their own errors
            raise InputError(f"download of {url} failed: {' '.join(str(error).split())}", remedy) from error
