"""The largest memory of this process during a step, as the kernel remembers it."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path


class PeakMemory:
    """In a ``with`` block; afterwards ``peak`` is this process's largest resident memory in it, in bytes.

    The kernel's high-water mark is set back to the present size first. Where it refuses, ``peak`` also covers the time
    before the block. Processes of machines are not included; ``result.json`` has those as ``peak_rss``.
    """

    peak = 0

    def __enter__(self) -> PeakMemory:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        return self

    def __exit__(self, *_exc: object) -> None:
        match = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), flags=re.MULTILINE)
        self.peak = int(match[1]) * 1024 if match else 0
