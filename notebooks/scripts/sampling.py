"""Sample neighbors, in one process and on many machines (lesson 03)."""

import os
import sys
from collections import Counter

import dgl
import torch


def sample_csc(indptr, indices, nodes, fanout, generator=None):
    """Sample up to ``fanout`` incoming edges of each node, uniformly and without replacement.

    Args:
        indptr, indices: adjacency (CSC). ``indices[indptr[v] : indptr[v + 1]]`` are the neighbors of node v.
        nodes: int64 tensor of node IDs. An ID can occur several times and is sampled each time.
        fanout: a node with fewer neighbors keeps all of them. With -1, every node keeps all neighbors.
        generator: ``torch.Generator`` for the random numbers, or None.

    Returns:
        Two int64 tensors, the source and the destination of each edge. The destinations have the order of ``nodes``.
    """
    chosen = []
    for node in nodes.tolist():
        neighbors = indices[indptr[node] : indptr[node + 1]]
        if fanout >= 0:
            order = torch.randperm(len(neighbors), generator=generator)
            neighbors = neighbors[order[:fanout]]
        chosen.append(neighbors)
    counts = torch.tensor([len(neighbors) for neighbors in chosen])
    return torch.cat(chosen), nodes.repeat_interleave(counts)


def make_block(sources, destinations, seeds):
    """Return the DGL block of some edges, which renumbers their nodes from 0, as ``dgl.to_block`` does.

    The seeds are the destination nodes and also the first source nodes. The other source nodes follow in the order in
    which they first occur. ``srcdata[dgl.NID]`` and ``dstdata[dgl.NID]`` of the block contain the original IDs.
    ``dgl.create_block((rows, columns), num_src_nodes=..., num_dst_nodes=...)`` creates a block from int64 tensors.
    """
    number = {node: k for k, node in enumerate(seeds.tolist())}
    for node in sources.tolist():
        number.setdefault(node, len(number))
    rows = torch.tensor([number[node] for node in sources.tolist()], dtype=torch.int64)
    columns = torch.tensor([number[node] for node in destinations.tolist()], dtype=torch.int64)
    block = dgl.create_block((rows, columns), num_src_nodes=len(number), num_dst_nodes=len(seeds))
    block.srcdata[dgl.NID] = torch.tensor(list(number))
    block.dstdata[dgl.NID] = seeds
    return block


def sample_blocks(sample, seeds, fanouts):
    """Return one block per hop, outermost hop first.

    Sampling starts with the hop at the seeds. The source nodes of its block are the seeds of the next hop.

    Args:
        sample: function of (nodes, fanout) that returns the sources and the destinations of the sampled edges.
        seeds: int64 tensor of node IDs.
        fanouts: one number per hop, outermost hop first.
    """
    blocks = []
    for fanout in reversed(fanouts):
        sources, destinations = sample(seeds, fanout)
        block = make_block(sources, destinations, seeds)
        blocks.insert(0, block)
        seeds = block.srcdata[dgl.NID]
    return blocks


class BatchSampler:
    """Sample the blocks of a batch from a DistGraph. DGL can send this object to a sampler process."""

    def __init__(self, g, fanouts, local_only=False):
        self.g, self.fanouts, self.local_only = g, fanouts, local_only

    def sample_neighbors(self, nodes, fanout):
        """Return the sources and the destinations of up to ``fanout`` sampled edges per node, from all machines.

        If ``self.local_only`` is true, omit the sampled edges whose source belongs to another part. As in lesson 00,
        ``self.g.get_partition_book()`` has the function ``nid2partid`` and the number ``partid``.
        """
        frontier = dgl.distributed.sample_neighbors(self.g, nodes, fanout)
        sources, destinations = frontier.edges()
        if self.local_only:
            book = self.g.get_partition_book()
            kept = book.nid2partid(sources) == book.partid
            sources, destinations = sources[kept], destinations[kept]
        return sources, destinations

    def __call__(self, ids):
        """Return the ID of this process and the blocks of a batch. ``ids`` is the list of its seeds."""
        seeds = torch.tensor(ids)
        blocks = sample_blocks(self.sample_neighbors, seeds, self.fanouts)
        return os.getpid(), blocks


class NodeLoader:
    """Load the batches of this trainer, as ``DistNodeDataLoader`` does, and count who has sampled them."""

    def __init__(self, sampler, ids, batch_size, shuffle=True, drop_last=False):
        """Create ``self.batches``, a ``DistDataLoader`` of DGL that calls ``sampler`` with the seeds of each batch.

        Its arguments are ``dataset, batch_size, shuffle, collate_fn, drop_last``. The data set is ``ids``, and DGL
        calls ``collate_fn`` with the seeds. ``self.sampled_by`` is a ``Counter`` that is empty at first.
        """
        self.size, self.batch_size, self.drop_last = len(ids), batch_size, drop_last
        self.sampled_by = Counter()
        options = {"shuffle": shuffle, "drop_last": drop_last}
        self.batches = dgl.distributed.DistDataLoader(ids, batch_size, collate_fn=sampler, **options)

    def __len__(self):
        """Return the number of batches of an epoch. A last batch with fewer seeds counts, unless ``drop_last``."""
        if self.drop_last:
            return self.size // self.batch_size
        return -(-self.size // self.batch_size)

    def __iter__(self):
        """Yield (input nodes, seeds, blocks) of each batch, and count the batches per process ID in ``sampled_by``."""
        for process, blocks in self.batches:
            self.sampled_by[process] += 1
            input_nodes, seeds = blocks[0].srcdata[dgl.NID], blocks[-1].dstdata[dgl.NID]
            yield input_nodes, seeds, blocks


def count_rows(book, loader):
    """Return the number of input rows and the number of remote rows among them, summed over the batches of the loader.

    A row is remote if another part owns its node. A row that two batches read counts twice.
    """
    rows = remote = 0
    for input_nodes, _, _ in loader:
        rows += len(input_nodes)
        remote += int((book.nid2partid(input_nodes) != book.partid).sum())
    return rows, remote


def main(folder, fanouts, seeds, epochs):
    """Train on machines, as in DGL's guide. Only the first ``seeds`` nodes of each rank are for training."""
    from loop import train_epoch
    from sage import GraphSAGE

    dgl.distributed.initialize("ip_config.txt")  # also starts the sampler processes
    torch.distributed.init_process_group("gloo")
    g = dgl.distributed.DistGraph("synthetic-products", "part_config.json")  # as in the guide, without such a file
    ids = dgl.distributed.node_split(g.ndata["train_mask"], g.get_partition_book(), force_even=True)[: int(seeds)]
    torch.manual_seed(0)  # every rank starts with the same weights
    model = torch.nn.parallel.DistributedDataParallel(GraphSAGE(100, 64, 47, dropout=0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = NodeLoader(BatchSampler(g, [int(fanout) for fanout in fanouts.split(",")]), ids, 100)
    for _ in range(int(epochs)):
        with model.join():
            loss = train_epoch(g, loader, model, optimizer)
    gradients = {name: parameter.grad for name, parameter in model.module.named_parameters()}
    result = {"seeds": ids, "loss": loss, "gradients": gradients, "weights": model.module.state_dict()}
    torch.save(result, f"{folder}/rank-{torch.distributed.get_rank()}.pt")
    print(f"trainer {os.getpid()}: batches by process ID {dict(loader.sampled_by)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
