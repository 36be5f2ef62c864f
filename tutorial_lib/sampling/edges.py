"""Mini-batches of edges with negative samples, from a DistGraph or a DGLGraph.

``DistEdgeDataLoader`` of DGL 2.1.0 passes the edges to exclude to the sampler, but ``DistGraph.sample_neighbors``
ignores them (lesson 03). This module looks up the source and destination nodes of a batch once and excludes edges by
their nodes:

    ids -> find_edges -> pairs and negatives -> seeds -> for each hop: sample_neighbors, drop, to_block

Every hop drops the held-out edges. During training, it also drops the pairs of the batch in both directions.

A link predictor must not see held-out edges as training examples or as neighbors in message passing. In a symmetric
graph, every edge has a reverse edge, which would reveal the answer if it belonged to another side of the split. The
side of an edge is therefore a hash of its undirected pair in original node IDs and of a seed. Every process computes
the same side, so nothing is stored or sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tutorial_lib.compat.generators import derive_seed, seed_dgl
from tutorial_lib.sampling.nodes import epoch_chunks, sampling_threads

TRAIN, VAL, TEST = 0, 1, 2
SIDES = ("train", "val", "test")
CHOICE = 2**31 - 1  # replaces the step in the seed that selects the edges of an epoch
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # constant of SplitMix64


@dataclass(frozen=True)
class EdgeSplit:
    """Split of the edges of a graph into training, validation and test edges.

    Attributes:
        seed: seed of the split.
        val, test: expected fractions of the undirected pairs. The actual fractions differ by about
            ``sqrt(fraction / pairs)``.
    """

    seed: int = 0
    val: float = 0.05
    test: float = 0.05

    def side(self, u: Tensor, v: Tensor) -> Tensor:
        """Return ``TRAIN``, ``VAL`` or ``TEST`` for each edge as a uint8 tensor of shape (E,).

        Args:
            u, v: int64 tensors of shape (E,), the two nodes of each edge in original IDs, in any order.
        """
        point = pair_hash(u, v, self.seed) * 2.0**-64  # uniform in [0, 1)
        side = (point < self.val + self.test).astype(np.uint8) + (point < self.test)
        return torch.from_numpy(side)


def pair_hash(u: Tensor, v: Tensor, seed: int) -> np.ndarray:
    """Return a hash of each undirected pair and the seed as a uint64 array of shape (E,)."""
    low, high = (ends.numpy().view(np.uint64) for ends in (torch.minimum(u, v), torch.maximum(u, v)))
    start = np.uint64((2 * seed + 1) * int(GOLDEN) % 2**64)
    return mix(mix(low + start) ^ high * GOLDEN)


def mix(x: np.ndarray) -> np.ndarray:
    """Apply the finalizer of SplitMix64 in place. Every bit of the result depends on every bit of ``x``."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    return x


@dataclass
class TrainingGraph:
    """Graph that hides its held-out edges from the sampler.

    Attributes:
        graph: ``DistGraph`` or homogeneous ``DGLGraph``.
        split: split that determines the held-out edges.
        original: int64 tensor of shape (N,), the original ID of each node of ``graph``.
    """

    graph: Any
    split: EdgeSplit
    original: Tensor

    def side(self, src: Tensor, dst: Tensor) -> Tensor:
        """Return ``EdgeSplit.side`` for edges given by the node IDs of ``graph``."""
        return self.split.side(self.original[src], self.original[dst])

    def sample_block(self, seeds: Tensor, fanout: int, drop: Tensor | None = None) -> Any:
        """Sample one hop and return a block of training edges whose destination nodes are ``seeds``.

        The sampler draws ``fanout`` edges for each seed before edges are dropped. The remaining edges are a uniform
        sample of the training edges. Their mean number is smaller than the fan-out by the held-out fraction.

        Args:
            seeds: int64 tensor of distinct node IDs.
            fanout: number of edges to sample for each seed.
            drop: sorted ``pair_keys`` of further edges to drop in both directions.
        """
        import dgl

        frontier = self.graph.sample_neighbors(seeds, fanout)
        src, dst = frontier.edges()
        keep = self.side(src, dst) == TRAIN
        if drop is not None and len(drop):
            keep &= ~contains(drop, pair_keys(src, dst, self.graph.num_nodes()))
        block = dgl.to_block(dgl.graph((src[keep], dst[keep]), num_nodes=self.graph.num_nodes()), seeds)
        block.edata[dgl.EID] = frontier.edata[dgl.EID][keep]  # to_block stores positions in its argument instead
        return block

    def sample_blocks(self, seeds: Tensor, fanouts: Sequence[int], drop: Tensor | None = None) -> list[Any]:
        """Sample all hops and return their blocks, the outermost hop first. ``seeds`` must be distinct."""
        import dgl

        blocks: list[Any] = []
        for fanout in reversed(fanouts):
            blocks.insert(0, self.sample_block(seeds, fanout, drop))
            seeds = blocks[0].srcdata[dgl.NID]
        return blocks


def pair_keys(src: Tensor, dst: Tensor, num_nodes: int) -> Tensor:
    """Return one number for each undirected pair as an int64 tensor of shape (E,)."""
    return torch.minimum(src, dst) * num_nodes + torch.maximum(src, dst)


def contains(ordered: Tensor, values: Tensor) -> Tensor:
    """Return whether each value is in a sorted tensor. ``torch.isin`` is slower because it would sort ``values``."""
    at = torch.searchsorted(ordered, values).clamp(max=len(ordered) - 1)
    return ordered[at] == values


@dataclass
class EdgeBatch:
    """Edges with negative samples and the blocks that compute the embeddings of their nodes.

    Attributes:
        edges: int64 edge IDs of shape (B,).
        src, dst: int64 positions in ``seeds`` of the source and destination nodes, of shape (B,).
        negatives: int64 positions in ``seeds`` of K negative destination nodes for each edge, of shape (B, K).
        seeds, input_nodes, blocks: as in ``nodes.Batch``.
    """

    edges: Tensor
    src: Tensor
    dst: Tensor
    negatives: Tensor
    seeds: Tensor
    input_nodes: Tensor
    blocks: list[Any] = field(repr=False)


@dataclass
class EdgeLoader:
    """Loads batches of edges.

    Attributes:
        view: graph without its held-out edges.
        edges: int64 edge IDs of this rank.
        fanouts: as in ``nodes.BatchLoader``.
        batch_size: largest number of edges in a batch.
        negatives: number of pairs (u, x) for each edge (u, v), with x uniform over all nodes. An int64 tensor of shape
            (K,) gives the same nodes x for every edge.
        per_epoch: largest number of edges in an epoch. In training, each epoch selects them at
            random. None takes all edges.
        steps: number of batches in an epoch, see ``trainer.comm.equal_steps``. None divides by ``batch_size``.
        training: shuffle the edges and drop the edges of a batch from its blocks.
        leak: keep the edges of a batch in its blocks, which shows the effect of the leak.
        seed: seed of this rank's order and samples.
        threads: OpenMP threads that sample.
    """

    view: TrainingGraph
    edges: Tensor
    fanouts: Sequence[int]
    batch_size: int
    _: KW_ONLY
    negatives: int | Tensor = 1
    per_epoch: int | None = None
    steps: int | None = None
    training: bool = False
    leak: bool = False
    seed: int = 0
    threads: int | None = 1

    def __len__(self) -> int:
        return -(-self.edges_per_epoch // self.batch_size) if self.steps is None else self.steps

    @property
    def edges_per_epoch(self) -> int:
        """Number of edges of this rank in an epoch."""
        return len(self.edges[: self.per_epoch])

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[int, EdgeBatch]]:
        """Yield the steps of an epoch from ``start`` on, each with its batch, which depends on the seeds alone."""
        chosen = self.edges[: self.per_epoch]
        if self.training and self.per_epoch is not None:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch, CHOICE))
            chosen = self.edges[torch.randperm(len(self.edges), generator=generator)[: self.per_epoch]]
        chunks = epoch_chunks(len(chosen), len(self), self.seed, epoch, shuffle=self.training)
        for step in range(start, len(self)):
            value = derive_seed(self.seed, epoch, step)
            with sampling_threads(self.threads):
                seed_dgl(value)
                batch = self.batch(chosen[chunks[step]], torch.Generator().manual_seed(value))
            yield step, batch

    def batch(self, edges: Tensor, generator: torch.Generator | None = None) -> EdgeBatch:
        """Return the batch of the given edges."""
        import dgl

        n = self.view.graph.num_nodes()
        src, dst = self.view.graph.find_edges(edges)
        new = others = self.negatives
        if isinstance(new, Tensor):
            others = new.expand(len(edges), -1)
        else:
            new = others = torch.randint(n, (len(edges), new), generator=generator)
        seeds = torch.cat([src, dst, new.flatten()]).unique()
        drop = pair_keys(src, dst, n).unique() if self.training and not self.leak else None
        blocks = self.view.sample_blocks(seeds, self.fanouts, drop)
        src, dst, others = (torch.searchsorted(seeds, nodes.contiguous()) for nodes in (src, dst, others))
        return EdgeBatch(edges, src, dst, others, seeds, blocks[0].srcdata[dgl.NID], blocks)
