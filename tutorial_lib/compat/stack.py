"""Which torch and DGL this is, and what of DGL it has: the one place where the package asks about its stack.

Every module of the package may say ``import dgl``: ``tutorial_lib/__init__.py`` has made that work on any torch, see
``graphbolt_stub``. What must know whether GraphBolt is there asks ``graphbolt_problem``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

from tutorial_lib.compat import graphbolt_stub
from tutorial_lib.errors import InputError

GRAPHBOLT_REMEDY = "Use the default stack, torch 2.2.1: make run (without STACK=modern), or requirements.lock."


def import_dgl() -> ModuleType:
    """DGL, with GraphBolt where it has a library for this torch, else without.

    Raises:
        InputError: DGL is not installed, or is not one that this package can load.
    """
    graphbolt_stub.install()
    try:
        dgl = import_module("dgl")
        import_module("dgl.distributed")
    except ModuleNotFoundError as error:
        raise InputError(f"DGL cannot be imported: {error}", "pip install -r requirements.lock") from error
    return dgl


def graphbolt_problem() -> str | None:
    """Why GraphBolt is not there, one sentence; None where it is. Imports DGL."""
    import_dgl()
    module = sys.modules[graphbolt_stub.NAME]
    return module.__dict__["why_missing"] if graphbolt_stub.is_missing(module) else None


def need_graphbolt(what: str) -> None:
    """Raise an InputError that says what needs GraphBolt, and why it is not there; else nothing."""
    problem = graphbolt_problem()
    if problem is not None:
        raise InputError(f"{what} needs GraphBolt: {problem}", GRAPHBOLT_REMEDY)
