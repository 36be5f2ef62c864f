"""The tasks of ``train --task NAME``. Importing this package imports neither torch nor DGL, which keeps --help fast."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from tutorial_lib.errors import InputError
from tutorial_lib.trainer.config import TrainConfig


class TaskEntry(NamedTuple):
    """Where the subclass of ``Task`` is, and the data that the task needs."""

    module: str  # in this package
    subclass: str
    typed: bool = False  # several types of nodes. IDs and rows are then dictionaries by type
    features: bool = True  # ``feat`` of the nodes
    labels: bool = True  # ``label`` of the nodes, which has the classes of the data set
    classes: bool = True  # predictions are classes of the data set, and predictions.csv has their names
    masks: bool = True  # ``train_mask``, ``val_mask`` and ``test_mask``
    edge_ids: bool = False  # original IDs of the edges, which large partitions do not have
    pipeline: bool = False  # batches of ``sampling.pipeline``, from adjacency without edge IDs


TASKS = {  # the first is the default
    "node": TaskEntry("node", "NodeTask", pipeline=True),
    "link": TaskEntry("link", "LinkTask", labels=False, classes=False, masks=False, edge_ids=True),
    "embedding": TaskEntry("node", "EmbeddingTask", features=False),
    "hetero": TaskEntry("node", "HeteroTask", typed=True),
}


def check_task(name: str) -> None:
    if name not in TASKS:
        raise InputError(f"unknown task {name!r}", f"Use one of {', '.join(TASKS)}.")


def unmet_needs(task: TaskEntry, facts: Mapping[str, object]) -> list[str]:
    needs = {
        f"a graph with {'several types' if task.typed else 'one type'} of nodes": task.typed == ("target" in facts),
        "node features": task.typed or not task.features or facts["num_features"],
        "labels": not task.labels or facts["num_classes"],
        "train_mask, val_mask and test_mask": not task.masks or facts.get("masks", True),  # not in older manifests
    }
    return [need for need, met in needs.items() if not met]


def check_data(name: str, facts: Mapping[str, object]) -> None:
    """Raise an InputError if a data set, given by its ``partition.dataset_description``, does not suit the task."""
    check_task(name)
    if missing := unmet_needs(TASKS[name], facts):
        text = f"{facts['name']}: --task {name} needs {' and '.join(missing)}"
        suited = ", ".join(other for other, task in TASKS.items() if not unmet_needs(task, facts)) or "none"
        remedy = f"Tasks for this data: {suited}. A column split in nodes.csv makes masks, see docs/own-graph.md."
        raise InputError(text, remedy)


def uses_pipeline(config: TrainConfig, samplers: int = 0) -> bool:
    """Return whether trainers sample from cached adjacency, so that no server needs edge IDs."""
    return TASKS[config.task].pipeline and config.loader != "dgl" and not samplers


def get_task_class(name: str) -> Any:
    """Return the subclass of ``Task`` of a name that ``check_task`` accepts."""
    return getattr(import_module(f"tutorial_lib.tasks.{TASKS[name].module}"), TASKS[name].subclass)
