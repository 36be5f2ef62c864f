"""The tasks of ``train --task NAME``. Importing this package imports neither torch nor DGL, which keeps --help fast."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from tutorial_lib.errors import InputError


class TaskEntry(NamedTuple):
    """Where the subclass of ``Task`` is, and the data that the task needs."""

    module: str  # in this package
    subclass: str
    typed: bool = False  # several types of nodes. IDs and rows are then dictionaries by type
    features: bool = True  # ``feat`` of the nodes
    labels: bool = True
    masks: bool = True  # ``train_mask``, ``val_mask`` and ``test_mask``


TASKS = {  # the first is the default
    "node": TaskEntry("node", "NodeTask"),
    "link": TaskEntry("link", "LinkTask", labels=False, masks=False),
    "embedding": TaskEntry("node", "EmbeddingTask", features=False),
    "hetero": TaskEntry("node", "HeteroTask", typed=True),
}


def check_task(name: str) -> None:
    if name not in TASKS:
        raise InputError(f"unknown task {name!r}", f"Use one of {', '.join(TASKS)}.")


def check_data(name: str, facts: Mapping[str, object]) -> None:
    """Raise an InputError if a data set, given by its ``partition.dataset_description``, does not suit the task."""
    check_task(name)
    task = TASKS[name]
    needs = {
        f"a graph with {'several types' if task.typed else 'one type'} of nodes": task.typed == ("target" in facts),
        "node features": task.typed or not task.features or facts["num_features"],
        "labels": not task.labels or facts["num_classes"],
        "train_mask, val_mask and test_mask": not task.masks or facts.get("masks", True),  # not in older manifests
    }
    if missing := [need for need, met in needs.items() if not met]:
        text = f"{facts['name']}: --task {name} needs {' and '.join(missing)}"
        remedy = "--task hetero takes several types, embedding needs no features, and link needs no labels or masks."
        raise InputError(text, f"{remedy} A column split in nodes.csv makes masks, see docs/own-graph.md.")


def get_task_class(name: str) -> Any:
    """Return the subclass of ``Task`` of a name that ``check_task`` accepts."""
    return getattr(import_module(f"tutorial_lib.tasks.{TASKS[name].module}"), TASKS[name].subclass)
