"""R-GCN with one weight matrix per relation (lesson 15)."""

import dgl
import dgl.function as fn
import torch
import torch.nn.functional as F
from torch import nn


def mean_of_neighbors(block, relation, x):
    """Return the mean row of the neighbors in a relation, shape (destination nodes, width), zero without neighbors."""
    if relation not in block.canonical_etypes:  # a DistGraph omits relations without sampled edges
        return x[:0].sum(0).expand(block.num_dst_nodes(relation[2]), -1)  # zeros that depend on x, so x has gradients
    edges = block[relation]
    with edges.local_scope():
        edges.srcdata["h"] = x
        edges.update_all(fn.copy_u("h", "m"), fn.mean("m", "h"))
        return edges.dstdata["h"]


class RelationalLayer(nn.Module):
    """Compute W_t h + b_t for nodes of type t, plus W_r (mean of h over neighbors in r) for each relation r into t."""

    def __init__(self, relations, types, in_size, out_size):
        super().__init__()
        self.relations = relations
        self.own = nn.ModuleDict({name: nn.Linear(in_size, out_size) for name in types})
        self.of = nn.ModuleDict({":".join(each): nn.Linear(in_size, out_size, bias=False) for each in relations})

    def forward(self, block, h):
        """Return the rows of the destination nodes by type. Destination nodes are the first source nodes of a block."""
        out = {name: own(h[name][: block.num_dst_nodes(name)]) for name, own in self.own.items()}
        for relation in self.relations:
            mean = mean_of_neighbors(block, relation, h[relation[0]])
            out[relation[2]] = out[relation[2]] + self.of[":".join(relation)](mean)
        return out


class RGCN(nn.Module):
    """Score the nodes of one type. ``widths`` has the feature sizes by type. Other types have ``hidden_size``."""

    def __init__(self, relations, target, widths, hidden_size, out_size, num_layers=2, dropout=0.5):
        super().__init__()
        self.target, self.dropout, self.layers = target, nn.Dropout(dropout), nn.ModuleList()
        types, size = {target}, out_size
        for _ in range(num_layers):  # find the types and relations of each layer, last layer first
            into = [relation for relation in relations if relation[2] in types]
            self.layers.insert(0, RelationalLayer(into, sorted(types), hidden_size, size))
            types, size = types | {relation[0] for relation in into}, hidden_size
        self.project = nn.ModuleDict({name: nn.Linear(widths[name], hidden_size) for name in sorted(types & {*widths})})

    def layer(self, number, block, x):
        """Apply a layer. The first layer also projects features. All but the last also apply ReLU and dropout."""
        if number == 0:
            x = {name: self.project[name](rows) if name in self.project else rows for name, rows in x.items()}
        h = self.layers[number](block, x)
        return h if number == len(self.layers) - 1 else {name: self.dropout(F.relu(rows)) for name, rows in h.items()}

    def forward(self, blocks, x):
        """Return scores of the seed nodes, shape (B, out_size), from the rows of the input nodes by type."""
        for number, block in enumerate(blocks):
            x = self.layer(number, block, x)
        return x[self.target]

    @torch.no_grad()
    def inference(self, graph, x):
        """Return exact scores of all target nodes, computed layer by layer and type by type over all neighbors."""
        self.eval()
        # The fused sampler loses nodes of types that are not the destination of any relation (DGL 2.1.0).
        sampler = dgl.dataloading.MultiLayerFullNeighborSampler(1, fused=False)
        for number, layer in enumerate(self.layers):
            made = {name: [] for name in layer.own}
            for name in made:
                for nodes in graph.nodes(name).split(1000):
                    inputs, _, (block,) = sampler.sample_blocks(graph, {name: nodes})
                    rows = {kind: x[kind][ids] for kind, ids in inputs.items()}
                    made[name].append(self.layer(number, block, rows)[name])
            x = {name: torch.cat(pieces) for name, pieces in made.items()}
        return x[self.target]
