"""Hyper-parameters of a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tutorial_lib.errors import InputError

if TYPE_CHECKING:  # the command line makes its options of this class; its help does not wait for torch
    from tutorial_lib.models.graphsage import GraphSAGE

LOADERS = ("auto", "pipeline", "dgl")


@dataclass(frozen=True)
class TrainConfig:
    """Hyper-parameters; the defaults are those of the two-machine run in the README.

    Attributes:
        fanouts: neighbours sampled per hop, outermost first, like 15,10,5; as many layers as hops.
        batch_size: seed nodes per trainer and step.
        eval_batch_size: nodes per batch of the exact evaluation.
        sampling_threads: of each trainer; with one, equal seeds draw equal batches.
        task: what is learned: node, link, embedding or hetero.
        embedding_size, embedding_learning_rate: of rows that are learned, where a task has them.
        negatives: nodes drawn against each edge, where a task has edges.
        loader: where batches come from: pipeline (made ahead, remote rows kept), dgl (DGL's loader) or auto.
        cache: bytes of each trainer for feature rows and adjacency of other machines, in the pipeline; 0: none. `plan`
            estimates how much holds everything.
        ahead: batches that are made ahead of their use, in the pipeline.
    """

    epochs: int = 20
    fanouts: tuple[int, ...] = (15, 10, 5)
    batch_size: int = 1000
    hidden_size: int = 256
    dropout: float = 0.5
    learning_rate: float = 0.006
    eval_batch_size: int = 5000
    seed: int = 0
    sampling_threads: int = 1
    task: str = "node"
    embedding_size: int = 64
    embedding_learning_rate: float = 0.01
    negatives: int = 1
    loader: str = "auto"
    cache: int = 256_000_000
    ahead: int = 2

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        return {**asdict(self), "fanouts": list(self.fanouts)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        """Inverse of ``to_dict``."""
        return cls(**{**values, "fanouts": tuple(values["fanouts"])})

    def in_pipeline(self, samplers: int = 0) -> bool:
        """Whether trainers on machines draw from lists of their own: no server then needs the number of an edge."""
        return self.task == "node" and self.loader != "dgl" and not samplers

    def model(self, in_size: int, num_classes: int) -> GraphSAGE:
        """A model whose first weights depend on ``seed`` alone, so that every rank starts with the same."""
        import torch

        from tutorial_lib.models.graphsage import GraphSAGE

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return GraphSAGE(in_size, self.hidden_size, num_classes, len(self.fanouts), self.dropout)


def check_loader(loader: str, samplers: int, cache: str) -> int:
    """Bytes of ``cache`` ("256MB", "0"); ``samplers`` is the number of sampler processes per trainer.

    Raises:
        InputError: an unknown loader, a pipeline with sampler processes, or no amount of memory.
    """
    from tutorial_lib.partition.memory import parse_memory

    if loader not in LOADERS:
        raise InputError(f"there is no loader {loader!r}", f"Known: {', '.join(LOADERS)}.")
    if loader == "pipeline" and samplers:
        raise InputError(
            f"--loader pipeline draws in a thread of the trainer and has no use for --samplers {samplers}",
            "Leave one of the two away.",
        )
    if cache == "auto":
        raise InputError("--cache auto: the cache has a fixed size", "Omit the option for 256MB. plan names a size.")
    return 0 if cache.strip() == "0" else parse_memory(cache) or 0
