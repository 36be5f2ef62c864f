"""``import dgl`` imports ogb, which asks the web for newer versions of itself in a thread that a process waits for.

Checked on ogb 1.3.6, whose ``ogb/version.py`` does without the package ``outdated`` where that cannot be imported. So
it cannot be while that module is being imported; for everybody else ``outdated`` is what it was. An ogb that has no
such module, or does not ask, is left alone. Standard library only, see ``graphbolt_stub``.
"""

from __future__ import annotations

import sys
from typing import Any


class Finder:
    """Refuses ``outdated`` to ``ogb.version``; leaves everything else to Python."""

    tutorial_lib_ogb_version = True  # the hook and the package load this file twice; one finder is enough

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:  # noqa: ARG002
        """Called by Python for each import of a module that is not loaded yet."""
        asking = getattr(sys.modules.get("ogb.version"), "__spec__", None)
        if name == "outdated" and getattr(asking, "_initializing", False):
            raise ModuleNotFoundError("ogb does not ask for newer versions of itself here", name=name)


def install() -> None:
    """Put the finder in front of the others; does nothing where it is there already."""
    if not any(hasattr(finder, "tutorial_lib_ogb_version") for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
