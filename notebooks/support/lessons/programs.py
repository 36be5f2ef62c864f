"""Programs of this computer that some cells need, such as an ssh server."""

import os
import re

from support.sandbox import DAEMONS
from tutorial_lib.launcher.backends.persistent import find_program

PACKAGES = {"ss": "iproute2", "ps": "procps", "sshd": "openssh-server", "rsync": "rsync"}
NEEDS = re.compile(r"# needs: (.+)")

_reported: set[str] = set()


def why_not(name: str) -> str | None:
    """Return the sentence that explains why a program cannot be used here, or None if it can.

    Args:
        name: a program, or ``"Slurm"`` for a Slurm on emulated machines.
    """
    packages = PACKAGES.get(name, "slurmctld slurmd slurm-client munge")
    if not all(map(find_program, DAEMONS if name == "Slurm" else [name])):
        return f"This computer has no {name} (sudo apt install {packages}), so the cells that need {name} are skipped."
    if name == "Slurm" and os.geteuid() != 0:
        return "Slurm on emulated machines needs root, so the cells that need Slurm are skipped."
    return None


def available(name: str) -> bool:
    """Return whether a program can be used, and print the reason once if it cannot."""
    reason = why_not(name)
    if reason is not None and name not in _reported:
        _reported.add(name)
        print(reason)
    return reason is None


def skip_cells() -> None:
    """From the next cell on, skip each cell that begins with ``# needs: ps, ss`` if one of these is missing."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    assert shell is not None
    _reported.clear()
    if _without_missing not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(_without_missing)


def _without_missing(lines: list[str]) -> list[str]:
    named = NEEDS.match(lines[0]) if lines else None
    missing = [name for name in named[1].split(", ") if not available(name)] if named else []
    return [] if missing else lines
