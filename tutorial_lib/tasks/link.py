"""Link prediction without labels: unsupervised GraphSAGE (Hamilton, Ying and Leskovec, 2017) with the cross-entropy of
DGL's examples. A dot product of embeddings scores an edge. The run folder gets these files.

    embeddings.npy   float32 of shape (N, D), in the order of the data set
    test_edges.npz   edge: int64 IDs of the test edges in the data set, ascending. rank: float32 rank of each edge

``DistGraph.sample_neighbors`` of DGL 2.1.0 ignores the edges to exclude (lesson 03). Here every hop drops the held-out
edges, and during training the pairs of the batch in both directions. The reverse of an edge in another split would
reveal the answer, so the split of an edge is a hash of its undirected pair in original node IDs and of a seed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import dgl
import numpy as np
import torch
import torch.nn.functional as F
from dgl.heterograph import DGLBlock
from torch import Tensor, nn

from tutorial_lib.compat.settings import derive_seed
from tutorial_lib.files import JsonObject
from tutorial_lib.models.graphsage import Block, build_graphsage
from tutorial_lib.sampling.loader import ALL_NEIGHBORS, Batch, Loader, Store
from tutorial_lib.tasks.task import TEST, TRAIN, VAL, Shard, Task, layerwise_inference
from tutorial_lib.trainer.comm import equal_steps, gather_by_original_id, get_rank, mean_or_nan, sum_over_ranks
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.loop import TrainResult

HITS_AT = 10
# The probability of an edge is sigmoid(10 * cosine - 5). Without unit length, the first dot products are in the tens,
# and the model spends its first epochs on shrinking them.
LOGIT_SCALE, LOGIT_SHIFT = 10.0, 5.0
normalize_rows = F.normalize  # scales rows to length 1 and keeps rows of zeros
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # constant of SplitMix64
EdgeInputs = tuple[list[Block], Tensor, Tensor, Tensor, Tensor]  # blocks, rows, and positions as in ``EdgeBatch``


def pair_hash(u: Tensor, v: Tensor, seed: int) -> np.ndarray:
    """Return a hash of each undirected pair and the seed as a uint64 array of shape (E,)."""
    low, high = (node_ids.numpy().view(np.uint64) for node_ids in (torch.minimum(u, v), torch.maximum(u, v)))
    start = np.uint64((2 * seed + 1) * int(GOLDEN) % 2**64)
    return finalize_splitmix64(finalize_splitmix64(low + start) ^ high * GOLDEN)


def finalize_splitmix64(x: np.ndarray) -> np.ndarray:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    return x


@dataclass
class TrainingGraph:
    """Graph that hides its validation and test edges from the sampler."""

    graph: dgl.distributed.DistGraph | dgl.DGLGraph  # homogeneous
    original_ids: Tensor  # int64 (N,), the original ID of each node of ``graph``
    seed: int = 0  # seed of the split
    val: float = 0.05  # expected fraction of the undirected pairs. The actual one differs by sqrt(fraction / pairs)
    test: float = 0.05

    def split_of_edges(self, src: Tensor, dst: Tensor) -> Tensor:
        """Return ``TRAIN``, ``VAL`` or ``TEST`` for each edge, given by the node IDs of ``graph``, as uint8 (E,)."""
        point = pair_hash(self.original_ids[src], self.original_ids[dst], self.seed) * 2.0**-64  # uniform in [0, 1)
        held_out = np.where(point < self.test, np.uint8(TEST), np.uint8(VAL))
        return torch.from_numpy(np.where(point < self.val + self.test, held_out, np.uint8(TRAIN)))

    def sample_block(self, seeds: Tensor, fanout: int, drop: Tensor | None = None) -> DGLBlock:
        """Return a block of ``fanout`` sampled edges per seed, none held out or in the sorted pair keys ``drop``."""
        src, dst = self.graph.sample_neighbors(seeds, fanout).edges()
        n = self.graph.num_nodes()
        keep = self.split_of_edges(src, dst) == TRAIN
        if drop is not None:
            keys = pair_keys(src, dst, n)
            keep &= drop[torch.searchsorted(drop, keys).clamp(max=len(drop) - 1)] != keys  # torch.isin would sort keys
        return dgl.to_block(dgl.graph((src[keep], dst[keep]), num_nodes=n), seeds)


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
class EdgeLoader(Loader[TrainingGraph, EdgeBatch]):
    """Loads batches of the edges of a ``TrainingGraph``."""

    negatives: int | Tensor = 1  # number of random nodes for each edge, or int64 (K,), the nodes for every edge
    training: bool = False  # drop the edges of a batch from its blocks

    def sample(self, examples: Tensor, seed: int) -> EdgeBatch:
        n, negatives = self.source.graph.num_nodes(), self.negatives
        src, dst = self.source.graph.find_edges(examples)
        if not isinstance(negatives, Tensor):
            negatives = torch.randint(n, (len(examples), negatives), generator=torch.Generator().manual_seed(seed))
        seeds = nodes = torch.cat([src, dst, negatives.flatten()]).unique()
        drop = pair_keys(src, dst, n).unique() if self.training else None
        blocks = []
        for fanout in reversed(self.fanouts):
            blocks.insert(0, self.source.sample_block(nodes, fanout, drop))
            nodes = blocks[0].srcdata[dgl.NID]
        node_ids = src, dst, negatives.expand(len(examples), -1).contiguous()
        src, dst, negatives = (torch.searchsorted(seeds, ids) for ids in node_ids)
        return EdgeBatch(nodes, seeds, blocks, edges=examples, src=src, dst=dst, negatives=negatives)


class LinkTask(Task[EdgeBatch, EdgeInputs]):
    """Predict edges. ``edges`` has this process's edges by split, each of which is ranked against ``negatives``."""

    name = "link"
    score_name = "MRR"
    epoch_edges = 100_000  # training edges in an epoch, over all ranks. A graph has many more.
    val_edges = 2000  # validation edges that are ranked after an epoch, over all ranks
    eval_negatives = 100  # nodes against which each held-out edge is ranked, the same for all edges

    def __init__(self, shard: Shard, config: TrainConfig) -> None:
        super().__init__(shard, config)
        self.features = shard.data["feat"]
        self.original_ids = shard.original_nodes(shard.target)
        self.training_graph = TrainingGraph(shard.graph, torch.from_numpy(self.original_ids), config.seed)
        self.edges = shard.edges(self.training_graph.split_of_edges)
        self.split = {f"{split}_edges": len(ids) for split, ids in self.edges.items()}
        generator = np.random.Generator(np.random.PCG64([config.seed, 0x4E4547]))
        count = len(self.original_ids)
        sampled = np.sort(generator.choice(count, min(self.eval_negatives, count), replace=False))
        self.negatives = torch.from_numpy(np.argsort(self.original_ids)[sampled])
        self.model = build_graphsage(config, self.features.shape[1], config.hidden_size).to(self.placement.device)
        train, val = self.edges["train"], self.edges["val"]
        per_epoch = -(-self.epoch_edges // shard.world_size)
        steps = equal_steps(min(len(train), per_epoch), config.batch_size, "training edges")
        self.train_loader = self._loader(train, config.negatives, train=True, steps=steps, per_epoch=per_epoch)
        self.val_loader = self._loader(val[:: max(1, len(val) * shard.world_size // self.val_edges)], self.negatives)

    def _loader(self, edges: Tensor, negatives: int | Tensor, *, train: bool = False, **sizes: int) -> EdgeLoader:
        config = self.config
        common: JsonObject = {"threads": 1, "shuffle": train, "training": train, **sizes}
        common["seed"] = derive_seed(config.seed, get_rank(), train)
        return EdgeLoader(self.training_graph, edges, config.fanouts, config.batch_size, negatives=negatives, **common)

    def inputs(self, batch: EdgeBatch) -> EdgeInputs:
        rows = self.features[batch.input_nodes]
        return self.placement.to_device(batch.blocks, rows, batch.src, batch.dst, batch.negatives)

    def loss(self, model: nn.Module, inputs: EdgeInputs) -> tuple[Tensor, int]:
        blocks, features, src, dst, negatives = inputs
        h = normalize_rows(model(blocks, features))
        positive = LOGIT_SCALE * (h[src] * h[dst]).sum(1) - LOGIT_SHIFT
        negative = LOGIT_SCALE * torch.einsum("bd,bkd->bk", h[src], h[negatives]) - LOGIT_SHIFT
        return (F.softplus(-positive).mean() + F.softplus(negative).mean()) / 2, len(src)

    def score(self, model: nn.Module, inputs: EdgeInputs) -> tuple[float, int]:
        blocks, features, src, dst, negatives = inputs
        ranks = edge_ranks(normalize_rows(model(blocks, features)), (src, dst), negatives[0])
        return float((1 / ranks.double()).sum()), len(src)

    def evaluate(self) -> TrainResult:
        h = self.embed()
        mrr, scores, ranks = {}, {}, {}
        for split in ("val", "test"):
            batches = self.edges[split].split(self.config.eval_batch_size) if len(self.edges[split]) else ()
            rank_chunks = [edge_ranks(h, self.shard.graph.find_edges(ids), self.negatives) for ids in batches]
            r = ranks[split] = torch.cat([torch.empty(0), *rank_chunks])
            total, hits, count = sum_over_ranks([float((1 / r.double()).sum()), float((r <= HITS_AT).sum()), len(r)])
            mrr[split] = mean_or_nan(total, count)
            scores[f"{split}_hits@{HITS_AT}"] = mean_or_nan(hits, count)
        edges, values = gather_by_original_id(self.edges["test"], ranks["test"], self.shard.original_edges())
        outputs = {"embeddings": h, "original_ids": self.original_ids, "test_edges": {"edge": edges, "rank": values}}
        return TrainResult(mrr["val"], mrr["test"], None, scores, self.score_name, **outputs)

    def embed(self) -> Store:
        """Return exact embeddings of unit length, float32 of shape (N, D), that use all training edges."""
        shard, size = self.shard, self.config.eval_batch_size
        return layerwise_inference(self.model, self._all_neighbors, self.features, shard, size, last=normalize_rows)

    def _all_neighbors(self, _shard: Shard, x: Store, ids: Tensor, size: int) -> Iterator[tuple[Tensor, Block, Tensor]]:
        for seeds in ids.split(size) if len(ids) else ():
            block = self.training_graph.sample_block(seeds, ALL_NEIGHBORS)
            (device_block,), rows = self.placement.to_device([block], x[block.srcdata[dgl.NID]])
            yield seeds, device_block, rows


def edge_ranks(h: Store, edges: tuple[Tensor, Tensor], negatives: Tensor) -> Tensor:
    """Return the rank (B,) of each edge, from 1, among its source's pairs with ``negatives`` (K,), rows of ``h``."""
    src, dst = edges
    h_src = h[src]
    gap = h_src @ h[negatives].T - (h_src * h[dst]).sum(1, keepdim=True)
    # An edge's source and destination are not its negatives. A tie counts one half, with a tolerance for rounding.
    allowed = (negatives != src[:, None]) & (negatives != dst[:, None])
    better, equal = ((comparison & allowed).sum(1) for comparison in (gap > 1e-6, gap.abs() <= 1e-6))
    return 1 + better + 0.5 * equal
