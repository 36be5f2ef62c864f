"""R-GCN, a graph network with separate weights for each relation (Schlichtkrull et al., 2018).

A layer computes, for a node v of type t,

    h'(v) = W_t h(v) + b_t + sum over relations r into t of  W_r (mean of h over v's neighbors in r)

All weights of a layer take part in every step, even if a batch has no edge of a relation. The mean is then zero, and so
is the gradient. DDP would wait for a weight that takes no part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tutorial_lib.models.graphsage import CscBlock, mean_of_neighbors

Relation = tuple[str, str, str]  # source type, name, destination type (DGL's canonical edge type)


class RelationalLayer(nn.Module):
    """One layer of R-GCN.

    Args:
        relations: canonical edge types of the graph.
        outputs: types of nodes that the layer computes, from the relations into them.

    Attributes:
        relations: relations whose messages the layer adds, sorted.
        matrices: float32 parameter of shape (relations, in_size, out_size), in the order of ``relations``.
    """

    def __init__(self, relations: Sequence[Relation], outputs: Sequence[str], in_size: int, out_size: int) -> None:
        super().__init__()
        self.relations = sorted(relation for relation in relations if relation[2] in outputs)
        self.outputs = sorted(outputs)
        matrices = torch.empty(len(self.relations), in_size, out_size)
        for matrix in matrices:
            nn.init.xavier_uniform_(matrix)
        self.matrices = nn.Parameter(matrices)
        self.own = nn.ModuleDict({ntype: nn.Linear(in_size, out_size) for ntype in self.outputs})

    def forward(self, block: Any, h: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the new rows of the destination nodes of a DGL block by type.

        Args:
            h: for each type, float32 tensor of shape (source nodes of the block, in_size). The destination nodes are
                the first source nodes.
        """
        rows = {ntype: self.own[ntype](h[ntype][: block.num_dst_nodes(ntype)]) for ntype in self.outputs}
        present = set(block.canonical_etypes)  # a batch of a DistGraph lacks the relations without edges
        for relation, weight in zip(self.relations, self.matrices, strict=True):
            source, _, destination = relation
            if relation in present:
                mean = mean_of_neighbors(CscBlock.of(block, relation), h[source])
            else:  # zeros that depend on the rows, so that every learnable row and weight gets a gradient
                mean = h[source][:0].sum(0).expand(block.num_dst_nodes(destination), -1)
            rows[destination] = rows[destination] + mean @ weight
        return rows


class RGCN(nn.Module):
    """R-GCN whose last layer returns the logits of the nodes of one type.

    Args:
        relations: canonical edge types of the graph. Relations without a path to ``target`` are ignored.
        target: type of the nodes to classify.
        feature_sizes: width of the features of each type that has features. They are projected to ``in_size``.
        in_size: width of the learnable embeddings of the other types.
        out_size: number of classes.
        num_layers, dropout: as in ``GraphSAGE``.
    """

    def __init__(
        self,
        relations: Sequence[Relation],
        target: str,
        feature_sizes: Mapping[str, int],
        in_size: int,
        hidden_size: int,
        out_size: int,
        num_layers: int = 2,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.types = types_by_depth(relations, target, num_layers)
        self.sizes = [in_size, *[hidden_size] * (num_layers - 1), out_size]
        self.dropout = dropout
        inputs = sorted(set(feature_sizes) & set(self.types[0]))
        self.project = nn.ModuleDict({ntype: nn.Linear(feature_sizes[ntype], in_size) for ntype in inputs})
        self.layers = nn.ModuleList()
        for (width, next_width), types in zip(pairwise(self.sizes), self.types[1:], strict=True):
            self.layers.append(RelationalLayer(relations, types, width, next_width))
        self.target = target

    def forward(self, blocks: Sequence[Any], rows: Mapping[str, Tensor]) -> Tensor:
        """Return the logits of the seed nodes, float32 of shape (seeds, out_size).

        Args:
            blocks: DGL blocks, outermost hop first.
            rows: for each type of ``types[0]``, features or learnable embeddings of the input nodes of ``blocks[0]``.
        """
        h = dict(rows)
        for depth, block in enumerate(blocks):
            h = self.layer(depth, block, h)
            if depth < len(self.layers) - 1:
                h = {ntype: F.dropout(value, self.dropout, self.training) for ntype, value in h.items()}
        return h[self.target]

    def layer(self, depth: int, block: Any, h: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Apply one layer and its activation, without dropout. The first layer projects features to ``in_size``."""
        if depth == 0:
            h = {ntype: self.project[ntype](h[ntype]) if ntype in self.project else h[ntype] for ntype in self.types[0]}
        new = self.layers[depth](block, h)
        return new if depth == len(self.layers) - 1 else {ntype: torch.relu(value) for ntype, value in new.items()}


def types_by_depth(relations: Sequence[Relation], target: str, num_layers: int) -> list[list[str]]:
    """Return the types whose rows the input and each layer need. The last entry is ``[target]``."""
    needed = [{target}]
    for _ in range(num_layers):
        needed.append(needed[-1] | {source for source, _, destination in relations if destination in needed[-1]})
    return [sorted(types) for types in reversed(needed)]
