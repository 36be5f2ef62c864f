"""The tasks of ``train --task NAME``. Importing this package imports neither torch nor DGL, which keeps --help fast."""

from importlib import import_module
from typing import Any

from tutorial_lib.errors import InputError

TASKS = ("node", "link", "embedding", "hetero")  # modules of this package, the first is the default


def check_task(name: str) -> None:
    """Raise an InputError unless there is such a task."""
    if name not in TASKS:
        raise InputError(f"there is no task {name!r}", f"Known: {', '.join(TASKS)}.")


def task_named(name: str) -> Any:
    """Return the subclass of ``Task`` that is called ``TASK`` in the module of this name, or raise an InputError."""
    check_task(name)
    return import_module(f"tutorial_lib.tasks.{name}").TASK
