"""The tasks of ``train --task NAME``. Importing this package imports neither torch nor DGL, which keeps --help fast."""

from importlib import import_module
from typing import Any

from tutorial_lib.errors import InputError

# Module of this package and subclass of ``Task`` for each name. The first is the default
TASKS = {
    "node": ("node", "NodeTask"),
    "link": ("link", "LinkTask"),
    "embedding": ("node", "EmbeddingTask"),
    "hetero": ("node", "HeteroTask"),
}


def check_task(name: str) -> None:
    """Raise an InputError unless there is such a task."""
    if name not in TASKS:
        raise InputError(f"there is no task {name!r}", f"Known: {', '.join(TASKS)}.")


def task_named(name: str) -> Any:
    """Return the subclass of ``Task`` of this name, or raise an InputError."""
    check_task(name)
    module, task = TASKS[name]
    return getattr(import_module(f"tutorial_lib.tasks.{module}"), task)
