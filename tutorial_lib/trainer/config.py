"""Hyper-parameters of a run. The command line imports this module, so nothing here imports torch."""

from dataclasses import asdict, dataclass
from typing import Literal

from tutorial_lib.files import JsonObject


@dataclass(frozen=True)
class TrainConfig:
    """Hyper-parameters. The defaults are those of the two-machine run in the README.

    Attributes:
        epochs: Number of epochs.
        fanouts: Neighbors sampled per hop, outermost first, like 15,10,5. The model has as many layers as hops.
        batch_size: Seed nodes per trainer and step.
        hidden_size: Width of the hidden layers.
        learning_rate: Learning rate of Adam.
        eval_batch_size: Nodes per batch of the exact evaluation.
        task: One of node, link, embedding and hetero.
        embedding_size: Width of learnable embeddings, if a task has them.
        embedding_learning_rate: Learning rate of learnable embeddings.
        negatives: Negative nodes sampled for each edge, if a task has edges.
        loader: auto (sample ahead and cache remote rows if the task supports it) or dgl (DGL's loader).
        cache: Bytes of each trainer for rows and adjacency of other machines, in the pipeline. See the command `plan`.
        ahead: Batches that are sampled ahead of their use, in the pipeline.
    """

    epochs: int = 20
    fanouts: tuple[int, ...] = (15, 10, 5)
    batch_size: int = 1000
    hidden_size: int = 256
    dropout: float = 0.5
    learning_rate: float = 0.006
    eval_batch_size: int = 5000
    seed: int = 0
    task: str = "node"
    embedding_size: int = 64
    embedding_learning_rate: float = 0.01
    negatives: int = 1
    loader: Literal["auto", "dgl"] = "auto"
    cache: int = 256_000_000
    ahead: int = 2

    def to_dict(self) -> JsonObject:
        return {**asdict(self), "fanouts": list(self.fanouts)}

    @classmethod
    def from_dict(cls, values: JsonObject) -> "TrainConfig":
        return cls(**{**values, "fanouts": tuple(values["fanouts"])})
