"""Link prediction as a task for ``loop.fit``: GraphSAGE embeds, a dot product says how likely an edge is.

No labels: an edge of the graph is 1, a pair with a node drawn by chance is 0 (unsupervised GraphSAGE; Hamilton, Ying
and Leskovec, 2017, with the binary cross-entropy of DGL's examples).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tutorial_lib.batches.edges import EdgeBatch, EdgeLoader, EdgeSplit, TrainingGraph
from tutorial_lib.tasks.link_scores import is_no_end, pair_loss, rank_sums, ranks_among, unit
from tutorial_lib.trainer.events import OnBatch, bytes_by_place, no_pulse
from tutorial_lib.trainer.exchange import accuracy, sum_over_ranks
from tutorial_lib.trainer.placement import CPU, Placement


@dataclass(frozen=True)
class LinkOptions:
    """What link prediction has to decide besides a ``TrainConfig``.

    Attributes:
        val, test: shares of the undirected pairs that are held out.
        epoch_edges: training edges in an epoch, of all ranks together; a graph has many more.
        validation_edges: validation edges that are ranked after an epoch, of all ranks together.
        eval_negatives: nodes against which each held-out edge is ranked; the same ones for all.
        probe_nodes: the linear probe is fitted on at most so many training nodes.
        leak: do not drop the edges of a batch from its blocks. To see what happens; never useful.
    """

    val: float = 0.05
    test: float = 0.05
    epoch_edges: int = 100_000
    validation_edges: int = 2000
    eval_negatives: int = 100
    probe_nodes: int = 20_000
    leak: bool = False

    def split(self, seed: int) -> EdgeSplit:
        """Which edges are held out."""
        return EdgeSplit(seed, self.val, self.test)


@dataclass
class LinkData:
    """What the loop reads, of a plain graph or of a distributed one.

    Attributes:
        view: the graph without its held-out edges.
        features: (N, F) float32; labels: (N,) int64; for the probe alone.
        edges: by side, int64 ids of this process's share of the edges.
        negatives: int64 (K,), the nodes that held-out edges are ranked against.
        ranks: processes that share the edges.
    """

    view: TrainingGraph
    features: Any
    labels: Any
    edges: dict[str, Tensor]
    negatives: Tensor
    ranks: int = 1
    place: Placement = CPU


def draw_negatives(num_nodes: int, count: int, seed: int) -> np.ndarray:
    """int64 (count,), original ids of different nodes, ascending; equal for equal seeds."""
    generator = np.random.Generator(np.random.PCG64([seed, 0x4E4547]))
    return np.sort(generator.choice(num_nodes, min(count, num_nodes), replace=False))


@dataclass
class LinkTask:
    """See ``loop.Task``."""

    data: LinkData
    batches: EdgeLoader
    val: EdgeLoader
    sparse_optimizers: Sequence[Any] = ()
    embeddings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def split(self) -> dict[str, int]:
        """Numbers of edges of this rank."""
        return {f"{side}_edges": len(ids) for side, ids in self.data.edges.items()}

    def prepare(self, batch: EdgeBatch) -> tuple[Any, ...]:
        """Blocks, features of the input nodes, places of the ends and of the negatives."""
        features = self.data.features[batch.input_nodes]
        return self.data.place.take(batch.blocks, features, batch.src, batch.dst, batch.negatives)

    def loss(self, model: nn.Module, prepared: tuple[Any, ...]) -> tuple[Tensor, int]:
        """Binary cross-entropy."""
        blocks, features, src, dst, negatives = prepared
        return pair_loss(unit(model(blocks, features)), src, dst, negatives), len(src)

    def traffic(self, batch: EdgeBatch, prepared: tuple[Any, ...]) -> tuple[int, int]:
        """Bytes of features from here and from other machines."""
        return bytes_by_place(self.data.view.graph, batch.input_nodes, prepared[1])

    @torch.no_grad()
    def validate(self, model: nn.Module, on_batch: OnBatch = no_pulse) -> float:
        """MRR of some validation edges, with sampled neighbours."""
        model.eval()
        sums = torch.zeros(3, dtype=torch.float64)
        for number, batch in enumerate(self.val, start=1):
            blocks, features, src, dst, negatives = self.prepare(batch)
            h = unit(model(blocks, features))
            ranks = ranks_among(h[src], h[dst], h[negatives[0]], is_no_end(negatives, src, dst))
            sums += torch.tensor(rank_sums(ranks), dtype=torch.float64)
            on_batch(number, len(self.val))
        reciprocal, _hits, count = sum_over_ranks(sums.tolist())
        return accuracy(reciprocal, count)


def link_task(data: LinkData, config: Any, options: LinkOptions) -> LinkTask:
    """The task with the batches that a ``TrainConfig`` and ``options`` say."""
    size, threads = config.batch_size, config.sampling_threads
    train = EdgeLoader(
        data.view,
        data.edges["train"],
        config.fanouts,
        size,
        negatives=config.negatives,
        per_epoch=-(-options.epoch_edges // data.ranks),
        training=True,
        leak=options.leak,
        threads=threads,
    )
    val = data.edges["val"]
    some = val[:: max(1, len(val) * data.ranks // options.validation_edges)]
    return LinkTask(
        data, train, EdgeLoader(data.view, some, config.fanouts, size, negatives=data.negatives, threads=threads)
    )
