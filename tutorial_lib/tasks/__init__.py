"""What can be learned: ``train --task NAME``. Each task is a module of this folder with a ``TASK``, a ``TaskSpec``.

Importing this module imports no torch and no DGL; the command line's help does not wait for them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tutorial_lib.errors import InputError

if TYPE_CHECKING:
    from tutorial_lib.tasks.task import TaskSpec

TASKS = (
    "node",  # classes of nodes from their features (the default)
    "link",  # which edges there are; node embeddings without labels
    "embedding",  # classes of nodes of a graph without features: the inputs are learned
    "hetero",  # classes of the nodes of one type, in a graph with several types
)


def task_named(name: str) -> TaskSpec:
    """The task of a module of this folder.

    Raises:
        InputError: there is no such task.
    """
    check_task(name)
    return import_module(f"tutorial_lib.tasks.{name}").TASK


def check_task(name: str) -> None:
    """Raise an InputError unless there is such a task."""
    if name not in TASKS:
        raise InputError(f"there is no task {name!r}", f"Known: {', '.join(TASKS)}.")
