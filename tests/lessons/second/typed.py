"""A second solution of typed.py, written from its docstrings and public tests."""

import dgl
import torch
import torch.distributed as dist
from dgl.distributed import DistEmbedding


def sample_types(g, fanouts, omit, ntype, seeds):
    nodes = seeds if len(seeds) else torch.zeros(1, dtype=torch.int64)
    hops = [{r: 0 if r[0] in omit else fanout for r in g.canonical_etypes} for fanout in fanouts]
    return len(seeds), dgl.dataloading.MultiLayerNeighborSampler(hops).sample_blocks(g, {ntype: nodes})[2]


def read_types(tables, block):
    rows = {}
    for ntype, table in tables.items():
        ids, learned = block.srcnodes[ntype].data[dgl.NID], isinstance(table, DistEmbedding)
        if len(ids):
            rows[ntype] = table(ids) if learned else table[ids]
        else:
            rows[ntype] = torch.zeros(0, table.embedding_dim if learned else table.shape[1])
    return rows


@torch.no_grad()
def infer_types(model, g, tables, omit, device, batch_size=1000):
    model.eval()
    for k, layer in enumerate(model.layers):
        out = {ntype: layer_rows(g, k, ntype, own.out_features) for ntype, own in layer.own.items()}
        for ntype in out:
            for nodes in nodes_of_type(g, ntype).split(batch_size):
                if len(nodes):
                    _, (block,) = sample_types(g, [-1], omit, ntype, nodes)
                    rows = {name: x.to(device) for name, x in read_types(tables, block).items()}
                    out[ntype][nodes] = model.layer(k, block.to(device), rows)[ntype].cpu()
        dist.barrier()
        tables = out
    return tables[model.target]
