"""Train link prediction with the loop of train.py (lesson 13). The options are those of train.py, and those of main."""

import functools
from pathlib import Path

import dgl
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

from cache import FeatureCache
from held_out import TrainingGraph, split_edges
from node_task import NodeTask
from predict import inference
from ranking import choose_candidates, mean_reciprocal_rank
from sage import GraphSAGE
from train import main


def sample_negatives(g, way, count, k):
    """Return k random nodes for each of ``count`` edges, int64 (count, k). (source, node) is the negative of an edge.

    The ways "uniform" and "joint" choose among all nodes of ``g``, and "local" and "local_joint" among the nodes of
    this machine, ``book.partid2nids(book.partid)``. In the two joint ways, all edges share the same k nodes. A node can
    occur more than once, and ``count`` can be 0. Use the global generator of torch, and create no tensor with an entry
    for all nodes of ``g``.
    """
    rows = 1 if way.endswith("joint") else count
    if way.startswith("local"):
        book = g.get_partition_book()
        own = book.partid2nids(book.partid)
        return own[torch.randint(len(own), (rows, k))].expand(count, k)
    return torch.randint(g.num_nodes(), (rows, k)).expand(count, k)


def sample_edges(graph, fanouts, way, k, edges):
    """Return blocks for the nodes of a batch of edges, and the positions of these nodes among the seed nodes.

    Call ``sample_negatives(graph, way, B, k)`` once, and use no random numbers before. The seed nodes are the sources,
    destinations and negatives, each of them once (``Tensor.unique`` can also return positions). The blocks are the
    third result of ``MultiLayerNeighborSampler(fanouts).sample_blocks(graph, seeds, exclude_eids=...)``. Exclude the
    edges of the batch, so that no message reveals them. Without edges, sample node 0, because DGL needs a node, and
    ``find_edges`` needs an edge. ``MultiLayerNeighborSampler`` is in ``dgl.dataloading``.

    Args:
        graph: TrainingGraph.
        way, k: see ``sample_negatives``.
        edges: edge IDs, int64 (B,). B can be 0.

    Returns:
        blocks, and a tuple of int64 tensors: positions of the sources (B,), destinations (B,) and negatives (B, k).
    """
    src, dst = graph.find_edges(edges) if len(edges) else (edges, edges)
    others = sample_negatives(graph, way, len(edges), k)
    nodes = torch.cat([src, dst, others.flatten()])
    seeds, places = nodes.unique(return_inverse=True)
    if len(seeds) == 0:
        seeds = torch.zeros(1, dtype=torch.int64)
    sampler = dgl.dataloading.MultiLayerNeighborSampler(fanouts)
    blocks = sampler.sample_blocks(graph, seeds, exclude_eids=(src, dst))[2]
    sources, destinations, negatives = places.split([len(src), len(dst), others.numel()])
    return blocks, (sources, destinations, negatives.view(others.shape))


def pair_loss(h, src, dst, others):
    """Return the loss summed over B edges.

    The score of a pair of nodes is 10 times the cosine of their vectors, minus 5. The loss of an edge is the mean of
    two values. The first is the binary cross-entropy of its score with target 1. The second is the mean over its
    negatives of the binary cross-entropy with target 0.

    Args:
        h: vectors (S, D) of the seed nodes, of any length.
        src, dst, others: the positions that ``sample_edges`` returns. B can be 0.
    """
    h = F.normalize(h)
    positive = 10 * (h[src] * h[dst]).sum(1) - 5
    negative = 10 * torch.einsum("bd,bkd->bk", h[src], h[others]) - 5
    return (F.softplus(-positive).sum() + F.softplus(negative).mean(1).sum()) / 2


class LinkTask(NodeTask):
    """Predict edges with GraphSAGE. The seeds are edges, and the score is the mean reciprocal rank."""

    score = "mrr"

    def load_data(self):
        args, self.feat = self.args, self.g.ndata["feat"]
        original = torch.from_numpy(np.load(Path(args.part_config).with_name("node_map.npy")))
        self.graph = TrainingGraph(self.g, original, args.share)
        self.ids = split_edges(self.graph)
        print(
            f"rank {dist.get_rank()} has edges:", *(f"{name} {len(ids)}" for name, ids in self.ids.items()), flush=True
        )
        generator = torch.Generator().manual_seed(args.seed)
        count = args.epoch_edges // dist.get_world_size() or len(self.ids["train"])
        self.ids["train"] = self.ids["train"][torch.randperm(len(self.ids["train"]), generator=generator)[:count]]
        self.candidates = choose_candidates(original, args.candidates)
        self.sample = functools.partial(sample_edges, self.graph, self.fanouts, args.negatives, args.num_negatives)
        if args.cache:
            self.feat = FeatureCache(self.feat, self.g.get_partition_book(), args.cache)

    def make_model(self):
        args = self.args
        return GraphSAGE(self.feat.shape[1], args.hidden, args.hidden, len(self.fanouts), args.dropout)

    def read(self, sample):
        """Return the blocks, the features of the input nodes, and the positions of ``sample_edges``, on the device."""
        blocks, places = sample
        x = self.feat[blocks[0].srcdata[dgl.NID]]
        places = [nodes.to(self.device) for nodes in places]
        return [block.to(self.device) for block in blocks], x.to(self.device), places

    def loss(self, batch):
        blocks, x, places = batch
        return pair_loss(self.model(blocks, x), *places)

    def evaluate(self):
        """Return a dict with the exact "val_mrr" and "test_mrr" of ``self.ids`` among ``self.candidates``.

        ``inference`` computes the vectors of all nodes from all training edges, if it samples ``self.graph``. It reads
        the features from ``self.g.ndata["feat"]``. If ``args.cache`` is not 0, the dict also has the "hit_rate",
        ``self.feat.hit_rate()``.
        """
        h = inference(self.model.module, self.graph, self.g.ndata["feat"], self.device)
        found = {}
        for name in ("val", "test"):
            found[f"{name}_mrr"] = mean_reciprocal_rank(h, self.graph, self.ids[name], self.candidates)
        return {**found, "hit_rate": self.feat.hit_rate()} if self.args.cache else found


OPTIONS = {"fanouts": "5,5", "batch_size": 250, "hidden": 32, "dropout": 0.0, "share": 0.05, "candidates": 100}
OPTIONS |= {"negatives": "uniform", "num_negatives": 1, "epoch_edges": 10_000}  # edges in the loss of an epoch, 0: all

if __name__ == "__main__":
    main(LinkTask, **OPTIONS)
