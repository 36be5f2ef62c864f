"""Lessons of level 3: emulated machines, or one clear message where this computer does not allow them."""

from __future__ import annotations

from tutorial_lib.cluster.emulated import EmulatedCluster, EmulationUnavailable


class StopHere(Exception):
    """Ends "Run All" with a message and without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


def start_machines(count: int) -> EmulatedCluster:
    """Emulated machines that run until they are left with ``__exit__``, or until this process ends.

    Raises:
        StopHere: the host does not allow them; the message says what is forbidden and what to change.
    """
    try:
        return EmulatedCluster(count).__enter__()
    except EmulationUnavailable as error:
        raise StopHere(f"This lesson cannot run here: {error.message}\n{error.remedy}") from None


def require_machines() -> None:
    """Switch an emulated machine on and off again.

    Raises:
        StopHere: as ``start_machines``.
    """
    start_machines(1).__exit__()
