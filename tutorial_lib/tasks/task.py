"""What every task implements. docs/architecture.md shows how to add a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tutorial_lib.errors import InputError
from tutorial_lib.sampling.nodes import rows_of
from tutorial_lib.tasks.shard import Shard
from tutorial_lib.trainer.comm import accuracy, sum_over_ranks
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import OnBatch, bytes_by_place, no_events
from tutorial_lib.trainer.loop import TrainResult


class Task(ABC):
    """A model, its batches, its loss and its exact evaluation, on the shard of one process.

    A module of this folder has one subclass as its ``TASK``. All ranks create it with the same configuration, and the
    initial weights of ``model`` depend on ``config.seed`` alone.

    Attributes:
        name: name of the module, as in ``--task``.
        score_name: meaning of the scores of ``score`` and ``evaluate``.
        uses_features, uses_labels: whether the graph must have ``feat`` and ``label``.
        on_gpu: whether the model can run on a GPU.
        model: the model without DistributedDataParallel.
        batches, val: loaders of this rank for training and for validation, see ``sampling.nodes.BatchLoader``.
        embeddings: learnable embeddings by name, which are saved with the weights of the model.
        sparse_optimizers: optimizers of the embeddings.
    """

    name: ClassVar[str]
    score_name: ClassVar[str] = "accuracy"
    uses_features: ClassVar[bool] = True
    uses_labels: ClassVar[bool] = True
    on_gpu: ClassVar[bool] = True

    model: nn.Module
    batches: Any
    val: Any
    embeddings: Mapping[str, Any] = MappingProxyType({})
    sparse_optimizers: Sequence[Any] = ()

    def __init__(self, shard: Shard, config: TrainConfig) -> None:
        if shard.place.on_gpu and not self.on_gpu:
            raise InputError(f"--task {self.name} computes on the CPU", "Take --device cpu.")
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

    @property
    @abstractmethod
    def split(self) -> dict[str, int]:
        """Numbers of nodes or edges of this rank, for its event ``split``."""

    @abstractmethod
    def inputs(self, batch: Any) -> tuple[Any, ...]:
        """Read the rows of a batch and return the blocks, the rows and more on the device of the model."""

    @abstractmethod
    def loss(self, model: nn.Module, inputs: Any) -> tuple[Tensor, int]:
        """Return the mean loss over the examples of a batch, and their number."""

    @abstractmethod
    def score(self, model: nn.Module, inputs: Any) -> tuple[float, int]:
        """Return the sum of the scores of the examples of a batch, each between 0 and 1, and their number."""

    def traffic(self, batch: Any, inputs: Any) -> tuple[int, int]:
        """Return the bytes of rows that came from this machine and from other machines."""
        fetched = getattr(batch, "bytes_by_place", None)
        return fetched or bytes_by_place(self.shard.graph, batch.input_nodes, inputs[1])

    @torch.no_grad()
    def validate(self, model: nn.Module, on_batch: OnBatch = no_events, *, epoch: int = 0) -> float:
        """Return the mean score over all ranks with sampled neighbors, which is a little below the exact score."""
        model.eval()
        total = count = 0.0
        for step, batch in self.val.batches(epoch):
            score, examples = self.score(model, self.inputs(batch))
            total, count = total + score, count + examples
            on_batch(step + 1, len(self.val))
        return accuracy(*sum_over_ranks([total, count]))

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
