"""Mini-batches of edges with negative samples, from a DistGraph or a DGLGraph.

``DistEdgeDataLoader`` of DGL 2.1.0 passes the edges to exclude to the sampler, but ``DistGraph.sample_neighbors``
ignores them (lesson 03). Here every hop drops the held-out edges, and during training the pairs of the batch in both
directions.

In a symmetric graph, every edge has a reverse edge, which would reveal the answer if it belonged to another side of
the split. The side of an edge is therefore a hash of its undirected pair in original node IDs and of a seed. Every
process computes the same side, so nothing is stored or sent.
"""

from dataclasses import dataclass
from typing import Any

import dgl
import numpy as np
import torch
from torch import Tensor

from tutorial_lib.sampling.nodes import Batch, Loader

TRAIN, VAL, TEST = 0, 1, 2
SIDES = ("train", "val", "test")
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # constant of SplitMix64


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
    """Graph that hides its validation and test edges from the sampler."""

    graph: Any  # ``DistGraph`` or homogeneous ``DGLGraph``
    original: Tensor  # int64 (N,), the original ID of each node of ``graph``
    seed: int = 0  # of the split
    val: float = 0.05  # expected fraction of the undirected pairs. The actual one differs by sqrt(fraction / pairs)
    test: float = 0.05

    def side(self, src: Tensor, dst: Tensor) -> Tensor:
        """Return ``TRAIN``, ``VAL`` or ``TEST`` for each edge, given by the node IDs of ``graph``, as uint8 (E,)."""
        point = pair_hash(self.original[src], self.original[dst], self.seed) * 2.0**-64  # uniform in [0, 1)
        return torch.from_numpy((point < self.val + self.test).astype(np.uint8) + (point < self.test))

    def sample_block(self, seeds: Tensor, fanout: int, drop: Tensor | None = None) -> Any:
        """Sample one hop and return a block of training edges whose destination nodes are ``seeds``.

        The sampler draws ``fanout`` edges for each seed before edges are dropped. The remaining edges are a uniform
        sample of the training edges. ``drop`` has the sorted ``pair_keys`` of further edges to drop.
        """
        frontier, n = self.graph.sample_neighbors(seeds, fanout), self.graph.num_nodes()
        src, dst = frontier.edges()
        keep = self.side(src, dst) == TRAIN
        if drop is not None:
            keys = pair_keys(src, dst, n)
            keep &= drop[torch.searchsorted(drop, keys).clamp(max=len(drop) - 1)] != keys  # torch.isin would sort keys
        block = dgl.to_block(dgl.graph((src[keep], dst[keep]), num_nodes=n), seeds)
        block.edata[dgl.EID] = frontier.edata[dgl.EID][keep]  # to_block stores positions in its argument instead
        return block


def pair_keys(src: Tensor, dst: Tensor, num_nodes: int) -> Tensor:
    """Return one number for each undirected pair as an int64 tensor of shape (E,)."""
    return torch.minimum(src, dst) * num_nodes + torch.maximum(src, dst)


@dataclass(kw_only=True)
class EdgeBatch(Batch):
    """Edges with negative samples, and the blocks that compute the embeddings of their nodes, the seeds."""

    edges: Tensor  # int64 (B,) edge IDs
    src: Tensor  # int64 (B,) positions in ``seeds`` of the source nodes
    dst: Tensor  # int64 (B,) positions of the destination nodes
    negatives: Tensor  # int64 (B, K) positions of K negative destination nodes for each edge


@dataclass(kw_only=True)
class EdgeLoader(Loader):
    """Loads batches of the edges of a ``TrainingGraph``."""

    negatives: int | Tensor = 1  # number of random nodes for each edge, or int64 (K,), the nodes for every edge
    training: bool = False  # drop the edges of a batch from its blocks

    def sample(self, examples: Tensor, seed: int) -> EdgeBatch:
        graph, n, new = self.source.graph, self.source.graph.num_nodes(), self.negatives
        src, dst = graph.find_edges(examples)
        if not isinstance(new, Tensor):
            new = torch.randint(n, (len(examples), new), generator=torch.Generator().manual_seed(seed))
        seeds = nodes = torch.cat([src, dst, new.flatten()]).unique()
        drop = pair_keys(src, dst, n).unique() if self.training else None
        blocks: list[Any] = []
        for fanout in reversed(self.fanouts):
            blocks.insert(0, self.source.sample_block(nodes, fanout, drop))
            nodes = blocks[0].srcdata[dgl.NID]
        ends = src, dst, new.expand(len(examples), -1).contiguous()
        src, dst, new = (torch.searchsorted(seeds, some) for some in ends)
        return EdgeBatch(nodes, seeds, blocks, edges=examples, src=src, dst=dst, negatives=new)
