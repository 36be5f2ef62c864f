"""What processes really cost: memory that several of them map must not be counted several times."""

from __future__ import annotations

import os
from pathlib import Path


def pss_of(pid: int | None = None) -> dict[str, int]:
    """Memory of a process in bytes, from ``/proc/PID/smaps_rollup`` (Linux 4.14 or newer).

    Args:
        pid: None for this process; another one must belong to the same user.

    Returns:
        ``rss``: every resident page, shared ones in full. ``pss``: each shared page divided by the number of processes
        that map it, so that the sum over processes is what they use together. ``private``: pages of this process
        alone. ``shared``: the rest.

    Raises:
        ProcessLookupError: no such process. PermissionError: another user's.
    """
    path = Path(f"/proc/{os.getpid() if pid is None else pid}/smaps_rollup")
    try:
        text = path.read_text()
    except FileNotFoundError as error:
        raise ProcessLookupError(f"no process {pid}, or no smaps_rollup in this kernel") from error
    kilobytes: dict[str, int] = {}
    for line in text.splitlines()[1:]:
        key, _, rest = line.partition(":")
        kilobytes[key] = int(rest.split()[0])
    private = sum(kilobytes.get(key, 0) for key in ("Private_Clean", "Private_Dirty", "Private_Hugetlb"))
    shared = sum(kilobytes.get(key, 0) for key in ("Shared_Clean", "Shared_Dirty", "Shared_Hugetlb"))
    values = {"rss": kilobytes["Rss"], "pss": kilobytes["Pss"], "private": private, "shared": shared}
    return {key: value * 1024 for key, value in values.items()}
