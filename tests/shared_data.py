"""Where the real data for tests lies. It is no part of the repository: a test that needs it skips without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def shared_data(*parts: str) -> Path:
    """A file or folder of the shared test data; skips the calling test where it is not there.

    Looked up below the environment variable TUTORIAL_SHARED_DATA, else in ``shared/data`` beside the repository.
    What comes back may be read-only: copy it where a loader writes beside it.
    """
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    path = Path(os.environ.get("TUTORIAL_SHARED_DATA") or beside).joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs {path}, which is not on this machine (set TUTORIAL_SHARED_DATA to the data folder)")
    return path
