"""The tasks of ``train --task NAME``. Each module named here has a ``TASK``, a subclass of ``Task``.

Importing this package imports neither torch nor DGL, so ``--help`` does not wait for them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tutorial_lib.errors import InputError

if TYPE_CHECKING:
    from tutorial_lib.tasks.task import Task

TASKS = (
    "node",  # classify nodes by their features (the default)
    "link",  # predict edges, without labels
    "embedding",  # classify nodes of a graph without features by learnable embeddings
    "hetero",  # classify the nodes of one type in a graph with several types
)


def task_named(name: str) -> type[Task]:
    """Return the task of a module of this package, or raise an InputError."""
    check_task(name)
    return import_module(f"tutorial_lib.tasks.{name}").TASK


def check_task(name: str) -> None:
    """Raise an InputError unless there is such a task."""
    if name not in TASKS:
        raise InputError(f"there is no task {name!r}", f"Known: {', '.join(TASKS)}.")
