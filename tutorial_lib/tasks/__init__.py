"""What can be learned: ``train --task NAME``. Each task is a module of this folder with the same four names.

==========  ======================================================================  =============
node        classes of nodes from their features (the default)                      ``node``
link        which edges there are; node embeddings without labels                   ``link``
embedding   classes of nodes of a graph without features: the inputs are learned     ``embedding``
hetero      classes of the nodes of one type, in a graph with several types         ``hetero``
==========  ======================================================================  =============

Importing this module imports no torch and no DGL; the command line's help does not wait for them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from tutorial_lib.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tutorial_lib.data.base import Dataset
    from tutorial_lib.trainer.checkpoint import Checkpoints
    from tutorial_lib.trainer.config import TrainConfig
    from tutorial_lib.trainer.loop import EpochResult, TrainResult
    from tutorial_lib.trainer.placement import Placement
    from tutorial_lib.trainer.protocols import Saver
    from tutorial_lib.trainer.session import Session
    from tutorial_lib.trainer.steps import Emit

TASKS = ("node", "link", "embedding", "hetero")
_SCORES = {"link": "MRR"}


class TaskModule(Protocol):
    """What each module of this folder has.

    Attributes:
        USES_FEATURES: whether the nodes must have ``feat``; False: the data set is loaded without.
    """

    USES_FEATURES: bool

    def check(self, facts: Mapping[str, Any]) -> None:
        """Whether a data set suits the task, before anything is started.

        Args:
            facts: the ``dataset`` of a partition's manifest, ``partition.dataset_description`` makes it.

        Raises:
            InputError: it does not; the message says what is missing.
        """
        ...

    def run(
        self,
        session: Session,
        config: TrainConfig,
        partition_folder: Path,
        out: Path,
        checkpoints: Checkpoints,
        device: str = "cpu",
    ) -> None:
        """What each rank of a job does: learn, evaluate exactly, report; see ``trainer.run``."""
        ...

    def train_single(
        self,
        dataset: Dataset,
        config: TrainConfig,
        on_epoch: Callable[[EpochResult], None] = ...,
        *,
        emit: Emit = ...,
        saver: Saver | None = None,
        place: Placement = ...,
    ) -> TrainResult:
        """The same in one process, with the same task class, model and loss: what a job must agree with."""
        ...


def module_of(task: str) -> TaskModule:
    """The module that knows a task.

    Raises:
        InputError: there is no such task.
    """
    check_task(task)
    return cast(TaskModule, import_module(f"tutorial_lib.tasks.{task}"))


def check_task(task: str) -> None:
    """Raise an InputError unless there is such a task."""
    if task not in TASKS:
        raise InputError(f"there is no task {task!r}", f"Known: {', '.join(TASKS)}.")


def check_one_type(facts: Mapping[str, Any], task: str) -> None:
    """Raise an InputError for a data set with several types of nodes; ``facts`` as in ``TaskModule.check``."""
    if "target" in facts:
        raise InputError(
            f"{facts['name']}: --task {task} needs a graph with one type of nodes, this one has several",
            "Take --task hetero, or another data set.",
        )


def score_name(task: str) -> str:
    """What ``val_accuracy`` and ``test_accuracy`` of a result are: "accuracy", or "MRR" for links."""
    return _SCORES.get(task, "accuracy")
