"""A second solution of link.py, written from its docstrings and public tests."""

import dgl
import torch
import torch.nn.functional as F

from node_task import NodeTask
from predict import inference
from ranking import mean_reciprocal_rank


def sample_negatives(g, way, count, k):
    shape = (1 if way.endswith("joint") else count, k)
    if way.startswith("local"):
        book = g.get_partition_book()
        own = book.partid2nids(book.partid)
        nodes = own[torch.randint(len(own), shape)]
    else:
        nodes = torch.randint(g.num_nodes(), shape)
    return nodes.expand(count, k)


def sample_edges(graph, fanouts, way, k, edges):
    count = len(edges)
    src, dst = graph.find_edges(edges) if count else (edges, edges)
    others = sample_negatives(graph, way, count, k)
    seeds, places = torch.cat([src, dst, others.flatten()]).unique(return_inverse=True)
    seeds = seeds if count else torch.zeros(1, dtype=torch.int64)
    sampler = dgl.dataloading.MultiLayerNeighborSampler(fanouts)
    blocks = sampler.sample_blocks(graph, seeds, exclude_eids=(src, dst))[2]
    return blocks, (places[:count], places[count : 2 * count], places[2 * count :].reshape(count, k))


def pair_loss(h, src, dst, others):
    h = F.normalize(h)
    right = 10 * (h[src] * h[dst]).sum(1) - 5
    wrong = 10 * (h[src].unsqueeze(1) * h[others]).sum(2) - 5
    return (F.softplus(-right) + F.softplus(wrong).mean(1)).sum() / 2


class LinkTask(NodeTask):
    def read(self, sample):
        blocks, places = sample
        x = self.feat[blocks[0].srcdata[dgl.NID]].to(self.device)
        return [block.to(self.device) for block in blocks], x, [nodes.to(self.device) for nodes in places]

    def evaluate(self):
        h = inference(self.model.module, self.graph, self.g.ndata["feat"], self.device)
        found = {}
        for name in ("val", "test"):
            found[f"{name}_mrr"] = mean_reciprocal_rank(h, self.graph, self.ids[name], self.candidates)
        return {**found, "hit_rate": self.feat.hit_rate()} if self.args.cache else found
