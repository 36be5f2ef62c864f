"""Which torch and DGL this is, and what of DGL it has: the one place where the package asks about its stack.

Every module of the package may say ``import dgl``: ``tutorial_lib/__init__.py`` has made that work on any torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

from tutorial_lib.compat.graphbolt_stub import NAME
from tutorial_lib.errors import InputError


def import_dgl() -> ModuleType:
    """DGL, with GraphBolt where it has a library for this torch, else without.

    Raises:
        InputError: DGL is not installed, or is not one that this package can load.
    """
    try:
        dgl = import_module("dgl")
        import_module("dgl.distributed")
    except ModuleNotFoundError as error:
        raise InputError(f"DGL cannot be imported: {error}", "pip install -r requirements.lock") from error
    return dgl


def graphbolt_problem() -> str | None:
    """Why GraphBolt is not there, one sentence; None where it is. Imports DGL."""
    import_dgl()
    return sys.modules[NAME].__dict__.get("why_missing")
