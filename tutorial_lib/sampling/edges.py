"""Mini-batches of edges with negative ones, from a DistGraph and from a plain DGLGraph alike.

``DistEdgeDataLoader`` of DGL 2.1.0 hands the edges to exclude to the sampler, and ``DistGraph.sample_neighbors`` drops
them without a word (lesson 03). Here the ends of a batch are looked up once, and edges are recognised by their ends:

    ids -> find_edges -> pairs and negatives -> seeds -> hop by hop: sample_neighbors, drop, to_block

What is dropped from every hop: held-out edges, always; and in training the pairs of the batch, in both directions.

Which edges are held out is decided by their two ends alone, so that every process decides alike. Held-out edges must be
unknown to a link predictor: not examples of training, and not neighbours in message passing either. In a symmetric
graph an edge has a twin in the other direction, and a twin on the other side of the split would tell the answer. So the
side of an edge is a hash of its undirected pair, in original node ids, and of a seed. Nothing is stored or sent.
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
CHOICE = 2**31 - 1  # in place of a step: which edges an epoch has
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # of SplitMix64


@dataclass(frozen=True)
class EdgeSplit:
    """A split of the edges of a graph.

    Attributes:
        seed: other seeds hold out other edges.
        val, test: shares of the undirected pairs that are held out; the shares that come out differ from these by
            chance, by about ``sqrt(share / pairs)``.
    """

    seed: int = 0
    val: float = 0.05
    test: float = 0.05

    def side(self, u: Tensor, v: Tensor) -> Tensor:
        """``TRAIN``, ``VAL`` or ``TEST`` for each edge.

        Args:
            u, v: int64 (E,), the ends of each edge in the data set's original node ids, in either order.

        Returns:
            uint8 (E,).
        """
        point = pair_hash(u, v, self.seed) * 2.0**-64  # uniform in [0, 1)
        side = (point < self.val + self.test).astype(np.uint8) + (point < self.test)
        return torch.from_numpy(side)


def pair_hash(u: Tensor, v: Tensor, seed: int) -> np.ndarray:
    """uint64 (E,): a hash of each undirected pair and the seed."""
    low, high = (ends.numpy().view(np.uint64) for ends in (torch.minimum(u, v), torch.maximum(u, v)))
    start = np.uint64((2 * seed + 1) * int(GOLDEN) % 2**64)
    return mix(mix(low + start) ^ high * GOLDEN)


def mix(x: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64, in place, modulo 2**64: every bit of the result depends on every bit of ``x``."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    return x


@dataclass
class TrainingGraph:
    """A graph whose held-out edges no sampler sees.

    Attributes:
        graph: ``DistGraph`` or homogeneous ``DGLGraph``.
        split: which edges are held out.
        original: int64 (N,), the data set's id of each node of ``graph``; ``split`` is about those.
    """

    graph: Any
    split: EdgeSplit
    original: Tensor

    def side(self, src: Tensor, dst: Tensor) -> Tensor:
        """``EdgeSplit.side`` for edges in the numbering of ``graph``."""
        return self.split.side(self.original[src], self.original[dst])

    def sample_block(self, seeds: Tensor, fanout: int, drop: Tensor | None = None) -> Any:
        """One hop: a block of training edges that end at ``seeds``, as DGL's samplers make it.

        ``fanout`` edges are drawn for each seed, then edges are dropped: the rest is a uniform draw among those that
        may be used, on average smaller than the fan-out by the share that is held out.

        Args:
            drop: sorted ``pair_keys`` of more edges to drop, in both directions.
        """
        import dgl

        frontier = self.graph.sample_neighbors(seeds, fanout)
        src, dst = frontier.edges()
        keep = self.side(src, dst) == TRAIN
        if drop is not None and len(drop):
            keep &= ~contains(drop, pair_keys(src, dst, self.graph.num_nodes()))
        block = dgl.to_block(dgl.graph((src[keep], dst[keep]), num_nodes=self.graph.num_nodes()), seeds)
        block.edata[dgl.EID] = frontier.edata[dgl.EID][keep]  # to_block has put the places in its argument there
        return block

    def sample_blocks(self, seeds: Tensor, fanouts: Sequence[int], drop: Tensor | None = None) -> list[Any]:
        """Blocks, outermost hop first; ``seeds`` must be all different."""
        import dgl

        blocks: list[Any] = []
        for fanout in reversed(fanouts):
            blocks.insert(0, self.sample_block(seeds, fanout, drop))
            seeds = blocks[0].srcdata[dgl.NID]
        return blocks


def pair_keys(src: Tensor, dst: Tensor, num_nodes: int) -> Tensor:
    """int64 (E,): one number for each undirected pair."""
    return torch.minimum(src, dst) * num_nodes + torch.maximum(src, dst)


def contains(ordered: Tensor, values: Tensor) -> Tensor:
    """bool (V,): which values are in a sorted tensor. ``torch.isin`` would sort the many values, not the few."""
    at = torch.searchsorted(ordered, values).clamp(max=len(ordered) - 1)
    return ordered[at] == values


@dataclass
class EdgeBatch:
    """Edges of the graph, as many made-up ones for each, and what is needed to embed their ends.

    Attributes:
        edges: int64 (B,) ids of the edges.
        src, dst: int64 (B,), their ends, as places among the seeds.
        negatives: int64 (B, K), other ends for ``src``, as places among the seeds.
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
        view: graph and held-out edges.
        edges: int64 IDs of the edges of this rank in the numbering of the graph.
        fanouts: as in ``nodes.BatchLoader``.
        batch_size: largest number of edges in a batch.
        negatives: number of pairs (u, x) for each edge (u, v), with x uniform over all nodes. An int64 tensor of shape
            (K,) gives the same nodes x for every edge.
        per_epoch: largest number of edges in an epoch, chosen anew in each epoch. None takes all edges.
        steps: number of batches in an epoch, see ``trainer.comm.equal_steps``. None divides by ``batch_size``.
        training: shuffle the edges, and drop the edges of a batch from its blocks.
        leak: do not drop them.
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
        """The batch of these edges."""
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
