"""Files that are on the disk when the call returns, and errors that name the file."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutorial_lib.files import flush, sha256_of

if TYPE_CHECKING:  # the command line reads manifests without torch
    from torch import Tensor


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write and flush a safetensors file; returns its size and SHA-256.

    Raises:
        OSError: it cannot be written; the file is named.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
        except SafetensorError as error:  # it says "... (os error 28)"
            number = re.search(r"(?:os error|code:) (\d+)", str(error))
            raise OSError(int(number[1]), os.strerror(int(number[1]))) if number else error from None
        with path.open("rb") as file:
            os.fsync(file.fileno())
        flush(path.parent)
        flush(path.parent.parent)
        return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """An OSError in the body names the file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"cannot write the checkpoint: {error.strerror}", str(path)) from None
