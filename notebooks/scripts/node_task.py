"""Define node classification for the loop in train.py (lesson 10). Lessons 13 to 15 replace methods of ``NodeTask``."""

import functools

import dgl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import checkpoint
from cache import FeatureCache
from job import choose_device, split
from predict import accuracy, inference
from ranks import save_best
from sage import GraphSAGE


def sample_nodes(g, fanouts, seeds):
    """Return the number of seeds and the sampled blocks. Without seeds, sample node 0, because DGL needs a node."""
    nodes = seeds if len(seeds) else torch.zeros(1, dtype=torch.int64)
    blocks = dgl.dataloading.MultiLayerNeighborSampler(fanouts).sample_blocks(g, nodes)[2]
    return len(seeds), blocks


class NodeTask:
    """Classify nodes with GraphSAGE. Other tasks inherit from this class and replace methods.

    Attributes:
        ids: seeds of this rank, a dict with the keys "train", "val" and "test".
        sample: function of seeds that returns a sample. DGL must be able to send it to a sampler process.
        model: the model in DistributedDataParallel.
        optimizers: list. The first one is a dense optimizer and belongs to the checkpoint.
    """

    score = "accuracy"

    def __init__(self, g, args):
        self.g, self.args, self.device = g, args, choose_device()
        self.fanouts = [int(fanout) for fanout in args.fanouts.split(",")]
        torch.manual_seed(args.seed)
        self.load_data()
        self.model = DistributedDataParallel(self.make_model().to(self.device))
        self.optimizers = [torch.optim.Adam(self.model.parameters(), lr=args.lr)]

    def load_data(self):
        """Set ``ids``, ``sample``, and the tables that ``read`` uses."""
        self.ids, self.feat, self.label = split(self.g), self.g.ndata["feat"], self.g.ndata["label"]
        self.sample = functools.partial(sample_nodes, self.g, self.fanouts)
        if self.args.cache:
            self.feat = FeatureCache(self.feat, self.g.get_partition_book(), self.args.cache)

    def make_model(self):
        known = torch.cat([self.ids["train"], self.ids["val"]])
        classes = self.label[known].max().long() + 1
        dist.all_reduce(classes, dist.ReduceOp.MAX)
        return GraphSAGE(self.feat.shape[1], self.args.hidden, int(classes), len(self.fanouts), self.args.dropout)

    def read(self, sample):
        """Return blocks, features of the input nodes and labels of the seeds, on the device. The network carries rows.

        A sample is the result of ``sample_nodes``. A block has the IDs of its nodes in ``srcdata[dgl.NID]`` and
        ``dstdata[dgl.NID]``. If the number of seeds is 0, return no labels.
        """
        count, blocks = sample
        x = self.feat[blocks[0].srcdata[dgl.NID]]
        y = self.label[blocks[-1].dstdata[dgl.NID]][:count].long()
        return [block.to(self.device) for block in blocks], x.to(self.device), y.to(self.device)

    def loss(self, batch):
        """Return the cross-entropy summed over the seeds of this rank. Use the scores of the first ``len(y)`` nodes.

        ``batch`` is the result of ``read``. Without seeds the sum is 0, and the model still computes gradients (zeros),
        because the other ranks wait for them.
        """
        blocks, x, y = batch
        scores = self.model(blocks, x)
        return F.cross_entropy(scores[: len(y)], y, reduction="sum")

    def evaluate(self):
        """Return the exact accuracies on the validation and test nodes of all ranks, and the hit rate of the cache."""
        scores = inference(self.model.module, self.g, self.g.ndata["feat"], self.device)
        found = {f"{name}_{self.score}": accuracy(scores, self.label, self.ids[name]) for name in ("val", "test")}
        return {**found, "hit_rate": self.feat.hit_rate()} if self.args.cache else found

    def save(self, epochs):
        """Write the checkpoint, and the weights of the best epoch so far to the file ``--best``."""
        values = [epoch.get(f"val_{self.score}", -1.0) for epoch in epochs]
        if self.args.best:
            save_best(self.model, values[-1], max(values[:-1], default=-1.0), self.args.best)
        checkpoint.save(self, epochs)

    def resume(self):
        """Load the checkpoint, if it exists, and return its epochs."""
        return checkpoint.resume(self)
