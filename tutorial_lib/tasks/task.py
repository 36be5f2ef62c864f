"""What every task implements. docs/architecture.md shows how to add a task."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from tutorial_lib.batches.nodes import rows_of
from tutorial_lib.errors import InputError
from tutorial_lib.tasks.shard import Shard
from tutorial_lib.trainer import loop
from tutorial_lib.trainer.comm import accuracy, sum_over_ranks
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.loop import TrainResult


class Task(loop.Task):
    """A model, its batches, its loss and its exact evaluation, on the shard of one process.

    A module of this folder has one subclass as its ``TASK``. All ranks create it with the same configuration, and the
    initial weights of ``model`` depend on ``config.seed`` alone.

    Attributes:
        name: name of the module, as in ``--task``.
        score_name: meaning of the scores of ``score`` and ``evaluate``.
        uses_features, uses_labels: whether the graph must have ``feat`` and ``label``.
        on_gpu: whether the model can run on a GPU.
        model: the model without DistributedDataParallel.
    """

    name: ClassVar[str]
    score_name: ClassVar[str] = "accuracy"
    uses_features: ClassVar[bool] = True
    uses_labels: ClassVar[bool] = True
    on_gpu: ClassVar[bool] = True
    model: nn.Module

    def __init__(self, shard: Shard, config: TrainConfig) -> None:
        super().__init__(shard, None)
        self.shard, self.config, self.place = shard, config, shard.place

    @classmethod
    def check(cls, facts: Mapping[str, Any]) -> None:
        """Raise an InputError if the data set does not suit the task.

        Args:
            facts: the entry ``dataset`` of a partition's manifest, see ``partition.dataset_description``.
        """
        if "target" in facts:
            raise InputError(
                f"{facts['name']}: --task {cls.name} needs a graph with one type of nodes, this one has several",
                "Take --task hetero, or another data set.",
            )
        features, labels = bool(facts["num_features"]), bool(facts["num_classes"])
        if cls.uses_features and not features:
            other = "For a graph without features: --task embedding." if labels else NEITHER
            raise InputError(f"{facts['name']}: --task {cls.name} needs node features, and there are none", other)
        if cls.uses_labels and not labels:
            other = "For a graph without labels: --task link." if features else NEITHER
            raise InputError(f"{facts['name']}: --task {cls.name} needs labels, and there are none", other)

    @abstractmethod
    def evaluate(self) -> TrainResult:
        """Return the exact scores of ``model`` over all ranks. Every rank calls this method."""


NEITHER = "Add node features for --task link, or labels for --task embedding."


def split_accuracy(shard: Shard, nodes: Tensor, correct: Tensor) -> tuple[float, float]:
    """Return the accuracy on the validation and on the test nodes of all ranks, from counts summed over the ranks.

    Args:
        nodes: int64 tensor of shape (M,), nodes of this rank.
        correct: bool tensor of shape (M,).
    """
    counts: list[float] = []
    for mask in ("val_mask", "test_mask"):
        chosen = rows_of(shard.data[mask], nodes).bool()  # DGL returns masks as uint8, which would index, not select
        counts += [float((correct & chosen).sum()), float(chosen.sum())]
    val_correct, val_count, test_correct, test_count = sum_over_ranks(counts)
    return accuracy(val_correct, val_count), accuracy(test_correct, test_count)
