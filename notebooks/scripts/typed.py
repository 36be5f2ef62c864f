"""Sample, read and score nodes of several types on many machines (lesson 15)."""

import functools

import dgl
import torch
import torch.distributed as dist
from dgl.distributed import DistEmbedding, DistTensor, node_split


def nodes_of_type(g, ntype):
    """Return the nodes of a type that this rank computes. The ranks of a machine compute the nodes of its part."""
    everyone = torch.ones(g.num_nodes(ntype), dtype=torch.bool)
    return node_split(everyone, g.get_partition_book(), ntype=ntype, force_even=False)


@functools.cache
def layer_rows(g, number, ntype, width):
    """Return a DistTensor for the output of a layer for a type. Later calls return the same DistTensor."""
    policy = g.get_node_partition_policy(ntype)
    return DistTensor((g.num_nodes(ntype), width), torch.float32, f"layer-{number}-{ntype}-{width}", part_policy=policy)


def make_tables(g, types, width):
    """Return a table of rows for each type, a dict: its features, or a ``DistEmbedding`` if it has no features.

    The partition policy of the type stores each row on the machine of its node. All embeddings start as zeros, so that
    they do not depend on the partition.
    """
    tables = {}
    for ntype in sorted(types):
        if "feat" in g.nodes[ntype].data:
            tables[ntype] = g.nodes[ntype].data["feat"]
        else:
            policy = g.get_node_partition_policy(ntype)
            tables[ntype] = DistEmbedding(g.num_nodes(ntype), width, f"rows-{ntype}", part_policy=policy)
    return tables


def sample_types(g, fanouts, omit, ntype, seeds):
    """Return the number of seeds and the sampled blocks.

    Samplers accept a dict from type to seeds, and for each hop a dict with a fan-out for **every** canonical edge type
    of ``g``. The sampler is ``dgl.dataloading.MultiLayerNeighborSampler``. Without seeds, sample node 0 of the type,
    because DGL needs a node.

    Args:
        fanouts: fan-out of each hop for each relation, such as [5, 5]. -1 selects all neighbors.
        omit: set of node types. The fan-out of a relation is 0 if its source type is in this set.
        ntype: type of the seeds.
        seeds: int64 tensor (B,) of type-wise IDs. B can be 0.
    """
    nodes = seeds if len(seeds) else torch.zeros(1, dtype=torch.int64)
    hops = []
    for fanout in fanouts:
        hops.append({relation: 0 if relation[0] in omit else fanout for relation in g.canonical_etypes})
    sampler = dgl.dataloading.MultiLayerNeighborSampler(hops)
    return len(seeds), sampler.sample_blocks(g, {ntype: nodes})[2]


def read_types(tables, block):
    """Return the rows of the source nodes of a block, a dict with a tensor (S, width) for each type in ``tables``.

    ``block.srcnodes[ntype].data[dgl.NID]`` has the IDs of the S source nodes of a type. S is often 0, and then no table
    is read, because DGL rejects an empty tensor of IDs. The rows of a ``DistEmbedding`` are ``table(ids)``, which
    records the read for the optimizer. Its width is ``table.embedding_dim``. Other tables return ``table[ids]``, and
    their width is ``table.shape[1]``.

    Args:
        tables: dict from type to DistTensor, FeatureCache or DistEmbedding.
    """
    rows = {}
    for ntype, table in tables.items():
        ids = block.srcnodes[ntype].data[dgl.NID]
        learned = isinstance(table, DistEmbedding)
        if len(ids) == 0:
            rows[ntype] = torch.zeros(0, table.embedding_dim if learned else table.shape[1])
        elif learned:
            rows[ntype] = table(ids)
        else:
            rows[ntype] = table[ids]
    return rows


@torch.no_grad()
def infer_types(model, g, tables, omit, device, batch_size=1000):
    """Return the exact scores of all nodes of type ``model.target``, a DistTensor, from all neighbors.

    Layer k of ``model.layers`` computes the types in ``layer.own``. For each type, in this order, **all** ranks call
    ``layer_rows(g, k, ntype, layer.own[ntype].out_features)``, because they create the table together. A rank writes
    the rows of ``nodes_of_type``, at most ``batch_size`` at a time. An empty part (``split`` returns one for no nodes)
    is neither sampled nor written. No rank leaves a layer before all have written. The next layer reads these tables.

    ``model.layer(k, block, rows)`` returns the rows of the destination nodes, a dict by type. ``sample_types`` with a
    single hop returns the block, which omits the same types as in training. Set the model to evaluation mode. Blocks
    and rows are on the device, and tables are on the CPU.
    """
    model.eval()
    for number, layer in enumerate(model.layers):
        results = {}
        for ntype, linear in layer.own.items():
            results[ntype] = layer_rows(g, number, ntype, linear.out_features)
            for nodes in nodes_of_type(g, ntype).split(batch_size):
                if len(nodes):
                    _, (block,) = sample_types(g, [-1], omit, ntype, nodes)
                    rows = {name: x.to(device) for name, x in read_types(tables, block).items()}
                    h = model.layer(number, block.to(device), rows)
                    results[ntype][nodes] = h[ntype].cpu()
        dist.barrier()
        tables = results
    return tables[model.target]
