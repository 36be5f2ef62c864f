"""Define R-GCN, a model for graphs with several types of nodes and edges (lesson 15)."""

import torch.nn.functional as F
from torch import nn

from sage import mean_of_neighbors


def types_of_layers(relations, target, num_layers):
    """Return the types whose rows a model with ``num_layers`` layers needs, a list of ``num_layers + 1`` sets.

    The last set is the output, ``{target}``. The set before it has the same types, and also the source types of all
    relations into these types. So the first set has the types of the input rows.

    Args:
        relations: list of canonical edge types (source type, name, destination type).
    """
    types = [{target}]
    for _ in range(num_layers):
        sources = {source for source, _, destination in relations if destination in types[0]}
        types.insert(0, types[0] | sources)
    return types


class RelationalLayer(nn.Module):
    """Compute the rows of some types from the rows of their neighbors, with a matrix for each relation into them.

    Attributes:
        relations: the relations into the types.
        own: ``own[ntype]`` is the linear layer for the rows of the nodes themselves.
        of: ``of[":".join(relation)]`` is the linear layer for the neighbors in a relation. It has no bias.
    """

    def __init__(self, relations, types, in_size, out_size):
        super().__init__()
        self.relations = [relation for relation in relations if relation[2] in types]
        self.own = nn.ModuleDict({ntype: nn.Linear(in_size, out_size) for ntype in sorted(types)})
        names = [":".join(relation) for relation in self.relations]
        self.of = nn.ModuleDict({name: nn.Linear(in_size, out_size, bias=False) for name in names})

    def forward(self, block, h):
        """Return the rows of the destination nodes, a dict with a tensor for each type in ``self.own``.

        The result for a node is ``own`` of its row, plus ``of`` of the mean row of its neighbors for each relation into
        its type. ``mean_of_neighbors`` of lesson 01 accepts ``block[relation]`` and the rows of the source type.

        A block of a DistGraph lacks each relation without a sampled edge (``block.canonical_etypes``). The mean is then
        zero for all nodes. DDP waits for a gradient of **every** parameter that has contributed to ``h``. So compute
        these zeros from the rows of the source type, which can have no rows: ``x[:0].sum(0)`` is a row of zeros.

        Args:
            block: graph of one hop. ``block.num_dst_nodes(ntype)`` destination nodes are the first source nodes.
            h: dict from type to the rows of its source nodes. Do not change it.
        """
        out = {ntype: own(h[ntype][: block.num_dst_nodes(ntype)]) for ntype, own in self.own.items()}
        for relation in self.relations:
            source, _, destination = relation
            if relation in block.canonical_etypes:
                mean = mean_of_neighbors(block[relation], h[source])
            else:
                mean = h[source][:0].sum(0).expand(block.num_dst_nodes(destination), -1)
            out[destination] = out[destination] + self.of[":".join(relation)](mean)
        return out


class RGCN(nn.Module):
    """Score the nodes of type ``target``.

    ``widths`` is a dict with the number of features of each type that has some. Rows of other types have the width
    ``hidden``, as the output of all layers except the last one.

    Attributes:
        layers: one ``RelationalLayer`` for each hop.
        project: a linear layer for each type with features.
    """

    def __init__(self, relations, target, widths, hidden, out_size, num_layers=2, dropout=0.5):
        super().__init__()
        self.target, self.dropout = target, nn.Dropout(dropout)
        inputs, *types = types_of_layers(relations, target, num_layers)
        sizes = [hidden] * (num_layers - 1) + [out_size]
        self.layers = nn.ModuleList(RelationalLayer(relations, of, hidden, size) for of, size in zip(types, sizes))
        self.project = nn.ModuleDict({name: nn.Linear(widths[name], hidden) for name in sorted(inputs & {*widths})})

    def layer(self, number, block, x):
        """Return the output of layer ``number`` for the destination nodes, a dict by type.

        ``x`` has the rows of the source nodes by type. Only before layer 0, ``self.project`` converts the features of
        its types. Rows of other types stay as they are. ReLU and then ``self.dropout`` follow each layer except the
        last one.
        """
        if number == 0:
            x = {ntype: self.project[ntype](rows) if ntype in self.project else rows for ntype, rows in x.items()}
        h = self.layers[number](block, x)
        if number == len(self.layers) - 1:
            return h
        return {ntype: self.dropout(F.relu(rows)) for ntype, rows in h.items()}

    def forward(self, blocks, x):
        """Return the scores of the seed nodes, (B, out_size), from the rows of the input nodes by type."""
        for number, block in enumerate(blocks):
            x = self.layer(number, block, x)
        return x[self.target]
