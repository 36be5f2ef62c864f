"""Memory control groups: how many processes of a process's own group the kernel has ended for want of memory.

The counter of the whole computer would also count what happens to other people's processes.
"""

from __future__ import annotations

import contextlib
import functools
import re
from pathlib import Path


@functools.cache
def _hierarchy() -> tuple[str, str, Path] | None:
    """(controller in /proc/PID/cgroup, group at the mount point, mount point); version 1's memory, else version 2."""
    found: dict[str, tuple[str, str, Path]] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            fields = line.split()
            kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
            if kind == "cgroup2" or (kind == "cgroup" and "memory" in options):
                found.setdefault(kind, ("" if kind == "cgroup2" else "memory", fields[3], Path(fields[4])))
    return found.get("cgroup") or found.get("cgroup2")


def counter_of(pid: int) -> Path | None:
    """The file with the counter of a living process's group; None where the kernel or the container hides it.

    In version 2 a group may leave memory to the one above it; then that one's file.
    """
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cgroup") as file:
        return _counter_in(file.read())
    return None


@functools.lru_cache
def _counter_in(text: str) -> Path | None:
    if (hierarchy := _hierarchy()) is None:
        return None
    controller, root, mount = hierarchy
    for line in text.splitlines():
        _number, names, group = line.split(":", 2)
        with contextlib.suppress(OSError, ValueError):  # ValueError: a group that this container does not show
            if controller in names.split(","):
                folder = mount / Path(group).relative_to(root)
                for place in [folder, *folder.parents][: len(folder.parts) - len(mount.parts) + 1]:
                    for name in ("memory.oom_control", "memory.events.local", "memory.events"):
                        if (place / name).exists():
                            return place / name
    return None


def kills(counter: Path) -> int:
    """The count now; 0 when the group is gone."""
    with contextlib.suppress(OSError), counter.open() as file:
        match = re.search(r"^oom_kill (\d+)", file.read(), flags=re.MULTILINE)
        return int(match[1]) if match else 0
    return 0
