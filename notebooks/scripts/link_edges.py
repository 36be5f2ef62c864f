"""Hold out edges, divide the edges among the ranks, and create batches without leaks."""

import dgl
import numpy as np
import torch
import torch.distributed as dist
from dgl.distributed import DistTensor, edge_split


def scramble(x):
    """Return 64-bit integers that look random and depend only on x (the last step of SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def side_of(u, v, share=0.05):
    """Return 0 for training, 1 for validation and 2 for test edges. u, v: original IDs of the nodes of each edge."""
    low, high = (ends.numpy().astype(np.uint64) for ends in (torch.minimum(u, v), torch.maximum(u, v)))
    point = scramble(scramble(low + np.uint64(1)) ^ high) / 2.0**64  # hash, scaled to the range 0 to 1
    return torch.from_numpy((point < 2 * share).astype(np.uint8) + (point < share))


class Links:
    """Sample a DGLGraph or DistGraph without its held-out edges. ``original`` holds the original ID of each node."""

    def __init__(self, g, original, share=0.05, leak=False):
        self.g, self.original, self.share, self.leak = g, original, share, leak

    def side(self, src, dst):
        return side_of(self.original[src], self.original[dst], self.share)

    def pair(self, src, dst):
        """Return one number for each pair of nodes, the same in both directions."""
        return torch.minimum(src, dst) * self.g.num_nodes() + torch.maximum(src, dst)

    def sample_blocks(self, seeds, fanouts, drop=None):
        """Return blocks of training edges, outermost hop first, without the pairs in ``drop``."""
        blocks = []
        for fanout in reversed(fanouts):
            frontier = self.g.sample_neighbors(seeds, fanout)
            src, dst = frontier.edges()
            secret = self.side(src, dst) > 0
            if drop is not None:
                secret |= torch.isin(self.pair(src, dst), drop)
            frontier = dgl.remove_edges(frontier, secret.nonzero().flatten())
            blocks.insert(0, dgl.to_block(frontier, seeds))
            blocks[0].edata[dgl.EID] = frontier.edata[dgl.EID]
            seeds = blocks[0].srcdata[dgl.NID]
        return blocks

    def batch(self, edges, fanouts, draw, k):
        """Return blocks, and the positions of sources, destinations and negatives (B, k) among the seed nodes."""
        src, dst = self.g.find_edges(edges)
        others = draw(self.g, src, dst, k)
        seeds = torch.cat([src, dst, others.flatten()]).unique()
        drop = None if self.leak else self.pair(src, dst)
        places = [torch.searchsorted(seeds, nodes.contiguous()) for nodes in (src, dst, others)]
        return self.sample_blocks(seeds, fanouts, drop), places


def split(links):
    """Return this rank's edges by side. Each machine hashes the edges of its part without requests to others."""
    g, book, policy = links.g, links.g.get_partition_book(), links.g.get_edge_partition_policy("_E")
    own, shares = book.partid2eids(book.partid), {}
    side = links.side(*g.find_edges(own))
    for number, name in enumerate(("train", "val", "test")):
        mask = DistTensor((g.num_edges(),), torch.uint8, name=f"is-{name}", part_policy=policy)
        mask[own] = (side == number).to(torch.uint8)
        dist.barrier()  # edge_split reads the mask on all machines
        shares[name] = edge_split(mask, book, force_even=name == "train")
    return shares
