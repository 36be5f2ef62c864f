"""The memory that this process may still use."""

import contextlib
import resource
from pathlib import Path

import psutil

from tutorial_lib.errors import InputError


def free_in_group(group: Path) -> int:
    """Return the free bytes of a control group. Cached files count as free, because the kernel can drop them."""
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    used = int((group / "memory.current").read_text()) - int(stat.get("inactive_file", 0))
    return max(0, int((group / "memory.max").read_text()) - used)


def free_memory() -> int:
    """Return the minimum of the free bytes of the machine, of its container and below ``ulimit -v``."""
    free = psutil.virtual_memory().available
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        free = min(free, max(0, limit - psutil.Process().memory_info().vms))
    with contextlib.suppress(OSError, ValueError):  # the file of a container without a limit contains "max"
        free = min(free, free_in_group(Path("/sys/fs/cgroup")))
    return free


def not_enough_memory(path: Path | str) -> InputError:
    """Return the error for a file with more content than free memory, such as a zip bomb."""
    text = f"{path}: the content does not fit in memory ({free_memory() / 1e9:.1f} GB is free)"
    return InputError(text, "Leave rows or columns out, or use a computer with more memory.")


def memory_for_us() -> int:
    """Return the bytes that this process uses, plus 80 % of the free memory of the computer or its container."""
    return psutil.Process().memory_info().rss + int(0.8 * free_memory())
