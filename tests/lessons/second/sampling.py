"""A second solution of the holes in ``sampling.py``, which samples with one random key per edge."""

import math
import os
from collections import Counter

import dgl
import torch


def sample_csc(indptr, indices, nodes, fanout, generator=None):
    degrees = indptr[nodes + 1] - indptr[nodes]
    destinations = torch.repeat_interleave(nodes, degrees)
    group = torch.repeat_interleave(torch.arange(len(nodes)), degrees)
    place = torch.arange(len(group)) - (degrees.cumsum(0) - degrees)[group]
    sources = indices[indptr[destinations] + place]
    if fanout == -1:
        return sources, destinations
    keys = torch.rand(len(group), generator=generator, dtype=torch.float64)
    chosen = torch.argsort(group + keys)[place < fanout]
    return sources[chosen], destinations[chosen]


def make_block(sources, destinations, seeds):
    known = list(dict.fromkeys([*seeds.tolist(), *sources.tolist()]))
    ids, order = torch.tensor(known).sort()
    rows, columns = (order[torch.searchsorted(ids, ends)] for ends in (sources, destinations))
    block = dgl.create_block((rows, columns), num_src_nodes=len(known), num_dst_nodes=seeds.numel())
    block.srcdata[dgl.NID], block.dstdata[dgl.NID] = torch.tensor(known), seeds
    return block


def sample_blocks(sample, seeds, fanouts):
    *outer, last = fanouts
    block = make_block(*sample(seeds, last), seeds)
    return [*(sample_blocks(sample, block.srcdata[dgl.NID], outer) if outer else []), block]


class BatchSampler:
    def sample_neighbors(self, nodes, fanout):
        book = self.g.get_partition_book()
        edges = torch.stack(self.g.sample_neighbors(nodes, fanout).edges())
        if self.local_only:
            edges = edges[:, book.nid2partid(edges[0]) == book.partid]
        return edges[0], edges[1]

    def __call__(self, ids):
        return os.getpid(), sample_blocks(self.sample_neighbors, torch.as_tensor(ids), self.fanouts)


class NodeLoader:
    def __init__(self, sampler, ids, batch_size, shuffle=True, drop_last=False):
        self.batches = dgl.distributed.DistDataLoader(
            dataset=ids, batch_size=batch_size, shuffle=shuffle, collate_fn=sampler, drop_last=drop_last
        )
        self.length = (math.floor if drop_last else math.ceil)(len(ids) / batch_size)
        self.sampled_by = Counter()

    def __len__(self):
        return self.length

    def __iter__(self):
        for who, blocks in self.batches:
            self.sampled_by.update([who])
            yield blocks[0].srcdata["_ID"], blocks[-1].dstdata["_ID"], blocks


def count_rows(book, loader):
    nodes = [batch[0] for batch in loader]
    parts = book.nid2partid(torch.cat(nodes))
    return len(parts), (parts - book.partid).count_nonzero().item()
