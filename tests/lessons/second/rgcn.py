"""A second solution of rgcn.py, written from its docstrings and public tests."""

import torch.nn.functional as F
from torch import nn

from sage import mean_of_neighbors


def types_of_layers(relations, target, num_layers):
    types = [{target}]
    for _ in range(num_layers):
        types.insert(0, types[0] | {source for source, _, into in relations if into in types[0]})
    return types


class RelationalLayer(nn.Module):
    def forward(self, block, h):
        out = {ntype: own(h[ntype][: block.num_dst_nodes(ntype)]) for ntype, own in self.own.items()}
        for relation in self.relations:
            x, there = h[relation[0]], relation in block.canonical_etypes
            mean = mean_of_neighbors(block[relation], x) if there else x[:0].sum(0)
            out[relation[2]] = out[relation[2]] + self.of[":".join(relation)](mean)
        return out


class RGCN(nn.Module):
    def layer(self, number, block, x):
        if number == 0:
            x = {ntype: self.project[ntype](rows) if ntype in self.project else rows for ntype, rows in x.items()}
        x = self.layers[number](block, x)
        if number == len(self.layers) - 1:
            return x
        return {ntype: self.dropout(F.relu(rows)) for ntype, rows in x.items()}
