"""The memory that this process may still use, and amounts of memory as text."""

import contextlib
import re
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
    """Return the free bytes of the machine, its container or ``ulimit -v``, whichever are fewest."""
    free = psutil.virtual_memory().available
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        free = min(free, max(0, limit - psutil.Process().memory_info().vms))
    with contextlib.suppress(OSError, ValueError):  # the file of a container without a limit contains "max"
        free = min(free, free_in_group(Path("/sys/fs/cgroup")))
    return free


def not_enough_memory(path: Path | str) -> InputError:
    """Return the error for a file whose content is larger than the free memory, such as a zip bomb."""
    text = f"{path}: the content does not fit in memory ({free_memory() / 1e9:.1f} GB is free)"
    return InputError(text, "Leave rows or columns out, or use a computer with more memory.")


def parse_memory(value: str) -> int:
    """Return the bytes of ``12GB``, ``1.5GiB``, ``800M`` or ``5000``, at least 1."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)\s?(?:([KMGT])(i?))?B?", value.strip(), re.IGNORECASE)
    unit = 1024 if found and found[3] else 1000
    size = int(float(found[1]) * unit ** " KMGT".index((found[2] or " ").upper())) if found else 0
    if size == 0:
        raise InputError(f"{value!r} is not an amount of memory", "Write it like 12GB, 1.5GiB or 800MB.")
    return size


def memory_for_us() -> int:
    """Return the bytes that this process uses, plus 80 % of the free memory of the computer or its container."""
    return psutil.Process().memory_info().rss + int(0.8 * free_memory())
